//! A page cache over a disk: data whose sync failed is still read back, and is not on the disk.
//!
//! This is the behaviour of Linux: after a failed sync the pages are clean, and the next sync
//! succeeds without writing them.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use embedded::{
    Config, Embedded, Health,
    storage::{DiskStorage, Storage, StorageFile},
};

use crate::world::{block_on, config, directory, done, durably, eventually, put, value};

/// The content of a file on the disk, and the unsynced writes in the cache with their offsets.
#[derive(Debug, Default)]
struct Behind {
    durable: Vec<u8>,
    dirty: Vec<(u64, Vec<u8>)>,
}

/// The real directory is the cache, and this is the disk under it. Names and lengths are durable at
/// once.
#[derive(Debug, Default)]
struct Disk {
    files: Mutex<BTreeMap<PathBuf, Arc<Mutex<Behind>>>>,
    /// Syncs of journal segments fail.
    fails_journal_sync: AtomicBool,
}

impl Disk {
    fn files(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<Mutex<Behind>>>> {
        self.files.lock().expect("no holder panics")
    }

    /// Leaves the directory as it is on the disk.
    fn lose_power(&self) {
        for (path, behind) in &*self.files() {
            let mut behind = behind.lock().expect("no holder panics");
            behind.dirty.clear();
            let mut bytes = behind.durable.clone();
            bytes.resize(
                fs::metadata(path).expect("the file is there").len() as usize,
                0,
            );
            fs::write(path, bytes).expect("the file is written");
        }
    }
}

/// The cache.
#[derive(Debug)]
struct Cached(Arc<Disk>);

#[derive(Debug)]
struct CachedFile {
    disk: Arc<Disk>,
    is_journal: bool,
    behind: Arc<Mutex<Behind>>,
    file: Arc<dyn StorageFile>,
}

impl Storage for Cached {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        let behind = Arc::clone(self.0.files().entry(path.to_owned()).or_default());
        let is_journal = path
            .parent()
            .is_some_and(|parent| parent.ends_with("journal"));
        let file = DiskStorage.open(path)?;
        Ok(Arc::new(CachedFile {
            disk: Arc::clone(&self.0),
            is_journal,
            behind,
            file,
        }))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        DiskStorage.list(directory)
    }

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        DiskStorage.create_directory(directory)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.0.files();
        let file = files.remove(from).expect("a renamed file was opened");
        files.insert(to.to_owned(), file);
        DiskStorage.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.files().remove(path);
        DiskStorage.remove(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        DiskStorage.sync_directory(directory)
    }
}

impl StorageFile for CachedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut behind = self.behind.lock().expect("no holder panics");
        behind.dirty.push((offset, data.to_vec()));
        self.file.write_at(data, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        self.file.allocate(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        let fails = self.is_journal && self.disk.fails_journal_sync.load(Ordering::SeqCst);
        let mut behind = self.behind.lock().expect("no holder panics");
        let Behind { durable, dirty } = &mut *behind;
        for (offset, data) in dirty.drain(..).filter(|_| !fails) {
            let (start, end) = (offset as usize, offset as usize + data.len());
            durable.resize(durable.len().max(end), 0);
            durable[start..end].copy_from_slice(&data);
        }
        if fails {
            Err(io::Error::from_raw_os_error(libc::EIO))
        } else {
            self.file.sync_data()
        }
    }
}

/// D1: the record that an earlier start failed to sync may be in the page cache alone. If a later
/// start serves it and acknowledges changes after it, it survives a power loss.
#[test]
fn a_record_that_only_the_page_cache_has_is_written_again_before_it_is_served() {
    let directory = directory();
    let disk = Arc::new(Disk::default());
    let config = Config {
        storage: Arc::new(Cached(Arc::clone(&disk))),
        ..config(directory.path())
    };
    block_on(async {
        let store = Embedded::open(config.clone())
            .await
            .expect("the store opens");
        durably(&store.key_value(), put("kept", 1)).await;
        disk.fails_journal_sync.store(true, Ordering::SeqCst);
        done(&store.key_value(), put("unsynced", 2)).await;
        eventually("the sync fails", || {
            store.status().health != Health::Serving
        })
        .await;
        drop(store);
        disk.fails_journal_sync.store(false, Ordering::SeqCst);

        let store = Embedded::open(config.clone())
            .await
            .expect("the store opens");
        let kv = store.key_value();
        assert_eq!(
            value(&kv, "unsynced").await,
            Some(2),
            "the page cache has it"
        );
        durably(&kv, put("later", 3)).await;
        drop((store, kv));
        disk.lose_power();

        let store = Embedded::open(config).await.expect("the store opens");
        let kv = store.key_value();
        assert_eq!(
            (value(&kv, "kept").await, value(&kv, "later").await),
            (Some(1), Some(3))
        );
        assert_eq!(value(&kv, "unsynced").await, Some(2), "it was served");
    });
}
