//! The names of the files in a data directory.

use std::path::{Path, PathBuf};

use crate::error::OpenError;

/// The lock file.
pub(crate) const LOCK: &str = "LOCK";
/// The format record.
pub(crate) const FORMAT: &str = "format";
/// The directory of the journal's segments.
pub(crate) const JOURNAL: &str = "journal";
/// The file of the checkpoint store.
pub(crate) const CHECKPOINT_STORE: &str = "state.redb";
/// The ballast file.
pub(crate) const BALLAST: &str = "ballast";
/// The directory of the objects.
pub(crate) const OBJECTS: &str = "objects";

const SEGMENT_EXTENSION: &str = ".log";

/// The path of the checkpoint store of a data directory.
pub(crate) fn checkpoint_store(data_dir: &Path) -> PathBuf {
    data_dir.join(CHECKPOINT_STORE)
}

/// The file name of journal segment `number`.
pub(crate) fn segment_file(number: u64) -> String {
    format!("{number:08}{SEGMENT_EXTENSION}")
}

/// The number of the journal segment called `name`; none if `name` is not a segment's.
pub(crate) fn segment_number(name: &str) -> Option<u64> {
    let number = name.strip_suffix(SEGMENT_EXTENSION)?.parse().ok()?;
    (segment_file(number) == name).then_some(number)
}

/// The error that segment `number` is missing from the `journal` directory.
pub(crate) fn missing_segment(journal: &Path, number: u64) -> OpenError {
    OpenError::Missing {
        file: journal.join(segment_file(number)),
    }
}
