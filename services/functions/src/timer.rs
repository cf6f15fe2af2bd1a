//! What a timer of a deployed function gives: an event of that function, as if somebody had sent it one.
//!
//! So what holds for events holds for it: it is run again where it fails, and somebody is told or it is kept (A3); it waits for a free
//! instance (A8), and outlives a crash. A timer does not wait for its function, which may never keep up with it: while too many
//! events of the function wait, ticks are left out, so that there is an end to what they take.
//!
//! A tick is taken before its event is sent, which is therefore [tried several times](crate::tries) where that fails.
//!
//! When it goes off next is [at rest](crate::schedule). The port's timers know of periods alone, and begin with an arming: so one is
//! armed for what is left until then, and at each tick anew.
//!
//! Invariants
//! - No tick arms a timer that was disarmed since it began: both are done under one lock.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use ports::{ErrorKind, LogThrottle, Monotonic, Result};

use crate::{
    batch,
    deployment::{Changed, Changing, Deployment},
    event,
    manifest::check_period,
    schedule::Tick,
    service::{DEPLOY, Error, Inner, PREFIX, Parts, Result as Served, Service, to_its_end},
    tries,
};

/// While so many events of a function wait, or are with it, its timer's ticks are left out.
pub(crate) const EVENTS_WAITING_MAX: u64 = 100;

/// Ticks are left out until none was for so long. A function that is behind takes one now and then, which ends nothing.
const IN_TIME_AFTER: Duration = Duration::from_mins(10);

/// When it is looked again where the store did not say whether a tick is due.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What became of a tick.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Became {
    /// An event.
    Event,
    /// None, because of this: the next one is a period later.
    LeftOut(String),
    /// It is still due, as far as is known: it is looked again soon.
    Late(String),
}

impl Became {
    /// Why it is no event.
    fn reason(&self) -> Option<&str> {
        match self {
            Self::Event => None,
            Self::LeftOut(reason) | Self::Late(reason) => Some(reason),
        }
    }
}

/// Whether ticks of a function become events.
#[derive(Debug, Default)]
pub(crate) struct Ticks(Mutex<LeftOut>);

/// Since when ticks are left out or late, and what was said of it.
#[derive(Debug, Default)]
struct LeftOut {
    outage: LogThrottle,
    last: Monotonic,
}

impl LeftOut {
    /// A tick is left out. If that is to be said now, for how long some have been.
    fn another(&mut self, now: Monotonic, reason: &str) -> Option<Duration> {
        self.last = now;
        self.outage.failed(now, reason)
    }

    /// A tick is an event. If some were left out before and none is any more, for how long they were: until the last of them.
    fn none(&mut self, now: Monotonic) -> Option<Duration> {
        if now.since(self.last) < IN_TIME_AFTER {
            None
        } else {
            self.outage.ended(self.last)
        }
    }
}

impl Ticks {
    /// What became of a tick, if there is one now; its timer is armed for the next.
    pub(crate) async fn due(&self, service: &Inner, function: &str) -> Option<Became> {
        let clock = &service.parts.clock;
        let began = clock.monotonic();
        let period = service.timers.lock().await.get(function).copied()?;
        let id = service.new_id();
        let tick = service
            .schedule
            .take(function, period, clock.now(), &id)
            .await;
        let now = clock.now();
        let left = match &tick {
            Ok(Tick::Mine(next) | Tick::NotBefore(next)) => {
                Duration::from_millis(next.ms_since(now))
            }
            Err(_) => LOOK_AGAIN,
        };
        // It counts from when it has gone off.
        service
            .arm_again(function, period, left + clock.monotonic().since(began))
            .await;
        match tick {
            Ok(Tick::Mine(_)) => Some(match send(service, function, id).await {
                Ok(None) => Became::Event,
                // How many exactly is no other reason.
                Ok(Some(_)) => {
                    Became::LeftOut(format!("{EVENTS_WAITING_MAX} events of it wait, or more"))
                }
                Err(error) => Became::LeftOut(error.to_string()),
            }),
            Ok(Tick::NotBefore(_)) => None,
            Err(error) => Some(Became::Late(error.to_string())),
        }
    }

    /// The timer of `function` has gone off.
    pub(crate) async fn tick(&self, service: &Inner, function: &str) {
        let Some(became) = self.due(service, function).await else {
            return;
        };
        let now = service.parts.clock.monotonic();
        let Some(reason) = became.reason() else {
            if let Some(lasted) = self.0.lock().none(now) {
                tracing::info!(function, ?lasted, "ticks of its timer are events again");
            }
            return;
        };
        let Some(lasts) = self.0.lock().another(now, reason) else {
            return;
        };
        if matches!(became, Became::Late(_)) {
            tracing::warn!(function, reason, ?lasts, "ticks of its timer are late");
        } else {
            tracing::warn!(function, reason, ?lasts, "ticks of its timer are left out");
        }
    }
}

impl Service {
    /// Has a function's timer fire every `period`, of whole seconds, or no more (A5).
    ///
    /// Errors: `Invalid` for a period that a manifest may not have; `NoSuchFunction`, `Conflict`, `Port`.
    pub async fn arm(&self, name: &str, period: Option<Duration>) -> Served<()> {
        if let Some(period) = period {
            check_period(period.as_secs()).map_err(Error::Invalid)?;
        }
        let mut changing = Arc::clone(&self.inner.changing).lock_owned().await;
        let (service, name) = (self.clone(), name.to_owned());
        to_its_end(DEPLOY, async move {
            service.set_timer(&mut changing, &name, period).await
        })
        .await
    }

    async fn set_timer(
        &self,
        changing: &mut Changing,
        name: &str,
        period: Option<Duration>,
    ) -> Served<()> {
        self.catch_up_with_others(changing).await?;
        let known = self.inner.catalogue.function(name);
        let application = known
            .ok_or_else(|| self.inner.unknown(name))?
            .application
            .clone();
        let no_such = || Error::NoSuchApplication(application.clone());
        let mut after = changing.get(&application).ok_or_else(no_such)?.clone();
        let known = after.generation;
        after.generation += 1;
        let before = after.clone();
        after.timers.insert(
            name.to_owned(),
            period.map_or(0, |period| period.as_millis() as u64),
        );
        self.begin_timers(Some(&before), &after).await?;
        let changed = self
            .inner
            .deployments
            .put(&application, &after, Some(known))
            .await;
        let changed = self.heard(&application, Some(&before), changed)?;
        if changed != Changed::Done {
            return self.follow(changing, &application, changed, None).await;
        }
        changing.insert(application.clone(), after.clone());
        let followed = self.follow_timer(name, period).await;
        // That it is armed says nothing of what else is to be put in place.
        followed.or_else(|error| self.settled(&application, Some(&after), Err(error)))
    }

    /// Begins the periods of timers that were not armed `before`. That is done before it is said that they are armed, so that nobody goes
    /// by what an earlier arming has left; where it is not said after all, that was nobody's time. Of one that is armed with another
    /// period there is no time, and it begins where that is put in place: begun here it would be put off by a change that fails.
    pub(crate) async fn begin_timers(
        &self,
        before: Option<&Deployment>,
        now: &Deployment,
    ) -> Served<()> {
        for name in now.manifest.functions.keys() {
            let Some(period) = now.period(name) else {
                continue;
            };
            if before.and_then(|before| before.period(name)).is_none() {
                self.inner
                    .schedule
                    .begin(name, period, self.inner.parts.clock.now())
                    .await?;
            }
        }
        Ok(())
    }

    /// Arms the timer of `name` for when it goes off next, or disarms it.
    pub(crate) async fn follow_timer(&self, name: &str, period: Option<Duration>) -> Served<()> {
        let Parts {
            functions, clock, ..
        } = &self.inner.parts;
        let function = [PREFIX, name].concat();
        let mut timers = self.inner.timers.lock().await;
        let Some(period) = period else {
            timers.remove(name);
            return Ok(functions.disarm_timer(&function).await?);
        };
        let next = self
            .inner
            .schedule
            .next_or_begin(name, period, clock.now())
            .await?;
        timers.insert(name.to_owned(), period);
        let left = Duration::from_millis(next.ms_since(clock.now()).max(1));
        Ok(functions.arm_timer(&function, left).await?)
    }
}

impl Inner {
    /// Has the timer of `function` go off `left` after it did last, if it is still armed with this period.
    async fn arm_again(&self, function: &str, period: Duration, left: Duration) {
        let timers = self.timers.lock().await;
        if timers.get(function) != Some(&period) {
            return;
        }
        let Parts {
            functions, clock, ..
        } = &self.parts;
        let (name, left) = (
            [PREFIX, function].concat(),
            left.max(Duration::from_millis(1)),
        );
        // It goes off as long after as it did last, then, and finds what is due.
        if let Err(error) = tries::several(&**clock, || functions.arm_timer(&name, left)).await {
            tracing::warn!(%error, function, "its timer may go off late");
        }
    }
}

/// Sends it an event, and returns once that is durable; or how many of them wait, which are too many for another.
async fn send(service: &Inner, function: &str, id: String) -> Result<Option<u64>> {
    let parts = &service.parts;
    let name = [PREFIX, function].concat();
    let queue = parts.functions.event_queue(&name);
    let waiting = match tries::several(&*parts.clock, || parts.queue_admin.backlog(&queue)).await {
        Ok(backlog) => backlog.messages,
        // Nothing was ever sent: there is no queue.
        Err(error) if error.kind() == ErrorKind::Invalid => 0,
        Err(error) => return Err(error),
    };
    if waiting >= EVENTS_WAITING_MAX {
        return Ok(Some(waiting));
    }
    let payload = event::scheduled(function, &id, parts.clock.now());
    batch::send(service, function, id, payload).await?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_takes_a_tick_now_and_then_is_told_of_ever_more_seldom() {
        let mut ticks = LeftOut::default();
        let at = |second: u64| Monotonic(Duration::from_secs(second));
        let said = |second: &u64| match second % 3 {
            0 => ticks.none(at(*second)).is_some(),
            _ => ticks.another(at(*second), "it waits").is_some(),
        };
        let said: Vec<_> = (1..3_600).filter(said).collect();
        assert!(said.starts_with(&[1, 4]) && said.len() < 20, "{said:?}");
        assert!(
            said.windows(3)
                .all(|three| three[2] - three[1] >= (three[1] - three[0]).min(600)),
            "{said:?}"
        );
        assert_eq!(ticks.none(at(4_000)), None, "one may be left out again");
        assert_eq!(ticks.none(at(4_199)), Some(Duration::from_secs(3_598)));
        assert_eq!(ticks.none(at(4_200)), None, "it was said");
        assert_eq!(ticks.another(at(4_201), "it waits"), Some(Duration::ZERO));
    }
}
