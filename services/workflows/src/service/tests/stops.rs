//! A stop of the server with runs under way.

use std::{collections::BTreeSet, time::Duration};

use futures_util::FutureExt as _;
use ports::{
    DurabilityPoint, KeyValue,
    decorate::{Decorator, KeyValueDecorator},
    runtime::FunctionError,
};
use tokio::{sync::watch, task::JoinHandle};

use super::*;
use crate::{Error, Result, RunView, Status};

/// Functions that work until the test lets them end. Those that it lets end with an error fail.
#[derive(Debug, Default)]
struct Held {
    /// The functions that have begun.
    begun: watch::Sender<BTreeSet<String>>,
    /// The functions that may end, and how.
    ends: watch::Sender<BTreeMap<String, std::result::Result<(), ()>>>,
}

impl Held {
    async fn begun(&self, functions: &[&str]) {
        let have = |begun: &BTreeSet<String>| functions.iter().all(|name| begun.contains(*name));
        let mut begun = self.begun.subscribe();
        begun.wait_for(have).await.expect("it is open");
    }

    fn end(&self, function: &str, how: std::result::Result<(), ()>) {
        self.ends.send_modify(|ends| {
            ends.insert(function.to_owned(), how);
        });
    }
}

#[async_trait]
impl Runner for Held {
    fn workflow(&self, name: &str) -> Option<Arc<Workflow>> {
        self.workflows().remove(name)
    }

    fn workflows(&self) -> BTreeMap<String, Arc<Workflow>> {
        let one = serde_json::json!({ "steps": ["one"] });
        let branches = serde_json::json!({
            "steps": [{ "parallel": [["short", "next"], ["long"]] }]
        });
        [("one", one), ("branches", branches)]
            .into_iter()
            .map(|(name, json)| {
                let workflow = serde_json::from_value(json).expect("a workflow");
                (name.to_owned(), Arc::new(workflow))
            })
            .collect()
    }

    fn retries(&self, _: &str) -> Option<u32> {
        Some(0)
    }

    async fn run(&self, function: &str, _: Invocation) -> std::result::Result<Ran, String> {
        self.begun.send_modify(|begun| {
            begun.insert(function.to_owned());
        });
        let mut ends = self.ends.subscribe();
        let ends = ends.wait_for(|ends| ends.contains_key(function)).await;
        let how = ends.expect("it is open")[function];
        let failed = |()| FunctionError {
            payload: r#"{"errorType":"Failed","errorMessage":"it fails"}"#.into(),
        };
        Ok(Ran {
            result: how.map(|()| "\"done\"".into()).map_err(failed),
            log_tail: "".into(),
        })
    }
}

/// A store whose changes become durable while it is open.
#[derive(Debug)]
struct Gated(SharedKeyValue, watch::Sender<bool>);

impl Decorator for Gated {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.0
    }

    async fn externalize(&self, point: DurabilityPoint) -> ports::Result<()> {
        let mut open = self.1.subscribe();
        open.wait_for(|is_open| *is_open).await.expect("it lives");
        self.0.externalize(point).await
    }
}

impl KeyValueDecorator for Gated {}

struct Stage {
    world: World,
    held: Arc<Held>,
    store: Arc<Gated>,
    service: Service,
}

impl Stage {
    async fn set() -> Self {
        let world = World::new(1);
        let store = Arc::new(Gated(world.key_value(), watch::Sender::new(true)));
        let held = Arc::<Held>::default();
        let (service, engine) = service_of(&world, Arc::clone(&held) as _, Arc::clone(&store) as _);
        engine.start().await.expect("it starts");
        service.start().await.expect("it starts");
        tokio::spawn(async move { engine.run().await });
        Self {
            world,
            held,
            store,
            service,
        }
    }

    async fn begin(&self, workflow: &str) {
        let begun = self.service.begin(workflow, Some("run"), "{}".into());
        begun.await.expect("it begins");
    }

    /// A caller that waits for the run.
    fn caller(&self, workflow: &'static str) -> JoinHandle<Result<RunView>> {
        let service = self.service.clone();
        tokio::spawn(async move {
            let wait = service.wait(workflow, "run", Duration::from_mins(1));
            wait.await
        })
    }

    async fn status(&self, workflow: &str) -> Status {
        let view = self.service.run(workflow, "run").await;
        view.expect("it is shown").status
    }

    fn is_idle(&self) -> bool {
        self.service.idle().now_or_never().is_some()
    }
}

/// Its caller got `Stopped`, and its end was stored after the next start only.
#[test]
fn a_stop_waits_for_the_end_of_a_run_whose_last_step_has_ended() {
    simulated::run(async {
        for (how, ended) in [(Ok(()), Status::Succeeded), (Err(()), Status::Failed)] {
            let stage = Stage::set().await;
            stage.begin("one").await;
            let caller = stage.caller("one");
            stage.held.begun(&["one"]).await;
            stage.service.begin_stop();
            stage.held.end("one", how);
            stage.service.idle().await;
            stage.service.interrupt();
            assert_eq!(stage.status("one").await, ended);
            let told = caller.await.expect("no panic");
            assert_eq!(told.expect("it has ended").status, ended);
        }
    });
}

#[test]
fn a_stop_does_not_wait_for_a_run_that_pauses_before_its_next_step() {
    simulated::run(async {
        let stage = Stage::set().await;
        stage.begin("branches").await;
        let caller = stage.caller("branches");
        stage.held.begun(&["short", "long"]).await;
        stage.service.begin_stop();
        stage.held.end("short", Ok(()));
        stage.world.clock().sleep(Duration::from_secs(1)).await;
        assert!(!stage.is_idle(), "the other branch is at work");
        stage.held.end("long", Ok(()));
        stage.service.idle().await;
        stage.service.interrupt();
        assert_eq!(stage.status("branches").await, Status::Running);
        let told = caller.await.expect("no panic");
        assert!(matches!(told, Err(Error::Stopped(_))), "{told:?}");
        let steps = stage.service.steps("branches", "run").await;
        assert_eq!(steps.expect("they are shown").len(), 2);
    });
}

/// The failure ends the run, though its other branch pauses.
#[test]
fn a_stop_waits_for_the_end_of_a_run_whose_branch_fails() {
    simulated::run(async {
        let stage = Stage::set().await;
        stage.begin("branches").await;
        stage.held.begun(&["short", "long"]).await;
        stage.service.begin_stop();
        stage.held.end("short", Ok(()));
        stage.world.clock().sleep(Duration::from_secs(1)).await;
        stage.held.end("long", Err(()));
        stage.service.idle().await;
        stage.service.interrupt();
        assert_eq!(stage.status("branches").await, Status::Failed);
    });
}

/// The answer to a caller whose run has ended by the stop, and whose end becomes durable or not.
async fn told_at_the_stop(is_durable: bool) -> Result<RunView> {
    let stage = Stage::set().await;
    stage.begin("one").await;
    let caller = stage.caller("one");
    stage.held.begun(&["one"]).await;
    stage.store.1.send_replace(false);
    stage.service.begin_stop();
    stage.held.end("one", Ok(()));
    stage.service.idle().await;
    stage.service.interrupt();
    // The caller sees the stop, and looks once more.
    stage.world.clock().sleep(Duration::from_millis(100)).await;
    stage.store.1.send_replace(is_durable);
    caller.await.expect("no panic")
}

/// W3. The caller of a run that had ended got `Stopped`, while its end became durable.
#[test]
fn a_caller_learns_at_the_stop_that_its_run_has_ended_once_that_is_durable() {
    simulated::run(async {
        let told = told_at_the_stop(true).await;
        assert_eq!(told.expect("it has ended").status, Status::Succeeded);
        let told = told_at_the_stop(false).await;
        assert!(matches!(told, Err(Error::Stopped(_))), "{told:?}");
    });
}
