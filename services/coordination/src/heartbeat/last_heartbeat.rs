//! The last heartbeat of each session, and how long the session has been silent since, as observed
//! by heartbeat runs.
//!
//! Every run records its observations and starts from those of the run before. If the same instance
//! made that run, it continues with its own observations and its monotonic clock. Any other
//! instance reads the stored observations, perhaps from another machine. Their times are from a
//! wall clock, so the possible difference between two wall clocks is subtracted once.
//!
//! Silence ends sessions, so each doubt is decided in favour of the session (rule C-6).
//!
//! Invariants
//! - An observation was made no later than its times say. It is compared with a row that is read
//!   after the run began, so the real silence is at least as long as the computed one.
//! - Observations belong to one incarnation of the store. A store that rolled back may have lost
//!   renewals and reuses their numbers, so all silence is then counted from zero.
//! - Time without a running heartbeat does not count, beyond the one or two periods by which a run
//!   may be late.
//! - An observation keeps its wall-clock time while instances carry it on. The allowance for clock
//!   differences is therefore subtracted once, not once per run. If an instance's wall clock is
//!   set, its observations move with it. If observations are loaded under a wall clock that was set
//!   back by more than two clocks may differ, they are moved back too.

use std::{collections::BTreeMap, time::Duration};

use ports::Incarnation;
use serde::{Deserialize, Serialize};

use crate::model::SessionId;

/// An instance continues with its own observations if its last run began at most this many periods
/// ago.
const OWN_PERIODS_MAX: u32 = 2;

/// An instance stores its observations once in this many periods.
const STORED_ONCE_IN_PERIODS: u32 = 4;

/// At most this many periods count between the stored observations and the run that loads them. It
/// is unknown whether heartbeats ran in the rest of that time; if none did, it was a stall, in
/// which no session could be renewed.
pub(crate) const UNWITNESSED_PERIODS_MAX: u32 = 1;

/// A moment on the clocks of one instance, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Moment {
    /// The instance's monotonic clock, which other instances cannot read.
    pub(crate) own_ms: i64,
    pub(crate) wall_ms: i64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) period: Duration,
    /// The largest difference between the wall clocks of two machines.
    pub(crate) clocks_apart_max: Duration,
}

/// The last observed renewal of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sighting {
    renewals: i64,
    /// A monotonic time by which it was observed, including the allowance for clock differences.
    own_ms: i64,
    /// A wall-clock time by which it was observed, on the observing machine.
    wall_ms: i64,
}

/// The observations of one run, passed on to the next.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastHeartbeats {
    pub(crate) incarnation: Incarnation,
    begun: Moment,
    /// When the run that made these observations began, perhaps in another instance, on the wall
    /// clock.
    run_ms: i64,
    /// How far the wall clock was set since the run before; negative if it was set back.
    set_ms: i64,
    /// When this instance last stored its observations, on its monotonic clock. None if it never
    /// did.
    stored_ms: Option<i64>,
    /// When temporary objects were last swept, on some instance's wall clock.
    swept_ms: i64,
    sightings: BTreeMap<SessionId, Sighting>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredHeartbeats {
    pub(crate) incarnation: Incarnation,
    begun_ms: i64,
    swept_ms: i64,
    /// Session, renewals, and the wall-clock time of the observation.
    sightings: Vec<(SessionId, i64, i64)>,
}

impl LastHeartbeats {
    /// Empty observations for the first run in an incarnation of the store.
    pub(crate) fn first(now: Moment, incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            begun: now,
            run_ms: now.wall_ms,
            swept_ms: now.wall_ms,
            ..Self::default()
        }
    }

    /// Continues from the stored observations of another instance.
    pub(crate) fn from_stored(stored: StoredHeartbeats, now: Moment, timing: Timing) -> Self {
        let apart = ms(timing.clocks_apart_max);
        let age_max = ms(timing.period) * i64::from(UNWITNESSED_PERIODS_MAX) + apart;
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
        let sightings = stored.sightings.into_iter().map(taken_up).collect();
        Self {
            incarnation: stored.incarnation,
            begun: now,
            run_ms: stored.begun_ms,
            swept_ms: stored.swept_ms,
            sightings,
            ..Self::default()
        }
    }

    /// Whether the instance that made these observations may continue with them.
    pub(crate) fn are_fresh(&self, now: Moment, timing: Timing) -> bool {
        now.own_ms - self.begun.own_ms <= ms(timing.period) * i64::from(OWN_PERIODS_MAX)
    }

    /// Empty observations for a run that begins now and follows this one.
    pub(crate) fn next(&self, now: Moment) -> Self {
        let (by_own, by_wall) = (
            now.own_ms - self.begun.own_ms,
            now.wall_ms - self.begun.wall_ms,
        );
        let set_ms = by_wall - by_own;
        Self {
            incarnation: self.incarnation,
            begun: now,
            run_ms: now.wall_ms,
            set_ms,
            stored_ms: self.stored_ms,
            swept_ms: self.swept_ms,
            ..Self::default()
        }
    }

    /// How long `session` had had this many renewals when the run of `next` began. Records the
    /// observation in `next`, as of `now`.
    pub(crate) fn silence(
        &self,
        session: SessionId,
        renewals: i64,
        next: &mut Self,
        now: Moment,
    ) -> Duration {
        let sighting = match self.sightings.get(&session) {
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
        next.sightings.insert(session, sighting);
        Duration::from_millis(
            u64::try_from(next.begun.own_ms - sighting.own_ms).unwrap_or_default(),
        )
    }

    /// Counts the silence of `session` from zero again.
    pub(crate) fn reset(&mut self, session: SessionId, now: Moment) {
        if let Some(sighting) = self.sightings.get_mut(&session) {
            (sighting.own_ms, sighting.wall_ms) = (now.own_ms, now.wall_ms);
        }
    }

    pub(crate) fn session_count(&self) -> usize {
        self.sightings.len()
    }

    /// Whether a multiple of `period` on the wall clock lies between the run of `before` and this
    /// one.
    pub(crate) fn crosses(&self, before: &Self, period: Duration) -> bool {
        let periods = |wall_ms: i64| wall_ms / ms(period).max(1);
        periods(before.run_ms) != periods(self.run_ms)
    }

    /// Whether the last sweep of temporary objects is at least `period` ago. If so, records a sweep
    /// now.
    pub(crate) fn sweep_is_due(&mut self, period: Duration) -> bool {
        let is_due = self.begun.wall_ms - self.swept_ms >= ms(period);
        if is_due {
            self.swept_ms = self.begun.wall_ms;
        }
        is_due
    }

    /// The observations to store, if that is due: the sessions that have been silent for longest,
    /// at most `sessions_max`. The others only lose time.
    pub(crate) fn stored_if_due(
        &mut self,
        timing: Timing,
        sessions_max: usize,
    ) -> Option<StoredHeartbeats> {
        let lasting = ms(timing.period) * i64::from(STORED_ONCE_IN_PERIODS);
        if self
            .stored_ms
            .is_some_and(|stored| self.begun.own_ms - stored < lasting)
        {
            return None;
        }
        self.stored_ms = Some(self.begun.own_ms);
        let sightings = self.sightings.iter();
        let mut sightings: Vec<_> = sightings
            .map(|(session, seen)| (*session, seen.renewals, seen.wall_ms))
            .collect();
        sightings.sort_unstable_by_key(|(session, _, seen_ms)| (*seen_ms, *session));
        sightings.truncate(sessions_max);
        Some(StoredHeartbeats {
            incarnation: self.incarnation,
            begun_ms: self.begun.wall_ms,
            swept_ms: self.swept_ms,
            sightings,
        })
    }
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
