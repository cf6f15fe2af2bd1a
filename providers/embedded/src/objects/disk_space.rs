//! Whether the disk still has no room after a refused object. No other object may ever be written,
//! so a trial file asks the disk again.
//!
//! An allocation may take any time. A caller therefore receives the last known answer, and the
//! trial runs in the background.
//!
//! Invariants
//! - One trial runs at a time, and at most one a second begins.
//! - The trial file has a random name, drawn at each start, because other processes may share the
//!   directory. The name is removed before the file is allocated, so a process that dies in between
//!   leaves no space taken.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::storage::Storage;

/// The prefix of the names of trial files.
const TRIAL: &str = "objects-trial";

/// The least time between two trials.
const TRIED_EVERY: Duration = Duration::from_secs(1);

/// The name of the trial file in `directory`, unique to this start.
pub(super) fn trial_in(directory: &Path) -> io::Result<PathBuf> {
    let drawn = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(directory.join(format!("{TRIAL}-{drawn:016x}")))
}

/// The last refused object, and the trials for it.
#[derive(Debug, Default)]
struct Refused {
    /// The size of the last refused object; none if one was written since.
    bytes: Option<u64>,
    tried: Option<Instant>,
    is_tried: bool,
}

impl Refused {
    /// The size of a trial that must begin now, if one must.
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
        // An object refused meanwhile may need more.
        if has_room && self.bytes == Some(bytes) {
            self.bytes = None;
        }
    }
}

/// The space on the disk of a directory.
#[derive(Debug)]
pub(super) struct DiskSpace {
    storage: Arc<dyn Storage>,
    trial: PathBuf,
    refused: Mutex<Refused>,
}

impl DiskSpace {
    pub(super) fn new(storage: Arc<dyn Storage>, trial: PathBuf) -> Self {
        Self {
            storage,
            trial,
            refused: Mutex::default(),
        }
    }

    /// Notes that an object was written.
    pub(super) fn note_written(&self) {
        self.refused.lock().bytes = None;
    }

    /// Notes that an object of `bytes` was refused. Returns whether it is the first since one was
    /// written.
    pub(super) fn note_refused(&self, bytes: u64) -> bool {
        self.refused.lock().bytes.replace(bytes.max(1)).is_none()
    }

    /// Whether the last trial found no room. May start a new one.
    pub(super) fn is_refusing(self: &Arc<Self>) -> bool {
        let (is_refusing, trial) = {
            let mut refused = self.refused.lock();
            (refused.bytes.is_some(), refused.begin_trial(Instant::now()))
        };
        let Some(bytes) = trial else {
            return is_refusing;
        };
        if let Ok(runtime) = Handle::try_current() {
            let disk_space = Arc::clone(self);
            runtime.spawn_blocking(move || disk_space.try_for(bytes));
            return is_refusing;
        }
        // A caller outside a runtime may wait.
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
            tracing::warn!(%error, file = %self.trial.display(), "a trial file could not be removed");
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
    fn one_trial_runs_at_a_time_and_once_a_second() {
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

    /// The disk may take any time.
    #[test]
    fn a_caller_gets_the_last_known_answer_without_waiting_for_the_disk() {
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
        let disk_space = Arc::new(DiskSpace::new(
            Arc::new(Intercepted::new(DiskStorage, before)),
            trial,
        ));
        let runtime = runtime();
        runtime.block_on(async {
            assert!(!disk_space.is_refusing());
            assert!(disk_space.note_refused(1) && !disk_space.note_refused(1));
            assert!(disk_space.is_refusing(), "no trial has found room yet");
        });
        // Waits for the running trial.
        drop(runtime);
        assert!(!disk_space.is_refusing());
    }

    /// Two processes may share a directory of objects, and each may be killed during a trial.
    #[test]
    fn trials_of_two_processes_leave_nothing_and_do_not_collide() {
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
        let disk_space = Arc::new(DiskSpace::new(
            Arc::new(Intercepted::new(DiskStorage, before)),
            trials[0].clone(),
        ));
        disk_space.note_refused(1 << 20);
        assert!(!disk_space.is_refusing(), "there is room, and no runtime");
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 0);
    }
}
