//! The `format` record, which tells releases and starts apart.
//!
//! The record is text, so that an operator can read it. It is always written as a whole, twice:
//!
//! 1. Before anything else, with the store's salt, from which all checksums of the journal start.
//! 2. When the first record of the journal is durable. Nothing was served before, so until then a
//!    directory without a journal is new. From then on, a directory without a journal has lost it.
//!
//! A restore writes it with a timeline: it tells this store apart from the one that went on after
//! the backup.
//!
//! A directory that has a journal or a checkpoint store but no record has lost the record. The last
//! line is a checksum of the others: the salt seeds every checksum, so a damaged record would make
//! everything else look damaged.

use std::{fmt::Write as _, path::Path};

use super::layout;
use crate::{error::OpenError, storage::Storage};

/// The format this release writes and reads.
pub(crate) const FORMAT: u32 = 3;

/// The first format whose record has a checksum.
const CHECKED_FORMAT: u32 = 2;

const TEXT_BYTES_MAX: usize = 4096;

/// The line that says that the journal's first record is durable.
const JOURNAL_BEGUN: &str = "journal begun";

/// The start of the line that holds the timeline of a restored store.
const TIMELINE: &str = "timeline ";

/// The start of the last line, which holds the checksum of the lines before it.
const CHECK: &str = "check ";

/// The content of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    /// The seed of all checksums.
    pub(crate) salt: u32,
    /// Whether the journal's first record is known to have been durable.
    pub(crate) journal_begun: bool,
    /// Drawn by the restore that made the store, if one did.
    pub(crate) timeline: Option<u64>,
}

impl Format {
    /// A new store's record. Errors: the system has no randomness.
    fn draw() -> Result<Self, OpenError> {
        Ok(Self {
            salt: getrandom::u32().map_err(undrawn)?,
            journal_begun: false,
            timeline: None,
        })
    }

    /// Records durably that the journal's first record is durable. The caller has synced that
    /// record, and serves nothing before this function returns.
    pub(crate) fn begin_journal(
        self,
        storage: &dyn Storage,
        directory: &Path,
    ) -> Result<Self, OpenError> {
        let begun = Self {
            journal_begun: true,
            ..self
        };
        if !self.journal_begun {
            begun.write(storage, directory)?;
        }
        Ok(begun)
    }

    fn write(self, storage: &dyn Storage, directory: &Path) -> Result<(), OpenError> {
        let path = directory.join(layout::FORMAT);
        replace(storage, &path, &self.text())
            .map_err(OpenError::io(format!("write {}", path.display())))
    }

    fn text(self) -> String {
        let mut text = format!(
            "landfast embedded\nformat {FORMAT}\nreadable by 0.1.0\nsalt {:08x}\n",
            self.salt
        );
        if let Some(timeline) = self.timeline {
            let _ = writeln!(text, "{TIMELINE}{timeline:016x}");
        }
        if self.journal_begun {
            text.push_str(JOURNAL_BEGUN);
            text.push('\n');
        }
        let _ = writeln!(text, "{CHECK}{:08x}", crc32fast::hash(text.as_bytes()));
        text
    }
}

/// Reads the record of `directory`, or writes one if the directory is empty except for the
/// journal's own directory.
pub(crate) fn open(storage: &dyn Storage, directory: &Path) -> Result<Format, OpenError> {
    if let Some(format) = find(storage, directory)? {
        return Ok(format);
    }
    let format = Format::draw()?;
    format.write(storage, directory)?;
    Ok(format)
}

/// Writes the record of a store that is being restored to `directory`, in a timeline of its own.
pub(crate) fn begin_timeline(storage: &dyn Storage, directory: &Path) -> Result<Format, OpenError> {
    let format = Format {
        timeline: Some(getrandom::u64().map_err(undrawn)?),
        ..Format::draw()?
    };
    format.write(storage, directory)?;
    Ok(format)
}

fn undrawn(error: getrandom::Error) -> OpenError {
    OpenError::io("draw a random number")(std::io::Error::other(error.to_string()))
}

/// Reads the record of `directory`; none if the directory is new. Writes nothing.
pub(crate) fn find(storage: &dyn Storage, directory: &Path) -> Result<Option<Format>, OpenError> {
    let path = directory.join(layout::FORMAT);
    let found = names(storage, directory)?;
    if found.iter().any(|name| name == layout::FORMAT) {
        let text =
            read(storage, &path).map_err(OpenError::io(format!("read {}", path.display())))?;
        return parse(&text, &path).map(Some);
    }
    let journal = if found.iter().any(|name| name == layout::JOURNAL) {
        names(storage, &directory.join(layout::JOURNAL))?
    } else {
        Vec::new()
    };
    let has_segments = journal
        .iter()
        .any(|name| layout::segment_number(name).is_some());
    if has_segments || found.iter().any(|name| name == layout::CHECKPOINT_STORE) {
        return Err(OpenError::Missing { file: path });
    }
    Ok(None)
}

fn names(storage: &dyn Storage, directory: &Path) -> Result<Vec<String>, OpenError> {
    storage
        .list(directory)
        .map_err(OpenError::io(format!("list {}", directory.display())))
}

fn read(storage: &dyn Storage, path: &Path) -> std::io::Result<String> {
    let file = storage.open(path)?;
    let mut bytes = vec![0; (file.len()? as usize).min(TEXT_BYTES_MAX)];
    file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes the record under another name first, because a torn one would not open.
fn replace(storage: &dyn Storage, path: &Path, text: &str) -> std::io::Result<()> {
    let directory = path
        .parent()
        .expect("the record lies in the data directory");
    let temporary = directory.join("format.new");
    let file = storage.open(&temporary)?;
    file.set_len(0)?;
    file.write_at(text.as_bytes(), 0)?;
    file.sync_data()?;
    storage.rename(&temporary, path)?;
    storage.sync_directory(directory)
}

fn parse(text: &str, path: &Path) -> Result<Format, OpenError> {
    let damaged = || OpenError::Damaged {
        file: path.to_owned(),
        offset: 0,
    };
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let found: u32 = field("format ")
        .and_then(|number| number.parse().ok())
        .ok_or_else(damaged)?;
    // A damaged number must not look like another release's.
    let is_whole = match text.rsplit_once(CHECK) {
        Some((said, check)) => check == format!("{:08x}\n", crc32fast::hash(said.as_bytes())),
        None => found < CHECKED_FORMAT,
    };
    if !is_whole {
        return Err(damaged());
    }
    if found != FORMAT {
        return Err(OpenError::OtherFormat {
            found,
            supported: FORMAT,
            readable_by: field("readable by ")
                .unwrap_or("a later release")
                .to_owned(),
        });
    }
    let salt = field("salt ")
        .and_then(|salt| u32::from_str_radix(salt, 16).ok())
        .ok_or_else(damaged)?;
    let timeline = field(TIMELINE).map(|timeline| u64::from_str_radix(timeline, 16));
    Ok(Format {
        salt,
        timeline: timeline.transpose().map_err(|_| damaged())?,
        journal_begun: text.lines().any(|line| line == JOURNAL_BEGUN),
    })
}
