//! Reads a backup: verifies it, and hands its content on.

use std::io::Read;

use bytes::Bytes;

use super::{
    Contents,
    error::BackupError,
    frames::{End, FrameReader, Head, Kind, ObjectHead},
};
use crate::records::{Record, RecordKey};

type Result<T> = std::result::Result<T, BackupError>;

/// What takes the content of a backup. By default it drops everything.
pub(super) trait Sink {
    fn head(&mut self, _: &Head) -> Result<()> {
        Ok(())
    }
    fn record(&mut self, _: RecordKey, _: Record) -> Result<()> {
        Ok(())
    }
    fn object(&mut self, _: &ObjectHead) -> Result<()> {
        Ok(())
    }
    fn data(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }
    /// The object is whole.
    fn object_end(&mut self) -> Result<()> {
        Ok(())
    }
}

struct Nowhere;

impl Sink for Nowhere {}

/// Reads a whole backup, and checks and decodes everything in it.
///
/// Errors: the first damage, with its frame; the backup is of another format.
pub fn verify(input: impl Read) -> Result<Contents> {
    read(input, &mut Nowhere)
}

/// Reads a whole backup into `sink`.
pub(super) fn read(input: impl Read, sink: &mut dyn Sink) -> Result<Contents> {
    let mut frames = FrameReader::begin(input)?;
    let mut reading = Reading {
        contents: Contents {
            written_by: frames.by.clone(),
            ..Contents::default()
        },
        missing: 0,
        sink,
    };
    let mut before = None;
    loop {
        let (kind, content) = frames.next()?;
        if kind == Kind::GaveUp {
            let why = String::from_utf8_lossy(&content);
            return Err(BackupError::GaveUp(why.into()));
        }
        check_order(&frames, before, kind, reading.missing)?;
        before = Some(kind);
        reading.take(&frames, kind, &content)?;
        if kind == Kind::End {
            frames.finish()?;
            reading.contents.bytes = frames.bytes;
            return Ok(reading.contents);
        }
    }
}

struct Reading<'sink> {
    contents: Contents,
    /// The bytes of the object that are to come.
    missing: u64,
    sink: &'sink mut dyn Sink,
}

impl Reading<'_> {
    /// Takes a frame in its place.
    fn take<R: Read>(&mut self, frames: &FrameReader<R>, kind: Kind, content: &[u8]) -> Result<()> {
        let contents = &mut self.contents;
        match kind {
            Kind::Head => {
                let head: Head = frames.decode(content)?;
                self.sink.head(&head)?;
                (contents.taken_ms, contents.absent_at) = (head.taken_ms, head.absent_at);
            }
            Kind::Records => contents.records += records(frames, content, self.sink)?,
            Kind::Object => {
                let object: ObjectHead = frames.decode(content)?;
                self.sink.object(&object)?;
                contents.objects += 1;
                contents.object_bytes = contents.object_bytes.saturating_add(object.bytes);
                self.missing = object.bytes;
            }
            Kind::Data => {
                let missing = self.missing.checked_sub(content.len() as u64);
                self.missing = missing.ok_or_else(|| frames.damaged("its object is shorter"))?;
                self.sink.data(content)?;
            }
            Kind::Absent => {
                let _: ObjectHead = frames.decode(content)?;
                contents.absent_objects += 1;
            }
            Kind::End | Kind::GaveUp => {
                let end: End = frames.decode(content)?;
                let counted = End {
                    records: contents.records,
                    objects: contents.objects,
                    object_bytes: contents.object_bytes,
                    absent_objects: contents.absent_objects,
                    sha256: end.sha256,
                };
                if end != counted {
                    return Err(frames.damaged("frames are missing before it"));
                }
            }
        }
        if matches!(kind, Kind::Object | Kind::Data) && self.missing == 0 {
            self.sink.object_end()?;
        }
        Ok(())
    }
}

/// Errors: a frame of this kind may not follow here. `missing` is the rest of the object.
fn check_order<R: Read>(
    frames: &FrameReader<R>,
    before: Option<Kind>,
    kind: Kind,
    missing: u64,
) -> Result<()> {
    let is_right = match before {
        None => kind == Kind::Head,
        Some(_) if missing > 0 => kind == Kind::Data,
        // Objects follow each other.
        Some(Kind::Data) if kind == Kind::Object => true,
        Some(before) => kind != Kind::Data && kind != Kind::Head && kind >= before,
    };
    if is_right {
        return Ok(());
    }
    Err(frames.damaged("its kind may not follow here"))
}

/// Decodes and hands on the records of a frame. Returns their number.
fn records<R: Read>(frames: &FrameReader<R>, content: &[u8], sink: &mut dyn Sink) -> Result<u64> {
    let records: Vec<(Bytes, Bytes)> = frames.decode(content)?;
    let count = records.len() as u64;
    for (key, value) in records {
        let record = RecordKey::read(&key)
            .and_then(|key| Record::decode(key.table, value).map(|record| (key, record)));
        let undecodable = || frames.damaged("a record does not decode");
        let (key, record) = record.ok_or_else(undecodable)?;
        sink.record(key, record)?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests;
