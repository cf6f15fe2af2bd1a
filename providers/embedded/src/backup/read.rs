//! Reads a backup: verifies it, and hands its content on.

use std::io::Read;

use bytes::Bytes;

use super::{
    Contents, Target,
    error::BackupError,
    frames::{End, FrameReader, Head, Kind, ObjectHead},
    restore::Restoring,
};
use crate::records::{Record, RecordKey};

/// What takes the content of a backup.
pub(super) trait Sink {
    fn head(&mut self, head: &Head) -> Result<(), BackupError>;
    fn record(&mut self, key: RecordKey, record: Record) -> Result<(), BackupError>;
    fn object(&mut self, object: &ObjectHead) -> Result<(), BackupError>;
    fn data(&mut self, data: &[u8]) -> Result<(), BackupError>;
    /// The object is whole.
    fn object_end(&mut self) -> Result<(), BackupError>;
}

/// Drops everything.
struct Nowhere;

impl Sink for Nowhere {
    fn head(&mut self, _: &Head) -> Result<(), BackupError> {
        Ok(())
    }
    fn record(&mut self, _: RecordKey, _: Record) -> Result<(), BackupError> {
        Ok(())
    }
    fn object(&mut self, _: &ObjectHead) -> Result<(), BackupError> {
        Ok(())
    }
    fn data(&mut self, _: &[u8]) -> Result<(), BackupError> {
        Ok(())
    }
    fn object_end(&mut self) -> Result<(), BackupError> {
        Ok(())
    }
}

/// Reads a whole backup, and checks and decodes everything in it.
///
/// Errors: the first damage, with its frame; the backup is of another format.
pub fn verify(input: impl Read) -> Result<Contents, BackupError> {
    read(input, &mut Nowhere)
}

/// Restores a backup to directories that are missing or empty. The content is written beside them,
/// read back, made durable, and renamed at the end, the data directory last.
///
/// Errors: as those of [`verify`], a target that is in use, a full disk. Nothing is left then, but
/// a restored directory of named objects if the last rename fails.
pub fn restore(input: impl Read, target: &Target) -> Result<Contents, BackupError> {
    let mut restoring = Restoring::begin(target)?;
    let contents = read(input, &mut restoring)?;
    restoring.finish(contents.records)?;
    Ok(contents)
}

fn read(input: impl Read, sink: &mut dyn Sink) -> Result<Contents, BackupError> {
    let mut frames = FrameReader::begin(input)?;
    let mut contents = Contents {
        written_by: frames.by.clone(),
        ..Contents::default()
    };
    let mut before = None;
    // The bytes of the object that are to come.
    let mut missing = 0;
    loop {
        let (kind, content) = frames.next()?;
        if kind == Kind::GaveUp {
            return Err(BackupError::GaveUp(
                String::from_utf8_lossy(&content).into(),
            ));
        }
        check_order(&frames, before, kind, missing)?;
        before = Some(kind);
        match kind {
            Kind::Head => {
                let head: Head = frames.decode(&content)?;
                sink.head(&head)?;
                (contents.taken_ms, contents.absent_at) = (head.taken_ms, head.absent_at);
            }
            Kind::Records => {
                contents.records += records(&frames, &content, sink)?;
            }
            Kind::Object => {
                let object: ObjectHead = frames.decode(&content)?;
                sink.object(&object)?;
                contents.objects += 1;
                contents.object_bytes = contents.object_bytes.saturating_add(object.bytes);
                missing = object.bytes;
                if missing == 0 {
                    sink.object_end()?;
                }
            }
            Kind::Data => {
                let too_long = || frames.damaged("its object is shorter");
                missing = missing
                    .checked_sub(content.len() as u64)
                    .ok_or_else(too_long)?;
                sink.data(&content)?;
                if missing == 0 {
                    sink.object_end()?;
                }
            }
            Kind::Absent => {
                let _: ObjectHead = frames.decode(&content)?;
                contents.absent_objects += 1;
            }
            Kind::End => {
                let end: End = frames.decode(&content)?;
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
                frames.finish()?;
                contents.bytes = frames.bytes;
                return Ok(contents);
            }
            Kind::GaveUp => unreachable!("it ended the loop"),
        }
    }
}

/// Errors: a frame of this kind may not follow here. `missing` is the rest of the object.
fn check_order<R: Read>(
    frames: &FrameReader<R>,
    before: Option<Kind>,
    kind: Kind,
    missing: u64,
) -> Result<(), BackupError> {
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
fn records<R: Read>(
    frames: &FrameReader<R>,
    content: &[u8],
    sink: &mut dyn Sink,
) -> Result<u64, BackupError> {
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
