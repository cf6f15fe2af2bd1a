//! Silence: how long nobody has renewed each session, as far as a heartbeat was there to witness it.
//!
//! Every run of the heartbeat takes notes, and starts from those of the run before. An instance that made that
//! run itself goes on with its own notes, by its own clock that never goes back. Any other takes up what was
//! left in the system store, perhaps by another machine: the times in there are those of a wall clock, which no
//! two machines read alike, so that what they may differ by is taken off once.
//!
//! Silence ends sessions, so each doubt is decided for the session (rule C-6).
//!
//! Invariants
//! - A sighting was made no later than its times say, and is compared with a row that is read later than the
//!   run began: what is called silence has lasted at least as long.
//! - Notes are of one start of the store. One that has gone back may have lost renewals, and gives their numbers to the
//!   next ones; so every silence begins anew then.
//! - Time in which no heartbeat ran does not count, however long it was, beyond the period or two that a run may be late.
//! - A sighting keeps the time of its wall clock for as long as it is carried on, by whomever: what is taken
//!   off for the difference of two clocks is taken off once, not once in each run. A wall clock that is set,
//!   forward or back, takes the sightings of its instance with it; where notes are taken up by a wall clock that
//!   was set back by more than two may differ, they are taken back with it.

use std::{collections::BTreeMap, time::Duration};

use ports::Incarnation;
use serde::{Deserialize, Serialize};

use crate::model::SessionId;

/// An instance whose last run began at most so many periods ago goes on with its own notes.
const OWN_PERIODS_MAX: u32 = 2;

/// An instance writes its notes into the store once in so many periods.
const STORED_ONCE_IN_PERIODS: u32 = 4;

/// Between the notes in the store and the run that takes them up at most so many periods count: whether heartbeats
/// ran in the rest nobody can say. One that did not is a stall, in which nobody could renew anything.
pub(crate) const UNWITNESSED_PERIODS_MAX: u32 = 1;

/// A moment as an instance reads it, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// By the clock of the instance, which never goes back and which no other can read.
    pub own_ms: i64,
    /// By the wall clock.
    pub wall_ms: i64,
}

/// How time is judged.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// From one run of the heartbeat to the next.
    pub period: Duration,
    /// How far the wall clocks of two machines may be apart.
    pub clocks_apart_max: Duration,
}

/// What a session was last seen to have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sighting {
    renewals: i64,
    /// It was seen by then, with what clocks may differ by added.
    own_ms: i64,
    /// It was seen by then, by the clock of the machine that saw it.
    wall_ms: i64,
}

/// What a run of the heartbeat knows, and leaves to the next one.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    /// The start of the store whose sessions these are.
    incarnation: Incarnation,
    /// When the run began.
    begun: Moment,
    /// By how much the wall clock was set since the run before; less than zero: back.
    set_ms: i64,
    /// When the notes in the store were written by this instance, by its own clock; none: by another.
    stored_ms: Option<i64>,
    /// When temporary objects were swept last, by some wall clock.
    swept_ms: i64,
    seen: BTreeMap<SessionId, Sighting>,
}

/// Notes in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// The start of the store whose sessions these are.
    pub incarnation: Incarnation,
    begun_ms: i64,
    swept_ms: i64,
    /// Session, renewals, and when it was seen.
    seen: Vec<(SessionId, i64, i64)>,
}

impl Notes {
    /// Of a first run in a start of the store, which knows nothing.
    pub fn first(now: Moment, incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            begun: now,
            swept_ms: now.wall_ms,
            ..Self::default()
        }
    }

    /// Takes up what another instance left in the store.
    pub fn taken_up(stored: Stored, now: Moment, pace: Pace) -> Self {
        let apart = ms(pace.clocks_apart_max);
        let age_max = ms(pace.period) * i64::from(UNWITNESSED_PERIODS_MAX) + apart;
        let passed = now.wall_ms - stored.begun_ms;
        let missed = (passed - age_max).max(0) + (passed + apart).min(0);
        let taken_up = |(session, renewals, seen_ms): (SessionId, i64, i64)| {
            let wall_ms = seen_ms + missed;
            let own_ms = now.own_ms - (now.wall_ms - wall_ms) + apart;
            (
                session,
                Sighting {
                    renewals,
                    own_ms,
                    wall_ms,
                },
            )
        };
        let seen = stored.seen.into_iter().map(taken_up).collect();
        Self {
            incarnation: stored.incarnation,
            begun: now,
            swept_ms: stored.swept_ms,
            seen,
            ..Self::default()
        }
    }

    /// The start of the store whose sessions these are.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Whether the instance that took them may go on with them.
    pub fn are_fresh(&self, now: Moment, pace: Pace) -> bool {
        now.own_ms - self.begun.own_ms <= ms(pace.period) * i64::from(OWN_PERIODS_MAX)
    }

    /// Empty notes of a run that begins now and goes on with these.
    pub fn next(&self, now: Moment) -> Self {
        let (by_own, by_wall) = (
            now.own_ms - self.begun.own_ms,
            now.wall_ms - self.begun.wall_ms,
        );
        let set_ms = by_wall - by_own;
        Self {
            incarnation: self.incarnation,
            begun: now,
            set_ms,
            stored_ms: self.stored_ms,
            swept_ms: self.swept_ms,
            ..Self::default()
        }
    }

    /// How long `session` had as many renewals when the run of `next` began. `next` notes it, as seen now.
    pub fn silence(
        &self,
        session: SessionId,
        renewals: i64,
        next: &mut Self,
        now: Moment,
    ) -> Duration {
        let sighting = match self.seen.get(&session) {
            Some(before) if before.renewals == renewals => Sighting {
                wall_ms: before.wall_ms + next.set_ms,
                ..*before
            },
            _ => Sighting {
                renewals,
                own_ms: now.own_ms,
                wall_ms: now.wall_ms,
            },
        };
        next.seen.insert(session, sighting);
        Duration::from_millis(
            u64::try_from(next.begun.own_ms - sighting.own_ms).unwrap_or_default(),
        )
    }

    /// Begins the silence of `session` anew.
    pub fn begin_anew(&mut self, session: SessionId, now: Moment) {
        if let Some(sighting) = self.seen.get_mut(&session) {
            (sighting.own_ms, sighting.wall_ms) = (now.own_ms, now.wall_ms);
        }
    }

    /// How many sessions there are.
    pub fn session_count(&self) -> usize {
        self.seen.len()
    }

    /// Whether temporary objects have not been swept for `period`; notes that they are swept now if so.
    pub fn sweep_is_due(&mut self, period: Duration) -> bool {
        let is_due = self.begun.wall_ms - self.swept_ms >= ms(period);
        if is_due {
            self.swept_ms = self.begun.wall_ms;
        }
        is_due
    }

    /// What to leave in the store, if that is due: the sessions that have been silent for longest, at most
    /// `sessions_max`. The others lose nothing but time.
    pub fn to_store(&mut self, pace: Pace, sessions_max: usize) -> Option<Stored> {
        let lasting = ms(pace.period) * i64::from(STORED_ONCE_IN_PERIODS);
        if self
            .stored_ms
            .is_some_and(|stored| self.begun.own_ms - stored < lasting)
        {
            return None;
        }
        self.stored_ms = Some(self.begun.own_ms);
        let seen = self.seen.iter();
        let mut seen: Vec<_> = seen
            .map(|(session, seen)| (*session, seen.renewals, seen.wall_ms))
            .collect();
        seen.sort_unstable_by_key(|(session, _, seen_ms)| (*seen_ms, *session));
        seen.truncate(sessions_max);
        Some(Stored {
            incarnation: self.incarnation,
            begun_ms: self.begun.wall_ms,
            swept_ms: self.swept_ms,
            seen,
        })
    }
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
