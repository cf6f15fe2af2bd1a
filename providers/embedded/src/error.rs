//! Reasons to refuse a data directory.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::storage;

/// The reason why [`Embedded::open`](crate::Embedded::open) refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the directory open.
    #[error(
        "the data directory is in use by process {pid}: stop that process, or choose another directory"
    )]
    Locked {
        /// Its process id; zero if it has not written one yet.
        pid: u32,
    },
    /// Durable bytes are damaged. Nothing was changed.
    #[error("{} is damaged at byte {offset}: restore it from a copy", file.display())]
    Damaged {
        /// The damaged file.
        file: PathBuf,
        /// Where the damage starts, in bytes.
        offset: u64,
    },
    /// A durable journal segment, checkpoint store or `format` record is missing. Nothing was
    /// changed.
    #[error(
        "{} is missing, but it held durable data: put it back, or restore the data directory from a copy; to continue without that data, start with another directory",
        file.display()
    )]
    Missing {
        /// The expected file.
        file: PathBuf,
    },
    /// Another release wrote the directory.
    #[error(
        "the data directory has format {found} and this release reads format {supported}; Landfast {readable_by} can read it"
    )]
    OtherFormat {
        /// The format found.
        found: u32,
        /// The one this release reads.
        supported: u32,
        /// The first release that can read it, according to the record.
        readable_by: String,
    },
    /// A file occupies the path of a directory.
    #[error("{} is there and is not a directory: choose another place, or move it away", path.display())]
    NotADirectory {
        /// The occupied path: the requested directory or one above it.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("{attempted}: {source}")]
    Io {
        /// The operation and its file.
        attempted: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The checkpoint store could not be opened.
    #[error(
        "read the checkpoint store {}: {source}; if it is damaged, restore the whole data directory from a copy, because the journal no longer holds the checkpointed data",
        file.display()
    )]
    Checkpoint {
        /// The file of the store.
        file: PathBuf,
        /// The error of redb.
        source: Box<redb::Error>,
    },
}

impl OpenError {
    /// An I/O error of the operation `attempted`.
    pub(crate) fn io(attempted: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let attempted = attempted.into();
        move |source| Self::Io { attempted, source }
    }

    /// The error that `directory` could not be created.
    pub(crate) fn making(directory: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| match storage::in_the_way(directory) {
            Some(path) => Self::NotADirectory { path },
            None => Self::Io {
                attempted: format!(
                    "create {} (choose another place, or give this user the right to write there)",
                    directory.display()
                ),
                source,
            },
        }
    }

    /// The error that the checkpoint store in `file` could not be read.
    pub(crate) fn checkpoint(file: &Path) -> impl FnOnce(Box<redb::Error>) -> Self {
        let file = file.to_owned();
        move |source| Self::Checkpoint { file, source }
    }
}
