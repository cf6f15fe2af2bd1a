//! The engine under the suite of all volumes, on the simulated and the embedded store.

mod collection;
mod crashes;
mod leases;
mod objects;
mod sessions;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use ports::{KeyValue, objects::ObjectStore};
use simulated::World;
use tokio::task::JoinHandle;

use crate::{
    Config, Engine, Parts, Service,
    broken::Broken,
    serializable::{
        VolumeStore,
        contract::{self, blind, committed, key, put, value},
        model::{At, BlockBytes, PageLimits, Slot, StageId, Verdict, Write},
        volumes::{VolumeName, VolumeSettings},
    },
};

fn settings() -> VolumeSettings {
    VolumeSettings {
        block_bytes: BlockBytes::new(4096).expect("a power of two"),
        quota_bytes: None,
    }
}

/// A live node. Dropping it stops all its tasks where they are.
struct Node {
    engine: Engine,
    running: JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Node {
    async fn start(parts: Parts, objects: Arc<dyn ObjectStore>, config: Config) -> Self {
        let service = Service::builder(parts).volume_objects(objects);
        let service = Arc::new(service.build(config));
        service.start().await.expect("the node starts");
        let engine = service.engine();
        Self {
            engine,
            running: tokio::spawn(async move { service.run().await }),
        }
    }

    async fn on(world: &World, key_value: Arc<dyn KeyValue>, config: Config) -> Self {
        let parts = Parts {
            key_value,
            clock: world.clock(),
            entropy: world.entropy(),
        };
        Self::start(parts, world.objects(), config).await
    }

    async fn create(&self, name: &str) -> Arc<dyn VolumeStore> {
        let volumes = self.engine.volumes();
        volumes
            .create(named(name), settings())
            .await
            .expect("created");
        volumes.open(&named(name)).await.expect("it exists")
    }

    async fn open(&self, name: &str) -> Arc<dyn VolumeStore> {
        let volumes = self.engine.volumes();
        volumes.open(&named(name)).await.expect("it exists")
    }
}

/// Lets virtual time pass.
async fn pass(time: Duration) {
    World::new(0).clock().sleep(time).await;
}

fn named(name: &str) -> VolumeName {
    VolumeName::new(name).expect("a name")
}

/// Whether `test` fails: so it catches the mutant that it runs on.
fn fails(test: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(test)).is_err()
}

fn broken(rule: Broken) -> Config {
    Config {
        mutant: Some(rule).into(),
        ..Config::default()
    }
}

/// V3: the suite notices an engine that decides a proposal twice, or a slot without its stage.
#[test]
fn an_engine_that_breaks_a_rule_is_found() {
    let run = |rule: Option<Broken>, of_stages: bool| {
        let config = rule.map_or_else(Config::default, broken);
        simulated::run(async move {
            let world = World::new(7);
            let node = Node::on(&world, world.key_value(), config).await;
            let volume = node.create("demo").await;
            let open = move || Arc::clone(&volume);
            if of_stages {
                contract::a_stage_takes_effect_as_a_whole(&open).await;
            } else {
                contract::a_proposal_commits_at_most_once(&open).await;
            }
        });
    };
    for (rule, of_stages) in [
        (Broken::ForgetsProposalIds, false),
        (Broken::SlotBeforeStage, true),
    ] {
        run(None, of_stages);
        assert!(fails(|| run(Some(rule), of_stages)), "{rule:?}");
    }
}

/// Runs the suite on volumes of `node`.
async fn conforms(node: &Node, seeds: u64) {
    let fresh = Mutex::new(Vec::new());
    let earlier = node.engine.volumes().list().await.expect("a list").len();
    for number in 0..seeds + 8 {
        let volume = node.create(&format!("v{}", earlier as u64 + number)).await;
        fresh.lock().push(volume);
    }
    let open = || fresh.lock().pop().expect("enough volumes");
    contract::histories_are_strictly_serializable(&open, seeds).await;
    contract::a_proposal_commits_at_most_once(&open).await;
    contract::numbers_have_their_range(&open).await;
    contract::a_stage_takes_effect_as_a_whole(&open).await;
    contract::pages_at_one_slot_are_one_state(&open).await;
    contract::changes_are_listed_once(&open).await;
    contract::a_pinned_state_stays_readable(&open).await;
    contract::a_lease_is_recalled_before_a_commit(&open).await;
}

/// V1 to V5, V7.
#[test]
fn the_engine_conforms_on_the_simulated_store() {
    simulated::run(async {
        let world = World::new(7);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        conforms(&node, 40).await;
    });
}

/// V1 to V5, V7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_conforms_on_the_embedded_store() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = embedded::Config::new(directory.path());
    let store = embedded::Embedded::open(config).await.expect("it opens");
    for config in [Config::default(), objects::bulk(None)] {
        let parts = Parts {
            key_value: store.key_value(),
            clock: Arc::new(in_process::SystemClock),
            entropy: Arc::new(in_process::SystemEntropy::default()),
        };
        let node = Node::start(parts, store.objects(), config).await;
        conforms(&node, 20).await;
    }
    store.close().await;
}

/// Volumes have names, a quota, and an end.
#[test]
fn volumes_are_created_listed_and_deleted() {
    simulated::run(async {
        let world = World::new(7);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let volumes = node.engine.volumes();
        let volume = node.create("demo").await;
        let exists = volumes.create(named("demo"), settings()).await;
        assert_eq!(exists, Err(crate::Error::VolumeExists));
        volumes
            .set_quota(&named("demo"), Some(1 << 20))
            .await
            .expect("set");
        let key = key("d", "a");
        committed(&*volume, blind(Slot(0), 1, vec![put(&key, "1234")])).await;
        pass(Duration::from_secs(1)).await;
        let found = volumes.list().await.expect("a list");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, named("demo"));
        let usage = found[0].usage;
        assert_eq!(
            (usage.bytes, usage.keys, usage.quota_bytes),
            (5, 1, Some(1 << 20))
        );
        volumes.delete(&named("demo")).await.expect("deleted");
        let read = volume.get_many(At::Tail, &[key]).await;
        assert_eq!(read.map(drop), Err(crate::Error::NoSuchVolume));
        assert_eq!(volumes.list().await, Ok(Vec::new()));
        pass(Duration::from_secs(1)).await;
        let rows = ports::key_value::Scan::partition(crate::serializable::rows::VOLUMES, 10);
        let rows = world.key_value().scan(&rows).await.expect("a page");
        assert_eq!(rows.value.items.len(), 0, "no trace is left");
        let again = node.create("demo").await;
        assert_eq!(value(&*again, &contract::key("d", "a")).await, None);
    });
}

/// A clone has the content of its slot, and neither volume sees the other's later writes.
#[test]
fn a_clone_reads_through_to_its_origin() {
    simulated::run(async {
        let world = World::new(7);
        let mut node = Node::on(&world, world.key_value(), Config::default()).await;
        let volume = node.create("demo").await;
        let keys = ["a", "b", "c"].map(|name| key("d", name));
        let writes = keys.iter().map(|key| put(key, "1")).collect();
        let (at, _) = committed(&*volume, blind(Slot(0), 1, writes)).await;
        let (later, _) = committed(&*volume, blind(at, 2, vec![put(&keys[0], "2")])).await;
        let given = volume.reserve_numbers().await.expect("numbers");
        let volumes = node.engine.volumes();
        let demo = named("demo");
        let cloned = volumes.clone_volume(&demo, Some(at), named("copy"));
        cloned.await.expect("cloned");
        let again = volumes.clone_volume(&demo, None, named("copy"));
        assert_eq!(again.await, Err(crate::Error::VolumeExists));
        let deleted = volumes.delete(&named("demo")).await;
        assert_eq!(deleted, Err(crate::Error::VolumeInUse));
        let copy = node.open("copy").await;
        let numbers = copy.reserve_numbers().await.expect("numbers");
        assert!(numbers.start >= given.end, "{numbers:?}");
        let here = copy.snapshot().await.expect("a snapshot").value.slot;
        let key = keys[1].clone();
        let patch = Write::Patch {
            key: keys[2].clone(),
            offset: 1,
            data: crate::serializable::model::Patch::Bytes("3".into()),
        };
        committed(&*copy, blind(here, 3, vec![Write::Delete { key }, patch])).await;
        committed(&*volume, blind(later, 4, vec![put(&keys[1], "4")])).await;
        drop(volumes);
        drop(volume);
        drop(copy);
        for minutes in [0, 5, 30] {
            pass(Duration::from_mins(minutes)).await;
            node = Node::on(&world, world.key_value(), Config::default()).await;
            let copy = node.open("copy").await;
            let found = copy.get_many(At::Tail, &keys).await.expect("a read").value;
            let expected = [Some("1".into()), None, Some("13".into())];
            assert_eq!(found.found, expected, "{minutes}");
            let range = crate::serializable::model::KeyRange::all("d").expect("short");
            let page = copy.scan(At::Tail, &range, PageLimits::default()).await;
            let entries = page.expect("a page").value.entries;
            let entries: Vec<_> = entries.iter().map(|entry| &entry.value[..]).collect();
            assert_eq!(entries, [b"1".as_slice(), b"13".as_slice()], "{minutes}");
            let origin = node.open("demo").await;
            let found = origin.get_many(At::Tail, &keys).await;
            let found = found.expect("a read").value;
            let expected = [Some("2".into()), Some("4".into()), Some("1".into())];
            assert_eq!(found.found, expected, "{minutes}");
        }
        let volumes = node.engine.volumes();
        volumes.delete(&named("copy")).await.expect("deleted");
        volumes.delete(&named("demo")).await.expect("deleted");
    });
}

/// A value is the same before and after its slots are installed, and after a restart.
#[test]
fn installation_changes_no_answer() {
    simulated::run(async {
        let world = World::new(7);
        let mut node = Node::on(&world, world.key_value(), Config::default()).await;
        let mut volume = node.create("demo").await;
        let key = key("b", "0");
        committed(&*volume, blind(Slot(0), 1, vec![put(&key, vec![0; 4096])])).await;
        let mut expected = vec![0; 4096];
        let mut slots = Vec::new();
        for round in 0..40_usize {
            let patch = Write::Patch {
                key: key.clone(),
                offset: round as u32 * 10,
                data: crate::serializable::model::Patch::Bytes(vec![round as u8; 15].into()),
            };
            expected[round * 10..round * 10 + 15].fill(round as u8);
            let at = volume.snapshot().await.expect("a snapshot").value.slot;
            let (slot, _) = committed(&*volume, blind(at, 10 + round as u64, vec![patch])).await;
            slots.push((slot, expected.clone()));
            if round % 3 == 0 {
                pass(Duration::from_millis(400)).await;
            }
            if round % 10 == 9 {
                drop(volume);
                drop(node);
                node = Node::on(&world, world.key_value(), Config::default()).await;
                volume = node.open("demo").await;
            }
            for (slot, expected) in &slots {
                let found = volume
                    .get_many(At::Slot(*slot), std::slice::from_ref(&key))
                    .await;
                let found = found.expect("a snapshot").value.found.remove(0);
                assert_eq!(found.as_deref(), Some(&expected[..]), "{round} {slot:?}");
            }
        }
        let range = crate::serializable::model::KeyRange::all("b").expect("short");
        let page = volume.scan(At::Tail, &range, PageLimits::default()).await;
        let entries = page.expect("a page").value.entries;
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].value[..], expected[..]);
        pass(Duration::from_secs(1)).await;
        assert_eq!(volume.usage().await.expect("usage").bytes, 4096 + 1);
    });
}

/// Proposals that wait together share a slot.
#[test]
fn waiting_proposals_share_a_slot() {
    simulated::run(async {
        let options = simulated::Options {
            latency: Some(Duration::from_millis(1)..=Duration::from_millis(1)),
            ..simulated::Options::default()
        };
        let world = World::with_options(7, options);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let volume = node.create("demo").await;
        let at = volume.snapshot().await.expect("a snapshot").value.slot;
        let commits = (0..50_u64).map(|number| {
            let volume = Arc::clone(&volume);
            tokio::spawn(async move {
                let id = [&number.to_be_bytes()[..], &[0; 8]].concat();
                let mut proposal = blind(at, number, vec![put(&key("d", "a"), "1")]);
                proposal.id = crate::serializable::model::ProposalId::new(id, 0).expect("short");
                match volume.commit(proposal).await.expect("a verdict").value {
                    Verdict::Committed { slot, .. } => slot,
                    other => panic!("{other:?}"),
                }
            })
        });
        let commits: Vec<_> = commits.collect();
        let mut slots = std::collections::BTreeSet::new();
        for commit in commits {
            slots.insert(commit.await.expect("it ends"));
        }
        assert!(slots.len() <= 3, "{slots:?}");
    });
}

/// A caller that gives up leaves its slot to the next one.
#[test]
fn a_commit_that_is_dropped_holds_up_no_other() {
    simulated::run(async {
        let options = simulated::Options {
            latency: Some(Duration::from_millis(5)..=Duration::from_millis(5)),
            ..simulated::Options::default()
        };
        let world = World::with_options(7, options);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let volume = node.create("demo").await;
        let at = volume.snapshot().await.expect("a snapshot").value.slot;
        for number in 0..20_u64 {
            let dropped = volume.commit(blind(at, 2 * number, vec![put(&key("d", "a"), "1")]));
            tokio::select! {
                biased;
                _ = dropped => {}
                () = pass(Duration::from_millis(number)) => {}
            }
            let text = number.to_string();
            let write = put(&key("d", "b"), text.clone());
            committed(&*volume, blind(at, 2 * number + 1, vec![write])).await;
            assert_eq!(
                value(&*volume, &key("d", "b")).await,
                Some(text.into_bytes().into())
            );
        }
    });
}

/// A stage of many parts is read the same before and after its installation, also by a successor
/// that replays its slot. Its parts are refused afterwards, and so is another proposal of it.
#[test]
fn a_large_stage_is_installed_as_rows() {
    simulated::run(async {
        let world = World::new(7);
        let mut node = Node::on(&world, world.key_value(), Config::default()).await;
        let volume = node.create("demo").await;
        let block = |number| key("b", "").block(number).expect("short");
        let parts: Vec<_> = (0..20_u64)
            .map(|number| {
                let value = vec![number as u8; 200 << 10];
                crate::serializable::model::encode_part(&[put(&block(number), value)])
            })
            .collect();
        let whole = parts.concat();
        let stage = StageId([7; 16]);
        for (number, part) in (0..).zip(&parts) {
            let stored = volume.stage(stage, number, part.clone()).await;
            stored.expect("room");
        }
        let staged = |number| {
            let mut proposal = blind(Slot(0), number, Vec::new());
            proposal.writes = crate::serializable::model::Writes::Staged {
                stage,
                parts: 20,
                bytes: whole.len() as u64,
                crc: crc32fast::hash(&whole),
            };
            proposal
        };
        let verdict = contract::commit(&*volume, staged(1)).await;
        assert!(matches!(verdict, Verdict::Committed { .. }), "{verdict:?}");
        let refused = Verdict::Refused(crate::serializable::model::Refusal::Stage);
        assert_eq!(contract::commit(&*volume, staged(2)).await, refused);
        let late = volume.stage(stage, 0, parts[0].clone()).await;
        assert!(matches!(late, Err(crate::Error::Invalid(_))), "{late:?}");
        drop(volume);
        for round in 0..3 {
            drop(node);
            node = Node::on(&world, world.key_value(), Config::default()).await;
            let read = node.open("demo").await;
            for number in 0..20 {
                let found = value(&*read, &block(number)).await.expect("present");
                assert_eq!(found, vec![number as u8; 200 << 10], "{round}");
            }
            assert_eq!(contract::commit(&*read, staged(1)).await, verdict);
            pass(Duration::from_secs(round)).await;
        }
        let parts = crate::serializable::rows::stage(crate::model::KeyspaceId(1), stage);
        let scan = ports::key_value::Scan::partition(parts, 100);
        let left = world.key_value().scan(&scan).await.expect("a page");
        assert_eq!(left.value.items.len(), 0, "the stage is gone");
    });
}
