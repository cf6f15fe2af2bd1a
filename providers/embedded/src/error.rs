//! Why a data directory could not be opened.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::storage;

/// Why [`Embedded::open`](crate::Embedded::open) refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the directory open.
    #[error(
        "the data directory is in use by process {pid}: stop that, or choose another directory"
    )]
    Locked {
        /// Its process id, or zero if it has not written it yet.
        pid: u32,
    },
    /// Stored bytes are damaged where they had been durable. Nothing was changed.
    #[error("{} is damaged at byte {offset}: restore it from a copy", file.display())]
    Damaged {
        /// The damaged file.
        file: PathBuf,
        /// Where the damage starts.
        offset: u64,
    },
    /// A journal segment, the checkpoint store or the `format` record, which had been durable, is not there. Nothing was changed.
    #[error(
        "{} is missing, and what it held had been durable: put it back or restore the data directory from a copy; to go on without what it held, start with another directory",
        file.display()
    )]
    Missing {
        /// The file expected.
        file: PathBuf,
    },
    /// A later release wrote the directory.
    #[error(
        "the data directory has format {found} and this release reads up to {supported}; Landfast {readable_by} or later can read it"
    )]
    NewerFormat {
        /// The format found.
        found: u32,
        /// The newest one this release reads.
        supported: u32,
        /// The first release that reads it, as it recorded itself.
        readable_by: String,
    },
    /// Something else is where a directory would be.
    #[error("{} is there and is not a directory: choose another place, or move it away", path.display())]
    NotADirectory {
        /// The directory that was asked for, or one above it.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("{attempted}: {source}")]
    Io {
        /// What was attempted, on which file.
        attempted: String,
        /// What the system said.
        source: io::Error,
    },
    /// The checkpoint store could not be opened.
    #[error(
        "read the checkpoint store {}: {source}; if it is damaged, restore the whole data directory from a copy, since the journal no longer has what the checkpoint store holds",
        file.display()
    )]
    Checkpoint {
        /// Its file.
        file: PathBuf,
        /// What went wrong.
        source: Box<redb::Error>,
    },
}

impl OpenError {
    /// Says what was attempted when `source` happened.
    pub(crate) fn io(attempted: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let attempted = attempted.into();
        move |source| Self::Io { attempted, source }
    }

    /// Says why `directory` could not be made when `source` happened.
    pub(crate) fn making(directory: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| match storage::in_the_way(directory) {
            Some(path) => Self::NotADirectory { path },
            None => Self::Io {
                attempted: format!(
                    "make {} (choose another place, or give this user the right to write there)",
                    directory.display()
                ),
                source,
            },
        }
    }

    /// Says that the checkpoint store in `file` could not be read.
    pub(crate) fn checkpoint(file: &Path) -> impl FnOnce(Box<redb::Error>) -> Self {
        let file = file.to_owned();
        move |source| Self::Checkpoint { file, source }
    }
}
