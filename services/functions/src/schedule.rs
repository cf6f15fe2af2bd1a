//! When timers of deployed functions go off next, at rest: a row for each.
//!
//! So a timer goes on over restarts, and among several processes, each of which has it armed, a tick is one's: whoever moves the row
//! to the next one. The row is written before the event is sent, so that a death in between leaves a tick out, and none comes twice as
//! long as the store keeps what it has acknowledged. While the store would take the row, from its reserve, and not the event, the tick
//! stays due.
//!
//! Invariants
//! - A row is moved under the condition that its time is as it was read, by a name of that tick alone: so whoever is not answered
//!   reads who did it. Its period is not looked at again: who arms it with another one gives it another time, unless that falls on the
//!   same millisecond.
//! - Ticks keep their distance from the first one. Those that nobody was there for are one, and late.
//! - What a row says of another period is nobody's, and neither is a time that is further off than a period: a clock was set back.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use ports::{
    Clock, Condition, Error, ErrorKind, Item, Key, Result, Timestamp, Update,
    key_value::{Outcome, Room, SharedKeyValue, Test, Updated, Value},
};

use crate::tries;

/// The partition of the rows.
const PARTITION: &str = "landfast.timers";

const NEXT: &str = "next";
const PERIOD: &str = "period";
/// The tick that moved it.
const TICK: &str = "tick";

/// So much may clocks of several processes differ before one takes the other's time for wrong.
const SKEW_MS_MAX: u64 = 60_000;

/// When timers go off next.
#[derive(Debug)]
pub(crate) struct Schedule {
    key_value: SharedKeyValue,
    clock: Arc<dyn Clock>,
}

/// What became of a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tick {
    /// It is this process's; the next one is then.
    Mine(Timestamp),
    /// There is none before then.
    NotBefore(Timestamp),
}

impl Schedule {
    pub(crate) fn new(key_value: SharedKeyValue, clock: Arc<dyn Clock>) -> Self {
        Self { key_value, clock }
    }

    /// The timer of `function` goes off a whole `period` from `now`, whatever was said of it before.
    pub(crate) async fn begin(
        &self,
        function: &str,
        period: Duration,
        now: Timestamp,
    ) -> Result<()> {
        let update = row(function, after(now, period), period, "");
        let updated = self.key_value.update(update).await?;
        self.key_value.externalize(updated.receipt.point).await
    }

    /// When the timer of `function` goes off next; of one that has no such time its first `period` begins `now`.
    pub(crate) async fn next_or_begin(
        &self,
        function: &str,
        period: Duration,
        now: Timestamp,
    ) -> Result<Timestamp> {
        let read = self.key_value.get(&key(function)).await?.value;
        if let Some(next) = read.as_deref().and_then(|item| time_of(item, period, now)) {
            return Ok(next);
        }
        let next = after(now, period);
        let update = row(function, next, period, "").when(unchanged(read.as_deref()));
        let updated = self.key_value.update(update).await?;
        let begun = match &updated.outcome {
            Outcome::Done(_) => Some(next),
            // Whoever was faster has begun it, unless that was a tick of the period before.
            Outcome::Conflict(there) => {
                there.as_deref().and_then(|item| time_of(item, period, now))
            }
        };
        self.key_value.externalize(updated.receipt.point).await?;
        if let Some(next) = begun {
            return Ok(next);
        }
        self.begin(function, period, now).await?;
        Ok(next)
    }

    /// Whether a tick of `function`, to be called `id`, is due `now`: it is so for one of all who ask.
    pub(crate) async fn take(
        &self,
        function: &str,
        period: Duration,
        now: Timestamp,
        id: &str,
    ) -> Result<Tick> {
        let read = self.key_value.get(&key(function)).await?.value;
        let Some((item, next)) = read.and_then(|item| {
            let next = time_of(&item, period, now)?;
            Some((item, next))
        }) else {
            return self
                .next_or_begin(function, period, now)
                .await
                .map(Tick::NotBefore);
        };
        if next > now {
            return Ok(Tick::NotBefore(next));
        }
        if self.key_value.room() < Room::Free {
            return Err(Error::new(
                ErrorKind::NoRoom,
                format!("take a tick of {function}"),
            ));
        }
        let following = following(next, period, now);
        let update = row(function, following, period, id).when(unchanged(Some(&item)));
        let there = self.moved(function, update).await?;
        let is_mine = there
            .as_deref()
            .and_then(|item| item.bytes(TICK))
            .is_some_and(|tick| *tick == id);
        let next = there
            .and_then(|item| time_of(&item, period, now))
            .unwrap_or(following);
        Ok(if is_mine {
            Tick::Mine(next)
        } else {
            Tick::NotBefore(next.max(now))
        })
    }

    /// The row once it was moved by `update`, or by whoever was faster.
    async fn moved(&self, function: &str, update: Update) -> Result<Option<Arc<Item>>> {
        match self.key_value.update(update).await {
            // The event of a tick comes behind it, and is waited for: to wait here, too, would be one more place to lose the tick.
            Ok(Updated {
                outcome: Outcome::Done(item),
                ..
            }) => Ok(item),
            Ok(Updated {
                outcome: Outcome::Conflict(there),
                ..
            }) => Ok(there),
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => self.read(function).await,
            Err(error) => Err(error),
        }
    }

    /// The row of `function`, which says whose a tick is: if nobody says so, nobody has it.
    async fn read(&self, function: &str) -> Result<Option<Arc<Item>>> {
        let key = key(function);
        Ok(tries::several(&*self.clock, || self.key_value.get(&key))
            .await?
            .value)
    }
}

fn milliseconds(period: Duration) -> u64 {
    (period.as_millis() as u64).max(1)
}

fn after(time: Timestamp, period: Duration) -> Timestamp {
    Timestamp(time.0.saturating_add(milliseconds(period)))
}

/// When it goes off after a tick that was due at `due`, however many were missed since.
fn following(due: Timestamp, period: Duration, now: Timestamp) -> Timestamp {
    let missed = now.ms_since(due) / milliseconds(period);
    after(due, period * u32::try_from(missed + 1).unwrap_or(u32::MAX))
}

fn key(function: &str) -> Key {
    Key::new(PARTITION, function)
}

fn row(function: &str, next: Timestamp, period: Duration, tick: &str) -> Update {
    Update::put(
        key(function),
        vec![
            (NEXT.into(), Value::Integer(next.0 as i64)),
            (PERIOD.into(), Value::Integer(milliseconds(period) as i64)),
            (
                TICK.into(),
                Value::Bytes(Bytes::copy_from_slice(tick.as_bytes())),
            ),
        ],
    )
}

/// When it goes off, if the row is of this period.
fn time_of(item: &Item, period: Duration, now: Timestamp) -> Option<Timestamp> {
    let (next, of) = (item.integer(NEXT)?, item.integer(PERIOD)?);
    let next = Timestamp(u64::try_from(next).ok()?);
    let is_near = next.0 <= after(now, period).0.saturating_add(SKEW_MS_MAX);
    (of == milliseconds(period) as i64 && is_near).then_some(next)
}

fn unchanged(read: Option<&Item>) -> Condition {
    let next = read.and_then(|item| item.integer(NEXT));
    match next {
        Some(next) => Condition::attribute(NEXT, Test::Equals(Value::Integer(next))),
        None => Condition::Absent,
    }
}
