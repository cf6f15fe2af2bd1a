//! How an update of `ports::key_value::evaluate` becomes atomic in Redis: read, evaluate here, compare and set.
//!
//! The other way, a script that evaluates conditions and actions itself, was weighed and left: it would be a second
//! definition of what `evaluate` defines, in a language whose numbers are doubles where ours are 64-bit integers with
//! an overflow that must be refused. Here the one definition runs, and the script compares stamps and writes bytes.
//! What that could cost is handled so:
//!
//! - *A second round trip.* The first attempt does not read: it evaluates over what this process last saw of the
//!   item, else over an absent one, and the script answers a wrong guess with what is there. So whoever creates, and
//!   whoever changes what he changed last, needs one round trip; whoever changes what he never saw needs two.
//! - *Waiting for what nobody changes.* An item that is only compared takes no turn: transactions that check one row go side by side.
//! - *Waiting for answers.* Updates of one item take turns in this process, first come first served, each only until it is
//!   on the wire ([`crate::turns`]): 64 writers of one counter lose no attempt to each other, and a chain of updates costs one
//!   round trip.
//! - *Losing to others.* Who was refused keeps his turn until he is done. Only other processes can make an attempt fail.
//!
//! Measured on two busy cores, without syncing: one counter takes 56,000 additions a second from 64 writers of one
//! process (99 of 100 within 2.5 ms); with each turn kept until the answer it took 36,000. One writer alone takes 0.025 ms for
//! an item it knows. Of four processes that do nothing but add to one counter, one at a time does nearly all of it, and the
//! others may wait for seconds: what many processes change all the time belongs into items of their own.
//!
//! A decision that changes nothing is never made over a guess, only over what a script answered: all places at one
//! moment, after the call began.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use bytes::Bytes;
use ports::{DurabilityPoint, Error, Result};
use redis::Value;

use crate::{
    answer,
    codec::{STAMP_BYTES, stamp},
    error::{Effect, Failure},
    scripts::Script,
    servers::Servers,
    turns::Turns,
};

/// How often an update is tried before it is given up: other processes change its items all the time.
const ATTEMPTS_MAX: u32 = 1000;

/// How many attempts are made at once, before waiting a little longer each time.
const ATTEMPTS_AT_ONCE: u32 = 3;

/// The longest wait between two attempts.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// One key to compare and set.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The key.
    pub(crate) name: Bytes,
    /// Its partition's index; for what is in none, the key itself.
    pub(crate) index: Bytes,
    /// What the index knows it by.
    pub(crate) sort: Bytes,
    /// Whether it is compared and never set: then nobody has to wait for his turn.
    pub(crate) is_only_compared: bool,
}

impl Place {
    /// A key that no index knows.
    pub(crate) fn apart(name: Bytes) -> Self {
        Self {
            index: name.clone(),
            name,
            sort: Bytes::new(),
            is_only_compared: false,
        }
    }
}

/// What to do to one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Todo {
    /// Nothing, but it must be as expected.
    Check,
    /// Write these bytes and enter it in the index.
    Enter(Bytes),
    /// Write these bytes.
    Set(Bytes),
    /// Write these bytes for so many milliseconds, and take it out of the index.
    Tombstone(Bytes, u64),
    /// Remove it, also from the index.
    Delete,
}

/// What is to become of all places, and what is answered then.
#[derive(Debug)]
pub(crate) struct Decision<T> {
    /// One for each place; missing ones are checks.
    pub(crate) todo: Vec<Todo>,
    pub(crate) answer: T,
}

/// Changes `places` together, as `decide` says over what is there (empty: nothing), in one atomic step.
///
/// Errors: what `decide` says over what is really there; `Unavailable` if others are always faster.
pub(crate) async fn settle<T>(
    servers: &Servers,
    turns: &Turns,
    places: &[Place],
    attempted: &(dyn Fn() -> String + Sync),
    decide: impl Fn(&[Bytes]) -> Result<Decision<T>>,
) -> Result<(T, DurabilityPoint)> {
    let mut taken = turns.take(places).await;
    let mut is_kept = turns.are_kept(places);
    let (mut present, mut known_at) = (turns.guess(places), None);
    let mut attempts = 0;
    while attempts < ATTEMPTS_MAX {
        let decided = decide(&present);
        let todo = decided.as_ref().map_or(&[][..], |decision| &decision.todo);
        let effect = effect_of(todo);
        if let (Effect::Reads, Some(point)) = (effect, known_at) {
            return decided.map(|decision| (decision.answer, point));
        }
        if attempts > 0 && !is_kept {
            (taken, is_kept) = (turns.take(places).await, true);
            if turns.renew(places, &mut present) {
                known_at = None;
                continue;
            }
        }
        turns.hope(places, todo);
        let release = if is_kept { None } else { Some(&mut taken) };
        let applied = apply(servers, places, &present, todo, effect);
        match once_sent(applied, || drop(release.map(std::mem::take))).await {
            Ok((point, None)) => {
                turns.confirm(places, &present, todo);
                return decided.map(|decision| (decision.answer, point));
            }
            Ok((point, Some(found))) => {
                turns.correct(places, &present, &found);
                (present, known_at) = (found, Some(point));
            }
            Err(failure) => {
                turns.forget(places);
                return Err(failure.into_error(effect, attempted()));
            }
        }
        if attempts >= ATTEMPTS_AT_ONCE {
            tokio::time::sleep(pause(attempts)).await;
        }
        attempts += 1;
    }
    Err(Error::unavailable(attempted()).caused_by("others were faster every time"))
}

/// Polls `command` once, which puts it behind all commands sent before, and calls `then` before it waits for the answer.
async fn once_sent<T>(command: impl Future<Output = T>, then: impl FnOnce()) -> T {
    let mut command = pin!(command);
    let first = poll_fn(|context| Poll::Ready(command.as_mut().poll(context))).await;
    then();
    match first {
        Poll::Ready(answer) => answer,
        Poll::Pending => command.await,
    }
}

fn effect_of(todo: &[Todo]) -> Effect {
    if todo.iter().any(|todo| *todo != Todo::Check) {
        Effect::Changes
    } else {
        Effect::Reads
    }
}

/// Longer with each attempt, and never the same for two who keep meeting.
fn pause(attempt: u32) -> Duration {
    let most = Duration::from_micros(100) * 2_u32.pow((attempt - ATTEMPTS_AT_ONCE).min(10));
    let share = getrandom::u32().expect("a system that ran so far has randomness") % 1024;
    most.min(PAUSE_MAX) * share / 1024
}

/// Runs the script: none if everything was as expected and is done, else what is there.
async fn apply(
    servers: &Servers,
    places: &[Place],
    expected: &[Bytes],
    todo: &[Todo],
    effect: Effect,
) -> Result<(DurabilityPoint, Option<Vec<Bytes>>), Failure> {
    let keys: Vec<Bytes> = places
        .iter()
        .flat_map(|place| [place.name.clone(), place.index.clone()])
        .collect();
    let mut arguments = Vec::with_capacity(1 + places.len() * 4);
    arguments.push(Bytes::from(STAMP_BYTES.to_string()));
    for (number, place) in places.iter().enumerate() {
        let (letter, bytes, sort) = encode(todo.get(number).unwrap_or(&Todo::Check), place);
        arguments.extend([
            stamp(&expected[number]),
            Bytes::from_static(letter),
            bytes,
            sort,
        ]);
    }
    let adds = |todo: &Todo| matches!(todo, Todo::Enter(_) | Todo::Set(_));
    let script = if todo.iter().any(adds) {
        Script::Apply
    } else {
        Script::Delete
    };
    let (point, rest) = servers.run(script, &keys, &arguments, effect).await?;
    let Some(found) = rest.into_iter().next() else {
        return Ok((point, None));
    };
    let found: Result<Vec<Bytes>, Failure> = answer::array(found)?
        .into_iter()
        .map(|value: Value| answer::bytes(value))
        .collect();
    Ok((point, Some(found?)))
}

fn encode(todo: &Todo, place: &Place) -> (&'static [u8], Bytes, Bytes) {
    match todo {
        Todo::Check => (b"c", Bytes::new(), Bytes::new()),
        Todo::Enter(bytes) => (b"n", bytes.clone(), place.sort.clone()),
        Todo::Set(bytes) => (b"s", bytes.clone(), Bytes::new()),
        Todo::Tombstone(bytes, lifetime_ms) => {
            let lifetime = [lifetime_ms.to_string().as_bytes(), b":", &place.sort].concat();
            (b"t", bytes.clone(), lifetime.into())
        }
        Todo::Delete => (b"d", Bytes::new(), place.sort.clone()),
    }
}
