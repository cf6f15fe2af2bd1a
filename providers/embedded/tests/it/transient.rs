//! Updates that need not survive a crash (K10, D5), between durable ones, checkpoints, crashes and
//! failed syncs.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
};

use embedded::{Config, Embedded, Health};
use ports::{
    Condition, ErrorKind, KeyValue, Update,
    key_value::{Action, Scan},
    queue::{Message, QueueOptions, Retention},
};

use crate::{
    faulty::{Faults, FaultyStorage},
    world::{
        block_on, config, directory, done, durably, eventually, key, open, put, settle, value,
    },
};

/// The allowed states of an item after a crash: that of its last durable change, or of any
/// transient change since.
#[derive(Debug, Default)]
struct Allowed(BTreeSet<Option<i64>>);

impl Allowed {
    fn durably(&mut self, state: Option<i64>) {
        self.0 = BTreeSet::from([state]);
    }
}

const ITEMS: [&str; 4] = ["a", "b", "c", "d"];

/// A store that crashes, falls back and checkpoints, with its allowed content.
struct Ordeal {
    faults: Arc<Faults>,
    config: Config,
    store: Embedded,
    kv: Arc<dyn KeyValue>,
    allowed: [Allowed; ITEMS.len()],
    random: fastrand::Rng,
    checkpoints: u64,
}

impl Ordeal {
    async fn begin(directory: &std::path::Path, seed: u64) -> Self {
        let faults = Arc::new(Faults::default());
        let storage = Arc::new(FaultyStorage(Arc::clone(&faults)));
        let config = Config {
            storage,
            checkpoint_bytes: 300,
            ..config(directory)
        };
        let store = Embedded::open(config.clone())
            .await
            .expect("the store opens");
        let mut allowed = <[Allowed; ITEMS.len()]>::default();
        for allowed in &mut allowed {
            allowed.durably(None);
        }
        let (kv, random) = (store.key_value(), fastrand::Rng::with_seed(seed));
        Self {
            faults,
            config,
            kv,
            store,
            allowed,
            random,
            checkpoints: 0,
        }
    }

    async fn step(&mut self) {
        let index = self.random.usize(..ITEMS.len());
        let name = ITEMS[index];
        let add = Update::modify(key(name), vec![Action::Add("value".into(), 1)]);
        match self.random.u32(..100) {
            0..50 => {
                done(&self.kv, add.transient()).await;
                self.allowed[index].0.insert(value(&self.kv, name).await);
            }
            50..65 => {
                done(&self.kv, add).await;
                self.allowed[index].durably(value(&self.kv, name).await);
            }
            65..80 => {
                done(&self.kv, Update::delete(key(name))).await;
                self.allowed[index].durably(None);
            }
            80..92 => settle(&self.kv).await,
            92..96 => self.crash().await,
            _ => self.fall_back().await,
        }
    }

    async fn crash(&mut self) {
        settle(&self.kv).await;
        self.checkpoints += self.store.status().checkpoints;
        let gone = directory();
        let other = Embedded::open(config(gone.path()))
            .await
            .expect("the store opens");
        self.kv = other.key_value();
        drop(std::mem::replace(&mut self.store, other));
        self.store = Embedded::open(self.config.clone())
            .await
            .expect("the store opens");
        self.kv = self.store.key_value();
        self.check().await;
    }

    async fn fall_back(&mut self) {
        settle(&self.kv).await;
        let before = self.store.status().incarnation;
        Faults::set(&self.faults.fail_journal_sync, true);
        done(&self.kv, put("lost", 1)).await;
        eventually("the store notices", || {
            self.store.status().health != Health::Serving
        })
        .await;
        Faults::set(&self.faults.fail_journal_sync, false);
        eventually("it serves again", || {
            self.store.status().incarnation > before
        })
        .await;
        eventually("it serves again", || {
            self.store.status().health == Health::Serving
        })
        .await;
        self.check().await;
    }

    async fn check(&mut self) {
        for (index, name) in ITEMS.iter().enumerate() {
            let found = value(&self.kv, name).await;
            let allowed = &mut self.allowed[index];
            assert!(
                allowed.0.contains(&found),
                "{name} is {found:?}, not one of {allowed:?}"
            );
            // The item was read from the journal or a checkpoint, so the next crash may return to
            // this state.
            allowed.durably(found);
        }
        let page = self
            .kv
            .scan(&Scan::partition("test", 100))
            .await
            .expect("scan answers")
            .value;
        let there = self
            .allowed
            .iter()
            .filter(|allowed| !allowed.0.contains(&None))
            .count();
        let lost = page
            .items
            .iter()
            .filter(|(sort, _)| sort.as_ref() == b"lost")
            .count();
        assert_eq!(
            page.items.len() - lost,
            there,
            "a scan sees what a get sees"
        );
    }
}

/// D5: in any sequence of events.
#[test]
fn only_transient_updates_are_lost_across_checkpoints_and_failures() {
    let mut checkpoints = 0;
    for seed in 0..6 {
        let directory = directory();
        block_on(async {
            let mut ordeal = Ordeal::begin(directory.path(), seed).await;
            for _ in 0..400 {
                ordeal.step().await;
            }
            ordeal.crash().await;
            checkpoints += ordeal.checkpoints;
        });
    }
    assert!(
        checkpoints > 20,
        "only {checkpoints} checkpoints came in between"
    );
}

/// D5, D4: a durable point does not cover transient changes.
#[test]
fn after_a_failed_sync_a_transient_update_is_lost_although_its_point_is_durable() {
    let directory = directory();
    let faults = Arc::new(Faults::default());
    let storage = Arc::new(FaultyStorage(Arc::clone(&faults)));
    block_on(async {
        let store = Embedded::open(Config {
            storage,
            ..config(directory.path())
        })
        .await
        .expect("it opens");
        let kv = store.key_value();
        durably(&kv, put("item", 1)).await;
        let transient = durably(&kv, put("item", 2).transient()).await;
        let read = kv
            .get(&key("item"))
            .await
            .expect("get answers")
            .value
            .expect("it is there");
        Faults::set(&faults.fail_journal_sync, true);
        let lost = done(&kv, put("lost", 1)).await;
        eventually("the store notices", || {
            store.status().health != Health::Serving
        })
        .await;
        Faults::set(&faults.fail_journal_sync, false);
        eventually("it serves again", || {
            store.status().health == Health::Serving
        })
        .await;
        assert_eq!(
            kv.externalize(lost.point)
                .await
                .expect_err("it is lost")
                .kind(),
            ErrorKind::Lost
        );
        kv.externalize(transient.point)
            .await
            .expect("all that was journaled up to it is there");
        assert_eq!(value(&kv, "item").await, Some(1));
        done(&kv, put("item", 3).depends_on(transient.point)).await;
        let again = kv
            .get(&key("item"))
            .await
            .expect("get answers")
            .value
            .expect("it is there");
        assert_eq!(again.version, read.version, "given again, to another state");
        assert_eq!(again.integer("value"), Some(3));
    });
}

/// P6: unjournaled changes never trigger a checkpoint, so they have their own bound.
#[test]
fn transient_updates_beyond_the_memory_bound_are_journaled() {
    let directory = directory();
    let faults = Arc::new(Faults::default());
    let storage = Arc::new(FaultyStorage(Arc::clone(&faults)));
    block_on(async {
        let store = Embedded::open(Config {
            storage,
            ..config(directory.path())
        })
        .await
        .expect("it opens");
        let kv = store.key_value();
        faults.capacity.store(faults.used(), Ordering::SeqCst);
        let large = |number: usize| {
            let data = Action::set("data", vec![1; 100_000]);
            Update::modify(key(&format!("large-{number}")), vec![data])
                .when(Condition::Absent)
                .transient()
        };
        let mut taken = 0;
        let refused = loop {
            match kv.update(large(taken)).await {
                Ok(_) => taken += 1,
                Err(error) => break error,
            }
            assert!(taken < 1_000, "100 MB and more are kept in memory alone");
        };
        assert_eq!(refused.kind(), ErrorKind::NoRoom);
        assert!(taken > 100, "only {taken} were taken");
        done(&kv, put("large-0", 1).transient()).await;
    });
}

/// Q7: messages of a formerly durable queue are removed from the store like those of a durable one,
/// with room for that.
#[test]
fn messages_of_a_formerly_durable_queue_are_acknowledged_permanently() {
    let group = vec![b'g'; 100];
    let message = |body: &'static str| Message {
        group: group.clone().into(),
        deduplication: None,
        body: body.into(),
    };
    let durable = QueueOptions::default();
    let transient = QueueOptions {
        retention: Retention::Transient,
        ..durable.clone()
    };
    for is_reopened in [false, true] {
        let directory = directory();
        block_on(async {
            let mut store = open(directory.path()).await;
            store
                .queue()
                .create("q", durable.clone())
                .await
                .expect("it is made");
            store
                .queue()
                .send("q", (0..8).map(|_| message("body")).collect())
                .await
                .expect("it is sent");
            store
                .queue()
                .create("q", transient.clone())
                .await
                .expect("it is made anew");
            settle(&store.key_value()).await;
            if is_reopened {
                drop(store);
                store = open(directory.path()).await;
            }
            let queue = store.queue();
            let got = queue.receive("q", 10).await.expect("they are there");
            assert_eq!(got.len(), 8);
            let handles: Vec<_> = got.into_iter().map(|delivery| delivery.handle).collect();
            queue
                .acknowledge("q", &handles)
                .await
                .expect("they are taken");
            settle(&store.key_value()).await;
            drop((queue, store));
            let store = open(directory.path()).await;
            assert!(
                store
                    .queue()
                    .receive("q", 10)
                    .await
                    .expect("it answers")
                    .is_empty(),
                "they are back"
            );
        });
    }
}
