//! Backups: of one moment, with every object that its records name, while the store is in use.
//!
//! The target of a backup here is a `Write` that changes the store between two frames, so that each
//! run meets the same interleaving.

use std::{
    fs,
    io::{self, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use embedded::{
    Config, Embedded, Health, OpenError,
    backup::{BackupError, Beside, Contents, Target, restore, verify},
};
use futures_util::TryStreamExt as _;
use ports::{
    KeyValue, Update,
    key_value::Action,
    objects::{ObjectError, ObjectPath, ObjectStore, ObjectStoreExt as _, PutMode},
};
use tokio::{runtime::Handle, task::spawn_blocking};

use crate::{
    faulty::{Faults, FaultyStorage},
    world::{
        block_on, config, directory, done, durably, eventually, found, key, open, put, put_pair,
        value,
    },
};

const OBJECTS: i64 = 40;

/// Acts once, before the write of this number, from 0. The first write is the line, the second one
/// the head: the backup's position is settled by then.
struct Acting<'act> {
    bytes: Vec<u8>,
    writes: usize,
    at: usize,
    act: Box<dyn FnMut() -> io::Result<()> + Send + 'act>,
}

const LINE: usize = 0;
const HEAD: usize = 1;
const RECORDS: usize = 2;
const FIRST_OBJECT: usize = 3;
const FIRST_DATA: usize = 4;

impl Write for Acting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.writes == self.at {
            self.at = usize::MAX;
            (self.act)()?;
        }
        self.writes += 1;
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A backup that acts on the store before a write.
async fn backed_up<F>(
    store: &Arc<Embedded>,
    at: usize,
    mut act: impl FnMut() -> F + Send + 'static,
) -> Result<(Contents, Vec<u8>), BackupError>
where
    F: Future<Output = io::Result<()>>,
{
    let store = Arc::clone(store);
    let taken = spawn_blocking(move || {
        let mut out = Acting {
            bytes: Vec::new(),
            writes: 0,
            at,
            act: Box::new(move || Handle::current().block_on(act())),
        };
        let taken = store.back_up(&Beside::default(), &mut out);
        taken.map(|contents| (contents, out.bytes))
    });
    taken.await.expect("it does not panic")
}

async fn quietly(store: &Arc<Embedded>) -> Result<(Contents, Vec<u8>), BackupError> {
    backed_up(store, usize::MAX, async || Ok(())).await
}

fn path(number: i64) -> ObjectPath {
    ObjectPath::from(format!("packs/{}/{number}", number % 3))
}

async fn create(objects: &Arc<dyn ObjectStore>, number: i64, content: &str) {
    let path = path(number);
    let content = content.to_owned().into();
    let put = objects.put_opts(&path, content, PutMode::Create.into());
    put.await.expect("it is new");
}

/// Objects, each named by an item, as a service has them.
async fn fill(store: &Embedded) {
    let (items, objects) = (store.key_value(), store.objects());
    for number in 0..OBJECTS {
        create(&objects, number, &format!("content {number}")).await;
        done(&items, put(&format!("names {number}"), number)).await;
    }
}

/// Does what a collector does: removes each item, then its object. Then others take their names.
async fn collect(items: Arc<dyn KeyValue>, objects: Arc<dyn ObjectStore>) -> io::Result<()> {
    for number in 0..OBJECTS {
        let name = format!("names {number}");
        durably(&items, Update::delete(key(&name))).await;
        objects.delete(&path(number)).await.expect("it goes");
        let gone = objects.get(&path(number)).await;
        assert!(
            matches!(gone, Err(ObjectError::NotFound { .. })),
            "{gone:?}"
        );
        if number % 2 == 0 {
            create(&objects, number, "later").await;
        }
    }
    let listed: Vec<_> = objects.list(None).try_collect().await.expect("it lists");
    assert_eq!(
        listed.len() as i64,
        OBJECTS / 2,
        "callers see no held names"
    );
    Ok(())
}

async fn restored(bytes: &[u8], directory: &Path) -> Embedded {
    let target = Target {
        data_dir: directory.join("restored"),
        named: None,
    };
    let restored = restore(bytes, &target).expect("it is restored");
    assert_eq!(restored, verify(bytes).expect("it is whole"));
    open(&target.data_dir).await
}

/// The names of items whose object is missing or another one.
async fn dangling(store: &Embedded) -> Vec<i64> {
    let (items, objects) = (store.key_value(), store.objects());
    let mut dangling = Vec::new();
    for number in 0..OBJECTS {
        if value(&items, &format!("names {number}")).await.is_none() {
            continue;
        }
        let content = match objects.get(&path(number)).await {
            Ok(found) => found.bytes().await.expect("it reads"),
            Err(_) => "missing".into(),
        };
        if content != format!("content {number}") {
            dangling.push(number);
        }
    }
    dangling
}

fn held_files(directory: &Path) -> usize {
    let folders = fs::read_dir(directory.join("objects/packs")).expect("it lists");
    let names =
        folders.flat_map(|folder| fs::read_dir(folder.expect("read").path()).expect("it lists"));
    names
        .filter(|entry| {
            let name = entry.as_ref().expect("read").file_name();
            name.to_string_lossy().contains('#')
        })
        .count()
}

#[test]
fn a_backup_has_every_object_that_its_items_name() {
    for at in [LINE, HEAD, RECORDS, FIRST_OBJECT, FIRST_DATA] {
        let directory = directory();
        block_on(async {
            let store = Arc::new(open(directory.path()).await);
            fill(&store).await;
            let (items, objects) = (store.key_value(), store.objects());
            let act = move || collect(Arc::clone(&items), Arc::clone(&objects));
            let (_, bytes) = backed_up(&store, at, act).await.expect("it is taken");
            found("deleted files go", async || {
                (held_files(directory.path()) == 0).then_some(())
            })
            .await;
            let copy = restored(&bytes, directory.path()).await;
            assert_eq!(
                dangling(&copy).await,
                Vec::<i64>::new(),
                "before write {at}"
            );
            let count = if at == LINE { 0 } else { OBJECTS };
            let mut named = 0;
            for number in 0..OBJECTS {
                let name = format!("names {number}");
                named += i64::from(value(&copy.key_value(), &name).await.is_some());
            }
            assert_eq!(named, count, "it is of the moment when it began");
        });
    }
}

#[test]
fn a_variant_that_deletes_during_a_backup_is_caught() {
    let directory = directory();
    block_on(async {
        let config = Config {
            release_deleted_objects: true,
            ..config(directory.path())
        };
        let store = Arc::new(Embedded::open(config).await.expect("it opens"));
        fill(&store).await;
        let (items, objects) = (store.key_value(), store.objects());
        let act = move || collect(Arc::clone(&items), Arc::clone(&objects));
        let (_, bytes) = backed_up(&store, RECORDS, act).await.expect("it is taken");
        let copy = restored(&bytes, directory.path()).await;
        assert_eq!(dangling(&copy).await.len() as i64, OBJECTS);
    });
}

/// Every restore begins a timeline, which stays; a store that was never restored has none.
#[test]
fn each_restore_begins_a_timeline() {
    let directory = directory();
    block_on(async {
        let mut store = Arc::new(open(&directory.path().join("first")).await);
        assert_eq!(store.timeline(), None);
        let mut drawn = Vec::new();
        for round in 0..3 {
            let (_, bytes) = quietly(&store).await.expect("it is taken");
            let parent = directory.path().join(round.to_string());
            let copy = restored(&bytes, &parent).await;
            let timeline = copy.timeline().expect("it was restored");
            assert!(!drawn.contains(&timeline), "{timeline} again");
            drawn.push(timeline);
            copy.close().await;
            store = Arc::new(open(&parent.join("restored")).await);
            assert_eq!(store.timeline(), Some(timeline), "it stays");
        }
    });
}

/// D1: from its first start on, a restored store needs its journal.
#[test]
fn a_restored_store_without_its_journal_refuses_to_start_and_names_it() {
    let directory = directory();
    block_on(async {
        let store = Arc::new(open(&directory.path().join("first")).await);
        durably(&store.key_value(), put("kept", 1)).await;
        let (_, bytes) = quietly(&store).await.expect("it is taken");
        let copy = restored(&bytes, directory.path()).await;
        durably(&copy.key_value(), put("later", 1)).await;
        drop(copy);
        let path = directory.path().join("restored");
        fs::remove_dir_all(path.join("journal")).expect("the journal goes");
        let refused = Embedded::open(config(&path)).await.expect_err("it is gone");
        let segment = path.join("journal/00000001.log");
        assert!(
            matches!(&refused, OpenError::Missing { file } if *file == segment),
            "{refused:?}"
        );
    });
}

/// Writers on other threads; each pair is written in one transaction.
#[test]
fn transactions_of_writers_are_inside_as_a_whole() {
    let directory = directory();
    block_on(async {
        let store = Arc::new(open(directory.path()).await);
        let is_done = Arc::new(AtomicBool::new(false));
        let writer = {
            let (items, is_done) = (store.key_value(), Arc::clone(&is_done));
            tokio::spawn(async move {
                let mut count = 0;
                while !is_done.load(Ordering::Relaxed) {
                    count += 1;
                    put_pair(&items, "left", "right", count).await;
                    tokio::task::yield_now().await;
                }
                count
            })
        };
        let mut last = 0;
        for round in 0..5 {
            let reached = found("it writes", async || {
                value(&store.key_value(), "left")
                    .await
                    .filter(|now| *now > last)
            })
            .await;
            let (_, bytes) = quietly(&store).await.expect("it is taken");
            let parent = directory.path().join(round.to_string());
            let copy = restored(&bytes, &parent).await;
            let (items, right) = (copy.key_value(), "right");
            let (left, right) = (value(&items, "left").await, value(&items, right).await);
            assert_eq!(left, right);
            assert!(
                left >= Some(reached),
                "{left:?} without the acknowledged {reached}"
            );
            last = left.expect("it is there");
            // It is a store like any other.
            done(&items, put("left", 0)).await;
            copy.close().await;
            let again = open(&parent.join("restored")).await;
            assert_eq!(value(&again.key_value(), "left").await, Some(0));
        }
        is_done.store(true, Ordering::Relaxed);
        assert!(writer.await.expect("it ends") >= last);
    });
}

#[test]
fn a_crash_during_a_backup_leaves_nothing_of_it() {
    let directory = directory();
    let copy = directory.path().join("copy");
    block_on(async {
        let store = Arc::new(open(&directory.path().join("data")).await);
        fill(&store).await;
        let (items, objects) = (store.key_value(), store.objects());
        let (from, to) = (directory.path().join("data"), copy.clone());
        let act = move || {
            let (items, objects) = (Arc::clone(&items), Arc::clone(&objects));
            let (from, to) = (from.clone(), to.clone());
            async move {
                collect(items, objects).await?;
                copy_all(&from, &to)
            }
        };
        backed_up(&store, RECORDS, act).await.expect("it is taken");
        assert_eq!(held_files(&copy), OBJECTS as usize);
        let store = open(&copy).await;
        found("held files go", async || {
            (held_files(&copy) == 0).then_some(())
        })
        .await;
        assert_eq!(dangling(&store).await, Vec::<i64>::new());
    });
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (entry, to) = (entry?, to.to_owned());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &to.join(entry.file_name()))?;
        } else {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[test]
fn one_backup_runs_at_a_time_and_a_failed_one_ends() {
    let directory = directory();
    block_on(async {
        let store = Arc::new(open(directory.path()).await);
        fill(&store).await;
        let again = Arc::clone(&store);
        let act = move || {
            let again = Arc::clone(&again);
            async move {
                let refused = quietly(&again).await.expect_err("one runs").to_string();
                assert!(refused.contains("another backup runs"), "{refused}");
                Err(io::ErrorKind::StorageFull.into())
            }
        };
        let failed = backed_up(&store, RECORDS, act).await;
        assert!(matches!(failed, Err(BackupError::Io { .. })), "{failed:?}");
        let (contents, bytes) = quietly(&store).await.expect("the next one is taken");
        assert_eq!(contents, verify(&*bytes).expect("it is whole"));
        assert_eq!(contents.objects as i64, OBJECTS);
    });
}

/// After a return to the durable state, pages of the backup's view may be used again.
#[test]
fn a_backup_does_not_survive_a_failed_write_of_the_store() {
    let directory = directory();
    block_on(async {
        let faults = Arc::new(Faults::default());
        let config = Config {
            storage: Arc::new(FaultyStorage(Arc::clone(&faults))),
            ..config(directory.path())
        };
        let store = Arc::new(Embedded::open(config).await.expect("it opens"));
        fill(&store).await;
        let (failing, faults) = (Arc::clone(&store), Arc::clone(&faults));
        let act = move || {
            let (store, faults) = (Arc::clone(&failing), Arc::clone(&faults));
            async move {
                Faults::set(&faults.fail_journal_sync, true);
                let lost = done(&store.key_value(), put("lost", 1)).await;
                let items = store.key_value();
                let waiter = tokio::spawn(async move { items.externalize(lost.point).await });
                eventually("the store notices", || {
                    matches!(store.status().health, Health::FallingBack(_))
                })
                .await;
                Faults::set(&faults.fail_journal_sync, false);
                waiter.await.expect("it ends").expect_err("it is lost");
                found("it serves again", async || {
                    store.key_value().get(&key("lost")).await.ok()
                })
                .await;
                Ok(())
            }
        };
        let failed = backed_up(&store, HEAD, act).await;
        let failed = failed.expect_err("its pages are not kept").to_string();
        assert!(
            failed.contains("repeat the backup") || failed.contains("cannot be read"),
            "{failed}"
        );
        quietly(&store).await.expect("the next one is taken");
    });
}

/// A record that needs no more than its table's first bytes: values of every kind come back.
#[test]
fn items_of_any_size_come_back() {
    let directory = directory();
    block_on(async {
        let store = Arc::new(open(directory.path()).await);
        let items = store.key_value();
        for number in 0..20_u8 {
            let name = format!("large {number}");
            let content = vec![number; 100_000 + usize::from(number)];
            done(
                &items,
                Update::modify(key(&name), vec![Action::set("value", content)]),
            )
            .await;
        }
        let (contents, bytes) = quietly(&store).await.expect("it is taken");
        assert!(bytes.len() < 1_000_000, "it is compressed");
        assert!(contents.records >= 20);
        let copy = restored(&bytes, directory.path()).await;
        for number in 0..20 {
            let name = key(&format!("large {number}"));
            let (before, after) = (items.get(&name).await, copy.key_value().get(&name).await);
            assert_eq!(before.expect("read").value, after.expect("read").value);
        }
    });
}
