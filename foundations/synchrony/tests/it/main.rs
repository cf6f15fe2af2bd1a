//! Synchrony from outside: the port's contract, faults of both stores, deaths, owners.

mod barriers;
mod contract;
mod durability;
mod errors;
mod near;
mod owners;
mod pressure;
mod sending;
mod starts;
mod steps;
mod storm;
mod way;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use ports::key_value::SharedKeyValue;
use simulated::World;
use synchrony::{Options, Stores, Synchrony};

/// The shard of most tests.
const SHARD: Bytes = Bytes::from_static(b"range");

/// Two stores of two clouds, with separate faults.
#[derive(Clone)]
struct Pair {
    near: World,
    far: World,
}

impl Pair {
    fn new(seed: u64) -> Self {
        Self::with(
            seed,
            simulated::Options::default(),
            simulated::Options::default(),
        )
    }

    fn with(seed: u64, near: simulated::Options, far: simulated::Options) -> Self {
        let far_seed = seed ^ 0x5eed;
        Self {
            near: World::with_options(seed, near),
            far: World::with_options(far_seed, far),
        }
    }

    fn stores(&self) -> Stores {
        Stores {
            near: self.near.key_value(),
            far: self.far.key_value(),
            shard: SHARD,
        }
    }

    async fn open(&self, options: Options) -> Synchrony {
        self.open_over(self.far.key_value(), options).await
    }

    async fn open_over(&self, far: SharedKeyValue, options: Options) -> Synchrony {
        let stores = Stores {
            far,
            ..self.stores()
        };
        Synchrony::open(stores, options, self.near.clock(), self.near.entropy())
            .await
            .expect("it opens")
    }
}

/// A far cloud with this delay in each direction.
fn distant(each_way: Duration) -> simulated::Options {
    simulated::Options {
        latency: Some(each_way..=each_way),
        ..simulated::Options::default()
    }
}

/// A task of the run.
fn spawn(task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
    let running = tokio::spawn(task);
    Box::pin(async move { running.await.expect("the task does not panic") })
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn shared<T>(value: T) -> Arc<T> {
    Arc::new(value)
}

/// An update that sets a number.
fn set(sort: &str, n: i64) -> ports::Update {
    ports::Update::modify(
        key(sort),
        vec![ports::key_value::Action::set_integer("n", n)],
    )
}

fn key(sort: &str) -> ports::Key {
    ports::Key::new("test", sort)
}

async fn put(lane: &synchrony::Lane, sort: &str, n: i64) -> ports::DurabilityPoint {
    ports::KeyValue::update(lane, set(sort, n))
        .await
        .expect("it is ordered")
        .receipt
        .point
}

async fn number(store: &dyn ports::KeyValue, sort: &str) -> Option<i64> {
    store
        .get(&key(sort))
        .await
        .expect("it is read")
        .value?
        .integer("n")
}

/// The number of each key in the far store.
async fn far_numbers(far: &World) -> std::collections::BTreeMap<String, i64> {
    let items = synchrony::far_items(&*far.key_value(), &SHARD)
        .await
        .expect("it is read");
    let number = |(key, item): (ports::Key, Arc<ports::Item>)| {
        (
            String::from_utf8_lossy(&key.sort()).into_owned(),
            item.integer("n").unwrap_or(0),
        )
    };
    items.into_iter().map(number).collect()
}

/// The time that a future takes.
async fn timed<T>(world: &World, work: impl Future<Output = T>) -> (Duration, T) {
    let began = world.clock().monotonic();
    let done = work.await;
    (world.clock().monotonic().since(began), done)
}
