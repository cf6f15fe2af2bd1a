//! The buffer before a distant object store: crashes, outages, late and duplicate writes.

use std::time::Duration;

use object_store::PutResult;
use ports::{
    decorate::ObjectsDecorator,
    objects::{self, ObjectError, ObjectPath, PutPayload},
};
use simulated::percent;

use super::{races::slow_world, *};

const HOUR: Duration = Duration::from_hours(1);

/// This machine with the buffer, and the distant object store.
struct Worlds {
    near: World,
    far: World,
    config: Config,
}

impl Worlds {
    /// All content is read from the buffer or the store: there is no function memory.
    fn new(seed: u64, mutant: Option<Broken>) -> Self {
        let config = Config {
            memory_bytes_max: 0,
            mutant: mutant.into(),
            ..config()
        };
        Self {
            near: slow_world(seed),
            far: slow_world(seed + 1_000_000),
            config,
        }
    }

    fn start(&self) -> Started {
        self.start_before(self.far.objects())
    }

    fn start_before(&self, behind: Arc<dyn ObjectStore>) -> Started {
        let stores = (behind, Some(self.near.objects()));
        start_on(&self.near, self.near.clock(), &self.config, stores)
    }

    async fn sleep(&self, time: Duration) {
        self.near.clock().sleep(time).await;
    }

    /// The far store takes no call.
    fn go_away(&self) {
        self.far.faults().refuse(percent(100));
    }

    async fn drained(&self, started: &Started) {
        until(&self.near, || async {
            let figures = started.service.figures();
            let is_empty = (figures.buffered_fragments, figures.buffered_bytes) == (0, 0);
            // After a start the figures are those of a buffer that is not listed yet.
            is_empty && stored_objects(&self.near).await == 0
        })
        .await;
    }
}

async fn bucket(started: &Started) {
    started.service.create_bucket("b").await.expect("made");
}

async fn delete_key(service: &Service, key: &str) {
    let deleted = service.delete("b", key, &Conditions::default()).await;
    deleted.expect("deleted");
}

/// Section 5.3.2: a PUT and a GET need the buffer alone. No call is made once it is empty.
#[test]
fn puts_and_gets_go_on_while_the_object_store_is_away() {
    run(async {
        let worlds = Worlds::new(1, None);
        let started = worlds.start();
        bucket(&started).await;
        worlds.go_away();
        let whole = content(1, LARGE);
        put(&started.service, "k", &whole).await;
        worlds.sleep(HOUR).await;
        assert!(get(&started.service, "k").await.expect("read") == whole);
        drop(started);
        let started = worlds.start();
        assert!(get(&started.service, "k").await.expect("read") == whole);
        put(&started.service, "other", &whole).await;
        assert_eq!(stored_objects(&worlds.near).await, 2);
        assert!(started.service.figures().buffered_bytes > 2 * LARGE as u64);
        worlds.far.faults().calm();
        worlds.drained(&started).await;
        assert_eq!(stored_objects(&worlds.far).await, 2);
        assert!(get(&started.service, "k").await.expect("read") == whole);
        let calls = (worlds.near.port_calls(), worlds.far.port_calls());
        worlds.sleep(HOUR).await;
        assert_eq!((worlds.near.port_calls(), worlds.far.port_calls()), calls);
    });
}

/// A fragment that left the buffer is looked for behind.
#[test]
fn hot_fragments_come_back_to_memory_from_the_store_behind() {
    run(async {
        let mut worlds = Worlds::new(1, None);
        worlds.config.memory_bytes_max = config().memory_bytes_max;
        let started = worlds.start();
        bucket(&started).await;
        put(&started.service, "k", &content(1, LARGE)).await;
        worlds.drained(&started).await;
        worlds.sleep(Duration::from_secs(30)).await;
        drop(started);
        let started = worlds.start();
        until(&worlds.near, || async {
            started.service.figures().fragments == 1
        })
        .await;
    });
}

/// A fragment that is copied in parts.
#[test]
fn a_large_fragment_is_copied_in_parts() {
    run(async {
        let mut worlds = Worlds::new(1, None);
        worlds.config.unit_bytes = UNIT_BYTES;
        let started = worlds.start();
        bucket(&started).await;
        let whole = content(1, 12 << 20);
        put(&started.service, "k", &whole).await;
        worlds.drained(&started).await;
        assert!(get(&started.service, "k").await.expect("read") == whole);
    });
}

/// The objects that are lost by crashes of the daemon between any two steps.
fn lost_by_crashes(seed: u64, mutant: Option<Broken>) -> usize {
    run(async {
        let worlds = Worlds::new(seed, mutant);
        let mut random = fastrand::Rng::with_seed(seed);
        bucket(&worlds.start()).await;
        let mut acknowledged = BTreeMap::new();
        let far = worlds.far.faults();
        for start in 0..4 {
            far.refuse(percent(30));
            far.lose_answer(percent(30));
            let started = worlds.start();
            for index in 0..3 {
                let (key, whole) = (format!("{start}-{index}"), content(seed + index, LARGE));
                let none = Conditions::default();
                let put = put_under(&started.service, &key, &whole, &none);
                if put.await.is_ok() {
                    acknowledged.insert(key, whole);
                }
            }
            let time = Duration::from_millis(random.u64(0..200));
            worlds.sleep(time).await;
            drop(started);
        }
        far.refuse(percent(0));
        far.lose_answer(percent(0));
        let started = worlds.start();
        worlds.drained(&started).await;
        let mut lost = 0;
        for (key, whole) in acknowledged {
            let found = get(&started.service, &key).await;
            lost += usize::from(found.is_err());
            assert!(found.is_err() || found.expect("read") == whole);
        }
        lost
    })
}

/// M5: a fragment leaves the buffer only once the store behind has it.
#[test]
fn no_acknowledged_object_is_lost_by_crashes_between_any_two_steps() {
    for seed in seeds(40) {
        assert_eq!(lost_by_crashes(seed, None), 0, "seed {seed}");
    }
    let removes = Some(Broken::RemovesUncopied);
    assert!(seeds(10).any(|seed| lost_by_crashes(seed, removes) > 0));
}

/// Fails the first puts, which take effect long after.
#[derive(Debug)]
struct LatePuts {
    inner: Arc<dyn ObjectStore>,
    clock: Arc<dyn Clock>,
    left: AtomicUsize,
}

impl ObjectsDecorator for LatePuts {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.inner
    }

    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> objects::Result<PutResult> {
        let less = |left: usize| left.checked_sub(1);
        let left = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if left.is_err() {
            return self.inner.put_opts(path, payload, options).await;
        }
        let (inner, clock, path) = (self.inner.clone(), self.clock.clone(), path.clone());
        tokio::spawn(async move {
            clock.sleep(Duration::from_mins(10)).await;
            let _ = inner.put_opts(&path, payload, options).await;
        });
        Err(ObjectError::Generic {
            store: "late",
            source: "timed out".into(),
        })
    }
}

/// The objects behind, a day after all were deleted.
fn left_behind(seed: u64, mutant: Option<Broken>, restarts: bool) -> usize {
    run(async {
        let worlds = Worlds::new(seed, mutant);
        let behind = || {
            let late = LatePuts {
                inner: worlds.far.objects(),
                clock: worlds.far.clock(),
                left: 4.into(),
            };
            late.into_objects()
        };
        let mut started = worlds.start_before(behind());
        bucket(&started).await;
        for index in 0..4 {
            put(
                &started.service,
                &index.to_string(),
                &content(index, STRIPE * 3),
            )
            .await;
        }
        worlds.sleep(Duration::from_millis(seed * 7 % 300)).await;
        for index in 0..4 {
            delete_key(&started.service, &index.to_string()).await;
        }
        if restarts {
            worlds.sleep(Duration::from_millis(seed * 13 % 300)).await;
            drop(started);
            started = worlds.start();
        }
        worlds.sleep(24 * HOUR).await;
        worlds.drained(&started).await;
        stored_objects(&worlds.far).await
    })
}

/// M5, M2: a copy that was under way, or whose request arrives late, does not come back.
#[test]
fn a_late_copy_does_not_resurrect_a_deleted_fragment() {
    for seed in seeds(40) {
        assert_eq!(left_behind(seed, None, false), 0, "seed {seed}");
        assert_eq!(left_behind(seed, None, true), 0, "seed {seed}, restarted");
    }
    let forgets = Some(Broken::ForgetsLateCopies);
    assert!(seeds(10).any(|seed| left_behind(seed, forgets, false) > 0));
    assert!(seeds(10).any(|seed| left_behind(seed, forgets, true) > 0));
}

/// The objects behind after deletes beside slow copies.
fn left_by_slow_copies(seed: u64, mutant: Option<Broken>) -> usize {
    run(async {
        let worlds = Worlds::new(seed, mutant);
        let slow = Duration::ZERO..=Duration::from_secs(1);
        worlds.far.faults().delay(percent(80), slow);
        let started = worlds.start();
        bucket(&started).await;
        for index in 0..8 {
            let (key, whole) = (index.to_string(), content(index, STRIPE * 3));
            put(&started.service, &key, &whole).await;
            worlds
                .sleep(Duration::from_millis((seed + index) % 20))
                .await;
            delete_key(&started.service, &key).await;
        }
        worlds.sleep(HOUR).await;
        worlds.drained(&started).await;
        stored_objects(&worlds.far).await
    })
}

/// M5: a delete comes after the put of its name.
#[test]
fn a_fragment_is_not_deleted_beside_its_copy() {
    for seed in seeds(40) {
        assert_eq!(left_by_slow_copies(seed, None), 0, "seed {seed}");
    }
    let beside = Some(Broken::DeletesBesideCopies);
    assert!(seeds(40).any(|seed| left_by_slow_copies(seed, beside) > 0));
}

/// P6: the buffer has a bound. Reads go on, and so do PUTs once it has room.
#[test]
fn a_full_buffer_refuses_puts_until_the_store_takes_fragments_again() {
    run(async {
        let mut worlds = Worlds::new(3, None);
        worlds.config.buffer_bytes_max = 2 * LARGE as u64;
        let started = worlds.start();
        bucket(&started).await;
        worlds.go_away();
        let whole = content(1, LARGE);
        put(&started.service, "k", &whole).await;
        let refused = store(&started.service, &whole).await;
        assert!(matches!(refused, Err(Error::NoRoom(_))), "{refused:?}");
        assert!(get(&started.service, "k").await.expect("read") == whole);
        let (stored, ()) = join(store(&started.service, &whole), async {
            worlds.sleep(Duration::from_secs(1)).await;
            delete_key(&started.service, "k").await;
            worlds.far.faults().calm();
        })
        .await;
        let stored = stored.map(drop);
        assert!(stored.is_ok() || matches!(stored, Err(Error::NoRoom(_))));
        until(&worlds.near, || async {
            put_under(&started.service, "other", &whole, &Conditions::default())
                .await
                .is_ok()
        })
        .await;
        worlds.drained(&started).await;
    });
}

/// Does not find objects at first, or returns older bytes.
#[derive(Debug)]
struct Inconsistent {
    inner: Arc<dyn ObjectStore>,
    misses: AtomicUsize,
    wrong: AtomicUsize,
}

impl ObjectsDecorator for Inconsistent {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.inner
    }

    async fn get_ranges(
        &self,
        path: &ObjectPath,
        ranges: &[Range<u64>],
    ) -> objects::Result<Vec<Bytes>> {
        let strikes = |left: &AtomicUsize| {
            let less = |left: usize| left.checked_sub(1);
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
                .is_ok()
        };
        if strikes(&self.misses) {
            return Err(ObjectError::NotFound {
                path: path.to_string(),
                source: "not yet".into(),
            });
        }
        let read = self.inner.get_ranges(path, ranges).await?;
        if strikes(&self.wrong) {
            let zeros = |bytes: Bytes| Bytes::from(vec![0; bytes.len()]);
            return Ok(read.into_iter().map(zeros).collect());
        }
        Ok(read)
    }
}

fn read_inconsistent(mutant: Option<Broken>, misses: usize, wrong: usize) -> bool {
    run(async {
        let worlds = Worlds::new(5, mutant);
        let behind = Inconsistent {
            inner: worlds.far.objects(),
            misses: misses.into(),
            wrong: wrong.into(),
        };
        let started = worlds.start_before(behind.into_objects());
        bucket(&started).await;
        let whole = content(1, STRIPE * 3);
        put(&started.service, "k", &whole).await;
        worlds.drained(&started).await;
        get(&started.service, "k")
            .await
            .is_ok_and(|found| found == whole)
    })
}

/// Section 5.3.2: the consistency-increasing read.
#[test]
fn a_read_is_repeated_until_the_store_has_the_version() {
    for (misses, wrong) in [(3, 0), (0, 3), (2, 2)] {
        assert!(read_inconsistent(None, misses, wrong));
        assert!(!read_inconsistent(Some(Broken::ReadsOnce), misses, wrong));
    }
    assert!(
        !read_inconsistent(None, 1000, 0),
        "the attempts have a bound"
    );
}
