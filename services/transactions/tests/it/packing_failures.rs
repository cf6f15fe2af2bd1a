//! T9, T17: packs whose objects are put, read or deleted slowly, refused, or in two tries.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::BoxStream};
use object_store::{GetOptions, GetResult, PutResult};
use ports::{
    decorate::ObjectsDecorator,
    key_value::Scan,
    objects::{ObjectError, ObjectPath, ObjectStore, PutOptions, PutPayload, Result},
};
use simulated::World;
use transactions::{Config, layout};

use crate::{
    house::{Node, in_virtual_time, key},
    packing::{node, packs, service, shown, value, write},
};

/// Longer than it takes until work begins and its pack is put, and than the pause after a failure.
const WHILE: Duration = Duration::from_secs(10);

/// Waits in virtual time until `holds` is true, for an hour at most.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let mut moments = tokio::time::interval(Duration::from_millis(50));
    let waited = async {
        while !holds().await {
            moments.tick().await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_hours(1), waited).await;
    in_time.unwrap_or_else(|_| panic!("waited an hour for {what}"));
}

/// The fate of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Put {
    Done,
    Refused,
    AnswerLost,
}

/// The largest number of calls at a time.
#[derive(Debug, Default)]
struct AtOnce {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl AtOnce {
    async fn pass(&self) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.now.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Fates {
    puts: Mutex<VecDeque<Put>>,
    gets: AtOnce,
    deletes: AtOnce,
}

impl Fates {
    fn puts_are(&self, fates: &[Put]) {
        self.puts.lock().expect("no panic").extend(fates);
    }
}

#[derive(Debug)]
struct Fateful {
    inner: Arc<dyn ObjectStore>,
    fates: Arc<Fates>,
}

fn failed(kind: io::ErrorKind) -> ObjectError {
    let (store, source) = ("of a test", Box::new(io::Error::from(kind)));
    ObjectError::Generic { store, source }
}

impl ObjectsDecorator for Fateful {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.inner
    }

    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let fate = self.fates.puts.lock().expect("no panic").pop_front();
        if fate == Some(Put::Refused) {
            return Err(failed(io::ErrorKind::StorageFull));
        }
        let put = self.inner.put_opts(path, payload, options).await;
        if fate == Some(Put::AnswerLost) {
            return Err(failed(io::ErrorKind::TimedOut));
        }
        put
    }

    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        self.fates.gets.pass().await;
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        let fates = Arc::clone(&self.fates);
        let deleted = self.inner.delete_stream(paths);
        deleted
            .then(move |path| {
                let fates = Arc::clone(&fates);
                async move {
                    fates.deletes.pass().await;
                    path
                }
            })
            .boxed()
    }
}

async fn fateful(world: &World, config: Config) -> (Node, Arc<Fates>) {
    let fates = Arc::<Fates>::default();
    let inner = world.objects();
    let objects = Fateful {
        inner,
        fates: Arc::clone(&fates),
    };
    let service = service(world, objects.into_objects(), config);
    (Node::of(service).await, fates)
}

/// A put that was tried twice may arrive once more, after the pack is deleted: the next start
/// searches for such an object.
#[test]
fn a_pack_that_was_put_in_two_tries_is_searched_for() {
    for (fate, has_left) in [(Put::Done, true), (Put::AnswerLost, false)] {
        in_virtual_time(async |world| {
            let (node, fates) = fateful(&world, Config::default()).await;
            fates.puts_are(&[fate]);
            write(&node, 1, 1).await;
            assert_eq!(node.service.leave().await, has_left, "{fate:?}");
        });
    }
}

/// A merge of many packs reads and deletes their objects beside each other.
#[test]
fn packs_of_a_merge_are_read_and_deleted_beside_each_other() {
    in_virtual_time(async |world| {
        let config = Config {
            packs_merged: 20,
            ..Config::default()
        };
        let (node, fates) = fateful(&world, config).await;
        for number in 0..20 {
            write(&node, number, 1).await;
        }
        until("the packs to be merged and deleted", async || {
            node.engine.figures().compacted == 20 && packs(&world).await.0 == 1
        })
        .await;
        let most = [&fates.gets, &fates.deletes].map(|calls| calls.most.load(Ordering::Relaxed));
        assert_eq!(most, [16, 16]);
    });
}

/// Overwrites values of [`write`] with small ones, which are in no pack.
async fn overwrite(node: &Node, transaction: u64, keys: std::ops::Range<u64>) {
    for number in keys {
        let name = format!("k{transaction}-{number}");
        let written = node.engine.put_now(key(&name), Some(value(9, number)));
        written.await.expect("small");
    }
}

/// A pack without live values needs no space to be deleted, whichever others there are.
#[test]
fn dead_packs_are_deleted_on_a_full_disk() {
    in_virtual_time(async |world| {
        let node = node(&world, Config::default()).await;
        write(&node, 1, 3).await;
        write(&node, 2, 3).await;
        world.fill_disk_of_objects();
        overwrite(&node, 1, 0..2).await;
        overwrite(&node, 2, 0..3).await;
        until("the pack without live values to be deleted", async || {
            packs(&world).await.0 == 1
        })
        .await;
        world.empty_disk_of_objects();
        assert_eq!(shown(&node, "k1-2").await, Some(value(2_048, 2)));
    });
}

/// Copies of values that could not be moved are dead: their pack is compacted as any other.
#[test]
fn copies_of_values_that_were_not_moved_are_dead() {
    in_virtual_time(async |world| {
        let config = Config {
            pack_bytes_max: 5 * 2_048,
            ..Config::default()
        };
        let (node, fates) = fateful(&world, config).await;
        for number in 0..4 {
            write(&node, number, 5).await;
        }
        until("every write to have its pack", async || {
            packs(&world).await.0 == 4
        })
        .await;
        // Two values of each stay: they fill one pack, which is put, and begin another.
        fates.puts_are(&[Put::Done, Put::Refused]);
        let all = (0..4).map(|number| overwrite(&node, number, 0..3));
        futures_util::future::join_all(all.collect::<Vec<_>>()).await;
        until("the dead copies to be compacted", async || {
            let is_refused = fates.puts.lock().expect("no panic").is_empty();
            is_refused && packs(&world).await.1 < 9 * 2_048
        })
        .await;
        assert_eq!(shown(&node, "k3-4").await, Some(value(2_048, 4)));
    });
}

/// The dead bytes in the only row.
async fn dead_in_row(world: &World) -> i64 {
    let scan = Scan::partition(layout::PACKS.to_vec(), 9);
    let rows = world.key_value().scan(&scan).await.expect("calm").value;
    let [(_, row)] = &rows.items[..] else {
        panic!("one pack: {rows:?}")
    };
    row.integer("dead").unwrap_or_default()
}

/// T17: the row of a pack is not written for each of its values that dies, but for each eighth.
#[test]
fn a_row_follows_the_dead_bytes_of_its_pack_by_eighths() {
    in_virtual_time(async |world| {
        let node = node(&world, Config::default()).await;
        write(&node, 1, 16).await;
        for (number, noted) in [(0, 0), (1, 2), (2, 2), (3, 4)] {
            overwrite(&node, 1, number..number + 1).await;
            tokio::time::sleep(WHILE).await;
            assert_eq!(dead_in_row(&world).await, noted * 2_048, "{number}");
        }
        overwrite(&node, 1, 4..5).await;
        tokio::time::sleep(WHILE).await;
        assert!(node.service.leave().await);
        assert_eq!(dead_in_row(&world).await, 5 * 2_048, "at the end");
    });
}
