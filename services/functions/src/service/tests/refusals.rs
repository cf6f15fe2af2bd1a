//! Deployments that are refused, while a start accepts the same rows.

use super::*;

/// A1. The fault was found only when the first run began.
#[test]
fn an_invalid_far_store_is_refused_at_its_deployment() {
    run(async {
        let world = World::new(7);
        let (service, _) = service(&world);
        service.start().await.expect("it starts");
        let refused = service
            .deploy("a", with_far("f", "ther"))
            .await
            .expect_err("a slip of the pen");
        assert!(
            refused
                .to_string()
                .contains("workflows.w: far: it is to be there"),
            "{refused}"
        );
        assert!(names(&service).is_empty());
        service
            .deploy("a", with_far("f", "there"))
            .await
            .expect("an address");
    });
}

/// Another server accepted this deployment. This one must still start with it.
fn starts_with_a_row_refused_today(text: &Bytes) {
    run(async {
        let world = World::new(7);
        let (service, _) = service(&world);
        service
            .deploy("a", text.clone())
            .await
            .expect_err("it is refused");
        let text = String::from_utf8(text.to_vec()).expect("text");
        let manifest = Manifest::parse(&text).expect("a manifest");
        let archive = digest(text.as_bytes());
        let deployments = &service.deployer.reconciler.deployments;
        deployments
            .put_archive(&archive, text.clone().into())
            .await
            .expect("it is put");
        let timers = BTreeMap::new();
        let deployment = Deployment {
            manifest,
            refused: None,
            text,
            archive,
            generation: 1,
            deployed: 1,
            incarnation: 1,
            timers,
        };
        deployments
            .put("a", &deployment, None)
            .await
            .expect("it is deployed");
        service.start().await.expect("it starts");
        assert_eq!(names(&service), ["f"]);
    });
}

/// U4. This build refuses the stored manifest: the server starts, says why, and deploys anew.
#[test]
fn a_manifest_that_is_refused_when_it_is_read_stops_no_start() {
    run(async {
        let world = World::new(7);
        let (service, _) = service(&world);
        service.deploy("a", archive("f")).await.expect("deployed");
        let deployments = &service.deployer.reconciler.deployments;
        let mut row = deployments.all().await.expect("read")["a"].clone();
        let refused = with_variable("LANDFAST_URL");
        row.text = String::from_utf8(refused.to_vec()).expect("text");
        (row.generation, row.deployed) = (2, 2);
        deployments.put("a", &row, Some(1)).await.expect("put");
        let (service, _) = self::service(&world);
        service.start().await.expect("it starts");
        assert!(names(&service).is_empty(), "{:?}", names(&service));
        service.deploy("a", archive("f")).await.expect("deployed");
        assert_eq!(names(&service), ["f"]);
    });
}

#[test]
fn an_invalid_far_store_stops_no_start() {
    starts_with_a_row_refused_today(&with_far("f", "ther"));
}

/// A1. Such a step ended with its function, even before its own timeout.
#[test]
fn a_step_with_a_longer_timeout_than_its_function_is_refused_at_its_deployment() {
    run(async {
        let world = World::new(7);
        let (service, _) = service(&world);
        service.start().await.expect("it starts");
        let manifest = |seconds: u64| {
            let functions = String::from_utf8(archive("f").into()).expect("text");
            let step = format!("{{ function = \"f\", timeout_s = {seconds} }}");
            Bytes::from(format!(
                "{functions}\n[workflows.w]\nsteps = [{{ parallel = [[{step}]] }}]"
            ))
        };
        let refused = service
            .deploy("a", manifest(31))
            .await
            .expect_err("one second more")
            .to_string();
        let said = "workflows.w: a step has timeout_s = 31, and functions.f ends after 30 s: raise timeout_s there";
        assert!(refused.contains(said), "{refused}");
        service
            .deploy("a", manifest(30))
            .await
            .expect("as long as its function");
    });
}

/// An archive whose only function has `variable` in its environment.
fn with_variable(variable: &str) -> Bytes {
    let table = "runtime = \"executable\"\ncode = \"code\"\nhandler = \"run\"";
    format!("[functions.f]\n{table}\nenvironment = {{ {variable} = \"own\" }}").into()
}

#[test]
fn a_reserved_variable_is_refused_by_name_and_others_are_free() {
    run(async {
        let (service, _) = service(&World::new(1));
        for variable in [
            "AWS_LAMBDA_RUNTIME_API",
            "LANDFAST_URL",
            "_HANDLER",
            "LAMBDA_TASK_ROOT",
        ] {
            let refused = service
                .deploy("a", with_variable(variable))
                .await
                .expect_err(variable);
            let said = format!("functions.f: environment: {variable} is reserved");
            assert!(refused.to_string().contains(&said), "{refused}");
        }
        for variable in [
            "PATH",
            "TZ",
            "PYTHONPATH",
            "LD_LIBRARY_PATH",
            "AWS_REGION",
            "LANDFAST_SPARE",
        ] {
            service
                .deploy("a", with_variable(variable))
                .await
                .expect(variable);
        }
    });
}

#[test]
fn the_refusal_of_an_archive_gives_the_reason_and_not_its_internal_name() {
    run(async {
        let (service, _) = service(&World::new(1));
        let refused = service
            .deploy("a", UNFIT.into())
            .await
            .expect_err("it is refused");
        assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
        assert_eq!(
            refused.to_string(),
            "the archive is refused: \"code/l\" is a device"
        );
    });
}

/// It stayed on the disk until the next accepted deployment.
#[test]
fn the_code_of_a_refused_deployment_is_removed() {
    run(async {
        let (service, runtime) = service(&World::new(1));
        service
            .deploy("shop", archive("one"))
            .await
            .expect("deployed");
        let kept = || runtime.installed.lock().keys().cloned().collect::<Vec<_>>();
        service
            .deploy("a", with_far("f", "ther"))
            .await
            .expect_err("it is refused");
        assert_eq!(kept(), [digest(&archive("one"))]);
        service
            .deploy("store", archive("one"))
            .await
            .expect_err("the name is the other's");
        assert_eq!(kept(), [digest(&archive("one"))], "it is what runs");
    });
}
