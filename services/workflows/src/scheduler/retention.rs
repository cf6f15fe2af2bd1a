//! Forgets runs that ended long ago (W8).
//!
//! We look for such runs when a run ends, at most once a minute for each workflow. So an idle service
//! makes no calls.

use std::{collections::BTreeMap, time::Duration};

use ports::Monotonic;

use crate::{Broken, Result, run::Run};

const SWEEP_EVERY: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub(super) struct Retention {
    /// When each workflow was last swept. Held during a sweep. Otherwise a run that one sweep has
    /// found could be forgotten by another, and begun anew, before the first one forgets it.
    swept: tokio::sync::Mutex<BTreeMap<String, Monotonic>>,
}

impl Retention {
    /// After the end of `run`: forgets the runs of its workflow that are no longer kept.
    pub(super) async fn sweep(&self, run: &Run) {
        let env = &run.env;
        let now = env.clock.monotonic();
        let Ok(mut swept) = self.swept.try_lock() else {
            return;
        };
        let last = swept.get(&run.name);
        if last.is_some_and(|last| now.since(*last) < SWEEP_EVERY) {
            return;
        }
        swept.insert(run.name.clone(), now);
        if let Err(error) = forget_old(run).await {
            tracing::debug!(workflow = %run.name, %error, "old runs are forgotten later");
        }
    }
}

async fn forget_old(run: &Run) -> Result<()> {
    let env = &run.env;
    if env.breaks(Broken::ForgetsNoRun) {
        return Ok(());
    }
    let kept_for = if env.breaks(Broken::ForgetsRunsAtOnce) {
        Duration::ZERO
    } else {
        env.options.finished_for
    };
    let finished = run.store.finished(&run.name).await?;
    let until = env.now_ms().saturating_sub(kept_for.as_millis() as u64);
    let too_many = finished.len().saturating_sub(env.options.finished_max);
    for (place, (ended_ms, id)) in finished.into_iter().enumerate() {
        if place < too_many || ended_ms < until {
            run.store.forget(&run.name, ended_ms, &id).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use bytes::Bytes;
    use functions::manifest::workflow::Workflow;
    use simulated::World;

    use crate::{
        Options,
        model::StepAddress,
        storage::{Changes, Given, RunRow, Status, StepRow, Store},
    };

    fn store(near: &World) -> Store {
        let (key_value, clock, entropy) = (near.key_value(), near.clock(), near.entropy());
        let parts = transactions::Parts {
            key_value: Arc::clone(&key_value),
            clock,
            entropy,
        };
        let engine = transactions::Service::builder(parts)
            .build(transactions::Config::default())
            .engine();
        Store::of_transactions(key_value, engine, &Options::default())
    }

    /// Begins a run and commits one of its steps.
    async fn begin(store: &Store, began_ms: u64) -> RunRow {
        let row = RunRow::begun(began_ms, None);
        let workflow: Workflow = serde_json::from_str(r#"{"steps":["f"]}"#).expect("a workflow");
        let given = Given {
            input: Bytes::new(),
            workflow,
        };
        let (there, _) = store
            .begin_run("w", "run", &row, &given)
            .await
            .expect("begun");
        assert_eq!(there, None);
        let step = StepRow {
            function: "f".to_owned(),
            result: Ok(Bytes::from("1")),
            attempt: None,
            tries: 1,
            began_ms,
            ended_ms: began_ms,
        };
        let address = StepAddress {
            workflow: "w",
            run: "run",
            began_ms,
            driver: None,
            path: "0",
        };
        let (committed, _) = store
            .commit_step(address, &step, &Changes::default())
            .await
            .expect("it is written");
        assert_eq!(committed, step.result);
        row
    }

    /// W8: two processes sweep at the same time, and a run begins again under the id of a forgotten
    /// one.
    #[test]
    fn a_run_that_began_again_under_a_forgotten_id_stays() {
        simulated::run(async {
            let near = World::new(1);
            let store = store(&near);
            let first = begin(&store, 1).await;
            let ended = RunRow {
                status: Status::Succeeded,
                ended_ms: Some(2),
                ..first
            };
            store.end_run("w", "run", &ended).await.expect("ended");
            assert_eq!(
                store.finished("w").await.expect("read"),
                [(2, "run".to_owned())]
            );
            store.forget("w", 2, "run").await.expect("it goes");
            assert_eq!(store.run("w", "run").await.expect("read"), None);
            assert_eq!(
                store.steps("w", "run", 1).await.expect("read").0,
                BTreeMap::new()
            );
            let second = begin(&store, 3).await;
            store.forget("w", 2, "run").await.expect("it has gone");
            let (there, _) = store
                .run("w", "run")
                .await
                .expect("read")
                .expect("it is active");
            assert_eq!(there, second);
            store.given("w", "run").await.expect("it has an input");
            assert_eq!(store.steps("w", "run", 3).await.expect("read").0.len(), 1);
        });
    }
}
