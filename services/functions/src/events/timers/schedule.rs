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
//!   leaves the rule out: arming with another rule changes the time too, unless both fall on the
//!   same millisecond.
//! - Ticks of a period keep their distance from the first one. Missed ticks become a single late
//!   one.
//! - A row with another rule is ignored, and so is a time after the next one by the rule: a clock
//!   was set back.

use std::sync::Arc;

use bytes::Bytes;
use ports::{
    Clock, Condition, Entropy, Error, ErrorKind, Item, Key, Result, Timestamp, Update,
    key_value::{Outcome, SharedKeyValue, Test, Updated, Value},
};

use primitives::retry_repeatable;

use crate::{events::outgoing::RETRIES, manifest::TimerRule};

const PARTITION: &str = "landfast.timers";

const NEXT: &str = "next";
/// The period in milliseconds, or zero for a cron expression.
const PERIOD: &str = "period";
/// The cron expression and its time zone; absent for a period.
const CRON: &str = "cron";
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

    /// Sets the next tick of `function` to the first one after `now`, regardless of the row.
    pub(crate) async fn begin(
        &self,
        function: &str,
        rule: &TimerRule,
        now: Timestamp,
    ) -> Result<()> {
        let update = row(function, rule.first_after(now), rule, "");
        let updated = self.key_value.update(update).await?;
        self.key_value.externalize(updated.receipt.point).await
    }

    /// The time of the next tick of `function`. Without a valid row, the timer begins `now`.
    pub(crate) async fn next_or_begin(
        &self,
        function: &str,
        rule: &TimerRule,
        now: Timestamp,
    ) -> Result<Timestamp> {
        let read = self.key_value.get(&key(function)).await?.value;
        if let Some(next) = read.as_deref().and_then(|item| time_of(item, rule, now)) {
            return Ok(next);
        }
        let next = rule.first_after(now);
        let update = row(function, next, rule, "").when(unchanged(read.as_deref()));
        let updated = self.key_value.update(update).await?;
        let begun = match &updated.outcome {
            Outcome::Done(_) => Some(next),
            // Another process has begun it, unless the row was moved by a tick of the earlier
            // rule.
            Outcome::Conflict(there) => there.as_deref().and_then(|item| time_of(item, rule, now)),
        };
        self.key_value.externalize(updated.receipt.point).await?;
        if let Some(next) = begun {
            return Ok(next);
        }
        self.begin(function, rule, now).await?;
        Ok(next)
    }

    /// Takes the tick of `function` that is due `now`, under the id `id`. Only one of several
    /// callers gets it.
    pub(crate) async fn take(
        &self,
        function: &str,
        rule: &TimerRule,
        now: Timestamp,
        id: &str,
    ) -> Result<Tick> {
        let read = self.key_value.get(&key(function)).await?.value;
        let Some((item, next)) = read.and_then(|item| {
            let next = time_of(&item, rule, now)?;
            Some((item, next))
        }) else {
            return self
                .next_or_begin(function, rule, now)
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
        let following = rule.following(next, now);
        let update = row(function, following, rule, id).when(unchanged(Some(&item)));
        let there = self.moved(function, update).await?;
        let is_mine = there
            .as_deref()
            .and_then(|item| item.bytes(TICK))
            .is_some_and(|tick| *tick == id);
        let next = there
            .and_then(|item| time_of(&item, rule, now))
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

fn key(function: &str) -> Key {
    Key::new(PARTITION, function)
}

fn row(function: &str, next: Timestamp, rule: &TimerRule, tick: &str) -> Update {
    let text = |text: &str| Value::Bytes(Bytes::copy_from_slice(text.as_bytes()));
    let mut attributes = vec![
        (NEXT.into(), Value::Integer(next.0 as i64)),
        (PERIOD.into(), Value::Integer(rule.period_ms() as i64)),
        (TICK.into(), text(tick)),
    ];
    if !rule.expression().is_empty() {
        attributes.push((CRON.into(), text(rule.expression())));
    }
    Update::put(key(function), attributes)
}

/// The time of the next tick, if the row has this rule.
fn time_of(item: &Item, rule: &TimerRule, now: Timestamp) -> Option<Timestamp> {
    let (next, period) = (item.integer(NEXT)?, item.integer(PERIOD)?);
    let next = Timestamp(u64::try_from(next).ok()?);
    let cron = item.bytes(CRON).map(|cron| &**cron).unwrap_or_default();
    let is_same = period == rule.period_ms() as i64 && cron == rule.expression().as_bytes();
    // Another process, whose clock is ahead, may have taken a tick that is yet to come here.
    let ahead = Timestamp(now.0.saturating_add(SKEW_MS_MAX));
    let is_near = || next <= rule.first_after(ahead);
    (is_same && is_near()).then_some(next)
}

fn unchanged(read: Option<&Item>) -> Condition {
    let next = read.and_then(|item| item.integer(NEXT));
    match next {
        Some(next) => Condition::attribute(NEXT, Test::Equals(Value::Integer(next))),
        None => Condition::Absent,
    }
}
