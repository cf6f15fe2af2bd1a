//! The stored schedule: one row per timer with the time of its next tick.
//!
//! A timer therefore survives restarts. Among several processes, each of which has it armed, the
//! process that moves the row to the next tick owns this one. The row is written before the event
//! is sent. A death in between loses a tick, and no tick comes twice while the store keeps what it
//! has acknowledged. A store without room would take the row from its reserve but refuse the event,
//! so the tick then stays due.
//!
//! Invariants
//! - A row moves under the condition that its time is as it was read, and records the id of the
//!   tick that moved it. A process whose write had an unknown outcome reads that id. The condition
//!   leaves the period out: arming with another period changes the time too, unless both fall on
//!   the same millisecond.
//! - Ticks keep their distance from the first one. Missed ticks become a single late one.
//! - A row with another period is ignored, and so is a time more than a period away: a clock was
//!   set back.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use ports::{
    Clock, Condition, Entropy, Error, ErrorKind, Item, Key, Result, Timestamp, Update,
    key_value::{Outcome, SharedKeyValue, Test, Updated, Value},
};

use primitives::retry_repeatable;

use crate::events::outgoing::RETRIES;

const PARTITION: &str = "landfast.timers";

const NEXT: &str = "next";
const PERIOD: &str = "period";
/// The id of the tick that moved the row.
const TICK: &str = "tick";

/// The clock difference between processes up to which one accepts the other's time.
const SKEW_MS_MAX: u64 = 60_000;

#[derive(Debug)]
pub(crate) struct Schedule {
    key_value: SharedKeyValue,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

/// Whether a tick is due, and for which process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tick {
    /// This process took it. The next one is due at this time.
    Mine(Timestamp),
    /// None is due before this time.
    NotBefore(Timestamp),
}

impl Schedule {
    pub(crate) fn new(
        key_value: SharedKeyValue,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self {
            key_value,
            clock,
            entropy,
        }
    }

    /// Sets the next tick of `function` to one `period` after `now`, regardless of the row.
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

    /// The time of the next tick of `function`. Without a valid row, the first `period` begins
    /// `now`.
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
            // Another process has begun it, unless the row was moved by a tick of the earlier
            // period.
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

    /// Takes the tick of `function` that is due `now`, under the id `id`. Only one of several
    /// callers gets it.
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
        if !self.key_value.has_room() {
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

    /// The row after `update`, or after another process moved it first.
    async fn moved(&self, function: &str, update: Update) -> Result<Option<Arc<Item>>> {
        match self.key_value.update(update).await {
            // The sender of the tick's event waits for durability. Waiting here too would be one
            // more place to lose the tick.
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

    /// The row of `function`, which names the tick that moved it.
    async fn read(&self, function: &str) -> Result<Option<Arc<Item>>> {
        let key = key(function);
        let read = || self.key_value.get(&key);
        let read = retry_repeatable(RETRIES, &*self.clock, &*self.entropy, read).await?;
        Ok(read.value)
    }
}

fn milliseconds(period: Duration) -> u64 {
    (period.as_millis() as u64).max(1)
}

fn after(time: Timestamp, period: Duration) -> Timestamp {
    Timestamp(time.0.saturating_add(milliseconds(period)))
}

/// The tick after the one that was due at `due`, leaving out those missed since.
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

/// The time of the next tick, if the row has this period.
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
