//! Objects in parts that are synced while further parts arrive.
//!
//! The disk would otherwise begin with the last part.
//!
//! It is a hint: the sync at the end of the put decides, and reports every failure. The local store
//! keeps its file to itself, so this opens it a second time.

use std::{fs::File, path::Path, sync::Arc};

use parking_lot::Mutex;

use crate::storage::{StorageFile, opened};

/// The bytes of parts between the begins of two syncs.
const SYNC_BYTES: u64 = 4 << 20;

/// The syncs of one put.
#[derive(Debug, Clone)]
pub(super) struct EarlySync {
    /// None: the staged file was not found.
    file: Option<Arc<dyn StorageFile>>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    unsynced_bytes: u64,
    is_syncing: bool,
}

impl EarlySync {
    /// For the put of `object` that has just begun.
    pub(super) fn begin(object: &Path) -> Self {
        // The local store takes the first free number, and puts of one name at a time are rare.
        let mut staged = object.as_os_str().to_owned();
        staged.push("#1");
        Self::of(File::open(Path::new(&staged)).ok().map(opened))
    }

    fn of(file: Option<Arc<dyn StorageFile>>) -> Self {
        Self {
            file,
            state: Arc::default(),
        }
    }

    /// Notes that so many bytes were written. Now and then it begins a sync, and does not wait for
    /// it.
    pub(super) fn written(&self, bytes: u64) {
        let Some(file) = &self.file else { return };
        let mut state = self.state.lock();
        state.unsynced_bytes += bytes;
        if state.is_syncing || state.unsynced_bytes < SYNC_BYTES {
            return;
        }
        *state = State {
            unsynced_bytes: 0,
            is_syncing: true,
        };
        let (file, state) = (Arc::clone(file), Arc::clone(&self.state));
        tokio::task::spawn_blocking(move || {
            // The put's own descriptor reports the same failure at the end.
            let _ = file.sync_data();
            state.lock().is_syncing = false;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::mpsc::{Receiver, Sender, channel},
    };

    use super::*;

    /// Reports each sync, and returns once the test lets it.
    #[derive(Debug)]
    struct Slow {
        begun: Mutex<Sender<()>>,
        go_on: Mutex<Receiver<()>>,
    }

    impl StorageFile for Slow {
        fn len(&self) -> io::Result<u64> {
            unreachable!("it is only synced")
        }
        fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
            unreachable!("it is only synced")
        }
        fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            unreachable!("it is only synced")
        }
        fn set_len(&self, _: u64) -> io::Result<()> {
            unreachable!("it is only synced")
        }
        fn allocate(&self, _: u64) -> io::Result<()> {
            unreachable!("it is only synced")
        }
        fn sync_data(&self) -> io::Result<()> {
            self.begun.lock().send(()).expect("the test waits");
            self.go_on.lock().recv().map_err(io::Error::other)
        }
    }

    #[tokio::test]
    async fn one_sync_at_a_time_begins_once_enough_was_written() {
        let ((begun, has_begun), (go_on, may_go_on)) = (channel(), channel());
        let file = Slow {
            begun: Mutex::new(begun),
            go_on: Mutex::new(may_go_on),
        };
        let sync = EarlySync::of(Some(Arc::new(file)));
        sync.written(SYNC_BYTES - 1);
        assert!(!sync.state.lock().is_syncing);
        sync.written(1);
        has_begun.recv().expect("it is synced");
        sync.written(2 * SYNC_BYTES);
        assert!(has_begun.try_recv().is_err(), "one is under way");
        go_on.send(()).expect("it waits");
        while sync.state.lock().is_syncing {
            tokio::task::yield_now().await;
        }
        sync.written(0);
        has_begun.recv().expect("the rest is synced");
        drop(go_on);
    }
}
