//! Recovery: from the content of the disk to the state as of the last whole record.
//!
//! 1. The checkpoint store gives the state at some record, and the journal's segments give the
//!    rest.
//! 2. Each segment but the last is read up to the end that its successor's header names. Every
//!    record there was durable, so a broken one is damage, and opening refuses with file and byte.
//! 3. In the last segment the first broken record is a torn tail if no header of a later record
//!    follows it. It is cut and reported. If one follows, the broken record had been durable, and that
//!    is damage.
//! 4. The journal must reach the last record known to be durable. That is the checkpoint's record,
//!    or the very first record if the `format` record says that the journal has begun. A journal
//!    that ends earlier has lost data, and opening refuses. A segment gets its header before its
//!    name, so a named segment without a header is damaged.
//! 5. A new incarnation begins, one above the highest found. Its first record holds the ends of all
//!    earlier ones, and is durable before anything is served (rule P3).
//!
//! The last record may never have been durable: an earlier start may have failed to sync it, and
//! died while the page cache still had it. Recovery writes it again before its state is served.
//!
//! The name of the last segment may not be durable either, if that start died before it synced the
//! name. Recovery therefore syncs the journal's directory before it reads the listed segments. The
//! opening start syncs the data directory. A return to the durable state need not, because only a
//! start creates names there.
//!
//! A tail of zeros is not torn: segments are allocated ahead and read as zeros. In a reused segment
//! the zeros end with the page, and records of the file's earlier use follow. A torn record that
//! left no byte in that page, nor behind those records, is cut without a report. A tail that the file
//! lacks is reported. The length of a segment is durable before its name, so someone removed those
//! bytes, perhaps with records in them.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    frame::{self, Header},
    segment::{CurrentSegment, FIRST_SEGMENT, SEGMENT_HEADER_BYTES, SegmentHeader},
    tail::{self, Window},
    usage::ClosedSegment,
};
use crate::{
    checkpoint_store::{self, CheckpointEnd},
    directory::{format::Format, layout},
    error::OpenError,
    records::{
        Record, Table,
        overlay::{Generation, replay},
    },
    status::{Cut, RecoveryReport},
    storage::{Storage, StorageFile},
};

/// The number of a journal's first record.
const FIRST_SEQUENCE: u64 = 1;

/// The end of the journal as a running store knows it. Later bytes are ignored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrustedEnd {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
}

/// The result of a recovery.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) generation: Generation,
    /// The last mutation recovered.
    pub(crate) position: u64,
    /// The last record recovered.
    pub(crate) sequence: u64,
    /// The highest incarnation found; zero in a new store.
    pub(crate) incarnation: u64,
    /// The ends of earlier incarnations, without the last one.
    pub(crate) ends: Arc<Vec<(u64, u64)>>,
    pub(crate) closed: Vec<ClosedSegment>,
    /// The last segment; none in a new store.
    pub(crate) current: Option<CurrentSegment>,
    /// Whether records may be appended to the last segment: only zeros follow its last record.
    pub(crate) appendable: bool,
    /// Bytes of records that the checkpoint does not cover.
    pub(crate) unfolded_bytes: u64,
    pub(crate) report: RecoveryReport,
}

/// Reads the journal in `directory` over the checkpoint that ends at `checkpoint_end`.
pub(crate) fn recover(
    storage: &dyn Storage,
    directory: &Path,
    format: Format,
    checkpoint_end: Option<CheckpointEnd>,
    trusted: Option<TrustedEnd>,
) -> Result<Recovered, OpenError> {
    let listed = list(storage, directory, trusted)?;
    // The process that named the last segment may have died before the name was durable.
    let attempted = || format!("sync {}", directory.display());
    storage
        .sync_directory(directory)
        .map_err(OpenError::io(attempted()))?;
    let (recovered, last) = read(storage, directory, format, checkpoint_end, trusted, &listed)?;
    if let Some(cut) = &recovered.report.cut {
        tracing::warn!(file = %cut.file.display(), offset = cut.offset, bytes = cut.bytes, missing = cut.missing, "cut a journal tail");
    }
    if let (Some(current), Some(last)) = (&recovered.current, last)
        && trusted.is_none()
    {
        let file = directory.join(layout::segment_file(current.number));
        let attempted = OpenError::io(format!("write {}", file.display()));
        write_again(&*current.file, last, current.end).map_err(attempted)?;
    }
    Ok(recovered)
}

/// Reports what recovery would find over the checkpoint that ends at `checkpoint_end`. Changes
/// nothing.
///
/// Errors: those with which a start would refuse the journal.
pub(crate) fn inspect(
    storage: &dyn Storage,
    directory: &Path,
    format: Format,
    checkpoint_end: Option<CheckpointEnd>,
) -> Result<RecoveryReport, OpenError> {
    let listed = list(storage, directory, None)?;
    read(storage, directory, format, checkpoint_end, None, &listed)
        .map(|(recovered, _)| recovered.report)
}

/// Reads the `listed` segments. Also returns where the last record of the last one starts.
fn read(
    storage: &dyn Storage,
    directory: &Path,
    format: Format,
    checkpoint_end: Option<CheckpointEnd>,
    trusted: Option<TrustedEnd>,
    listed: &[u64],
) -> Result<(Recovered, Option<u64>), OpenError> {
    let mut last = None;
    let mut reading = Reading {
        salt: format.salt,
        checkpoint_end: checkpoint_end.unwrap_or_default(),
        over_store: checkpoint_end.is_some(),
        recovered: Recovered {
            generation: Generation::default(),
            position: checkpoint_end.map_or(0, |checkpoint_end| checkpoint_end.position),
            sequence: 0,
            incarnation: checkpoint_end.map_or(0, |checkpoint_end| checkpoint_end.incarnation),
            ends: Arc::default(),
            closed: Vec::new(),
            current: None,
            appendable: false,
            unfolded_bytes: 0,
            report: RecoveryReport::default(),
        },
    };
    let segments = open_segments(storage, directory, listed, format.salt)?;
    reading.check_row(&segments, directory)?;
    let count = segments.len();
    for index in 0..count {
        let next = segments.get(index + 1).map(|next| next.header.previous_end);
        match next {
            Some(end) => reading.closed_segment(&segments[index], end)?,
            None => last = reading.last_segment(&segments[index], trusted)?,
        }
    }
    let first = if format.journal_begun {
        FIRST_SEQUENCE
    } else {
        0
    };
    reading.check_end(reading.checkpoint_end.sequence.max(first), directory)?;
    Ok((reading.recovered, last))
}

/// An open segment with its header.
struct OpenedSegment {
    path: PathBuf,
    file: Arc<dyn StorageFile>,
    header: SegmentHeader,
}

impl OpenedSegment {
    fn unreadable(&self) -> impl FnOnce(io::Error) -> OpenError {
        OpenError::io(format!("read {}", self.path.display()))
    }

    fn damaged(&self, offset: u64) -> OpenError {
        OpenError::Damaged {
            file: self.path.clone(),
            offset,
        }
    }
}

/// Errors: the checkpoint store is missing, although only it holds the records of removed segments.
/// A start must not create another one.
pub(crate) fn check_for_checkpoint(
    storage: &dyn Storage,
    data_dir: &Path,
    journal: &Path,
) -> Result<(), OpenError> {
    let attempted = || {
        OpenError::io(format!(
            "look for {}",
            layout::checkpoint_store(data_dir).display()
        ))
    };
    // If the first segments were removed, a checkpoint holds their records.
    let segments = segments_in(storage, journal).map_err(attempted())?;
    let is_needed = segments.first().is_some_and(|first| *first > FIRST_SEGMENT);
    if is_needed && !checkpoint_store::is_there(storage, data_dir).map_err(attempted())? {
        return Err(OpenError::Missing {
            file: layout::checkpoint_store(data_dir),
        });
    }
    Ok(())
}

/// The numbers of the existing segments, in order. Empty if the directory is missing.
fn segments_in(storage: &dyn Storage, directory: &Path) -> io::Result<Vec<u64>> {
    let names = match storage.list(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        names => names?,
    };
    let mut numbers: Vec<u64> = names
        .iter()
        .filter_map(|name| layout::segment_number(name))
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn list(
    storage: &dyn Storage,
    directory: &Path,
    trusted: Option<TrustedEnd>,
) -> Result<Vec<u64>, OpenError> {
    let attempted = || format!("list {}", directory.display());
    let mut numbers = segments_in(storage, directory).map_err(OpenError::io(attempted()))?;
    if let Some(trusted) = trusted {
        // The failed write created these segments, and nothing durable is in them.
        while numbers.last().is_some_and(|last| *last > trusted.segment) {
            let number = numbers.pop().expect("it has a last one");
            let path = directory.join(layout::segment_file(number));
            storage
                .remove(&path)
                .map_err(OpenError::io(format!("remove {}", path.display())))?;
            storage
                .sync_directory(directory)
                .map_err(OpenError::io(attempted()))?;
        }
    }
    Ok(numbers)
}

fn open_segments(
    storage: &dyn Storage,
    directory: &Path,
    numbers: &[u64],
    salt: u32,
) -> Result<Vec<OpenedSegment>, OpenError> {
    let mut segments = Vec::with_capacity(numbers.len());
    for number in numbers {
        let path = directory.join(layout::segment_file(*number));
        let attempted = || OpenError::io(format!("read {}", path.display()));
        let file = storage.open(&path).map_err(attempted())?;
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        if file.len().map_err(attempted())? >= SEGMENT_HEADER_BYTES {
            file.read_at(&mut bytes, 0).map_err(attempted())?;
        }
        let header = SegmentHeader::decode(&bytes, salt).filter(|header| header.number == *number);
        let Some(header) = header else {
            return Err(OpenError::Damaged {
                file: path,
                offset: 0,
            });
        };
        segments.push(OpenedSegment { path, file, header });
    }
    Ok(segments)
}

struct Reading {
    salt: u32,
    checkpoint_end: CheckpointEnd,
    over_store: bool,
    recovered: Recovered,
}

impl Reading {
    /// Checks that no segment is missing between the checkpoint and the end.
    fn check_row(&mut self, segments: &[OpenedSegment], directory: &Path) -> Result<(), OpenError> {
        let Some(first) = segments.first() else {
            // A restored store has no journal before its first start.
            if self.over_store && self.checkpoint_end.sequence > 0 {
                return Err(OpenError::Damaged {
                    file: directory.to_owned(),
                    offset: 0,
                });
            }
            return Ok(());
        };
        if first.header.first_sequence > self.checkpoint_end.sequence + 1 {
            return Err(layout::missing_segment(directory, first.header.number - 1));
        }
        for pair in segments.windows(2) {
            if pair[1].header.number != pair[0].header.number + 1 {
                return Err(layout::missing_segment(
                    directory,
                    pair[0].header.number + 1,
                ));
            }
        }
        self.recovered.sequence = first.header.first_sequence - 1;
        Ok(())
    }

    /// Checks that the journal reaches record `durable`, which is known to have been durable.
    fn check_end(&self, durable: u64, directory: &Path) -> Result<(), OpenError> {
        if self.recovered.sequence >= durable {
            return Ok(());
        }
        let Some(last) = &self.recovered.current else {
            return Err(layout::missing_segment(directory, FIRST_SEGMENT));
        };
        Err(OpenError::Damaged {
            file: directory.join(layout::segment_file(last.number)),
            offset: last.end,
        })
    }

    /// Reads a segment with a successor: every byte up to `end` belongs to records.
    fn closed_segment(&mut self, opened: &OpenedSegment, end: u64) -> Result<(), OpenError> {
        let length = opened.file.len().map_err(opened.unreadable())?;
        if length < end {
            return Err(opened.damaged(length));
        }
        let reached = self.records(opened, end)?.0;
        if reached != end {
            return Err(opened.damaged(reached));
        }
        self.recovered.closed.push(ClosedSegment {
            number: opened.header.number,
            last_sequence: self.recovered.sequence,
            bytes: end - SEGMENT_HEADER_BYTES,
            reusable: None,
        });
        Ok(())
    }

    /// Reads the segment that was written last. Returns where its last record starts.
    fn last_segment(
        &mut self,
        opened: &OpenedSegment,
        trusted: Option<TrustedEnd>,
    ) -> Result<Option<u64>, OpenError> {
        let size = opened.file.len().map_err(opened.unreadable())?;
        let until = trusted.map_or(size, |trusted| trusted.offset);
        let (end, last) = self.records(opened, until)?;
        if trusted.is_some() && end < until {
            return Err(opened.damaged(end));
        }
        // A header that follows the broken record was written after that record was durable.
        let broken = self.recovered.sequence + 1;
        let later = broken + 1..broken + 1 + (until - end) / frame::HEADER_BYTES as u64;
        let tail = tail::read(&*opened.file, end..until, &opened.header, |bytes| {
            frame::is_header_within(bytes, &later, self.recovered.position, self.salt)
        })
        .map_err(opened.unreadable())?;
        if tail.has_match {
            return Err(opened.damaged(end));
        }
        // After a trusted end nothing can be missing.
        let missing = if trusted.is_some() {
            0
        } else {
            opened.header.bytes.saturating_sub(size)
        };
        if tail.end > end || missing > 0 {
            self.recovered.report.cut = Some(Cut {
                file: opened.path.clone(),
                offset: end,
                bytes: tail.end - end,
                missing,
            });
        }
        self.recovered.appendable = tail.end == end && missing == 0 && trusted.is_none();
        self.recovered.current = Some(CurrentSegment {
            number: opened.header.number,
            file: Arc::clone(&opened.file),
            end,
            bytes: size,
            zeroed: end,
            reused: opened.header.reused,
            direct: None,
        });
        Ok(last)
    }

    /// Applies the whole records of a segment. Returns where they end and where the last one
    /// starts.
    fn records(
        &mut self,
        opened: &OpenedSegment,
        until: u64,
    ) -> Result<(u64, Option<u64>), OpenError> {
        if opened.header.first_sequence != self.recovered.sequence + 1 {
            return Err(opened.damaged(0));
        }
        let (mut at, mut last) = (SEGMENT_HEADER_BYTES, None);
        let mut window = Window::new(&*opened.file, until);
        loop {
            let header = window
                .at(at, frame::HEADER_BYTES as u64)
                .map_err(opened.unreadable())?;
            let Some(length) = frame::length(header, self.salt) else {
                break;
            };
            let length = length.min(until - at);
            let bytes = window.at(at, length).map_err(opened.unreadable())?;
            let Some(frame) = frame::read(bytes, self.salt) else {
                break;
            };
            let sequence = frame.header.sequence;
            if sequence <= self.recovered.sequence && at < opened.header.reused {
                // A record of the file's earlier use.
                break;
            }
            if sequence != self.recovered.sequence + 1 {
                return Err(opened.damaged(at));
            }
            self.apply(frame.header, frame.payload)
                .ok_or_else(|| opened.damaged(at))?;
            last = Some(at);
            at += length;
        }
        Ok((at, last))
    }

    fn apply(&mut self, header: Header, payload: &[u8]) -> Option<()> {
        let recovered = &mut self.recovered;
        recovered.sequence = header.sequence;
        recovered.incarnation = recovered.incarnation.max(header.incarnation);
        recovered.report.records += 1;
        if header.sequence <= self.checkpoint_end.sequence {
            return Some(());
        }
        recovered.unfolded_bytes += (frame::HEADER_BYTES + payload.len()) as u64;
        recovered.position = recovered.position.max(header.end_position);
        let over_store = self.over_store;
        frame::decode(payload, |key, record| {
            if key.table == Table::Incarnations
                && let Some(Record::Incarnations(ends)) = &record
            {
                recovered.ends = Arc::clone(ends);
            }
            replay(&mut recovered.generation, key, record, over_store);
        })
    }
}

/// Writes the last record again and syncs it, because an earlier start may have failed to.
fn write_again(file: &dyn StorageFile, last: u64, end: u64) -> io::Result<()> {
    let mut record = vec![0; (end - last) as usize];
    file.read_at(&mut record, last)?;
    file.write_at(&record, last)?;
    file.sync_data()
}
