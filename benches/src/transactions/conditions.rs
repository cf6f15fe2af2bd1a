//! The cost of a condition on a plain write: `If-Match` beside none, on the embedded store.
//!
//! Each client writes keys of its own, so every condition holds and no write meets a conflict. The
//! first condition makes a keyspace sequenced, which its other writes pay for too. So plain writes
//! are measured in two stores: one without any condition, and the one with them.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use http::header::ETAG;
use serde::Serialize;
use tokio::time::Instant;
use transactions::{
    Engine, Expected,
    model::{Key, Version},
};

use super::run::{Figures, Measured};
use crate::http::Connection;

/// The keys of each client, which it writes one after the other.
const KEYS: usize = 50;
/// The length of a value.
const VALUE_BYTES: usize = 1_024;

/// The kind of a measured write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Written {
    /// Without a condition, in a keyspace that has never had one.
    Plain,
    /// The same in the keyspace of the writes with conditions.
    PlainWhereSequenced,
    /// On condition that the key has the version that its client wrote last.
    IfMatch,
}

impl Written {
    /// All, in the order of the table.
    pub const ALL: [Self; 3] = [Self::Plain, Self::PlainWhereSequenced, Self::IfMatch];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::PlainWhereSequenced => "plain, in a sequenced keyspace",
            Self::IfMatch => "If-Match",
        }
    }
}

/// The result of one kind of write.
#[derive(Debug, Clone, Serialize)]
pub struct Conditions {
    /// The access path to the store.
    pub way: &'static str,
    /// The kind of write.
    pub written: Written,
    /// Concurrent clients.
    pub clients: usize,
    /// The figures of all turns.
    pub figures: Figures,
}

/// The amount of one measurement.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    /// Concurrent clients.
    pub clients: usize,
    /// The writes of each client and kind, in all turns.
    pub writes: usize,
    /// The turns of each kind.
    pub rounds: u32,
}

/// A store as one client reaches it.
#[derive(Debug)]
pub enum Target {
    /// In this process.
    Engine(Engine),
    /// Over HTTP.
    Http(Box<Connection>),
}

/// A version as the store gave it.
#[derive(Debug, Clone)]
enum Seen {
    Version(Version),
    Tag(String),
}

impl Target {
    /// The engine in this process.
    pub fn engine(engine: &Engine) -> Self {
        Self::Engine(engine.clone())
    }

    /// The server at `address`, over a connection of its own.
    pub fn http(address: SocketAddr) -> Self {
        Self::Http(Box::new(Connection::to(address)))
    }

    /// Writes `key`, if it has the version `seen`; returns the new version.
    async fn put(&self, key: &Key, value: Bytes, seen: Option<&Seen>) -> Result<Seen> {
        match (self, seen) {
            (Self::Engine(engine), None) => {
                let committed = engine.put_now(key.clone(), Some(value)).await?;
                let after = committed.after.context("a write has a version")?;
                Ok(Seen::Version(after.version))
            }
            (Self::Engine(engine), Some(Seen::Version(version))) => {
                let expected = Expected::Version(*version);
                let put = engine.put_now_if(key.clone(), Some(value), expected);
                let committed = put.await?.value.context("the condition holds")?;
                let after = committed.after.context("a write has a version")?;
                Ok(Seen::Version(after.version))
            }
            (Self::Http(connection), seen) => {
                let tag = match seen {
                    Some(Seen::Tag(tag)) => Some(("If-Match", tag.as_str())),
                    _ => None,
                };
                let path = format!("/v1/state/{}", key.name().escape_ascii());
                let headers = tag.as_slice();
                let response = connection.respond("PUT", &path, headers, &value).await?;
                let status = response.status().as_u16();
                ensure!(status == 204, "put: {status} {:?}", response.body());
                let tag = response.headers().get(ETAG).context("no ETag")?;
                Ok(Seen::Tag(tag.to_str()?.to_owned()))
            }
            (Self::Engine(_), Some(Seen::Tag(_))) => bail!("a tag is of HTTP"),
        }
    }
}

#[derive(Debug)]
struct Client {
    target: Target,
    keys: Vec<(Key, Option<Seen>)>,
    next: usize,
}

impl Client {
    fn new(number: usize, target: Target) -> Result<Self> {
        let key = |place| Ok((Key::new(format!("c{number}-{place}"))?, None));
        let keys = (0..KEYS).map(key).collect::<Result<_>>()?;
        Ok(Self {
            target,
            keys,
            next: 0,
        })
    }

    /// Writes each of its keys once, without a condition.
    async fn prepare(&mut self) -> Result<()> {
        for _ in 0..KEYS {
            self.write(false).await?;
        }
        Ok(())
    }

    async fn write(&mut self, is_conditional: bool) -> Result<Duration> {
        let (key, seen) = &mut self.keys[self.next];
        self.next = (self.next + 1) % KEYS;
        let expected = seen.as_ref().filter(|_| is_conditional);
        let value = Bytes::from(vec![b'v'; VALUE_BYTES]);
        let asked = Instant::now();
        let written = self.target.put(key, value, expected).await?;
        let elapsed = asked.elapsed();
        *seen = Some(written);
        Ok(elapsed)
    }

    async fn turn(mut self, writes: usize, is_conditional: bool) -> Result<(Self, Histogram<u64>)> {
        let mut nanoseconds = Histogram::new(3)?;
        for _ in 0..writes {
            let elapsed = self.write(is_conditional).await?;
            nanoseconds.record(elapsed.as_nanos() as u64)?;
        }
        Ok((self, nanoseconds))
    }
}

/// A turn of all clients of one store.
async fn turn(clients: &mut Vec<Client>, writes: usize, is_conditional: bool) -> Result<Measured> {
    let (began, mut nanoseconds) = (Instant::now(), Histogram::new(3)?);
    let turns: Vec<_> = std::mem::take(clients)
        .into_iter()
        .map(|client| tokio::spawn(client.turn(writes, is_conditional)))
        .collect();
    for turn in turns {
        let (client, part) = turn.await.context("a client")??;
        clients.push(client);
        nanoseconds.add(part)?;
    }
    Ok(Measured::of(nanoseconds, began.elapsed()))
}

/// Measures the kinds in turns. `without` reaches a fresh store that gets no condition, and `with`
/// another one.
pub async fn measure(
    way: &'static str,
    (without, with): (Vec<Target>, Vec<Target>),
    amount: Amount,
) -> Result<Vec<Conditions>> {
    let mut stores = [Vec::new(), Vec::new()];
    for (store, targets) in stores.iter_mut().zip([without, with]) {
        for (number, target) in targets.into_iter().enumerate() {
            let mut client = Client::new(number, target)?;
            client.prepare().await?;
            store.push(client);
        }
    }
    let [without, with] = &mut stores;
    // The first condition makes the keyspace sequenced.
    let first = with.first_mut().context("a run has clients")?;
    first.write(true).await?;
    let writes = (amount.writes / amount.rounds as usize).max(1);
    let mut measured: [Option<Measured>; 3] = [None, None, None];
    for round in 0..amount.rounds as usize {
        // No kind is always first.
        for place in 0..Written::ALL.len() {
            let kind = (round + place) % Written::ALL.len();
            let turn = match Written::ALL[kind] {
                Written::Plain => turn(without, writes, false).await?,
                Written::PlainWhereSequenced => turn(with, writes, false).await?,
                Written::IfMatch => turn(with, writes, true).await?,
            };
            match &mut measured[kind] {
                Some(all) => all.add(&turn)?,
                none => *none = Some(turn),
            }
        }
    }
    let rows = Written::ALL.into_iter().zip(measured);
    rows.map(|(written, measured)| {
        let figures = measured.context("each kind has a turn")?.figures();
        eprintln!("{way}, {}: p50 {:.2} ms", written.name(), figures.p50_ms);
        Ok(Conditions {
            way,
            written,
            clients: amount.clients,
            figures,
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use transactions::Config;

    use super::*;
    use crate::transactions::engine::{embedded, start};

    #[tokio::test(flavor = "multi_thread")]
    async fn every_write_under_a_condition_takes_effect() {
        let data = std::env::temp_dir().join(format!("landfast-conditions-{}", std::process::id()));
        let mut running = Vec::new();
        for name in ["without", "with"] {
            let store = embedded(&data.join(name)).await.expect("it opens");
            let started = start(store.key_value(), Config::default()).await;
            running.push((store, started.expect("it starts")));
        }
        let amount = Amount {
            clients: 2,
            writes: 20,
            rounds: 2,
        };
        let targets = |place: usize| {
            let engine = &running[place].1.0;
            (0..amount.clients)
                .map(|_| Target::engine(engine))
                .collect()
        };
        let rows = measure("in process", (targets(0), targets(1)), amount).await;
        let rows = rows.expect("measured");
        let kinds: Vec<_> = rows.iter().map(|row| row.written).collect();
        assert_eq!(kinds, Written::ALL);
        for row in &rows {
            assert_eq!(row.figures.transactions, 40, "{row:?}");
        }
        for (store, engine) in running {
            drop(engine);
            store.close().await;
        }
        std::fs::remove_dir_all(&data).expect("removed");
    }
}
