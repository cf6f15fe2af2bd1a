//! Takes a backup of an open store.

use std::{
    fs::File,
    io::{self, Read as _, Write},
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::StreamExt as _;
use ports::{DurabilityPoint, objects::ObjectStore};

use super::{
    Beside, Contents, FILES, NAMED, OBJECTS,
    error::BackupError,
    frames::{End, FrameWriter, Head, Kind, ObjectHead},
};
use crate::{
    Embedded,
    checkpoint_store::{CheckpointStore, View},
    engine::Engine,
    objects::{Hold, ObjectDirectory},
    store::now_ms,
};

/// How long a checkpoint may take.
const CHECKPOINT_MAX: Duration = Duration::from_mins(2);
const CHECKPOINT_POLL: Duration = Duration::from_millis(5);
/// A backup waits for 3 s in all for another one to end. One whose client has gone ends at its next
/// write.
const BUSY_POLLS_MAX: u32 = 150;
const BUSY_POLL: Duration = Duration::from_millis(20);
/// The content of a frame, unless one record is longer.
const FRAME_BYTES: usize = 256 << 10;

type Result<T> = std::result::Result<T, BackupError>;

impl Embedded {
    /// Writes a backup of everything that was ordered before this call. It blocks; call it on a
    /// thread of a runtime where that is allowed.
    ///
    /// Errors: another backup runs, the disk is full, or `out` fails. The reason is then the last
    /// frame, if `out` still takes one.
    pub fn back_up(&self, beside: &Beside, out: &mut dyn Write) -> Result<Contents> {
        let mut frames = FrameWriter::begin(out).map_err(unwritten)?;
        let taken = self.write_all(beside, &mut frames);
        if let Err(error) = &taken {
            // A closed connection does not take it.
            let _ = frames.give_up(&error.to_string());
        }
        taken
    }

    fn write_all(&self, beside: &Beside, frames: &mut FrameWriter<'_>) -> Result<Contents> {
        // The holds come first: see the module's argument.
        let named = beside.named.iter().map(|objects| (NAMED, objects));
        let others = beside.directories.iter();
        let holds = [(OBJECTS, &self.objects)]
            .into_iter()
            .chain(named)
            .chain(others.map(|(name, objects)| (name.as_str(), objects)))
            .map(|(place, objects)| Ok((place, hold(objects, || thread::sleep(BUSY_POLL))?)))
            .collect::<Result<Vec<_>>>()?;
        let snapshot = Snapshot::take(&self.engine)?;
        let head = Head {
            taken_ms: now_ms(),
            incarnation: snapshot.view.checkpoint_end.incarnation,
            position: snapshot.view.checkpoint_end.position,
            absent_at: beside.distant.as_ref().map(|(name, _)| name.clone()),
        };
        frames.value(Kind::Head, &head).map_err(unwritten)?;
        let mut end = End {
            records: snapshot.write(frames)?,
            ..End::default()
        };
        // Its pages may be used again.
        drop(snapshot);
        for (place, hold) in &holds {
            let mut write = |name: &str, file: &Path| object(frames, &mut end, (place, name), file);
            hold.objects(&mut write)?;
        }
        let data_dir = &self.engine.parts.config.data_dir;
        for name in &beside.files {
            object(frames, &mut end, (FILES, name), &data_dir.join(name))?;
        }
        if let Some((_, objects)) = &beside.distant {
            end.absent_objects = list(frames, objects)?;
        }
        frames.end(end.clone()).map_err(unwritten)?;
        Ok(Contents {
            written_by: env!("CARGO_PKG_VERSION").to_owned(),
            taken_ms: head.taken_ms,
            records: end.records,
            objects: end.objects,
            object_bytes: end.object_bytes,
            absent_objects: end.absent_objects,
            absent_at: head.absent_at,
            bytes: frames.bytes,
        })
    }
}

/// Holds the objects for this backup. Calls `wait` whenever another backup holds them.
fn hold(objects: &ObjectDirectory, mut wait: impl FnMut()) -> Result<Hold> {
    for _ in 0..BUSY_POLLS_MAX {
        if let Some(hold) = Hold::begin(objects) {
            return Ok(hold);
        }
        wait();
    }
    let why = "another backup runs: wait for its end";
    Err(BackupError::Refused(why.into()))
}

fn unwritten(source: io::Error) -> BackupError {
    BackupError::io("write the backup")(source)
}

/// The records at one position.
struct Snapshot {
    store: Arc<CheckpointStore>,
    view: View,
    /// The store's count of interruptions when the view was taken.
    interruptions: u64,
}

impl Snapshot {
    /// Has a checkpoint made that covers everything ordered so far, and takes a view of it.
    fn take(engine: &Engine) -> Result<Self> {
        let store = &engine.parts.checkpoint_store;
        let wanted = want_checkpoint(engine)?;
        let deadline = Instant::now() + CHECKPOINT_MAX;
        loop {
            let interruptions = store.interruptions();
            let view = store.view()?.filter(|view| {
                let end = view.checkpoint_end;
                end.incarnation == wanted.incarnation.0 && end.position >= wanted.position.0
            });
            if let Some(view) = view
                && let Some(interruptions) = interruptions
                && store.interruptions() == Some(interruptions)
            {
                return Ok(Self {
                    store: Arc::clone(store),
                    view,
                    interruptions,
                });
            }
            serving(engine, Some(wanted))?;
            if Instant::now() > deadline {
                let why = engine.checkpoints.report().1;
                let why = why.unwrap_or_else(|| "the disk is slow".to_owned());
                return Err(BackupError::Refused(format!(
                    "no checkpoint was made within {CHECKPOINT_MAX:?} ({why}): try again, or free disk space"
                )));
            }
            thread::sleep(CHECKPOINT_POLL);
        }
    }

    /// Writes all records. Returns their number.
    fn write(&self, frames: &mut FrameWriter<'_>) -> Result<u64> {
        let (mut batch, mut bytes, mut count) = (Vec::<(Bytes, Bytes)>::new(), 0, 0);
        let mut flush = |batch: &mut Vec<(Bytes, Bytes)>| {
            if self.store.interruptions() != Some(self.interruptions) {
                return Err(BackupError::Refused(
                    "the checkpoint store had to be opened again meanwhile (the log says why): repeat the backup".into(),
                ));
            }
            let written = frames.value(Kind::Records, batch).map_err(unwritten);
            batch.clear();
            written
        };
        for entry in self.view.range(&[], &[u8::MAX])? {
            let (record_key, value) = entry?;
            let mut key = Vec::new();
            record_key.write(&mut key);
            bytes += key.len() + value.len();
            batch.push((key.into(), value));
            count += 1;
            if bytes >= FRAME_BYTES {
                flush(&mut batch)?;
                bytes = 0;
            }
        }
        flush(&mut batch)?;
        Ok(count)
    }
}

/// Asks for a checkpoint. Returns the point that it has to cover.
fn want_checkpoint(engine: &Engine) -> Result<DurabilityPoint> {
    serving(engine, None)?;
    let mut state = engine.state();
    state.store.checkpoint_wanted = true;
    engine.parts.durability.force();
    Ok(state.store.point())
}

/// Errors: the store does not serve, or no longer that incarnation.
fn serving(engine: &Engine, point: Option<DurabilityPoint>) -> Result<()> {
    let serving = engine.serving();
    let state = serving.map_err(|error| BackupError::Refused(error.to_string()))?;
    if point.is_some_and(|point| point.incarnation.0 != state.store.incarnation) {
        return Err(BackupError::Refused(
            "the store returned to its durable state meanwhile: repeat the backup".into(),
        ));
    }
    Ok(())
}

/// Writes the object in `file`. A file that has gone has a held name, or is not needed.
fn object(
    frames: &mut FrameWriter<'_>,
    end: &mut End,
    (place, name): (&str, &str),
    path: &Path,
) -> Result<()> {
    let unread = || format!("read {}", path.display());
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(BackupError::io(unread()))?,
    };
    let bytes = file.metadata().map_err(BackupError::io(unread()))?.len();
    let head = ObjectHead {
        place: place.to_owned(),
        name: name.to_owned(),
        bytes,
    };
    frames.value(Kind::Object, &head).map_err(unwritten)?;
    let mut left = bytes;
    let mut buffer = vec![0; FRAME_BYTES.min(bytes as usize)];
    while left > 0 {
        let part = &mut buffer[..FRAME_BYTES.min(left as usize)];
        file.read_exact(part).map_err(BackupError::io(unread()))?;
        frames.frame(Kind::Data, part).map_err(unwritten)?;
        left -= part.len() as u64;
    }
    end.objects += 1;
    end.object_bytes += bytes;
    Ok(())
}

/// Lists the objects of a distant store. Returns their number.
fn list(frames: &mut FrameWriter<'_>, objects: &Arc<dyn ObjectStore>) -> Result<u64> {
    let runtime = tokio::runtime::Handle::current();
    let (mut listed, mut count) = (objects.list(None), 0);
    while let Some(object) = runtime.block_on(listed.next()) {
        let failed = |error| BackupError::Refused(format!("list the distant objects: {error}"));
        let object = object.map_err(failed)?;
        let head = ObjectHead {
            place: NAMED.to_owned(),
            name: object.location.to_string(),
            bytes: object.size,
        };
        frames.value(Kind::Absent, &head).map_err(unwritten)?;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        objects::{self, Writers},
        storage::DiskStorage,
    };

    /// The client of the first may have gone.
    #[test]
    fn a_backup_waits_for_one_that_ends_soon() {
        let directory = tempfile::tempdir().expect("a directory");
        let objects = objects::open(directory.path(), Arc::new(DiskStorage), Writers::Others);
        let objects = objects.expect("it opens");
        let mut first = Hold::begin(&objects);
        let mut waits = 0;
        let refused = hold(&objects, || waits += 1).expect_err("one runs");
        assert!(matches!(refused, BackupError::Refused(_)), "{refused}");
        assert_eq!(waits, BUSY_POLLS_MAX);
        hold(&objects, || drop(first.take())).expect("the first has ended");
        assert!(first.is_none(), "it was waited for");
    }
}
