//! Timers of deployed functions. Each tick becomes an ordinary event of its function.
//!
//! A tick is therefore retried, reported and kept like any event (A3). It waits for a free instance
//! (A8) and survives a crash. A timer does not wait for its function, which may never keep up.
//! While too many events of the function wait, ticks are skipped, so that the backlog stays
//! bounded.
//!
//! A tick is taken from the schedule before its event is sent, so a failed send is repeated for
//! about a second.
//!
//! The time of the next tick is [stored](schedule). The port's timers know only periods, which
//! begin when they are armed. The service therefore arms a timer for the remaining time, and again
//! at each tick. For a cron expression it looks at the clock at least once an hour, because the
//! clock may be set meanwhile.
//!
//! Invariant: no tick arms a timer that was disarmed after the tick began. Both happen under one
//! lock.

pub(crate) mod schedule;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use ports::{ErrorKind, LogThrottle, Monotonic, Result};
use primitives::retry_repeatable;

use self::schedule::{Schedule, Tick};
use super::{
    format,
    outgoing::{self, RETRIES},
};
use crate::{
    config::Parts,
    ids::{new_id, registered_name},
    manifest::TimerRule,
};

/// While this many events of a function wait or run, its ticks are skipped.
pub(crate) const EVENTS_WAITING_MAX: u64 = 100;

/// Ticks count as regular again once none was skipped for this long. A function that is behind
/// takes one now and then, which is no recovery.
const REGULAR_AFTER: Duration = Duration::from_mins(10);

/// The longest delay of a timer with a cron expression. No tick need be due then.
const CRON_DELAY_MAX: Duration = Duration::from_hours(1);
/// The shortest delay of a timer.
const SHORTEST: Duration = Duration::from_millis(1);
/// The delay before the next attempt when the store could not say whether a tick is due.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It became an event.
    Event,
    /// It was skipped for this reason. The next tick is due at its time.
    Skipped(String),
    /// It may still be due. The timer checks again soon.
    Late(String),
}

/// The timers that are armed in this process.
#[derive(Debug)]
pub(crate) struct Timers {
    parts: Parts,
    schedule: Schedule,
    /// When each armed timer fires, by function. Locked while a timer is armed or disarmed.
    armed: tokio::sync::Mutex<BTreeMap<String, TimerRule>>,
}

impl Timers {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            schedule: Schedule::new(
                Arc::clone(&parts.key_value),
                Arc::clone(&parts.clock),
                Arc::clone(&parts.entropy),
            ),
            armed: tokio::sync::Mutex::default(),
            parts,
        }
    }

    /// Begins the timer of `function` now.
    pub(crate) async fn begin(&self, function: &str, rule: &TimerRule) -> Result<()> {
        let now = self.parts.clock.now();
        self.schedule.begin(function, rule, now).await
    }

    /// Arms the timer of `function` for its next tick; without a rule, disarms it.
    pub(crate) async fn follow(&self, function: &str, rule: Option<TimerRule>) -> Result<()> {
        let (functions, clock) = (&self.parts.functions, &self.parts.clock);
        let name = registered_name(function);
        let mut armed = self.armed.lock().await;
        let Some(rule) = rule else {
            armed.remove(function);
            return functions.disarm_timer(&name).await;
        };
        let next = self
            .schedule
            .next_or_begin(function, &rule, clock.now())
            .await?;
        let left = delay(&rule, next.ms_since(clock.now()));
        armed.insert(function.to_owned(), rule);
        functions.arm_timer(&name, left.max(SHORTEST)).await
    }

    /// Takes the tick of `function` that is due, if there is one, and arms the timer for the next.
    pub(crate) async fn take(&self, function: &str) -> Option<Outcome> {
        let clock = &self.parts.clock;
        let began = clock.monotonic();
        let rule = self.armed.lock().await.get(function).cloned()?;
        let id = new_id(&*self.parts.entropy);
        let tick = self.schedule.take(function, &rule, clock.now(), &id).await;
        let now = clock.now();
        let left = match &tick {
            Ok(Tick::Mine(next) | Tick::NotBefore(next)) => delay(&rule, next.ms_since(now)),
            Err(_) => RETRY_AFTER,
        };
        // The port counts from the time at which the timer fired.
        self.arm_again(function, &rule, left + clock.monotonic().since(began))
            .await;
        match tick {
            Ok(Tick::Mine(_)) => Some(match self.send_tick(function, id).await {
                Ok(true) => Outcome::Event,
                // The exact number is left out, so that it does not count as another reason.
                Ok(false) => {
                    Outcome::Skipped(format!("{EVENTS_WAITING_MAX} events of it wait, or more"))
                }
                Err(error) => Outcome::Skipped(error.to_string()),
            }),
            Ok(Tick::NotBefore(_)) => None,
            Err(error) => Some(Outcome::Late(error.to_string())),
        }
    }

    /// Sets the timer of `function` to fire `left` after it last fired, if it is still armed with
    /// this rule.
    async fn arm_again(&self, function: &str, rule: &TimerRule, left: Duration) {
        let armed = self.armed.lock().await;
        if armed.get(function) != Some(rule) {
            return;
        }
        let parts = &self.parts;
        let (name, left) = (registered_name(function), left.max(SHORTEST));
        let arm = || parts.functions.arm_timer(&name, left);
        // After an error it fires with the earlier delay, and then finds the tick that is due.
        if let Err(error) = retry_repeatable(RETRIES, &*parts.clock, &*parts.entropy, arm).await {
            tracing::warn!(%error, function, "a timer could not be armed again and may fire late");
        }
    }

    /// Sends the event of a tick, and returns once it is durable. False: too many events wait.
    async fn send_tick(&self, function: &str, id: String) -> Result<bool> {
        let parts = &self.parts;
        let queue = parts.functions.event_queue(&registered_name(function));
        let backlog = || parts.queue_admin.backlog(&queue);
        let waiting = match retry_repeatable(RETRIES, &*parts.clock, &*parts.entropy, backlog).await
        {
            Ok(backlog) => backlog.messages,
            // No event was ever sent, so there is no queue.
            Err(error) if error.kind() == ErrorKind::Invalid => 0,
            Err(error) => return Err(error),
        };
        if waiting >= EVENTS_WAITING_MAX {
            return Ok(false);
        }
        let payload = format::scheduled(function, &id, parts.clock.now());
        outgoing::send(parts, function, id, payload).await?;
        Ok(true)
    }
}

/// The delay of a timer whose next tick is `left_ms` away.
fn delay(rule: &TimerRule, left_ms: u64) -> Duration {
    let left = Duration::from_millis(left_ms);
    match rule {
        TimerRule::Every(_) => left,
        TimerRule::Cron(_) => left.min(CRON_DELAY_MAX),
    }
}

/// Reports in the log, at growing intervals, that ticks of a function are skipped or late.
#[derive(Debug, Default)]
pub(crate) struct TickLog(Mutex<Irregular>);

#[derive(Debug, Default)]
struct Irregular {
    outage: LogThrottle,
    /// The last tick that was no event.
    last: Monotonic,
}

impl Irregular {
    /// A tick is not an event. Returns for how long some have not been, if that is to be logged
    /// now.
    fn another(&mut self, now: Monotonic, reason: &str) -> Option<Duration> {
        if now.since(self.last) >= REGULAR_AFTER {
            self.outage = LogThrottle::default();
        }
        self.last = now;
        self.outage.failed(now, reason)
    }
}

impl TickLog {
    /// Handles the timer of `function` when it fires.
    pub(crate) async fn tick(&self, timers: &Timers, function: &str) {
        let (is_late, reason) = match timers.take(function).await {
            None | Some(Outcome::Event) => return,
            Some(Outcome::Skipped(reason)) => (false, reason),
            Some(Outcome::Late(reason)) => (true, reason),
        };
        let now = timers.parts.clock.monotonic();
        if let Some(lasts) = self.0.lock().another(now, &reason) {
            tracing::warn!(
                function,
                is_late,
                reason,
                ?lasts,
                "ticks of its timer are skipped or late"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Timers {
        /// When the armed timer of `function` fires.
        pub(crate) async fn armed(&self, function: &str) -> Option<TimerRule> {
            self.armed.lock().await.get(function).cloned()
        }

        /// All armed timers.
        pub(crate) async fn all_armed(&self) -> BTreeMap<String, TimerRule> {
            self.armed.lock().await.clone()
        }

        /// Marks the timer of `function` as armed, without a call of the port.
        pub(crate) async fn mark_armed(&self, function: &str, period: Duration) {
            let rule = period.into();
            self.armed.lock().await.insert(function.to_owned(), rule);
        }

        pub(crate) fn schedule(&self) -> &Schedule {
            &self.schedule
        }
    }

    #[test]
    fn a_function_that_takes_a_tick_now_and_then_is_reported_at_growing_intervals() {
        let mut ticks = Irregular::default();
        let at = |second: u64| Monotonic(Duration::from_secs(second));
        let is_logged = |second: &u64| ticks.another(at(*second), "it waits").is_some();
        let skipped = (1..3_600).filter(|second| second % 3 > 0);
        let logged: Vec<_> = skipped.filter(is_logged).collect();
        assert!(
            logged.starts_with(&[1, 4]) && logged.len() < 20,
            "{logged:?}"
        );
        assert!(
            logged
                .windows(3)
                .all(|three| three[2] - three[1] >= (three[1] - three[0]).min(600)),
            "{logged:?}"
        );
        assert_eq!(
            ticks.another(at(4_200), "it waits"),
            Some(Duration::ZERO),
            "none was skipped for ten minutes"
        );
    }
}
