//! The end of a session with more ephemerals than one decision takes.
//!
//! Its parts delete some ephemerals each, and the last one ends the session. Other sessions'
//! requests may come between two parts. So an invocation that has such requests itself fails
//! instead, and the end is delivered again, alone.
//!
//! This is ours. The paper's sessions end in one step.

use std::{ops::RangeInclusive, time::Duration};

use ports::Result;

use super::{
    Turn,
    batch::{Batch, PlanError},
    plan::{self, Planned},
};
use crate::{
    broken::Broken,
    records::{Effect, Submitted},
    storage::{
        ephemerals,
        session::{self, State, Transition},
    },
};

/// The paths of the ephemerals that one decision deletes take at most the largest item divided by
/// this. The other data per path is a few times as long.
pub(super) const CLOSE_PATHS_PART: usize = 10;

/// The most ephemerals that one decision deletes. The distributor applies them together, at about
/// 40 us each. Meanwhile the requests of other clients wait, and so do creates under the same
/// parents.
pub(super) const CLOSE_EPHEMERALS_MAX: usize = 1000;

/// The first and the last wait for the previous part of an end to be applied.
const PART_APPLIED_WAITS: RangeInclusive<Duration> =
    Duration::from_millis(2)..=Duration::from_secs(1);

impl Turn<'_> {
    /// Whether an end is too large because of its znodes' ACLs. Then the next attempt takes half as
    /// many ephemerals.
    pub(super) fn must_be_halved(&mut self, planned: &Planned, batch: &Batch<'_>) -> bool {
        let count = planned.0.ended().min(self.ephemerals_max);
        let is_too_large = count > 1 && batch.is_too_large(planned, self.decision_bytes_max());
        if is_too_large {
            self.ephemerals_max = count / 2;
        }
        is_too_large
    }

    /// If a session's ephemerals do not fit into one decision, deletes some of them before the
    /// session ends. Returns true if it did so, or if the row has changed.
    ///
    /// The session moves to closing before its first ephemeral is deleted. An end that has begun is
    /// final, as in ZooKeeper, where a closing session accepts no connection. Otherwise another
    /// connection could resume the session with only part of its ephemerals.
    pub(super) async fn end_in_parts(&mut self, submitted: &Submitted) -> Result<bool> {
        self.wait_for_part().await?;
        let some = self.ephemerals_max + 1;
        let all = ephemerals::first(&mut self.store, self.session, some).await?;
        let bytes_max = self.item_bytes_max() / CLOSE_PATHS_PART;
        let mut bytes = 0;
        let fits = |path: &&String| {
            let is_first = bytes == 0;
            bytes += path.len();
            is_first || bytes <= bytes_max
        };
        let part: Vec<String> = all
            .iter()
            .take(self.ephemerals_max)
            .take_while(fits)
            .cloned()
            .collect();
        if part.len() == all.len() {
            return Ok(false);
        }
        self.must_be_alone()?;
        if self.row.state == State::Open && !self.writer.env.breaks(Broken::EndsOpenSessions) {
            // From now on only the session's end is decided.
            match session::begin_closing(&mut self.store, &self.row).await? {
                Transition::Done(row) => self.row = row,
                Transition::Refused(row) => self.refused(row)?,
            }
            return Ok(true);
        }
        let mut batch = self.batch();
        let (paths, touched) = match plan::end(self.session, part.clone(), &mut batch).await {
            Ok(planned) => planned,
            Err(PlanError::Failed(error)) => return Err(error),
            Err(unplanned) => {
                unreachable!("{unplanned:?}: a batch without requests waits for its locks")
            }
        };
        let planned = (Effect::Delete { paths }, touched);
        if self.must_be_halved(&planned, &batch) {
            self.store = batch.release().await?;
            return Ok(true);
        }
        let unnumbered = Submitted {
            request: 0,
            ..submitted.clone()
        };
        batch.add(&unnumbered, self.now_ms(), Ok(planned));
        if self.commit(batch).await? {
            for path in &part {
                // Some entries named no znode of this session. The session is closing and creates
                // no more.
                ephemerals::discard(&mut self.store, self.session, path).await?;
            }
        }
        Ok(true)
    }

    /// Waits until the previous part of the end is applied, so that requests that other sessions
    /// decided meanwhile precede the next part. Otherwise a large end would fill the distributor's
    /// queue as one block. If the distributor is delayed, the end continues after a while.
    async fn wait_for_part(&mut self) -> Result<()> {
        if self.row.state != State::Closing || self.writer.env.breaks(Broken::EndsInOneGo) {
            return Ok(());
        }
        if self.row.applied >= self.row.sequence {
            return Ok(());
        }
        self.must_be_alone()?;
        let mut wait = *PART_APPLIED_WAITS.start();
        while self.row.applied < self.row.sequence && wait <= *PART_APPLIED_WAITS.end() {
            self.writer.env.parts.clock.sleep(wait).await;
            wait *= 2;
            match session::get(&mut self.store, self.session).await? {
                Some(row) if row.fence == self.row.fence => self.row = row,
                row => return self.refused(row),
            }
        }
        Ok(())
    }

    /// Errors: `Unavailable` if other sessions would wait for this end.
    fn must_be_alone(&self) -> Result<()> {
        if self.is_shared {
            let session = self.session;
            let attempted = format!("end session {session:?} in parts beside other sessions");
            return Err(ports::Error::unavailable(attempted));
        }
        Ok(())
    }
}
