//! Whether the disk has no room for what was refused last: nobody else may ever write, so it is asked anew by a trial file.
//!
//! To give a file room takes as long as the disk likes. So whoever asks is told what is known, and has it asked aside.
//!
//! Invariants
//! - One trial is under way at a time, and one a second begins at the most, however many ask.
//! - Its file has a name of its own, drawn at each start: other processes may have the same directory. It loses that before it is given
//!   room, so that whoever dies in the midst leaves none of it taken.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::storage::Storage;

/// What begins the names of trial files.
const TRIAL: &str = "objects-trial";

/// How often the disk is asked at the most.
const TRIED_EVERY: Duration = Duration::from_secs(1);

/// A name for trial files in `directory` that no other start has.
pub(super) fn trial_in(directory: &Path) -> io::Result<PathBuf> {
    let drawn = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(directory.join(format!("{TRIAL}-{drawn:016x}")))
}

/// What was refused for want of room, and when the disk was asked about it.
#[derive(Debug, Default)]
struct Refused {
    /// The bytes of the last object that was refused, if none was written since.
    bytes: Option<u64>,
    tried: Option<Instant>,
    is_tried: bool,
}

impl Refused {
    /// For how many bytes a trial begins now, if one does.
    fn begin_trial(&mut self, now: Instant) -> Option<u64> {
        let bytes = self.bytes?;
        let is_early = self
            .tried
            .is_some_and(|tried| now.duration_since(tried) < TRIED_EVERY);
        if self.is_tried || is_early {
            return None;
        }
        (self.is_tried, self.tried) = (true, Some(now));
        Some(bytes)
    }

    fn end_trial(&mut self, bytes: u64, has_room: bool) {
        self.is_tried = false;
        // What was refused meanwhile may need more.
        if has_room && self.bytes == Some(bytes) {
            self.bytes = None;
        }
    }
}

/// The room on the disk of a directory.
#[derive(Debug)]
pub(super) struct Room {
    storage: Arc<dyn Storage>,
    trial: PathBuf,
    refused: Mutex<Refused>,
}

impl Room {
    pub(super) fn new(storage: Arc<dyn Storage>, trial: PathBuf) -> Self {
        Self {
            storage,
            trial,
            refused: Mutex::default(),
        }
    }

    /// An object was written.
    pub(super) fn note_written(&self) {
        self.refused.lock().bytes = None;
    }

    /// An object of so many bytes was refused. Whether it is the first one since one was written.
    pub(super) fn note_refused(&self, bytes: u64) -> bool {
        self.refused.lock().bytes.replace(bytes.max(1)).is_none()
    }

    /// Whether there was none when the disk was asked last; it is asked anew, for who asks next.
    pub(super) fn is_refusing(self: &Arc<Self>) -> bool {
        let (is_refusing, trial) = {
            let mut refused = self.refused.lock();
            (refused.bytes.is_some(), refused.begin_trial(Instant::now()))
        };
        let Some(bytes) = trial else {
            return is_refusing;
        };
        if let Ok(runtime) = Handle::try_current() {
            let room = Arc::clone(self);
            runtime.spawn_blocking(move || room.try_for(bytes));
            return is_refusing;
        }
        // Who has no runtime may wait.
        self.try_for(bytes);
        self.refused.lock().bytes.is_some()
    }

    fn try_for(&self, bytes: u64) {
        let has_room = self.has_room_for(bytes);
        self.refused.lock().end_trial(bytes, has_room);
    }

    fn has_room_for(&self, bytes: u64) -> bool {
        let Ok(file) = self.storage.open(&self.trial) else {
            return false;
        };
        if let Err(error) = self.storage.remove(&self.trial) {
            tracing::warn!(%error, file = %self.trial.display(), "a file that was made to see what room there is stays");
        }
        file.allocate(bytes).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use tempfile::TempDir;

    use super::*;
    use crate::storage::{DiskStorage, Intercepted, Operation};

    /// P6.
    #[test]
    fn the_disk_is_asked_once_at_a_time_and_once_a_second() {
        let mut refused = Refused::default();
        let began = Instant::now();
        let at = |seconds: f64| began + Duration::from_secs_f64(seconds);
        assert_eq!(refused.begin_trial(at(0.0)), None, "nothing was refused");
        refused.bytes = Some(7);
        assert_eq!(refused.begin_trial(at(0.0)), Some(7));
        assert_eq!(refused.begin_trial(at(5.0)), None, "one is under way");
        refused.end_trial(7, false);
        assert_eq!(refused.begin_trial(at(5.0)), Some(7));
        refused.end_trial(7, false);
        assert_eq!(
            refused.begin_trial(at(5.9)),
            None,
            "a moment ago there was none"
        );
        assert_eq!(refused.begin_trial(at(6.0)), Some(7));
        refused.bytes = Some(8);
        refused.end_trial(7, true);
        assert_eq!(refused.bytes, Some(8), "more was refused meanwhile");
        assert_eq!(refused.begin_trial(at(7.0)), Some(8));
        refused.end_trial(8, true);
        assert_eq!((refused.bytes, refused.begin_trial(at(9.0))), (None, None));
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime starts")
    }

    /// The disk may take long.
    #[test]
    fn whoever_asks_is_told_what_is_known_and_waits_for_no_disk() {
        let directory = TempDir::new().expect("a directory");
        let trial = trial_in(directory.path()).expect("chance");
        let asker = thread::current().id();
        let before = move |operation: Operation, _: &Path| {
            assert_ne!(
                thread::current().id(),
                asker,
                "{operation:?} on the thread that serves"
            );
            Ok(())
        };
        let room = Arc::new(Room::new(
            Arc::new(Intercepted::new(DiskStorage, before)),
            trial,
        ));
        let runtime = runtime();
        runtime.block_on(async {
            assert!(!room.is_refusing());
            assert!(room.note_refused(1) && !room.note_refused(1));
            assert!(room.is_refusing(), "nobody has seen that there is room");
        });
        // Waits for what is under way.
        drop(runtime);
        assert!(!room.is_refusing());
    }

    /// Two processes may have one directory of objects, and each may be killed in the midst.
    #[test]
    fn a_trial_leaves_nothing_and_takes_nothing_from_that_of_another() {
        let directory = TempDir::new().expect("a directory");
        let trials = [(); 2].map(|()| trial_in(directory.path()).expect("chance"));
        assert_ne!(trials[0], trials[1]);
        let names = directory.path().to_owned();
        let before = move |operation: Operation, _: &Path| {
            if operation == Operation::Allocate {
                let left = fs::read_dir(&names).expect("listed").count();
                assert_eq!(left, 0, "a file with room has a name");
            }
            Ok(())
        };
        let room = Arc::new(Room::new(
            Arc::new(Intercepted::new(DiskStorage, before)),
            trials[0].clone(),
        ));
        room.note_refused(1 << 20);
        assert!(!room.is_refusing(), "there is room, and no runtime");
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 0);
    }
}
