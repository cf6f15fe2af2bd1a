//! Runs that ended long ago go (W8). Looked for when a run ends, and not more often than once a minute for each workflow, so that
//! nothing is called where nothing runs.

use std::{sync::Arc, time::Duration};

use crate::{Broken, Result, Service, run::Run};

const SWEEP_EVERY: Duration = Duration::from_mins(1);

impl Service {
    /// After the end of `run`: forgets those of its workflow that are kept no longer.
    pub(crate) async fn sweep(&self, run: &Arc<Run>) {
        let now = self.inner.parts.clock.monotonic();
        let Ok(_one_at_a_time) = self.inner.sweeping.try_lock() else { return };
        {
            let mut swept = self.inner.swept.lock();
            let is_early = swept.get(&run.name).is_some_and(|last| now.since(*last) < SWEEP_EVERY);
            if is_early {
                return;
            }
            swept.insert(run.name.clone(), now);
        }
        if let Err(error) = self.forget_old(run).await {
            tracing::debug!(workflow = %run.name, %error, "old runs stay a while longer");
        }
    }

    async fn forget_old(&self, run: &Run) -> Result<()> {
        let options = &self.inner.options;
        if options.breaks(Broken::ForgetsNoRun) {
            return Ok(());
        }
        let kept_for =
            if options.breaks(Broken::ForgetsRunsAtOnce) { Duration::ZERO } else { options.finished_for };
        let finished = run.store.finished(&run.name).await?;
        let until = self.inner.now_ms().saturating_sub(kept_for.as_millis() as u64);
        let too_many = finished.len().saturating_sub(options.finished_max);
        let old = finished.into_iter().enumerate();
        for (_, (ended_ms, id)) in old.filter(|(place, (ended, _))| *place < too_many || *ended < until) {
            run.store.forget(&run.name, ended_ms, &id).await?;
        }
        Ok(())
    }
}
