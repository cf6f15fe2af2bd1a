//! O1, O2: the names of objects that may never have been synced are durable before a caller depends
//! on them.
//!
//! The local store gives an object its name and then syncs the directory. A process that died or
//! failed in between left a name that the next start finds like any other. The files here are real,
//! so no power can be lost. The tests check that no answer comes while the directories cannot be
//! synced, and which directories were synced when one comes.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI32, Ordering},
    },
};

use embedded::{Config, Embedded, storage::DiskStorage};
use ports::objects::{ObjectError, ObjectPath, ObjectStore, ObjectStoreExt as _, PutMode};
use tempfile::TempDir;

use crate::{
    intercepted::{Intercepted, Operation},
    world::{block_on, directory, eventually, found},
};

/// The synced directories of objects, and the error of syncs and allocations.
#[derive(Debug, Default)]
struct Syncs {
    synced: Mutex<BTreeSet<PathBuf>>,
    /// The error code of syncs; zero: they succeed.
    error: AtomicI32,
}

/// The directories cannot be opened, which loses nothing.
const NOT_ASKED: i32 = libc::EMFILE;
/// The data to be written may be lost.
const FAILED: i32 = libc::EIO;
const SYNCED: i32 = 0;

impl Syncs {
    /// The storage of a data directory.
    fn storage(self: &Arc<Self>, objects: PathBuf) -> Arc<Intercepted<DiskStorage>> {
        let syncs = Arc::clone(self);
        Arc::new(Intercepted::new(DiskStorage, move |operation, path| {
            let is_met = matches!(operation, Operation::SyncDirectory | Operation::Allocate);
            if !is_met || !path.starts_with(&objects) {
                return Ok(());
            }
            match syncs.error.load(Ordering::SeqCst) {
                SYNCED => {}
                error => return Err(io::Error::from_raw_os_error(error)),
            }
            syncs
                .synced
                .lock()
                .expect("no holder panics")
                .insert(path.to_owned());
            Ok(())
        }))
    }

    fn has(&self, directories: &[PathBuf]) -> bool {
        let synced = self.synced.lock().expect("no holder panics");
        directories
            .iter()
            .all(|directory| synced.contains(directory))
    }
}

/// A store on the files of an earlier start: an object, and an empty directory.
struct Left {
    _directory: TempDir,
    root: PathBuf,
    syncs: Arc<Syncs>,
    store: Embedded,
}

const LEFT: &str = "znodes/1/left";

async fn left(error: i32) -> Left {
    let directory = directory();
    let data = fs::canonicalize(directory.path()).expect("it is there");
    let root = data.join("objects");
    for made in ["znodes/1", "znodes/2"] {
        fs::create_dir_all(root.join(made)).expect("it is made");
    }
    fs::write(root.join(LEFT), "whole").expect("the disk has room");
    let syncs = Arc::new(Syncs {
        error: AtomicI32::new(error),
        ..Syncs::default()
    });
    let config = Config {
        storage: syncs.storage(root.clone()),
        ..Config::new(&data)
    };
    let store = Embedded::open(config).await.expect("the store opens");
    Left {
        _directory: directory,
        root,
        syncs,
        store,
    }
}

async fn create(objects: &Arc<dyn ObjectStore>, name: &str) -> Result<(), ObjectError> {
    let put = objects
        .put_opts(
            &ObjectPath::from(name),
            "new".into(),
            PutMode::Create.into(),
        )
        .await;
    put.map(|_| ())
}

/// Puts an object in two parts.
async fn upload(objects: &Arc<dyn ObjectStore>, name: &str) -> Result<(), ObjectError> {
    let mut upload = objects.put_multipart(&ObjectPath::from(name)).await?;
    for part in ["one", "two"] {
        upload.put_part(part.into()).await?;
    }
    upload.complete().await.map(|_| ())
}

fn row(root: &Path, below: &[&str]) -> Vec<PathBuf> {
    below
        .iter()
        .map(|below| root.join(below))
        .chain([root.to_owned()])
        .collect()
}

/// O2.
#[test]
fn an_object_is_reported_to_exist_once_its_name_is_durable() {
    block_on(async {
        let Left {
            root, syncs, store, ..
        } = &left(NOT_ASKED).await;
        let refused = create(&store.objects(), LEFT).await;
        assert!(
            matches!(refused, Err(ObjectError::Generic { .. })),
            "its name is not durable: {refused:?}"
        );
        syncs.error.store(SYNCED, Ordering::SeqCst);
        let exists = create(&store.objects(), LEFT).await;
        assert!(
            matches!(exists, Err(ObjectError::AlreadyExists { .. })),
            "{exists:?}"
        );
        assert!(syncs.has(&row(root, &["znodes", "znodes/1"])), "{syncs:?}");
        // This includes objects of this start, because the writer may still be at work.
        create(&store.objects(), "znodes/1/new")
            .await
            .expect("the disk has room");
        syncs.error.store(NOT_ASKED, Ordering::SeqCst);
        let refused = create(&store.objects(), "znodes/1/new").await;
        assert!(
            matches!(refused, Err(ObjectError::Generic { .. })),
            "{refused:?}"
        );
    });
}

/// O1: the local store syncs the directory of the object, but not the name of that directory if it
/// existed before.
#[test]
fn a_put_is_acknowledged_once_the_directories_above_the_object_are_durable() {
    block_on(async {
        let Left {
            root, syncs, store, ..
        } = &left(NOT_ASKED).await;
        create(&store.objects(), "znodes/2/new")
            .await
            .expect_err("znodes/2 may not last");
        syncs.error.store(SYNCED, Ordering::SeqCst);
        create(&store.objects(), "znodes/2/newer")
            .await
            .expect("the disk has room");
        assert!(syncs.has(&row(root, &["znodes"])), "{syncs:?}");
        // The names are now known to be durable, so the disk is not asked again.
        syncs.error.store(NOT_ASKED, Ordering::SeqCst);
        create(&store.objects(), "znodes/2/newest")
            .await
            .expect("the disk has room");
    });
}

/// O1: a reader may pass on that the object exists.
#[test]
fn an_object_of_an_earlier_start_is_read_once_its_name_is_durable() {
    block_on(async {
        let Left {
            root, syncs, store, ..
        } = &left(NOT_ASKED).await;
        let (objects, path) = (store.objects(), ObjectPath::from(LEFT));
        objects
            .get(&path)
            .await
            .expect_err("its name is not durable");
        objects
            .head(&path)
            .await
            .expect_err("its name is not durable");
        objects
            .get_range(&path, 0..2)
            .await
            .expect_err("its name is not durable");
        syncs.error.store(SYNCED, Ordering::SeqCst);
        let whole = objects.get(&path).await.expect("it is there").bytes().await;
        assert_eq!(whole.expect("it is read"), "whole");
        assert!(syncs.has(&row(root, &["znodes", "znodes/1"])), "{syncs:?}");
    });
}

#[test]
fn every_directory_of_an_earlier_start_is_synced_once_and_later_reads_do_not_wait() {
    block_on(async {
        let Left {
            root, syncs, store, ..
        } = &left(SYNCED).await;
        eventually("all are synced", || {
            syncs.has(&row(root, &["znodes", "znodes/1", "znodes/2"]))
        })
        .await;
        syncs.error.store(NOT_ASKED, Ordering::SeqCst);
        // The walk notes its end after the last sync.
        let (objects, path) = (store.objects(), ObjectPath::from(LEFT));
        found("reads go on", async || objects.get(&path).await.ok()).await;
        objects
            .head(&path)
            .await
            .expect_err("the caller may depend on the answer");
    });
}

/// O1, O2: the kernel reports a failed sync once, and the next sync succeeds without the dropped
/// data.
#[test]
fn a_directory_whose_sync_failed_is_not_trusted_before_a_restart() {
    block_on(async {
        let Left {
            syncs,
            store,
            root,
            _directory,
        } = left(SYNCED).await;
        let (objects, path) = (store.objects(), ObjectPath::from(LEFT));
        eventually("all are synced", || {
            syncs.has(&row(&root, &["znodes", "znodes/1", "znodes/2"]))
        })
        .await;
        create(&objects, "znodes/1/earlier")
            .await
            .expect("the disk has room");
        syncs.error.store(FAILED, Ordering::SeqCst);
        found("the walk is over", async || objects.get(&path).await.ok()).await;
        create(&objects, LEFT)
            .await
            .expect_err("its name is not durable");
        syncs.error.store(SYNCED, Ordering::SeqCst);
        for name in [LEFT, "znodes/1/new"] {
            let refused = create(&objects, name).await;
            assert!(
                matches!(refused, Err(ObjectError::Generic { .. })),
                "{name}: {refused:?}"
            );
        }
        let refused = upload(&objects, "znodes/1/parts").await;
        assert!(
            matches!(refused, Err(ObjectError::Generic { .. })),
            "{refused:?}"
        );
        objects
            .head(&path)
            .await
            .expect_err("the caller may depend on the answer");
        objects.get(&path).await.expect("it was there before");
        create(&objects, "znodes/2/new")
            .await
            .expect("its directory is synced");
        upload(&objects, "znodes/2/parts")
            .await
            .expect("its directory is synced");
        drop((objects, store));

        let config = Config {
            storage: syncs.storage(root.clone()),
            ..Config::new(root.parent().expect("data"))
        };
        let store = Embedded::open(config).await.expect("the store opens");
        let exists = create(&store.objects(), LEFT).await;
        assert!(
            matches!(exists, Err(ObjectError::AlreadyExists { .. })),
            "{exists:?}"
        );
    });
}

/// O1, P6: an object refused by a full disk is accepted once there is room again, and reads go on.
#[test]
fn a_directory_that_found_no_room_is_synced_once_there_is_room() {
    block_on(async {
        for full in [libc::ENOSPC, libc::EDQUOT] {
            let Left { syncs, store, .. } = &left(full).await;
            let (objects, path) = (store.objects(), ObjectPath::from(LEFT));
            let refused = create(&objects, "znodes/2/new")
                .await
                .expect_err("the disk is full");
            assert!(ports::objects::is_for_want_of_room(&refused), "{refused:?}");
            assert!(
                store.status().is_full,
                "free bytes say nothing about a quota"
            );
            syncs.error.store(SYNCED, Ordering::SeqCst);
            eventually("the disk is asked again", || !store.status().is_full).await;
            objects.get(&path).await.expect("it was there before");
            for name in ["znodes/2/newer", "znodes/3/newer"] {
                create(&objects, name).await.expect("there is room again");
            }
        }
    });
}
