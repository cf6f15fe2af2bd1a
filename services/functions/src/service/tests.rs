//! A1: deployments whose caller leaves, whose store answers too late, and that race with others.
//! A2: invocations whose caller leaves. A3: the request ids of events. A8: removal while events
//! wait.

mod cron;
mod letters;
mod messages;
mod pending;
mod purges;
mod refusals;
mod runs;
mod several;
mod timers;

use std::{
    collections::BTreeSet,
    io,
    sync::atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use ports::{
    Clock, CodeStore, Functions as _, Logs, Runtime,
    functions::Permit,
    queue::Backlog,
    runtime::{Function, FunctionError, Refused},
};
use simulated::{Options, World, percent, run};
use tokio::sync::watch;

use super::*;
use crate::{
    deploy::deployment::{Deployment, digest},
    events::handler::DeployedHandler,
    manifest::Manifest,
};

/// How long a call of the simulated cloud takes, each way.
const TRAVEL: Duration = Duration::from_millis(1);

/// An archive that cannot be unpacked.
const UNFIT: &str = "unfit";

/// The error of a failed run.
const FAILED: &str = "it is unfit";
/// The reason of a refused run.
const NOT_NOW: &str = "no process can be made now";

/// A runtime whose archives are manifests. By default, each run fails after a while.
#[derive(Debug)]
struct Idle {
    clock: Arc<dyn Clock>,
    installed: Mutex<BTreeMap<String, Bytes>>,
    retired: Mutex<BTreeSet<String>>,
    /// The current revision of each function.
    renewed: Mutex<BTreeMap<String, String>>,
    /// The runs it was asked for.
    asked: Mutex<Vec<Asked>>,
    /// How long a run takes.
    takes: Mutex<Duration>,
    /// How many runs ended.
    ended: AtomicUsize,
    /// How many runs it refuses at once.
    refuses: AtomicUsize,
    /// Why no function can ever run, if that is so.
    never: Mutex<Option<String>>,
    /// Whether a run succeeds.
    is_fit: Mutex<fn(&Asked) -> bool>,
    /// Whether all instances were ended, so that nothing runs any more.
    is_closed: watch::Sender<bool>,
    /// Whether all places are taken.
    is_full: watch::Sender<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    function: String,
    id: String,
    payload: Bytes,
}

impl Idle {
    fn asked(&self) -> usize {
        self.asked.lock().len()
    }

    /// The requested runs of `function`.
    fn asked_of(&self, function: &str) -> Vec<Asked> {
        let asked = self.asked.lock();
        asked
            .iter()
            .filter(|asked| asked.function == function)
            .cloned()
            .collect()
    }
}

#[async_trait]
impl Runtime for Idle {
    async fn check(&self, _: &Function) -> std::result::Result<(), String> {
        self.never.lock().clone().map_or(Ok(()), Err)
    }

    async fn permit(&self, _: &Arc<Function>) -> Option<Permit> {
        let mut is_full = self.is_full.subscribe();
        is_full.wait_for(|is_full| !is_full).await.ok()?;
        Some(Permit::default())
    }

    async fn run(&self, function: &Arc<Function>, invocation: Invocation) -> Result<Ran, Refused> {
        let Invocation { id, payload, .. } = invocation;
        let asked = Asked {
            function: function.name.clone(),
            id,
            payload,
        };
        let is_fit = self.is_fit.lock()(&asked);
        self.asked.lock().push(asked);
        let one_less = |left: usize| left.checked_sub(1);
        if self
            .refuses
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            .is_ok()
        {
            return Err(Refused::Unavailable(NOT_NOW.to_owned()));
        }
        let takes = *self.takes.lock();
        let mut is_closed = self.is_closed.subscribe();
        if *is_closed.borrow() {
            return Err(Refused::Unavailable(NOT_NOW.to_owned()));
        }
        let is_fit = tokio::select! {
            biased;
            _ = is_closed.wait_for(|is_closed| *is_closed) => false,
            () = self.clock.sleep(takes) => is_fit,
        };
        self.ended.fetch_add(1, Ordering::Relaxed);
        let failed = FunctionError {
            payload: Bytes::from_static(FAILED.as_bytes()),
        };
        Ok(Ran {
            result: if is_fit {
                Ok(Bytes::new())
            } else {
                Err(failed)
            },
            log_tail: Bytes::new(),
        })
    }

    fn renew(&self, function: &Arc<Function>) {
        self.renewed
            .lock()
            .insert(function.name.clone(), function.revision.clone());
    }

    fn retire(&self, function: &str) {
        self.retired.lock().insert(function.to_owned());
    }

    async fn close(&self) {
        self.is_closed.send_replace(true);
    }

    fn figures(&self) -> ports::runtime::Figures {
        ports::runtime::Figures::default()
    }
}

#[async_trait]
impl CodeStore for Idle {
    async fn install(&self, name: &str, content: Bytes) -> ports::Result<()> {
        if content == UNFIT {
            let why = io::Error::new(io::ErrorKind::InvalidData, "\"code/l\" is a device");
            return Err(ports::Error::invalid(format!("unpack the archive {name}")).caused_by(why));
        }
        self.installed.lock().insert(name.to_owned(), content);
        Ok(())
    }

    async fn file(&self, archive: &str, _: &str, _: usize) -> ports::Result<Option<Bytes>> {
        Ok(self.installed.lock().get(archive).cloned())
    }

    async fn keep_archives(&self, kept: &[String]) -> ports::Result<()> {
        self.installed.lock().retain(|name, _| kept.contains(name));
        Ok(())
    }
}

#[async_trait]
impl Logs for Idle {
    async fn lines(&self, _: &str, _: Page) -> io::Result<Vec<Line>> {
        Ok(Vec::new())
    }

    async fn more_lines(&self, _: &str, _: u64) {}
}

fn service(world: &World) -> (Service, Arc<Idle>) {
    service_among(world, false)
}

fn service_among(world: &World, among_others: bool) -> (Service, Arc<Idle>) {
    service_over(world, among_others, world.functions())
}

fn service_over(
    world: &World,
    among_others: bool,
    functions: Arc<dyn Register>,
) -> (Service, Arc<Idle>) {
    let runtime = Arc::new(Idle {
        clock: world.clock(),
        installed: Mutex::default(),
        retired: Mutex::default(),
        renewed: Mutex::default(),
        asked: Mutex::default(),
        takes: Mutex::new(TRAVEL),
        ended: AtomicUsize::new(0),
        refuses: AtomicUsize::new(0),
        never: Mutex::default(),
        is_fit: Mutex::new(|_| false),
        is_closed: watch::Sender::new(false),
        is_full: watch::Sender::new(false),
    });
    let parts = Parts {
        key_value: world.key_value(),
        objects: world.objects(),
        queue: world.queue(),
        queue_admin: world.queue_admin(),
        queue_name: str::to_owned,
        check_far: |address| {
            if address == "there" {
                Ok(())
            } else {
                Err("it is to be there".to_owned())
            }
        },
        serves_objects: false,
        among_others,
        functions,
        code_store: Arc::clone(&runtime) as Arc<_>,
        runtime: Arc::clone(&runtime) as Arc<_>,
        logs: Arc::clone(&runtime) as Arc<_>,
        clock: world.clock(),
        entropy: world.entropy(),
    };
    (Service::new(parts), runtime)
}

fn far_world(seed: u64) -> World {
    World::with_options(
        seed,
        Options {
            latency: Some(TRAVEL..=TRAVEL),
            ..Options::default()
        },
    )
}

/// An archive whose only function is `function`, started by a queue of its name.
fn archive(function: &str) -> Bytes {
    let table = "runtime = \"executable\"\ncode = \"code\"\nhandler = \"run\"";
    format!("[functions.{function}]\n{table}\ntriggers = [{{ queue = \"{function}\" }}]").into()
}

/// The same with a workflow and the address of its far store.
fn with_far(function: &str, address: &str) -> Bytes {
    let functions = String::from_utf8(archive(function).into()).expect("text");
    format!("{functions}\n[workflows.w]\nsteps = [\"{function}\"]\nfar = \"{address}\"").into()
}

/// The names of the deployed functions, as callers see them.
fn names(service: &Service) -> Vec<String> {
    service
        .functions()
        .into_iter()
        .map(|function| function.name)
        .collect()
}

/// A8. A deployed function is not unknown while it is put in place.
#[test]
fn a_deployed_function_is_not_unknown_before_it_is_in_place() {
    run(async {
        let world = World::new(1);
        service(&world)
            .0
            .deploy("shop", archive("one"))
            .await
            .expect("deployed");
        let (service, _) = service(&world);
        let before = service.knows("one").await.expect_err("unknown yet");
        assert!(
            matches!(before.kind(), ports::ErrorKind::Unavailable { .. }),
            "{before}"
        );
        service.start().await.expect("calm");
        assert!(service.knows("one").await.expect("in place"));
        assert!(!service.knows("two").await.expect("in place"));
    });
}

/// A1.
#[test]
fn a_deployment_whose_caller_leaves_at_any_moment_can_be_replaced() {
    for moment in 0..100 {
        run(async {
            let (world, gone) = (far_world(moment), TRAVEL * moment as u32 / 2);
            let clock = world.clock();
            let (service, runtime) = service(&world);
            service
                .deploy("shop", archive("one"))
                .await
                .expect("deployed");
            tokio::select! {
                biased;
                deployed = service.deploy("shop", archive("two")) => drop(deployed.expect("no caller left")),
                () = clock.sleep(gone) => {}
            }
            service
                .deploy("shop", archive("three"))
                .await
                .unwrap_or_else(|error| panic!("{gone:?}: {error}"));
            assert_eq!(names(&service), ["three"], "after {gone:?}");
            assert!(runtime.retired.lock().contains("one"));
            tokio::select! {
                biased;
                removed = service.remove("shop") => removed.expect("no caller left"),
                () = clock.sleep(gone) => {}
            }
            match service.remove("shop").await {
                Ok(()) | Err(Error::NoSuchApplication(_)) => {}
                Err(error) => panic!("{gone:?}: {error}"),
            }
            assert_eq!(names(&service), [""; 0], "after {gone:?}");
            service
                .deploy("shop", archive("four"))
                .await
                .expect("nothing is left of it");
        });
    }
}

/// A1.
#[test]
fn a_deployment_that_fails_anywhere_can_be_replaced() {
    for seed in 0..200 {
        run(async {
            let world = far_world(seed);
            let (service, _) = service(&world);
            service
                .deploy("shop", archive("one"))
                .await
                .expect("deployed");
            world.faults().refuse(percent(15));
            world.faults().lose_answer(percent(25));
            let _ = service.deploy("shop", archive("two")).await;
            let _ = service.arm("one", Some(Duration::from_mins(1))).await;
            world.faults().calm();
            // A lost answer makes an outcome unknown, so the next change may report a conflict
            // once.
            match service.deploy("shop", archive("three")).await {
                Ok(_) => {}
                Err(Error::Conflict(_)) => {
                    service
                        .deploy("shop", archive("three"))
                        .await
                        .unwrap_or_else(|error| panic!("{seed}: {error}"));
                }
                Err(error) => panic!("{seed}: {error}"),
            }
            assert_eq!(names(&service), ["three"], "seed {seed}");
            service.remove("shop").await.expect("removed");
            assert_eq!(names(&service), [""; 0], "seed {seed}");
        });
    }
}

/// A1.
#[test]
fn a_process_that_finds_another_deployment_runs_it_and_may_replace_it() {
    run(async {
        let world = World::new(1);
        let ((one, _), (other, _)) = (service(&world), service(&world));
        one.deploy("shop", archive("one")).await.expect("deployed");
        other.start().await.expect("started");
        other
            .deploy("shop", archive("two"))
            .await
            .expect("deployed");
        let refused = one
            .deploy("shop", archive("three"))
            .await
            .expect_err("it was changed meanwhile");
        assert!(matches!(refused, Error::Conflict(_)), "{refused}");
        assert_eq!(names(&one), ["two"]);
        one.deploy("shop", archive("three"))
            .await
            .expect("it is known now");
        assert_eq!(names(&one), ["three"]);
        assert!(matches!(
            other.remove("shop").await,
            Err(Error::Conflict(_))
        ));
        other.remove("shop").await.expect("it is known now");
        assert!(
            matches!(one.remove("shop").await, Ok(())),
            "what is gone is removed"
        );
        assert_eq!((names(&one), names(&other)), (Vec::new(), Vec::new()));
    });
}

/// The functions in place after a start that follows deployments by two processes, and those of the
/// first process afterwards.
async fn deployed_by_two(are_aware: bool) -> (Result<Vec<String>>, Vec<String>) {
    let world = World::new(1);
    let ((one, _), (other, _)) = (
        service_among(&world, are_aware),
        service_among(&world, are_aware),
    );
    let _following = are_aware.then(|| tokio::spawn(one.clone().keep_in_place()));
    one.deploy("shop", archive("one")).await.expect("deployed");
    other
        .deploy("store", archive("other"))
        .await
        .expect("deployed");
    let (late, _) = service_among(&world, are_aware);
    let started = late.start().await.map(|()| names(&late));
    world.clock().sleep(Duration::from_secs(3)).await;
    (started, names(&one))
}

/// A1, among processes.
#[test]
fn deployments_of_other_processes_are_put_in_place_and_stay() {
    let both = || vec!["one".to_owned(), "other".to_owned()];
    let (started, followed) = run(deployed_by_two(true));
    assert_eq!(
        (started.expect("every archive is there"), followed),
        (both(), both())
    );
}

/// A1, broken: a process that takes itself for the only one.
#[test]
fn removing_archives_of_other_processes_is_caught() {
    let (started, followed) = run(deployed_by_two(false));
    assert_eq!(
        started.expect("the rest is there"),
        ["other"],
        "the second deployment removed what the first one put"
    );
    assert_eq!(followed, ["one"]);
}

/// A1, among processes: a replacement or removal by another process takes effect here.
#[test]
fn replacements_and_removals_by_other_processes_are_followed() {
    run(async {
        let world = World::new(1);
        let clock = world.clock();
        let ((one, _), (other, _)) = (service_among(&world, true), service_among(&world, true));
        let _following = tokio::spawn(one.clone().keep_in_place());
        one.deploy("shop", archive("one")).await.expect("deployed");
        other
            .deploy("shop", archive("two"))
            .await
            .expect("what is there is known");
        clock.sleep(Duration::from_secs(3)).await;
        assert_eq!(names(&one), ["two"]);
        other.remove("shop").await.expect("removed");
        clock.sleep(Duration::from_secs(3)).await;
        assert_eq!(names(&one), Vec::<String>::new());
        let archives = async || {
            one.deployer
                .reconciler
                .deployments
                .archives()
                .await
                .expect("listed")
                .len()
        };
        assert_eq!(
            archives().await,
            2,
            "each may belong to a process that has yet to write its row"
        );
        clock.sleep(Duration::from_hours(1)).await;
        assert_eq!(archives().await, 0);
    });
}

/// A4.
#[test]
fn a_queue_starts_one_function_and_the_second_is_refused_by_name() {
    run(async {
        let world = World::new(1);
        let (service, _) = service(&world);
        let with = |functions: &[(&str, &str)]| -> Bytes {
            let tables = functions.iter().map(|(function, queue)| {
                let table = "runtime = \"executable\"\ncode = \"code\"\nhandler = \"run\"";
                format!("[functions.{function}]\n{table}\ntriggers = [{{ queue = \"{queue}\" }}]\n")
            });
            tables.collect::<String>().into()
        };
        let refused = async |application: &str, functions: &[(&str, &str)]| match service
            .deploy(application, with(functions))
            .await
        {
            Err(Error::Conflict(why)) => why,
            other => panic!("{other:?}"),
        };
        service
            .deploy("shop", with(&[("pay", "orders")]))
            .await
            .expect("deployed");
        assert_eq!(
            refused("store", &[("sell", "orders")]).await,
            "functions.sell: the queue \"orders\" starts the function \"pay\" of the application \"shop\""
        );
        assert_eq!(
            refused("shop", &[("pay", "orders"), ("ship", "orders")]).await,
            "functions.ship: the queue \"orders\" starts the function \"pay\""
        );
        assert_eq!(names(&service), ["pay"], "nothing has changed");
        service
            .deploy("shop", with(&[("ship", "orders")]))
            .await
            .expect("it goes to another of its application");
        service
            .deploy("shop", with(&[("ship", "parcels")]))
            .await
            .expect("deployed");
        service
            .deploy("store", with(&[("sell", "orders")]))
            .await
            .expect("it is free now");
    });
}

/// A8: they are not tried meanwhile, and run for any application that deploys a function of that
/// name.
#[test]
fn events_of_a_removed_function_wait_until_it_is_deployed_again() {
    run(async {
        let world = World::new(1);
        let clock = world.clock();
        let (service, runtime) = service(&world);
        service
            .deploy("shop", archive("one"))
            .await
            .expect("deployed");
        service.send("one", "{}".into()).await.expect("sent");
        service.remove("shop").await.expect("removed");
        let asked = runtime.asked();
        clock.sleep(Duration::from_hours(1)).await;
        assert_eq!(runtime.asked(), asked, "the removed function is not run");
        let queue = service.context.event_queue("one");
        let backlog = world
            .queue_admin()
            .backlog(&queue)
            .await
            .expect("backlog answers");
        assert_eq!(
            backlog,
            Backlog {
                messages: 1,
                dead_letters: 0
            },
            "nor is it given up"
        );
        service
            .deploy("store", archive("one"))
            .await
            .expect("deployed");
        clock.sleep(Duration::from_hours(1)).await;
        assert!(runtime.asked() > asked, "it is tried again");
        let backlog = world
            .queue_admin()
            .backlog(&queue)
            .await
            .expect("backlog answers");
        assert_eq!(
            backlog,
            Backlog {
                messages: 0,
                dead_letters: 1
            },
            "as often as any"
        );
    });
}

/// A3: the transactions of each of the two functions are identified by its own id.
#[test]
fn a_failure_notice_has_its_own_request_id_at_every_attempt() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        let table = "runtime = \"executable\"\ncode = \"code\"\nhandler = \"run\"\nretries = 1\n";
        let manifest = [
            ("a", "on_failure = \"b\"\n"),
            ("b", "on_failure = \"c\"\n"),
            ("c", ""),
        ]
        .map(|(function, told)| format!("[functions.{function}]\n{table}{told}"));
        service
            .deploy("shop", manifest.concat().into())
            .await
            .expect("deployed");
        let id = service.send("a", "{}".into()).await.expect("sent");
        world.clock().sleep(Duration::from_hours(1)).await;
        let mut ids = BTreeSet::new();
        for function in ["a", "b", "c"] {
            let asked = runtime.asked_of(function);
            assert_eq!(asked.len(), 2, "{function}");
            assert_eq!(asked[0].id, asked[1].id, "{function}");
            ids.insert(asked[0].id.clone());
        }
        assert_eq!(ids.len(), 3, "{ids:?}");
        assert_eq!(runtime.asked_of("a")[0].id, id);
        for told in ["b", "c"] {
            let payload: serde_json::Value =
                serde_json::from_slice(&runtime.asked_of(told)[0].payload).expect("JSON");
            assert_eq!(
                payload["requestContext"]["requestId"],
                id.as_str(),
                "the event's, for {told}"
            );
        }
    });
}

/// A2. An invocation of an internal caller ends when the caller drops it: another attempt takes its
/// place.
#[test]
fn an_invocation_outlives_its_client_but_not_an_internal_caller() {
    run(async {
        let world = World::new(8);
        let (service, runtime) = service(&world);
        service.deploy("a", archive("f")).await.expect("deployed");
        let begun = async |times: usize| {
            while runtime.asked() < times {
                tokio::task::yield_now().await;
            }
        };
        let invocation = |id: &str| Invocation::new(id.to_owned(), Bytes::new(), false);
        tokio::select! {
            biased;
            ran = service.invoke("f", invocation("a-clients")) => panic!("it takes a while: {ran:?}"),
            () = begun(1) => {}
        }
        world.clock().sleep(2 * TRAVEL).await;
        assert_eq!(runtime.ended.load(Ordering::Relaxed), 1);
        tokio::select! {
            biased;
            ran = service.run("f", invocation("a-steps")) => panic!("it takes a while: {ran:?}"),
            () = begun(2) => {}
        }
        world.clock().sleep(2 * TRAVEL).await;
        assert_eq!(runtime.ended.load(Ordering::Relaxed), 1);
    });
}

/// A3. An attempt that began after another one was cut off while it ran, without a reason.
#[test]
fn an_event_has_the_time_of_two_starts_and_runs() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        service.deploy("a", archive("f")).await.expect("deployed");
        *runtime.takes.lock() = Duration::from_mins(2);
        service.send("f", "{}".into()).await.expect("sent");
        world.clock().sleep(Duration::from_hours(1)).await;
        assert_eq!(
            (runtime.asked(), runtime.ended.load(Ordering::Relaxed)),
            (3, 3)
        );
    });
}
