//! Atomic updates in Redis: read, evaluate in this process, then compare and set in a script.
//!
//! Rejected: a script that evaluates conditions and actions itself. It would be a second definition
//! of `ports::key_value::evaluate`. Lua's numbers are doubles, and ours are 64-bit integers whose
//! overflow must be refused. With compare-and-set, `evaluate` stays the only definition, and the
//! script compares stamps and writes bytes. Its possible costs are avoided as follows:
//!
//! - *A second round trip.* The first attempt does not read. It evaluates over the last known value
//!   of the item in this process, or over an absent item. If that value is stale, the script
//!   returns the present one. A create, and a change of an item that this process changed last,
//!   need one round trip. A change of an unknown item needs two.
//! - *Contention on items that are only compared.* A compared item takes no lock, so transactions
//!   that check one row run side by side.
//! - *Waiting for replies.* Updates of one item are queued in this process, in order of arrival,
//!   each only until its command is sent ([`pipelining`]). 64 writers of one counter then lose no
//!   attempt to each other, and a chain of updates costs one round trip.
//! - *Lost races.* An update that was refused keeps its locks until it is done. From then on, only
//!   other processes can make an attempt fail.
//!
//! Measured on two busy cores, without syncing: 64 writers of one process add to one counter 56,000
//! times a second, 99 of 100 within 2.5 ms. With locks held until the reply the figure was 36,000.
//! One writer alone takes 0.025 ms for a known item. Of four processes that only add to one
//! counter, one at a time does nearly all additions, and the others may wait for seconds. Give each
//! process its own item where many processes write all the time.
//!
//! A decision that changes nothing is never based on a guess. It is based only on values that a
//! script returned: those of all targets at one moment, after the call began.

mod pipelining;

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use bytes::Bytes;
use ports::{DurabilityPoint, Error, Result};
use redis::Value;

use crate::{
    codec::{STAMP_BYTES, stamp},
    error::{Effect, Failure},
    servers::{Servers, reply, scripts::Script},
};

pub(crate) use self::pipelining::KeyPipelines;

/// The most attempts of one update. At the bound it fails with `Unavailable`, because other
/// processes change its items all the time.
const ATTEMPTS_MAX: u32 = 1000;

/// How many attempts follow each other without a pause. Later ones pause for longer each time.
const ATTEMPTS_AT_ONCE: u32 = 3;

/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// One key to compare and set.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// The key.
    pub(crate) name: Bytes,
    /// The index of its partition.
    pub(crate) index: Bytes,
    /// Its entry in the index.
    pub(crate) sort: Bytes,
    /// Whether it is compared and never written. It then takes no lock.
    pub(crate) is_only_compared: bool,
}

/// The write to one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Write {
    /// Nothing is written, but the stamp must match.
    Check,
    /// Writes these bytes and adds the key to the index.
    Enter(Bytes),
    /// Writes these bytes.
    Set(Bytes),
    /// Writes these bytes with a lifetime in milliseconds, and removes the key from the index.
    Tombstone(Bytes, u64),
    /// Removes the key, also from the index.
    Delete,
}

/// The writes to all targets, and the result that the caller receives if they succeed.
#[derive(Debug)]
pub(crate) struct Decision<T> {
    /// One for each target; missing ones are checks.
    pub(crate) writes: Vec<Write>,
    pub(crate) answer: T,
}

/// Changes `targets` together, in one atomic step. `decide` computes the writes from the present
/// values, where empty bytes stand for an absent key.
///
/// Errors: those of `decide` over the real values; `Unavailable` if other processes win every race.
pub(crate) async fn update_atomically<T>(
    servers: &Servers,
    pipelines: &KeyPipelines,
    targets: &[Target],
    attempted: &(dyn Fn() -> String + Sync),
    decide: impl Fn(&[Bytes]) -> Result<Decision<T>>,
) -> Result<(T, DurabilityPoint)> {
    let mut locks = pipelines.lock(targets).await;
    let mut is_serialized = pipelines.are_serialized(targets);
    let (mut present, mut read_at) = (pipelines.expected(targets), None);
    let mut attempts = 0;
    while attempts < ATTEMPTS_MAX {
        let decided = decide(&present);
        let writes = decided
            .as_ref()
            .map_or(&[][..], |decision| &decision.writes);
        let effect = effect_of(writes);
        if let (Effect::Reads, Some(point)) = (effect, read_at) {
            return decided.map(|decision| (decision.answer, point));
        }
        if attempts > 0 && !is_serialized {
            (locks, is_serialized) = (pipelines.lock(targets).await, true);
            if pipelines.refresh(targets, &mut present) {
                read_at = None;
                continue;
            }
        }
        pipelines.assume(targets, writes);
        let release = if is_serialized {
            None
        } else {
            Some(&mut locks)
        };
        let applied = apply(servers, targets, &present, writes, effect);
        match with_lock_until_sent(applied, || drop(release.map(std::mem::take))).await {
            Ok((point, None)) => {
                pipelines.confirm(targets, &present, writes);
                return decided.map(|decision| (decision.answer, point));
            }
            Ok((point, Some(found))) => {
                pipelines.correct(targets, &present, &found);
                (present, read_at) = (found, Some(point));
            }
            Err(failure) => {
                pipelines.forget(targets);
                return Err(failure.into_error(effect, attempted()));
            }
        }
        if attempts >= ATTEMPTS_AT_ONCE {
            tokio::time::sleep(pause(attempts)).await;
        }
        attempts += 1;
    }
    Err(Error::unavailable(attempted()).caused_by("other processes won every race"))
}

/// Polls `command` once, which sends it after all earlier commands, then calls `then`, then waits
/// for the reply.
async fn with_lock_until_sent<T>(command: impl Future<Output = T>, then: impl FnOnce()) -> T {
    let mut command = pin!(command);
    let first = poll_fn(|context| Poll::Ready(command.as_mut().poll(context))).await;
    then();
    match first {
        Poll::Ready(answer) => answer,
        Poll::Pending => command.await,
    }
}

fn effect_of(writes: &[Write]) -> Effect {
    if writes.iter().any(|writes| *writes != Write::Check) {
        Effect::Changes
    } else {
        Effect::Reads
    }
}

/// Grows with each attempt and has random jitter, so that two competing writers do not keep
/// colliding.
fn pause(attempt: u32) -> Duration {
    let most = Duration::from_micros(100) * 2_u32.pow((attempt - ATTEMPTS_AT_ONCE).min(10));
    let share = getrandom::u32().expect("a system that ran so far has randomness") % 1024;
    most.min(PAUSE_MAX) * share / 1024
}

/// Runs the script. Returns none if all stamps matched and the writes are done, and the present
/// values otherwise.
async fn apply(
    servers: &Servers,
    targets: &[Target],
    expected: &[Bytes],
    writes: &[Write],
    effect: Effect,
) -> Result<(DurabilityPoint, Option<Vec<Bytes>>), Failure> {
    let keys: Vec<Bytes> = targets
        .iter()
        .flat_map(|target| [target.name.clone(), target.index.clone()])
        .collect();
    let mut arguments = Vec::with_capacity(1 + targets.len() * 4);
    arguments.push(Bytes::from(STAMP_BYTES.to_string()));
    for (number, target) in targets.iter().enumerate() {
        let (letter, bytes, sort) = encode(writes.get(number).unwrap_or(&Write::Check), target);
        arguments.extend([
            stamp(&expected[number]),
            Bytes::from_static(letter),
            bytes,
            sort,
        ]);
    }
    let adds = |writes: &Write| matches!(writes, Write::Enter(_) | Write::Set(_));
    let script = if writes.iter().any(adds) {
        Script::Apply
    } else {
        Script::Delete
    };
    let (point, rest) = servers.run(script, &keys, &arguments, effect).await?;
    let Some(found) = rest.into_iter().next() else {
        return Ok((point, None));
    };
    let found: Result<Vec<Bytes>, Failure> = reply::array(found)?
        .into_iter()
        .map(|value: Value| reply::bytes(value))
        .collect();
    Ok((point, Some(found?)))
}

fn encode(writes: &Write, target: &Target) -> (&'static [u8], Bytes, Bytes) {
    match writes {
        Write::Check => (b"c", Bytes::new(), Bytes::new()),
        Write::Enter(bytes) => (b"n", bytes.clone(), target.sort.clone()),
        Write::Set(bytes) => (b"s", bytes.clone(), Bytes::new()),
        Write::Tombstone(bytes, lifetime_ms) => {
            let lifetime = [lifetime_ms.to_string().as_bytes(), b":", &target.sort].concat();
            (b"t", bytes.clone(), lifetime.into())
        }
        Write::Delete => (b"d", Bytes::new(), target.sort.clone()),
    }
}
