//! The simulated cloud from outside: the ports' contracts, replay, crashes, and functions that die.

mod contract;
mod crashes;
mod determinism;
mod faults;
mod functions;
mod instances;
mod operations;
mod strikes;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use ports::{
    Event, Handler, Key, KeyValue,
    functions::{Definition, Failure, FunctionOptions},
    queue::Message,
};
use simulated::World;

/// What a test's function does.
type Code = dyn Fn(Event) -> BoxFuture<'static, Result<Bytes, Failure>> + Send + Sync;

struct Coded(Box<Code>);

impl std::fmt::Debug for Coded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Coded")
    }
}

#[async_trait]
impl Handler for Coded {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        (self.0)(event).await
    }
}

/// Registers a function whose code is a closure.
fn register<F>(
    world: &World,
    name: &'static str,
    options: FunctionOptions,
    code: impl Fn(Event) -> F + Send + Sync + 'static,
) where
    F: Future<Output = Result<Bytes, Failure>> + Send + 'static,
{
    let handler = Arc::new(Coded(Box::new(move |event| Box::pin(code(event)))));
    world.functions().register(Definition {
        name: name.into(),
        options,
        handler,
    });
}

/// A log that functions write and tests read.
type Log = Arc<Mutex<Vec<String>>>;

fn note(log: &Log, entry: impl Into<String>) {
    log.lock()
        .expect("no test panics while it writes")
        .push(entry.into());
}

fn read(log: &Log) -> Vec<String> {
    log.lock().expect("no test panics while it writes").clone()
}

fn key(sort: &str) -> Key {
    Key::new("test", sort)
}

fn message(group: &str, body: &str) -> Message {
    Message {
        group: Bytes::copy_from_slice(group.as_bytes()),
        deduplication: None,
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

/// The integer `name` of an item; zero if there is none.
async fn integer(key_value: &dyn KeyValue, key: &Key, name: &str) -> i64 {
    let read = key_value.get(key).await.expect("the world is calm");
    read.value.and_then(|item| item.integer(name)).unwrap_or(0)
}
