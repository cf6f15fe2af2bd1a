//! Clients with memory beside each other: each read must be of one state, and in real-time order.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::{Either, select};
use simulated::World;
use transactions::serializable::{
    VolumeStore as _,
    model::{ProposalId, number_bytes, number_in},
};

use super::*;
use crate::{
    overlay::Overlay,
    tests::{
        granting::{Granting, Server},
        must_fail,
    },
};

const KEYS: u64 = 9;
const STEPS: usize = 60;
const CLIENTS: u64 = 3;

fn key(number: u64) -> Key {
    let group = [b'g', (number % 4) as u8].to_vec();
    Key::new(group, number.to_be_bytes().to_vec()).expect("short")
}

/// An operation that has ended, and the slots at which it may have taken place.
#[derive(Debug, Clone)]
struct Operation {
    begun: u64,
    ended: u64,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Wrote(Slot),
    Read(Vec<(Key, Option<Bytes>)>),
}

/// The order of events in all clients.
#[derive(Debug, Default)]
struct History {
    events: AtomicU64,
    values: AtomicU64,
    operations: Mutex<Vec<Operation>>,
}

impl History {
    fn event(&self) -> u64 {
        self.events.fetch_add(1, Ordering::Relaxed)
    }

    fn add(&self, begun: u64, kind: Kind) {
        let ended = self.event();
        let operation = Operation { begun, ended, kind };
        self.operations.lock().push(operation);
    }
}

struct Client {
    volume: Arc<LeasedVolume>,
    store: Arc<dyn VolumeStore>,
    random: fastrand::Rng,
    history: Arc<History>,
    clock: Arc<dyn Clock>,
}

impl Client {
    async fn step(&mut self) {
        let keys = |random: &mut fastrand::Rng| -> Vec<Key> {
            let keys = (0..random.usize(1..4)).map(|_| key(random.u64(..KEYS)));
            keys.collect()
        };
        match self.random.u32(..12) {
            0..4 => self.write().await,
            4..7 => {
                let keys = keys(&mut self.random);
                let begun = self.history.event();
                if let Ok(read) = self.volume.read(&keys).await {
                    let found = keys.into_iter().zip(read.value.found);
                    self.history.add(begun, Kind::Read(found.collect()));
                }
            }
            7..11 => {
                let steps = [keys(&mut self.random), keys(&mut self.random)];
                self.read_in_steps(steps).await;
            }
            _ => {
                let ms = self.random.u64(..300);
                self.clock.sleep(Duration::from_millis(ms)).await;
            }
        }
    }

    /// A transaction that only reads, as a call of a file system is.
    async fn read_in_steps(&mut self, steps: [Vec<Key>; 2]) {
        let mut overlay = Overlay::new(Arc::clone(&self.store), None);
        overlay.read_leased(Some(Arc::clone(&self.volume)));
        let (begun, mut all) = (self.history.event(), Vec::new());
        for keys in steps {
            match overlay.get_all(&keys).await {
                Ok(found) => all.extend(keys.into_iter().zip(found)),
                Err(_) => return,
            }
        }
        self.history.add(begun, Kind::Read(all));
    }

    /// Writes values that no other write has.
    async fn write(&mut self) {
        let value = self.history.values.fetch_add(1, Ordering::Relaxed) + 1;
        let write = |key, kind| match kind {
            0 => Write::Add { key, delta: 1 },
            1 => Write::Max {
                key,
                value: value << 20,
            },
            _ => Write::Put {
                key,
                value: number_bytes(value << 20),
            },
        };
        let first = self.random.u64(..KEYS);
        let writes = (0..self.random.u64(1..3))
            .map(|index| write(key((first + index) % KEYS), self.random.u32(..4)));
        let proposal = Proposal {
            at: Slot(0),
            id: ProposalId::new(value.to_be_bytes().to_vec(), 0).expect("short"),
            reads: Vec::new(),
            predicates: Vec::new(),
            writes: Writes::Inline(writes.collect()),
        };
        let begun = self.history.event();
        // One that is not answered is repeated, or given up, as an interrupted call is.
        for _ in 0..self.random.u32(1..4) {
            let answer = self.volume.commit(proposal.clone()).await;
            if let Ok(Read {
                value: Verdict::Committed { slot, .. },
                ..
            }) = answer
            {
                self.history.add(begun, Kind::Wrote(slot));
                return;
            }
        }
    }
}

/// Runs clients with random delays, losses and stops.
async fn random_calls(seed: u64, mutant: Mutant<Broken>) {
    let world = World::new(seed);
    let server = Server::new(world.clock());
    let history = Arc::new(History::default());
    let mut clients = Vec::new();
    let mut runs = Vec::new();
    for number in 0..CLIENTS {
        let seed = seed * CLIENTS + number;
        let inner: Arc<Granting> = Arc::new(server.connect(Some(seed)));
        let bytes_max = if seed.is_multiple_of(5) { 300 } else { 1 << 20 };
        let volume = LeasedVolume::broken(inner, world.clock(), world.entropy(), bytes_max, mutant);
        let volume = Arc::new(volume);
        let run = Arc::clone(&volume);
        runs.push(tokio::spawn(async move { run.run().await }));
        // Two threads of one mount.
        for thread in 0..2 {
            let mut client = Client {
                store: Arc::clone(&volume) as Arc<dyn VolumeStore>,
                volume: Arc::clone(&volume),
                random: fastrand::Rng::with_seed(seed * 2 + thread),
                history: Arc::clone(&history),
                clock: world.clock(),
            };
            clients.push(tokio::spawn(async move {
                for _ in 0..STEPS {
                    client.step().await;
                }
            }));
        }
    }
    for client in clients {
        client.await.expect("no panic");
    }
    runs.iter().for_each(tokio::task::JoinHandle::abort);
    check(&*server.volume, &history, seed).await;
}

/// The values of each key by the slots at which they began.
async fn timelines(volume: &dyn VolumeStore) -> BTreeMap<Key, Vec<(Slot, Option<Bytes>)>> {
    let keys: Vec<Key> = (0..KEYS).map(key).collect();
    let last = volume.snapshot().await.expect("a snapshot").value.slot;
    let mut lines: BTreeMap<Key, Vec<(Slot, Option<Bytes>)>> = BTreeMap::new();
    for slot in (0..=last.0).map(Slot) {
        let read = volume.get_many(At::Slot(slot), &keys).await.expect("kept");
        for (key, value) in keys.iter().zip(read.value.found) {
            let line = lines.entry(key.clone()).or_default();
            if line.last().is_none_or(|(_, last)| *last != value) {
                line.push((slot, value));
            }
        }
    }
    lines
}

async fn check(volume: &dyn VolumeStore, history: &History, seed: u64) {
    let lines = timelines(volume).await;
    let slots = |operation: &Operation| match &operation.kind {
        Kind::Wrote(slot) => (*slot, Slot(slot.0 + 1)),
        Kind::Read(found) => {
            let (mut first, mut until) = (Slot(0), Slot(u64::MAX));
            for (key, value) in found {
                let line = &lines[key];
                let place = line.iter().position(|(_, other)| other == value);
                let number = number_in(value.as_ref());
                let place = place.unwrap_or_else(|| panic!("{key:?} never was {number:?}"));
                first = first.max(line[place].0);
                until = until.min(line.get(place + 1).map_or(Slot(u64::MAX), |next| next.0));
            }
            assert!(first < until, "seed {seed}: no single state: {operation:?}");
            (first, until)
        }
    };
    let operations = history.operations.lock().clone();
    let mut by_end: Vec<(u64, Slot)> = operations
        .iter()
        .map(|operation| (operation.ended, slots(operation).0))
        .collect();
    by_end.sort_unstable();
    for operation in &operations {
        let before = by_end
            .iter()
            .take_while(|(ended, _)| *ended < operation.begun);
        let before = before.map(|(_, slot)| *slot).max().unwrap_or_default();
        let (_, until) = slots(operation);
        assert!(
            before < until,
            "seed {seed}: {before:?} had happened: {operation:?}"
        );
    }
    assert!(operations.len() > STEPS, "seed {seed}");
}

fn all_seeds(mutant: Mutant<Broken>) {
    for seed in simulated::seeds(25) {
        simulated::run(random_calls(seed, mutant));
    }
}

/// M1 to M4, V1, V7.
#[test]
fn reads_from_memory_are_linearizable() {
    all_seeds(Mutant::NONE);
}

/// Defines tests that the random calls notice each dropped rule.
macro_rules! noticed {
    ($($name:ident: $rule:ident;)*) => {
        $(
            #[test]
            fn $name() {
                must_fail(|| all_seeds(Broken::$rule.into()));
            }
        )*
    };
}

noticed! {
    keeping_recalled_groups_is_noticed: KeepsRecalled;
    keeping_reads_from_before_a_recall_is_noticed: FillsAfterRecall;
    answering_after_the_lease_is_noticed: AnswersAfterLapse;
    answering_keys_that_are_written_is_noticed: AnswersSuspended;
    staying_at_an_old_slot_is_noticed: KeepsFirstSlot;
}

fn put(value: &'static str) -> Proposal {
    let writes = vec![Write::Put {
        key: key(1),
        value: Bytes::from(value),
    }];
    Proposal {
        at: Slot(0),
        id: ProposalId::new("id", 0).expect("short"),
        reads: Vec::new(),
        predicates: Vec::new(),
        writes: Writes::Inline(writes),
    }
}

/// A client, once it has a lease on a group.
async fn warm(
    server: &Arc<Server>,
    world: &World,
    mutant: Mutant<Broken>,
) -> (Arc<LeasedVolume>, Granting) {
    let inner = server.connect(None);
    let store = Arc::new(inner.clone());
    let volume = LeasedVolume::broken(store, world.clock(), world.entropy(), 1 << 20, mutant);
    let volume = Arc::new(volume);
    let run = Arc::clone(&volume);
    tokio::spawn(async move { run.run().await });
    for _ in 0..2 {
        volume.read(&[key(1)]).await.expect("read");
        world.clock().sleep(Duration::from_millis(5)).await;
    }
    assert!(server.has_leases());
    (volume, inner)
}

/// A client that reads nothing costs nothing, and holds up no other.
#[test]
fn an_idle_client_gives_its_leases_up() {
    simulated::run(async {
        let world = World::new(1);
        let server = Server::new(world.clock());
        let (volume, inner) = warm(&server, &world, Mutant::NONE).await;
        let calls = || inner.calls.load(Ordering::Relaxed);
        let before = calls();
        for _ in 0..20 {
            world.clock().sleep(Duration::from_millis(200)).await;
            volume.read(&[key(1)]).await.expect("read");
        }
        assert_eq!(calls(), before, "all from memory");
        world.clock().sleep(Duration::from_secs(4)).await;
        assert!(!server.has_leases());
        let polls = || inner.polls.load(Ordering::Relaxed);
        let before = polls();
        world.clock().sleep(Duration::from_mins(1)).await;
        assert_eq!(polls(), before);
    });
}

/// M5.
#[test]
fn a_state_that_the_server_lost_is_dropped() {
    simulated::run(async {
        let world = World::new(1);
        let server = Server::new(world.clock());
        let (volume, _) = warm(&server, &world, Mutant::NONE).await;
        volume.commit(put("lost")).await.expect("committed");
        let read = async || volume.read(&[key(1)]).await.expect("read").value.found;
        assert_eq!(read().await, [Some(Bytes::from("lost"))]);
        server.crash();
        world.clock().sleep(Duration::from_secs(1)).await;
        assert_eq!(read().await, [None]);
    });
}

/// The scenario: a commit takes place after its caller has given it up.
async fn late_commit(mutant: Mutant<Broken>) {
    let world = World::new(1);
    let server = Server::new(world.clock());
    let (volume, inner) = warm(&server, &world, mutant).await;
    inner.late_ms.store(1_000, Ordering::Relaxed);
    let clock = world.clock();
    let patience = clock.sleep(Duration::from_millis(50));
    match select(volume.commit(put("new")), patience).await {
        Either::Left((decided, _)) => panic!("it takes long: {decided:?}"),
        Either::Right(_) => {}
    }
    let read = async || volume.read(&[key(1)]).await.expect("read").value.found;
    // The new session has its leases after the first one has ended.
    for _ in 0..8 {
        assert_eq!(read().await, [None]);
        world.clock().sleep(Duration::from_millis(100)).await;
    }
    world.clock().sleep(Duration::from_millis(500)).await;
    assert_eq!(read().await, [Some(Bytes::from("new"))]);
}

/// M4.
#[test]
fn a_commit_that_was_given_up_recalls_the_leases_of_its_client() {
    simulated::run(late_commit(Mutant::NONE));
}

#[test]
fn keeping_the_session_of_a_lost_commit_is_noticed() {
    must_fail(|| simulated::run(late_commit(Broken::KeepsSessionInDoubt.into())));
}
