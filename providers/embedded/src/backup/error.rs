//! Why a backup was not made, or not restored.

use std::io;

use crate::{OpenError, storage::is_about_room};

/// The reason.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The file has no first line of a backup.
    #[error(
        "this is not a backup, or its first line is damaged: give a file that landfast backup wrote"
    )]
    NotABackup,
    /// Another release wrote the file.
    #[error(
        "Landfast {by} wrote this backup in format {found}, and this release reads format {supported}: use Landfast {by}"
    )]
    OtherFormat {
        /// The format found: of the file and of the records in it.
        found: String,
        /// The formats that this release reads.
        supported: String,
        /// The release that wrote it.
        by: String,
    },
    /// The bytes are not those that were written.
    #[error(
        "the backup is damaged in frame {frame}, which starts at byte {offset} ({why}): use another copy"
    )]
    Damaged {
        /// The number of the frame, from 1.
        frame: u64,
        /// Where it starts in the file, in bytes.
        offset: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// The file ends too early.
    #[error(
        "the backup ends in frame {frame}, which starts at byte {offset}: it is cut off, use another copy"
    )]
    CutOff {
        /// The number of the frame, from 1.
        frame: u64,
        /// Where it starts in the file, in bytes.
        offset: u64,
    },
    /// The server could not go on, and said why.
    #[error("the server gave up: {0}")]
    GaveUp(String),
    /// The state of the store or of the target does not allow it; the text says what to do.
    #[error("{0}")]
    Refused(String),
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// A file operation failed.
    #[error("{attempted}: {source}")]
    Io {
        /// The operation and its file.
        attempted: String,
        /// The error of the system.
        source: io::Error,
    },
}

impl BackupError {
    /// An I/O error of the operation `attempted`.
    pub(super) fn io(attempted: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let attempted = attempted.into();
        move |source| {
            let attempted = if is_about_room(&source) {
                format!("{attempted} (free disk space, then repeat)")
            } else {
                attempted
            };
            Self::Io { attempted, source }
        }
    }
}

impl From<io::Error> for BackupError {
    fn from(source: io::Error) -> Self {
        let attempted = "read the objects".to_owned();
        Self::Io { attempted, source }
    }
}

impl From<Box<redb::Error>> for BackupError {
    fn from(error: Box<redb::Error>) -> Self {
        Self::Refused(format!("the store cannot be read: {error}"))
    }
}
