//! Crashes of the node and of its store: externalized writes survive, and nothing is torn.

use std::future::pending;

use ports::{
    DurabilityPoint, Update,
    decorate::{Decorator, KeyValueDecorator},
    key_value::{KeyValueLimits, Transacted, Updated},
};

use super::*;
use crate::serializable::{
    contract::commit,
    model::{Proposal, Writes, encode_part},
};

/// V6: a node that starts anew, with its store or without, loses nothing that was externalized.
#[test]
fn a_crash_loses_nothing_that_was_externalized() {
    for seed in 0..20 {
        simulated::run(async move {
            let world = World::new(seed);
            let random = &mut fastrand::Rng::with_seed(seed);
            let mut node = Node::on(&world, world.key_value(), Config::default()).await;
            let mut volume = node.create("demo").await;
            let keys = ["a", "b", "c"].map(|name| key("d", name));
            // For each key the last value that must be there, and those that may.
            let (mut durable, mut number) = (0_u64, 0_u64);
            for _ in 0..30 {
                for _ in 0..random.u64(1..6) {
                    number += 1;
                    let at = volume.snapshot().await.expect("a snapshot").value.slot;
                    let text = number.to_string();
                    let writes = keys.iter().map(|key| put(key, text.clone())).collect();
                    let read = volume.commit(blind(at, number, writes)).await;
                    let read = read.expect("a verdict");
                    assert!(matches!(read.value, Verdict::Committed { .. }), "{read:?}");
                    if random.bool() {
                        volume.externalize(read.point).await.expect("durable");
                        durable = number;
                    }
                }
                if random.bool() {
                    pass(Duration::from_millis(random.u64(0..600))).await;
                }
                drop(volume);
                drop(node);
                match random.u8(0..3) {
                    0 => world.crash(),
                    1 => world.crash_keeping_some(),
                    _ => durable = number,
                }
                node = Node::on(&world, world.key_value(), Config::default()).await;
                volume = node.open("demo").await;
                let found = volume
                    .get_many(At::Tail, &keys)
                    .await
                    .expect("a read")
                    .value;
                assert!(
                    found.found.iter().all(|value| *value == found.found[0]),
                    "torn"
                );
                let last = found.found[0].as_ref().map_or(0, |value| {
                    let text = std::str::from_utf8(value).expect("text");
                    text.parse::<u64>().expect("a number")
                });
                assert!(
                    (durable..=number).contains(&last),
                    "seed {seed}: {last} {durable}"
                );
                number = number.max(last);
                durable = last;
            }
        });
    }
}

/// A store that goes back under a living node: its clients see a later incarnation, and a snapshot
/// that the store has lost validates nothing.
#[test]
fn a_lost_snapshot_validates_nothing() {
    simulated::run(async {
        let world = World::new(7);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let (volume, key) = (node.create("demo").await, key("d", "a"));
        let first = volume
            .commit(blind(Slot(0), 1, vec![put(&key, "first")]))
            .await;
        let first = first.expect("a verdict");
        volume.externalize(first.point).await.expect("durable");
        let at = volume.snapshot().await.expect("a snapshot").value.slot;
        let lost = volume.commit(blind(at, 2, vec![put(&key, "lost")])).await;
        let lost = lost.expect("a verdict");
        let Verdict::Committed { slot, .. } = lost.value else {
            panic!("{lost:?}");
        };
        world.crash();
        let mut tries = 0;
        let found = loop {
            match volume.get_many(At::Tail, std::slice::from_ref(&key)).await {
                Ok(found) => break found,
                Err(error) => {
                    assert!(matches!(error, crate::Error::Unavailable(_)), "{error}");
                    tries += 1;
                    assert!(tries < 1_000, "the node does not restart");
                    pass(Duration::from_millis(10)).await;
                }
            }
        };
        assert_eq!(found.value.found, [Some("first".into())]);
        assert!(found.point.incarnation > first.point.incarnation);
        assert!(volume.externalize(lost.point).await.is_err());
        volume.externalize(first.point).await.expect("it survived");
        for number in 3..6 {
            let other = crate::serializable::contract::key("d", "b");
            committed(
                &*volume,
                blind(found.value.slot, number, vec![put(&other, "1")]),
            )
            .await;
        }
        let mut late = blind(slot, 9, vec![put(&key, "late")]);
        late.reads = vec![key.clone()];
        assert_eq!(commit(&*volume, late).await, Verdict::SnapshotTooOld);
        let read = volume.get_many(At::Slot(slot), &[key]).await;
        assert_eq!(read.map(drop), Err(crate::Error::SnapshotTooOld));
    });
}

/// A store that answers some calls, and none after them.
#[derive(Debug)]
struct Dies {
    inner: Arc<dyn KeyValue>,
    calls_left: Mutex<Option<usize>>,
    limits: KeyValueLimits,
}

impl Dies {
    async fn count(&self) {
        let lives = match &mut *self.calls_left.lock() {
            Some(0) => false,
            Some(calls) => {
                *calls -= 1;
                true
            }
            None => true,
        };
        if !lives {
            pending::<()>().await;
        }
    }
}

impl Decorator for Dies {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> ports::Result<()> {
        self.count().await;
        self.inner.externalize(point).await
    }
}

impl KeyValueDecorator for Dies {
    async fn update(&self, update: Update) -> ports::Result<Updated> {
        self.count().await;
        self.inner.update(update).await
    }

    async fn transact(&self, updates: Vec<Update>) -> ports::Result<Transacted> {
        self.count().await;
        self.inner.transact(updates).await
    }

    fn limits(&self) -> &KeyValueLimits {
        &self.limits
    }
}

/// How a node ends.
#[derive(Debug, Clone, Copy)]
struct How {
    /// Whether rows are written together.
    together: bool,
    /// Whether the store loses the writes that were not externalized.
    loses: bool,
}

/// A node whose store dies after `calls` writes: during a commit, its installation or the trim.
/// Returns whether it lived on.
async fn dies_after(world: &World, how: How, calls: usize, config: Config) -> bool {
    let store = Arc::new(Dies {
        inner: world.key_value(),
        calls_left: Mutex::default(),
        limits: KeyValueLimits {
            transact_across_partitions: how.together,
            ..*world.key_value().limits()
        },
    });
    let node = Node::on(world, store.clone(), config).await;
    let volume = node.create("demo").await;
    let keys = ["a", "b", "c", "d"].map(|name| key("d", name));
    let first = volume
        .commit(blind(Slot(0), 1, vec![put(&keys[0], "1")]))
        .await;
    let first = first.expect("a verdict");
    volume.externalize(first.point).await.expect("durable");
    pass(Duration::from_secs(1)).await;
    let at = volume.snapshot().await.expect("a snapshot").value.slot;
    *store.calls_left.lock() = Some(calls);
    let large = [put(&key("d", "e"), "12345"), put(&key("d", "f"), "67890")];
    let part =
        encode_part(&[vec![put(&keys[1], "2"), put(&keys[2], "2")], large.to_vec()].concat());
    let staged = Proposal {
        writes: Writes::Staged {
            stage: StageId([7; 16]),
            parts: 1,
            bytes: part.len() as u64,
            crc: crc32fast::hash(&part),
        },
        ..blind(at, 2, Vec::new())
    };
    let (proposal, of_task) = (staged.clone(), Arc::clone(&volume));
    let commits = tokio::spawn(async move {
        let stage = of_task.stage(StageId([7; 16]), 0, part).await;
        stage.expect("room");
        let read = of_task.commit(proposal).await.expect("a verdict");
        let last = of_task.commit(blind(at, 3, vec![put(&key("d", "d"), "3")]));
        let last = last.await.expect("a verdict");
        of_task.externalize(last.point).await.expect("durable");
        read.value
    });
    pass(Duration::from_secs(2)).await;
    let answered = answer_of(commits).await;
    let lives = store.calls_left.lock().is_some_and(|left| left > 0);
    drop(volume);
    drop(node);
    if how.loses {
        world.crash();
    }
    let node = Node::on(world, world.key_value(), Config::default()).await;
    let volume = node.open("demo").await;
    check_left(&*volume, &keys, answered, staged, calls).await;
    lives
}

/// The verdict of a task that has ended; `None`: it waits for its dead store.
async fn answer_of(commits: JoinHandle<Verdict>) -> Option<Verdict> {
    if commits.is_finished() {
        return Some(commits.await.expect("a verdict"));
    }
    commits.abort();
    let _ = commits.await;
    None
}

/// An answered commit stands, and a repeat gets the same verdict.
async fn check_left(
    volume: &dyn VolumeStore,
    keys: &[crate::serializable::model::Key],
    answered: Option<Verdict>,
    staged: Proposal,
    calls: usize,
) {
    let found = volume.get_many(At::Tail, keys).await.expect("a read");
    let found = found.value.found;
    assert_eq!(found[0], Some("1".into()), "{calls}");
    assert_eq!(found[1], found[2], "{calls}: torn");
    let large = ["e", "f"].map(|name| key("d", name));
    let large = volume.get_many(At::Tail, &large).await.expect("a read");
    let is_there = found[1].is_some();
    let expected = ["12345", "67890"].map(|value| is_there.then(|| value.into()));
    assert_eq!(large.value.found, expected, "{calls}: torn");
    if let Some(verdict) = answered {
        assert_eq!(found[1], Some("2".into()), "{calls}");
        assert_eq!(found[3], Some("3".into()), "{calls}");
        assert_eq!(commit(volume, staged.clone()).await, verdict, "{calls}");
    } else if found[1].is_some() {
        let again = commit(volume, staged).await;
        assert!(
            matches!(again, Verdict::Committed { .. }),
            "{calls}: {again:?}"
        );
    }
}

fn survives_each_gap(how: How, config: &Config) {
    let (mut calls, mut lives) = (0, false);
    while !lives {
        simulated::run(async {
            let world = World::new(7);
            lives = dies_after(&world, how, calls, config.clone()).await;
        });
        calls += 1;
    }
    assert!(calls > 8, "stage, slots, rows, state, trim: {calls}");
}

/// V6: the same with values in objects.
#[test]
fn a_crash_at_each_gap_loses_nothing_in_objects() {
    for loses in [false, true] {
        let together = true;
        survives_each_gap(How { together, loses }, &objects::bulk(None));
    }
}

/// V6: a crash between any two writes loses nothing that was externalized, and tears nothing.
#[test]
fn a_crash_at_each_gap_loses_nothing() {
    for (together, loses) in [(false, false), (false, true), (true, false), (true, true)] {
        survives_each_gap(How { together, loses }, &Config::default());
    }
}

#[test]
fn a_trim_before_the_installation_is_found() {
    let variant = broken(Broken::TrimsBeforeInstalling);
    let how = How {
        together: false,
        loses: false,
    };
    assert!(fails(|| survives_each_gap(how, &variant)));
}
