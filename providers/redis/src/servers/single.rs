//! One server with a clock in the store: incarnations, positions, and the durability of points.
//!
//! The clock is a hash that holds the incarnation and a position. Every script that changes
//! something increases the position in the same atomic step. A crash of the server keeps a prefix
//! of the scripts that ran, so the position tells exactly how many survived (D2).
//!
//! A store begins an incarnation when it finds that the server restarted, at `open` or later. Other
//! stores join it when they notice the restart. A second incarnation would invalidate what the
//! first processes have open, and would save nothing. The server's time numbers the incarnation, so
//! a number is not reused even if its beginning was lost. An incarnation records the final position
//! of its predecessor. A point of an older incarnation is present exactly if it lies at or before
//! that position (D3).
//!
//! No store writes between a restart and the next incarnation, because the restart removed all
//! scripts (see [`crate::servers::scripts`]). New positions therefore cannot hide lost ones (rule
//! P3).
//!
//! Several processes may have the store open. Those that notice a restart at the same time begin
//! one incarnation each; scripts return points of the latest one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use ports::{DurabilityPoint, Error, ErrorKind, Incarnation, Position, Result};
use redis::{Cmd, Value, cmd, pipe};

use crate::{
    config::{Acknowledged, Config},
    error::{Effect, Failure},
    redis_keys::RedisKeys,
    servers::{
        durability_wait::DurabilityWait,
        node::Node,
        preflight::Preflight,
        reply::{self, Reply},
        scripts::{Script, Scripts},
    },
};

/// How many final positions are kept. A point of an older incarnation returns `Lost`.
const ENDS_MAX: usize = 4096;

/// How often a command is sent again because the server had lost its script.
const BEGIN_ATTEMPTS_MAX: usize = 8;

/// How often a read is sent before a lost reply becomes an error.
const READ_ATTEMPTS_MAX: usize = 3;

/// One server and its progress.
#[derive(Debug)]
pub(crate) struct SingleServer {
    clock: Clock,
    pub(crate) warnings: Vec<String>,
    pub(crate) acknowledged: Acknowledged,
    scripts: RwLock<Arc<Scripts>>,
    beginning: tokio::sync::Mutex<()>,
    fencing: tokio::sync::Mutex<()>,
    progress: Mutex<Progress>,
}

/// The clock in the store: where it is, and how its changes become durable.
#[derive(Debug)]
struct Clock {
    node: Node,
    key: Bytes,
    ends: Bytes,
    durability_wait: DurabilityWait,
    timeout: Duration,
}

/// The last known state of the server's clock.
#[derive(Debug, Default)]
struct Progress {
    /// The latest point in a reply.
    latest: DurabilityPoint,
    /// All positions up to this one are durable in its incarnation, and so is everything that
    /// earlier incarnations kept.
    durable: DurabilityPoint,
    /// The final positions of earlier incarnations, as far as callers asked for them.
    ends: BTreeMap<Incarnation, Position>,
}

/// The connection on which a command is sent.
#[derive(Debug, Clone, Copy)]
enum Connection {
    Commands,
    /// The blocking one, for commands that wait until all earlier ones are durable.
    Fences,
}

impl Progress {
    fn is_durable(&self, point: DurabilityPoint) -> bool {
        match point.incarnation.cmp(&self.durable.incarnation) {
            _ if point == DurabilityPoint::DURABLE => true,
            std::cmp::Ordering::Equal => point.position <= self.durable.position,
            std::cmp::Ordering::Less => self
                .ends
                .get(&point.incarnation)
                .is_some_and(|end| point.position <= *end),
            std::cmp::Ordering::Greater => false,
        }
    }
}

impl SingleServer {
    /// Joins the incarnation of `node`, or begins one.
    pub(crate) async fn open(
        node: Node,
        keys: &RedisKeys,
        preflight: Preflight,
        config: &Config,
    ) -> Result<Self, Failure> {
        let clock = Clock {
            node,
            key: keys.clock(),
            ends: keys.ends(),
            durability_wait: preflight.durability_wait,
            timeout: config.durability_timeout,
        };
        let (scripts, began) = match clock.join().await? {
            Some(joined) => joined,
            None => clock.begin().await?,
        };
        let progress = Progress {
            latest: began,
            durable: began,
            ends: BTreeMap::new(),
        };
        Ok(Self {
            clock,
            warnings: preflight.warnings,
            acknowledged: config.acknowledged,
            scripts: RwLock::new(Arc::new(scripts)),
            beginning: tokio::sync::Mutex::default(),
            fencing: tokio::sync::Mutex::default(),
            progress: Mutex::new(progress),
        })
    }

    pub(crate) fn node(&self) -> &Node {
        &self.clock.node
    }

    /// Runs a script over `keys`.
    pub(crate) async fn run(
        &self,
        script: Script,
        keys: &[Bytes],
        arguments: &[Bytes],
        effect: Effect,
    ) -> Result<(DurabilityPoint, Vec<Value>), Failure> {
        let keys: Vec<&Bytes> = std::iter::once(&self.clock.key).chain(keys).collect();
        let send = || {
            self.send(Connection::Commands, |scripts| {
                scripts.command(script, &keys, arguments)
            })
        };
        let reply = match effect {
            Effect::Reads => Reply::parse(repeat_read(send).await?)?,
            Effect::Changes => Reply::parse(send().await?)?,
        };
        Ok((self.observe(&reply), reply.rest))
    }

    /// The bytes under `name`, and a point at or after everything they depend on (rule P4).
    pub(crate) async fn get(&self, name: &Bytes) -> Result<(DurabilityPoint, Bytes), Failure> {
        let mut pipeline = pipe();
        pipeline.cmd("GET").arg(&name[..]);
        pipeline
            .cmd("HMGET")
            .arg(&self.clock.key[..])
            .arg("incarnation")
            .arg("position");
        let answers = repeat_read(|| self.node().pipeline(&pipeline, 2)).await?;
        let mut answers = answers.into_iter();
        let found = match answers.next() {
            None | Some(Value::Nil) => Bytes::new(),
            Some(value) => reply::bytes(value)?,
        };
        let point = self.observe(&Reply::parse(answers.next().unwrap_or(Value::Nil))?);
        Ok((point, found))
    }

    /// Sends the command that `command` builds with the present scripts. If the server has lost the
    /// scripts, joins or begins an incarnation first. A fence also waits until it is durable.
    async fn send(
        &self,
        connection: Connection,
        command: impl Fn(&Scripts) -> Cmd,
    ) -> Result<Value, Failure> {
        for _ in 0..BEGIN_ATTEMPTS_MAX {
            let scripts = Arc::clone(&self.scripts.read());
            let command = command(&scripts);
            let reply = match connection {
                Connection::Commands => self.node().command(&command).await,
                Connection::Fences => self.clock.fence(command).await,
            };
            match reply {
                Err(failure) if has_restarted(&failure) => {
                    self.join_or_begin(scripts.started)
                        .await
                        .map_err(Failure::before_sending)?;
                }
                reply => return reply,
            }
        }
        Err(Failure::UnexpectedReply(
            "a server that keeps losing its scripts".to_owned(),
        ))
    }

    async fn join_or_begin(&self, forgotten: u64) -> Result<(), Failure> {
        let _guard = self.beginning.lock().await;
        if self.scripts.read().started != forgotten {
            return Ok(());
        }
        let joined = self.clock.join().await?;
        // A server restored from a backup may name an earlier incarnation.
        let (scripts, began) = match joined.filter(|(scripts, _)| scripts.started > forgotten) {
            Some(joined) => joined,
            None => self.clock.begin().await?,
        };
        tracing::warn!(
            server = self.node().address(),
            incarnation = began.incarnation.0,
            "the server restarted; writes that it had not persisted are lost"
        );
        *self.scripts.write() = Arc::new(scripts);
        let mut progress = self.progress.lock();
        progress.latest = progress.latest.max(began);
        progress.durable = progress.durable.max(began);
        Ok(())
    }

    fn observe(&self, reply: &Reply) -> DurabilityPoint {
        let point = point(reply.incarnation, reply.position);
        let mut progress = self.progress.lock();
        progress.latest = progress.latest.max(point);
        if self.clock.durability_wait == DurabilityWait::Synced {
            progress.durable = progress.durable.max(point);
        }
        point
    }

    /// The latest known point.
    pub(crate) fn point(&self) -> DurabilityPoint {
        self.progress.lock().latest
    }

    /// Whether `point` is known to be durable.
    pub(crate) fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.progress.lock().is_durable(point)
    }

    /// Waits until `point` is durable. Concurrent callers share fences: a fence covers all points
    /// that were known when it began. A second caller finds its point covered by the first caller's
    /// fence or by the next one.
    pub(crate) async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        if self.is_durable(point) {
            return Ok(());
        }
        let _guard = self.fencing.lock().await;
        if self.is_durable(point) {
            return Ok(());
        }
        let fenced = self.fence(point.incarnation).await;
        let (now, end) =
            fenced.map_err(|failure| failure.into_error(Effect::Reads, "externalize"))?;
        let is_there = match point.incarnation.cmp(&now.incarnation) {
            std::cmp::Ordering::Equal => point.position <= now.position,
            std::cmp::Ordering::Less => end.is_some_and(|end| point.position <= end),
            std::cmp::Ordering::Greater => false,
        };
        if is_there {
            Ok(())
        } else {
            Err(Error::new(
                ErrorKind::Lost,
                format!("externalize {point:?} in redis"),
            ))
        }
    }

    /// Makes everything so far durable. Returns the present point, and the final position of
    /// `earlier`.
    async fn fence(
        &self,
        earlier: Incarnation,
    ) -> Result<(DurabilityPoint, Option<Position>), Failure> {
        let fence = |scripts: &Scripts| self.clock.fence_command(scripts, earlier);
        let reply = Reply::parse(self.send(Connection::Fences, fence).await?)?;
        let now = point(reply.incarnation, reply.position);
        let ended = reply::text(reply.into_value()?)?;
        let end = ended
            .split_once(':')
            .and_then(|(_, position)| position.parse().ok())
            .map(Position);
        let mut progress = self.progress.lock();
        progress.latest = progress.latest.max(now);
        progress.durable = progress.durable.max(now);
        if let Some(end) = end.filter(|_| earlier < now.incarnation) {
            progress.ends.insert(earlier, end);
            while progress.ends.len() > ENDS_MAX {
                progress.ends.pop_first();
            }
        }
        Ok((now, end))
    }
}

fn point(incarnation: u64, position: u64) -> DurabilityPoint {
    DurabilityPoint {
        incarnation: Incarnation(incarnation),
        position: Position(position),
    }
}

impl Clock {
    /// The present incarnation and its durable point, if the server has not restarted since it
    /// began. A store that opens beside others, or notices a restart late, thereby disturbs none of
    /// them.
    async fn join(&self) -> Result<Option<(Scripts, DurabilityPoint)>, Failure> {
        let present = self
            .node
            .command(cmd("HGET").arg(&self.key[..]).arg("incarnation"))
            .await?;
        if present == Value::Nil {
            return Ok(None);
        }
        let started = reply::number(&present)?;
        let Some(scripts) = Scripts::loaded(&self.node, started).await? else {
            return Ok(None);
        };
        match self
            .fence(self.fence_command(&scripts, Incarnation(0)))
            .await
        {
            Ok(fenced) => {
                let reply = Reply::parse(fenced)?;
                Ok(Some((scripts, point(reply.incarnation, reply.position))))
            }
            Err(failure) if has_restarted(&failure) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Begins an incarnation, durably. Its scripts are loaded first, and one of them begins it. If
    /// the server restarts in between, it has lost the scripts, and no lost write is taken for a
    /// kept one.
    async fn begin(&self) -> Result<(Scripts, DurabilityPoint), Failure> {
        let mut number_min = 1;
        for _ in 0..BEGIN_ATTEMPTS_MAX {
            let started = server_time_us(&self.node).await?.max(number_min);
            let scripts = Scripts::load(&self.node, started).await?;
            let (keys, arguments) = ([&self.key, &self.ends], [ENDS_MAX.to_string()]);
            match self
                .fence(scripts.command(Script::Begin, &keys, &arguments))
                .await
            {
                Ok(position) => return Ok((scripts, point(started, reply::number(&position)?))),
                Err(Failure::Refused(error)) if error.code() == Some("LANDFASTBEHIND") => {
                    number_min = error
                        .detail()
                        .and_then(|number| number.parse().ok())
                        .unwrap_or(started)
                        + 1;
                }
                // The incarnation may have begun, so the next attempt uses a higher number.
                Err(Failure::NoReply(error)) if error.is_connection_dropped() => {
                    number_min = started + 1;
                }
                Err(failure) if failure.is_no_script() => {}
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::UnexpectedReply(
            "a clock that other processes keep moving ahead".to_owned(),
        ))
    }

    /// The command that returns the present point, and the final position of `earlier`.
    fn fence_command(&self, scripts: &Scripts, earlier: Incarnation) -> Cmd {
        let writes = if self.durability_wait.needs_write() {
            "w"
        } else {
            ""
        };
        let arguments = [earlier.0.to_string(), writes.to_owned()];
        scripts.command(Script::Fence, &[&self.key, &self.ends], &arguments)
    }

    /// Runs `command`, and waits until it and all earlier commands are durable.
    async fn fence(&self, command: Cmd) -> Result<Value, Failure> {
        self.durability_wait
            .run(&self.node, command, self.timeout)
            .await
    }
}

/// Whether the server has restarted since the scripts of the command were loaded.
fn has_restarted(failure: &Failure) -> bool {
    failure.is_no_script() || failure.code() == Some("LANDFASTSTALE")
}

/// Sends a read again if its reply was lost.
async fn repeat_read<T, F>(read: impl Fn() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    for _ in 1..READ_ATTEMPTS_MAX {
        match read().await {
            Err(Failure::NoReply(_)) => {}
            answered => return answered,
        }
    }
    read().await
}

async fn server_time_us(node: &Node) -> Result<u64, Failure> {
    let time = reply::array(node.command(&cmd("TIME")).await?)?;
    let [seconds, microseconds] = &time[..] else {
        return Err(Failure::UnexpectedReply("a malformed time".to_owned()));
    };
    Ok(reply::number(seconds)? * 1_000_000 + reply::number(microseconds)?)
}
