//! A1, A5, A8: an application that cannot be put in place holds up no other, is not reported as
//! unknown, and is put in place once that works.

use super::*;
use crate::manifest::TimerRule;

/// Removes the archive of `content` from the objects.
async fn lose(service: &Service, content: &Bytes) {
    service
        .deployer
        .reconciler
        .deployments
        .delete_archive(&digest(content))
        .await
        .expect("it is removed");
}

async fn find(service: &Service, content: Bytes) {
    service
        .deployer
        .reconciler
        .deployments
        .put_archive(&digest(&content), content)
        .await
        .expect("it is put");
}

fn is_not_yet(error: &Error) -> bool {
    matches!(error, Error::Port(error) if matches!(error.kind(), ports::ErrorKind::Unavailable { .. }))
}

/// `function` with a route, and as the one step of a workflow of its name.
fn routed(function: &str) -> Bytes {
    let table = "runtime = \"executable\"\ncode = \"code\"\nhandler = \"run\"\nretries = 7";
    let route = format!("triggers = [{{ http = \"/{function}\", methods = [\"GET\"] }}]");
    format!(
        "[functions.{function}]\n{table}\n{route}\n[workflows.{function}]\nsteps = [\"{function}\"]"
    )
    .into()
}

/// A world with a deployment of `a`, whose archive is lost, and of `b`.
async fn with_lost(world: &World) {
    let (service, _) = service(world);
    service.deploy("a", routed("lost")).await.expect("deployed");
    service.deploy("b", archive("one")).await.expect("deployed");
    lose(&service, &routed("lost")).await;
}

/// A1. The server did not start.
#[test]
fn a_lost_archive_stops_no_start_and_its_application_is_in_place_once_it_is_back() {
    run(async {
        let world = World::new(1);
        with_lost(&world).await;
        let (service, runtime) = service(&world);
        service.start().await.expect("it starts");
        let keeping = tokio::spawn(service.clone().keep_in_place());
        assert_eq!(names(&service), ["one"]);
        world.clock().sleep(Duration::from_hours(1)).await;
        assert_eq!(names(&service), ["one"]);
        find(&service, routed("lost")).await;
        world.clock().sleep(Duration::from_mins(2)).await;
        assert_eq!(names(&service), ["lost", "one"]);
        assert!(
            runtime
                .installed
                .lock()
                .contains_key(&digest(&routed("lost")))
        );
        assert!(
            service.knows("lost").await.expect("it is in place")
                && service.context.lookup.pending.is_empty()
        );
        keeping.abort();
    });
}

/// A8. Callers are told to retry, and events that wait for a function wait for this one too.
#[test]
fn a_deployed_function_that_is_not_in_place_is_not_unknown() {
    run(async {
        let world = World::new(1);
        with_lost(&world).await;
        let (service, runtime) = service(&world);
        service.start().await.expect("it starts");
        let knows = service.knows("lost").await.expect_err("unknown yet");
        assert!(
            matches!(knows.kind(), ports::ErrorKind::Unavailable { .. }),
            "{knows}"
        );
        let invocation = |waits| Invocation::new("id".into(), "{}".into(), waits);
        assert!(is_not_yet(
            &service.function("lost").expect_err("it is not there")
        ));
        assert!(is_not_yet(
            &service
                .invoke("lost", invocation(false))
                .await
                .expect_err("it is not run")
        ));
        assert!(is_not_yet(
            &service
                .arm("lost", None)
                .await
                .expect_err("it is not armed")
        ));
        assert!(matches!(
            service.function("none"),
            Err(Error::NoSuchFunction(_))
        ));
        assert_eq!(
            service.route("GET", &["lost".to_owned()]),
            RouteMatch::NotYet
        );
        assert_eq!(
            service.route("GET", &["none".to_owned()]),
            RouteMatch::Nothing
        );
        assert!(service.workflow("lost").is_some() && service.workflows().contains_key("lost"));
        assert_eq!(service.retries("lost"), Some(7));
        let step = tokio::spawn({
            let (service, invocation) = (service.clone(), invocation(true));
            async move { service.run("lost", invocation).await }
        });
        world.clock().sleep(Duration::from_mins(1)).await;
        assert!(!step.is_finished() && runtime.asked() == 0);
        find(&service, routed("lost")).await;
        service.deploy("a", routed("lost")).await.expect("deployed");
        let ran = step.await.expect("it has not panicked");
        assert!(
            ran.is_ok() && runtime.asked_of("lost").len() == 1,
            "{ran:?}"
        );
    });
}

/// A7: its names and routes stay its own, although nothing of it runs.
#[test]
fn a_pending_application_keeps_its_names_and_can_be_removed() {
    run(async {
        let world = World::new(1);
        with_lost(&world).await;
        let (service, _) = service(&world);
        service.start().await.expect("it starts");
        let refused = service
            .deploy("c", archive("lost"))
            .await
            .expect_err("it is the other's");
        assert!(matches!(refused, Error::Conflict(_)), "{refused}");
        service.deploy("c", archive("two")).await.expect("deployed");
        service.remove("a").await.expect("removed");
        assert!(matches!(
            service.function("lost"),
            Err(Error::NoSuchFunction(_))
        ));
        service
            .deploy("c", archive("lost"))
            .await
            .expect("it is free");
    });
}

/// A1, among processes. Later applications in the order were not followed, and nothing could be
/// deployed.
#[test]
fn a_lost_archive_stops_no_other_process_from_following() {
    run(async {
        let world = World::new(1);
        let ((one, _), (other, _)) = (service_among(&world, true), service_among(&world, true));
        one.deploy("a", archive("lost")).await.expect("deployed");
        lose(&one, &archive("lost")).await;
        one.deploy("b", archive("one")).await.expect("deployed");
        other
            .deploy("c", archive("two"))
            .await
            .expect("nothing is in the way of it");
        assert_eq!(names(&other), ["one", "two"]);
    });
}

/// The row of `shop`: its functions, and its timers with their periods.
async fn said(service: &Service) -> (Vec<String>, BTreeMap<String, TimerRule>) {
    let rows = service
        .deployer
        .reconciler
        .deployments
        .all()
        .await
        .expect("read");
    let Some(row) = rows.get("shop") else {
        return Default::default();
    };
    let functions: Vec<_> = row.manifest.functions.keys().cloned().collect();
    let armed = functions
        .iter()
        .filter_map(|name| Some((name.clone(), row.timer(name)?)));
    (functions.clone(), armed.collect())
}

/// A change of `shop`, whose function is `one`.
async fn change(service: &Service, number: u64) -> Result<()> {
    match number % 3 {
        0 => service.deploy("shop", ticking("two")).await.map(drop),
        1 => service.remove("shop").await,
        _ => service.arm("one", Some(Duration::from_hours(1))).await,
    }
}

/// An archive whose only function is `function`, started by a queue and by a timer.
fn ticking(function: &str) -> Bytes {
    let archive = String::from_utf8(archive(function).into()).expect("text");
    archive.replace("}]", "}, { every_s = 60 }]").into()
}

/// A1, A5. A step that failed after the row was written stayed undone until the next change, even
/// without a caller.
#[test]
fn a_change_that_fails_at_any_moment_is_in_place_as_its_row_says_a_while_later() {
    for number in 0..180 {
        run(async {
            let world = far_world(number);
            let clock = world.clock();
            let (service, _) = service(&world);
            let keeping = tokio::spawn(service.clone().keep_in_place());
            service
                .deploy("shop", ticking("one"))
                .await
                .expect("deployed");
            let changing = tokio::spawn({
                let service = service.clone();
                async move { change(&service, number).await }
            });
            clock.sleep(TRAVEL * (number / 6) as u32 / 2).await;
            if number % 2 == 0 {
                world.faults().refuse(percent(100));
            } else {
                world.faults().lose_answer(percent(100));
            }
            let _ = changing.await.expect("it has not panicked");
            world.faults().calm();
            clock.sleep(Duration::from_mins(2)).await;
            let (functions, armed) = said(&service).await;
            assert_eq!(names(&service), functions, "{number}");
            assert_eq!(service.context.timers.all_armed().await, armed, "{number}");
            assert!(service.context.lookup.pending.is_empty(), "{number}");
            keeping.abort();
        });
    }
}
