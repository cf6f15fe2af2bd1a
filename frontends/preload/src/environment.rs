//! The library's file, and the variables that lead it to a server.
//!
//! The dynamic linker reads `LD_PRELOAD` when a program starts. The library then reads the other
//! two variables, and connects to the server. It keeps all three in the environment of programs
//! that it starts.

use std::{
    env,
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStrExt as _,
    path::{self, Path, PathBuf},
    slice,
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

/// Finds the library: at `named`, else beside this program, else in `../lib` or `../lib/landfast`
/// from there. Errors: `NotFound`, with the places that were searched; `InvalidInput` for a path that
/// the dynamic linker would split.
pub fn find_library(named: Option<&Path>) -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let beside = FOLDERS.map(|name| folder.join(name).join(LIBRARY_FILE));
    let named = named.map(path::absolute).transpose()?;
    let places = named.as_ref().map_or(&beside[..], slice::from_ref);
    let Some(found) = places.iter().find(|path| path.is_file()) else {
        let message = match &named {
            Some(path) => format!("the preload library {} is no file", path.display()),
            None => format!(
                "found no {LIBRARY_FILE} beside {} or in ../lib; put it there, or name it by \
                 --preload-library or {LIBRARY}",
                program.display(),
            ),
        };
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    };
    let bytes = found.as_os_str().as_bytes();
    if bytes.iter().any(|byte| b": ".contains(byte)) {
        let path = found.display();
        let message = format!("the path of the preload library has a space or a colon: {path}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(found.clone())
}

/// Errors: the dynamic linker has loaded no library into this program, although the environment
/// names one. It tells only the standard error why, and starts the program all the same.
pub fn check_loaded() -> io::Result<()> {
    let names = env::var_os(LD_PRELOAD).unwrap_or_default();
    let mut names = names.as_bytes().split(|byte| *byte == b':');
    let library = String::from_utf8_lossy(names.next().unwrap_or_default());
    let maps = fs::read_to_string("/proc/self/maps")?;
    if maps.lines().any(|line| line.ends_with(&*library)) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "the dynamic linker did not load {library}: it must be that of this program's release"
    )))
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
