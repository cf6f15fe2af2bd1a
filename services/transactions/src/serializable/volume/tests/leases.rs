//! V7: read leases on a node, in virtual time.

use bytes::Bytes;
use futures_util::poll;
use ports::Monotonic;

use super::*;
use crate::serializable::model::{
    Key, LEASE, LEASE_POLL, Patch, Proposal, SessionId, Writes, encode_part,
};

const SESSION: SessionId = SessionId(1);

/// At most this long takes a call that waits for nothing.
const SOON: Duration = Duration::from_millis(100);

fn now(world: &World) -> Monotonic {
    world.clock().monotonic()
}

/// A session that may have leases.
async fn session(volume: &dyn VolumeStore, session: SessionId) {
    let told = volume.recalled(session, 0).await.expect("an answer").value;
    assert!(told.has_lapsed && told.groups.is_empty());
    let mut call = volume.recalled(session, told.number);
    assert!(poll!(&mut call).is_pending(), "its arrival acknowledges");
}

async fn leased(volume: &dyn VolumeStore, key: &Key) -> (Option<Bytes>, Vec<Bytes>) {
    let read = volume.get_leased(SESSION, std::slice::from_ref(key)).await;
    let mut read = read.expect("an answer").value;
    (read.values.found.remove(0), read.groups)
}

/// A node with a volume, and a session with a lease on `key`, whose value is 1.
async fn with_lease(world: &World, config: Config, key: &Key) -> (Node, Arc<dyn VolumeStore>) {
    let node = Node::on(world, world.key_value(), config).await;
    let volume = node.create("demo").await;
    committed(&*volume, blind(Slot(0), 1, vec![put(key, "1")])).await;
    session(&*volume, SESSION).await;
    let expected = (Some("1".into()), vec![key.group().clone()]);
    assert_eq!(leased(&*volume, key).await, expected);
    (node, volume)
}

/// How long a commit of `writes` takes.
async fn takes(world: &World, volume: &dyn VolumeStore, proposal: Proposal) -> Duration {
    let before = now(world);
    committed(volume, proposal).await;
    now(world).since(before)
}

async fn commits_wait_for_leases(config: Config) {
    let world = World::new(7);
    let key = key("d", "a");
    let (_node, volume) = with_lease(&world, config, &key).await;
    let other = contract::key("i", "a");
    let free = takes(&world, &*volume, blind(Slot(0), 2, vec![put(&other, "2")])).await;
    assert!(free < SOON, "{free:?}");
    let mut commit = volume.commit(blind(Slot(0), 3, vec![put(&key, "3")]));
    for _ in 0..10 {
        assert!(poll!(&mut commit).is_pending());
        pass(Duration::from_millis(150)).await;
        assert_eq!(value(&*volume, &key).await, Some("1".into()), "leased");
        assert_eq!(leased(&*volume, &key).await, (Some("1".into()), Vec::new()));
    }
    let before = now(&world);
    commit.await.expect("a verdict");
    assert!(now(&world).since(before) <= LEASE / 4);
    assert_eq!(value(&*volume, &key).await, Some("3".into()));
}

/// V7: without an acknowledgement a commit waits until the lease is over. Reads and other commits
/// do not.
#[test]
fn a_commit_waits_for_leases_on_what_it_writes() {
    simulated::run(commits_wait_for_leases(Config::default()));
    let config = broken(Broken::AnswersBeforeRecall);
    assert!(fails(|| simulated::run(commits_wait_for_leases(config))));
}

/// V7: each key of each write counts, also of a stage.
#[test]
fn every_written_group_is_recalled() {
    let key = key("d", "a");
    let blocks = Write::Append {
        length: contract::key("i", "s"),
        blocks: key.clone(),
        block_bytes: 4096,
        data: "1".into(),
    };
    let length = Write::Append {
        length: key.clone(),
        blocks: contract::key("b", ""),
        block_bytes: 4096,
        data: "1".into(),
    };
    let patch = Write::Patch {
        key: key.clone(),
        offset: 0,
        data: Patch::Bytes("2".into()),
    };
    let number = contract::key("d", "n");
    let max = Write::Max {
        key: number.clone(),
        value: 1,
    };
    let add = Write::Add {
        key: number,
        delta: 1,
    };
    let delete = Write::Delete { key: key.clone() };
    for write in [blocks, length, patch, max, add, delete] {
        for is_staged in [false, true] {
            let (key, write) = (key.clone(), write.clone());
            simulated::run(async move {
                let world = World::new(7);
                let (_node, volume) = with_lease(&world, Config::default(), &key).await;
                let writes = vec![put(&contract::key("i", "a"), "1"), write];
                let mut proposal = blind(Slot(0), 2, Vec::new());
                let part = encode_part(&writes);
                proposal.writes = Writes::Inline(writes);
                if is_staged {
                    let stage = StageId([7; 16]);
                    proposal.writes = Writes::Staged {
                        stage,
                        parts: 1,
                        bytes: part.len() as u64,
                        crc: crc32fast::hash(&part),
                    };
                    volume.stage(stage, 0, part).await.expect("room");
                }
                let before = now(&world);
                let _ = volume.commit(proposal).await.expect("a verdict");
                assert!(now(&world).since(before) > LEASE / 2);
            });
        }
    }
}

/// The holder's own commits, and the end of its session, are not in the way.
#[test]
fn a_holder_does_not_wait_for_itself() {
    simulated::run(async {
        let world = World::new(7);
        let key = key("d", "a");
        let (_node, volume) = with_lease(&world, Config::default(), &key).await;
        let before = now(&world);
        let own = volume.commit_leased(SESSION, blind(Slot(0), 2, vec![put(&key, "2")]));
        own.await.expect("a verdict");
        assert!(now(&world).since(before) < SOON);
        let again = (Some("2".into()), vec![key.group().clone()]);
        assert_eq!(
            leased(&*volume, &key).await,
            again,
            "it still has the lease"
        );
        let before = now(&world);
        let idle = volume.recalled(SESSION, u64::MAX).await.expect("an answer");
        assert!(!idle.value.has_lapsed && idle.value.groups.is_empty());
        assert_eq!(now(&world).since(before), LEASE_POLL);
        let slot = volume.snapshot().await.expect("a snapshot").value.slot;
        assert_eq!(idle.value.visible, slot);
        let mut commit = volume.commit(blind(Slot(0), 3, vec![put(&key, "3")]));
        assert!(poll!(&mut commit).is_pending());
        volume.end_session(SESSION).await.expect("ended");
        let before = now(&world);
        commit.await.expect("a verdict");
        assert!(now(&world).since(before) < SOON);
    });
}

async fn no_lease_is_granted_on_a_slot_in_flight(config: Config) {
    let options = simulated::Options {
        latency: Some(Duration::from_millis(5)..=Duration::from_millis(5)),
        ..simulated::Options::default()
    };
    let world = World::with_options(7, options);
    let node = Node::on(&world, world.key_value(), config).await;
    let (volume, key) = (node.create("demo").await, key("d", "a"));
    committed(&*volume, blind(Slot(0), 1, vec![put(&key, "1")])).await;
    for wait in 0..12 {
        session(&*volume, SESSION).await;
        // Its caller leaves, at any point.
        let commit = volume.commit(blind(Slot(0), 2 + wait, vec![put(&key, wait.to_string())]));
        tokio::select! {
            biased;
            _ = commit => {}
            () = pass(Duration::from_millis(wait)) => {}
        }
        let (seen, groups) = leased(&*volume, &key).await;
        // Finishes what is in flight.
        let next = contract::key("i", "a");
        committed(&*volume, blind(Slot(0), 100 + wait, vec![put(&next, "1")])).await;
        if !groups.is_empty() {
            assert_eq!(value(&*volume, &key).await, seen, "{wait}");
        }
        volume.end_session(SESSION).await.expect("ended");
    }
}

/// V7: a slot that may be written counts until it is visible, whether or not its caller is there.
#[test]
fn no_lease_is_granted_on_what_is_being_written() {
    simulated::run(no_lease_is_granted_on_a_slot_in_flight(Config::default()));
    let config = broken(Broken::GrantsDuringRecall);
    assert!(fails(|| simulated::run(
        no_lease_is_granted_on_a_slot_in_flight(config)
    )));
}

/// How long the first commits take of nodes that follow each other, the store reset between them or not.
async fn successors_wait(config: Config, is_reset: bool) {
    let world = World::new(7);
    let key = key("d", "a");
    let (node, volume) = with_lease(&world, config.clone(), &key).await;
    let point = volume.snapshot().await.expect("a snapshot").point;
    if !is_reset {
        volume.externalize(point).await.expect("durable");
    }
    drop((volume, node));
    if is_reset {
        world.crash();
    }
    // One that dies before the leases are over leaves them to the next.
    let node = Node::on(&world, world.key_value(), config.clone()).await;
    let volume = node.open("demo").await;
    value(&*volume, &key).await;
    drop((volume, node));
    let node = Node::on(&world, world.key_value(), config.clone()).await;
    let volume = node.open("demo").await;
    let before = now(&world);
    value(&*volume, &key).await;
    assert!(now(&world).since(before) < SOON, "a read");
    let read_only = takes(&world, &*volume, blind(Slot(0), 9, Vec::new())).await;
    assert!(read_only < SOON, "{read_only:?}");
    let other = contract::key("i", "a");
    let waits = takes(&world, &*volume, blind(Slot(0), 2, vec![put(&other, "2")])).await;
    assert!(waits >= LEASE, "{waits:?}");
    assert_eq!(leased(&*volume, &key).await.1, Vec::<Bytes>::new());
    let told = volume.recalled(SESSION, 0).await.expect("an answer");
    assert!(told.value.has_lapsed);
    volume.end_session(SESSION).await.expect("ended");
    drop((volume, node));
}

/// V7: a successor orders nothing before the leases of its predecessors are over.
#[test]
fn a_successor_waits_for_leases() {
    for is_reset in [false, true] {
        simulated::run(successors_wait(Config::default(), is_reset));
        let config = broken(Broken::ForgetsLeasesOfPredecessor);
        assert!(fails(|| simulated::run(successors_wait(config, is_reset))));
    }
}

/// A restart waits only if there may be leases.
#[test]
fn a_restart_without_leases_waits_for_none() {
    simulated::run(async {
        let world = World::new(7);
        let key = key("d", "a");
        let (mut node, mut volume) = with_lease(&world, Config::default(), &key).await;
        for (number, may_wait) in [(2, true), (3, false), (4, false)] {
            drop((volume, node));
            node = Node::on(&world, world.key_value(), Config::default()).await;
            volume = node.open("demo").await;
            let waits = blind(Slot(0), number, vec![put(&key, "2")]);
            let waits = takes(&world, &*volume, waits).await;
            assert_eq!(waits > SOON, may_wait, "{number}: {waits:?}");
            // The next installed state says that the leases are over.
            pass(Duration::from_secs(1)).await;
        }
    });
}
