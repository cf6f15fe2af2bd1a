//! One server with a clock of its own: incarnations, positions, and what became of a point.
//!
//! The clock is a hash in the store: the incarnation, and a position that every script which changes something
//! moves on by one, in the same atomic step. What survives a crash of the server is a prefix of its scripts, so the
//! position says exactly how much of them survived (D2).
//!
//! An incarnation begins whenever the server turns out to have begun anew, at the first open after that or under a
//! store that is open; others join it, at whatever time they notice: to begin another would end what the processes that
//! noticed before have open since, and keep nothing that is not kept. It is numbered by the server's time, so that a number is not used twice even where its beginning was lost, and it records where the
//! one before it ended: a point of an older incarnation is there exactly if it lies at or before that end (D3).
//! Nobody changes anything between a restart and a beginning, because the restart took everybody's scripts away
//! (see [`crate::scripts`]): that is what keeps new positions from passing lost ones unseen (rule P3).
//!
//! Several processes may have the store open; those that noticed a new beginning at one time begin one each, and
//! the points that a script answers are of the latest one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use ports::{DurabilityPoint, Error, ErrorKind, Incarnation, Position, Result};
use redis::{Cmd, Value, cmd, pipe};

use crate::{
    answer::{self, Answer},
    config::{Acknowledged, Config},
    error::{Effect, Failure},
    fitness::{Fit, Waits},
    names::Names,
    node::Node,
    scripts::{Script, Scripts},
};

/// How many ends of incarnations are kept; a point of an older one answers `Lost`.
const ENDS_MAX: usize = 4096;

/// How often a command is sent anew because the server had forgotten its script.
const BEGINNINGS_MAX: usize = 8;

/// How often a read is sent in all before its lost answer is the caller's affair.
const READS_MAX: usize = 3;

/// One server and how far it has come.
#[derive(Debug)]
pub(crate) struct Single {
    pub(crate) node: Node,
    clock: Bytes,
    ends: Bytes,
    waits: Waits,
    warnings: Vec<String>,
    acknowledged: Acknowledged,
    timeout: Duration,
    scripts: RwLock<Arc<Scripts>>,
    beginning: tokio::sync::Mutex<()>,
    fencing: tokio::sync::Mutex<()>,
    progress: Mutex<Progress>,
}

/// What is known without asking.
#[derive(Debug, Default)]
struct Progress {
    /// The latest point seen in an answer.
    seen: DurabilityPoint,
    /// Everything up to here in its incarnation is durable, and all that earlier incarnations left behind.
    durable: DurabilityPoint,
    /// Where earlier incarnations ended, as far as somebody asked.
    ends: BTreeMap<Incarnation, Position>,
}

/// Which connection a command goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Commands,
    /// The one that may be blocked until everything before the command is durable.
    Waiting,
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

impl Single {
    /// Joins the incarnation that `node` is in, or begins one.
    pub(crate) async fn open(
        node: Node,
        names: &Names,
        fit: Fit,
        config: &Config,
    ) -> Result<Self, Failure> {
        let (clock, ends) = (names.clock(), names.ends());
        let (Fit { waits, warnings }, timeout) = (fit, config.durability_timeout);
        let (scripts, began) = match join(&node, &clock, &ends, waits, timeout).await? {
            Some(joined) => joined,
            None => begin(&node, &clock, &ends, waits, timeout).await?,
        };
        let progress = Progress {
            seen: began,
            durable: began,
            ends: BTreeMap::new(),
        };
        Ok(Self {
            node,
            clock,
            ends,
            waits,
            warnings,
            acknowledged: config.acknowledged,
            timeout,
            scripts: RwLock::new(Arc::new(scripts)),
            beginning: tokio::sync::Mutex::default(),
            fencing: tokio::sync::Mutex::default(),
            progress: Mutex::new(progress),
        })
    }

    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub(crate) fn acknowledged(&self) -> Acknowledged {
        self.acknowledged
    }

    pub(crate) fn health(&self) -> (String, Option<String>) {
        self.node.health()
    }

    /// Runs a script over `keys`.
    pub(crate) async fn run(
        &self,
        script: Script,
        keys: &[Bytes],
        arguments: &[Bytes],
        effect: Effect,
    ) -> Result<(DurabilityPoint, Vec<Value>), Failure> {
        let keys: Vec<&Bytes> = std::iter::once(&self.clock).chain(keys).collect();
        let mut reads = 0;
        loop {
            let command = |scripts: &Scripts| scripts.command(script, &keys, arguments);
            match self.known(command, Way::Commands).await {
                Err(Failure::Unanswered(_)) if effect == Effect::Reads && reads + 1 < READS_MAX => {
                    reads += 1
                }
                Err(failure) => return Err(failure),
                Ok(value) => {
                    let answer = Answer::of(value)?;
                    return Ok((self.observe(&answer), answer.rest));
                }
            }
        }
    }

    /// The bytes under `name`, and a point at or behind everything they rest on (rule P4).
    pub(crate) async fn get(&self, name: &Bytes) -> Result<(DurabilityPoint, Bytes), Failure> {
        let mut reads = 0;
        loop {
            let mut pipeline = pipe();
            pipeline.cmd("GET").arg(&name[..]);
            pipeline
                .cmd("HMGET")
                .arg(&self.clock[..])
                .arg("incarnation")
                .arg("position");
            let answers = match self.node.pipeline(&pipeline, 2).await {
                Err(Failure::Unanswered(_)) if reads + 1 < READS_MAX => {
                    reads += 1;
                    continue;
                }
                answers => answers?,
            };
            let mut answers = answers.into_iter();
            let found = match answers.next() {
                None | Some(Value::Nil) => Bytes::new(),
                Some(value) => answer::bytes(value)?,
            };
            let point = self.observe(&Answer::of(answers.next().unwrap_or(Value::Nil))?);
            return Ok((point, found));
        }
    }

    /// Sends what `command` makes of the present scripts; where the server has forgotten them, begins anew first.
    async fn known(&self, command: impl Fn(&Scripts) -> Cmd, way: Way) -> Result<Value, Failure> {
        for _ in 0..BEGINNINGS_MAX {
            let scripts = Arc::clone(&self.scripts.read());
            let command = command(&scripts);
            let answered = match way {
                Way::Commands => self.node.command(&command).await,
                Way::Waiting => self.waits.run(&self.node, command, self.timeout).await,
            };
            match answered {
                Err(failure)
                    if failure.is_no_script() || failure.code() == Some("LANDFASTSTALE") =>
                {
                    self.begin_anew(scripts.started)
                        .await
                        .map_err(Failure::before_sending)?;
                }
                answered => return answered,
            }
        }
        Err(Failure::Garbled(
            "a server that forgets its scripts as soon as it has them".to_owned(),
        ))
    }

    async fn begin_anew(&self, forgotten: u64) -> Result<(), Failure> {
        let _turn = self.beginning.lock().await;
        if self.scripts.read().started != forgotten {
            return Ok(());
        }
        let (node, clock, ends) = (&self.node, &self.clock, &self.ends);
        let joined = join(node, clock, ends, self.waits, self.timeout).await?;
        // A store that was put back may say an earlier one.
        let (scripts, began) = match joined.filter(|(scripts, _)| scripts.started > forgotten) {
            Some(joined) => joined,
            None => begin(node, clock, ends, self.waits, self.timeout).await?,
        };
        tracing::warn!(
            server = self.node.address(),
            incarnation = began.incarnation.0,
            "the server has begun anew: what it had not kept is lost"
        );
        *self.scripts.write() = Arc::new(scripts);
        let mut progress = self.progress.lock();
        progress.seen = progress.seen.max(began);
        progress.durable = progress.durable.max(began);
        Ok(())
    }

    fn observe(&self, answer: &Answer) -> DurabilityPoint {
        let point = point(answer.incarnation, answer.position);
        let mut progress = self.progress.lock();
        progress.seen = progress.seen.max(point);
        if self.waits == Waits::Synced {
            progress.durable = progress.durable.max(point);
        }
        point
    }

    /// The latest point seen.
    pub(crate) fn point(&self) -> DurabilityPoint {
        self.progress.lock().seen
    }

    /// Whether `point` is known to be durable.
    pub(crate) fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.progress.lock().is_durable(point)
    }

    /// Waits until `point` is durable. Those who wait share fences: one that began after a point was seen covers
    /// it, so whoever comes second finds his point covered by the first one's, or by the next.
    pub(crate) async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        if self.is_durable(point) {
            return Ok(());
        }
        let _turn = self.fencing.lock().await;
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

    /// Makes everything up to now durable; says what now is, and where `earlier` ended.
    async fn fence(
        &self,
        earlier: Incarnation,
    ) -> Result<(DurabilityPoint, Option<Position>), Failure> {
        let arguments = [
            earlier.0.to_string(),
            if self.waits.needs_write() { "w" } else { "" }.to_owned(),
        ];
        let command = |scripts: &Scripts| {
            scripts.command(Script::Fence, &[&self.clock, &self.ends], &arguments)
        };
        let answer = Answer::of(self.known(command, Way::Waiting).await?)?;
        let now = point(answer.incarnation, answer.position);
        let ended = answer::text(answer.only()?)?;
        let end = ended
            .split_once(':')
            .and_then(|(_, position)| position.parse().ok())
            .map(Position);
        let mut progress = self.progress.lock();
        progress.seen = progress.seen.max(now);
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

/// The present incarnation and what is durable of it, if the server is still in the life that began it: who opens the
/// store beside others, or notices late that the server has begun anew, disturbs nobody.
async fn join(
    node: &Node,
    clock: &Bytes,
    ends: &Bytes,
    waits: Waits,
    timeout: Duration,
) -> Result<Option<(Scripts, DurabilityPoint)>, Failure> {
    let present = node
        .command(cmd("HGET").arg(&clock[..]).arg("incarnation"))
        .await?;
    let started = if present == Value::Nil {
        return Ok(None);
    } else {
        answer::number(&present)?
    };
    let Some(scripts) = Scripts::known(node, started).await? else {
        return Ok(None);
    };
    let writes = if waits.needs_write() { "w" } else { "" };
    let fence = scripts.command(Script::Fence, &[clock, ends], &["0", writes]);
    match waits.run(node, fence, timeout).await {
        Ok(fenced) => {
            let answer = Answer::of(fenced)?;
            Ok(Some((scripts, point(answer.incarnation, answer.position))))
        }
        // It has begun a new life since.
        Err(failure) if failure.is_no_script() || failure.code() == Some("LANDFASTSTALE") => {
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

/// Begins an incarnation, durably. Its scripts are loaded first and its beginning is itself one of them: a server
/// that restarts in between has forgotten them, and what was lost with it is not taken for kept.
async fn begin(
    node: &Node,
    clock: &Bytes,
    ends: &Bytes,
    waits: Waits,
    timeout: Duration,
) -> Result<(Scripts, DurabilityPoint), Failure> {
    let mut number_min = 1;
    for _ in 0..BEGINNINGS_MAX {
        let started = server_time_us(node).await?.max(number_min);
        let scripts = Scripts::load(node, started).await?;
        let command = scripts.command(Script::Begin, &[clock, ends], &[ENDS_MAX.to_string()]);
        match waits.run(node, command, timeout).await {
            Ok(position) => return Ok((scripts, point(started, answer::number(&position)?))),
            Err(Failure::Refused(error)) if error.code() == Some("LANDFASTBEHIND") => {
                number_min = error
                    .detail()
                    .and_then(|number| number.parse().ok())
                    .unwrap_or(started)
                    + 1;
            }
            // It may have begun, and then the next number is another.
            Err(Failure::Unanswered(error)) if error.is_connection_dropped() => {
                number_min = started + 1
            }
            Err(failure) if failure.is_no_script() => {}
            Err(failure) => return Err(failure),
        }
    }
    Err(Failure::Garbled(
        "a clock that somebody else moves on faster than we can".to_owned(),
    ))
}

async fn server_time_us(node: &Node) -> Result<u64, Failure> {
    let time = answer::array(node.command(&cmd("TIME")).await?)?;
    let [seconds, microseconds] = &time[..] else {
        return Err(Failure::Garbled("a time that is none".to_owned()));
    };
    Ok(answer::number(seconds)? * 1_000_000 + answer::number(microseconds)?)
}
