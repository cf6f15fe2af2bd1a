//! Paths of sockets that are longer than the system's bound.
//!
//! A path in an address of a socket has at most 107 bytes. Behind `/proc/self/fd` an open directory
//! has a short name, so longer paths work too.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd as _, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

/// The longest path in an address, in bytes.
const PATH_BYTES_MAX: usize = 107;

/// A path of a socket, short enough for an address.
#[derive(Debug)]
pub(crate) struct SocketPath {
    path: PathBuf,
    /// Open as long as the path is used.
    _directory: Option<File>,
}

impl SocketPath {
    /// A short path for `path`. Errors: its directory cannot be opened; or `InvalidInput`: the last
    /// part alone is too long.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().as_bytes().len() <= PATH_BYTES_MAX {
            return Ok(Self {
                path: path.to_owned(),
                _directory: None,
            });
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(too_long());
        };
        let directory = File::open(parent)?;
        let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
        let short = short.join(name);
        if short.as_os_str().as_bytes().len() > PATH_BYTES_MAX {
            return Err(too_long());
        }
        Ok(Self {
            path: short,
            _directory: Some(directory),
        })
    }

    /// The short path.
    pub(crate) fn get(&self) -> &Path {
        &self.path
    }
}

fn too_long() -> io::Error {
    let message = "the last part of a socket's path has at most 80 bytes";
    io::Error::new(io::ErrorKind::InvalidInput, message)
}
