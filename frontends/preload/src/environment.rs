//! The library's file, and the variables that lead it to a server.
//!
//! The dynamic linker reads `LD_PRELOAD` when a program starts. The library then reads the other
//! two variables, and connects to the server. It keeps all three in the environment of programs
//! that it starts.

use std::{
    env,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

/// The path of the server's socket.
pub const SOCKET: &str = "LANDFAST_PRELOAD_SOCKET";
/// The absolute path at which programs see the volume.
pub const AT: &str = "LANDFAST_PRELOAD_AT";
/// The path of the library, if it is not beside this program.
pub const LIBRARY: &str = "LANDFAST_PRELOAD_LIBRARY";
/// The name of the library's file.
pub const LIBRARY_FILE: &str = "liblandfast_preload.so";
/// The dynamic linker's variable.
const LD_PRELOAD: &str = "LD_PRELOAD";
/// Where the library may be, from the folder of this program.
const FOLDERS: [&str; 3] = ["", "../lib", "../lib/landfast"];

/// Finds the library: by [`LIBRARY`], else beside this program, else in `../lib` or
/// `../lib/landfast` from there. Errors: `NotFound`, with the places that were searched.
pub fn find_library() -> io::Result<PathBuf> {
    if let Some(path) = env::var_os(LIBRARY) {
        return existing(PathBuf::from(path), LIBRARY);
    }
    let program = env::current_exe()?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = FOLDERS.map(|name| folder.join(name).join(LIBRARY_FILE));
    let found = places.iter().find(|path| path.is_file());
    found.cloned().ok_or_else(|| {
        let message = format!(
            "found no {LIBRARY_FILE} beside {} or in ../lib; put it there, or set {LIBRARY}",
            program.display(),
        );
        io::Error::new(io::ErrorKind::NotFound, message)
    })
}

fn existing(path: PathBuf, variable: &str) -> io::Result<PathBuf> {
    if path.is_file() {
        return Ok(path);
    }
    let message = format!("{variable} names {}, which is no file", path.display());
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}

/// The variables for a program that sees the volume at `at`. Other libraries stay preloaded.
pub(crate) fn variables(library: &Path, socket: &Path, at: &Path) -> Vec<(OsString, OsString)> {
    let mut preload = library.as_os_str().to_owned();
    if let Some(others) = env::var_os(LD_PRELOAD).filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    vec![
        (LD_PRELOAD.into(), preload),
        (SOCKET.into(), socket.into()),
        (AT.into(), at.into()),
    ]
}
