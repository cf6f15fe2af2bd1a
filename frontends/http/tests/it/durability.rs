//! No response is sent before it is durable: while the disk stalls, responses wait.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use axum::{body::Body, http::Request};
use bytes::Bytes;
use embedded::storage::{DiskStorage, Storage, StorageFile};
use futures_util::FutureExt as _;
use http_frontend::{InProcessRouter, Limits, Services};
use serde_json::json;
use transactions::Config;

use self::intercepted::{Intercepted, Operation};
use crate::{
    body, code,
    engine::Engine,
    functions::{manifest, service},
    problem,
};

#[path = "../../../../providers/embedded/tests/it/intercepted.rs"]
mod intercepted;

/// A disk whose syncs can be made to wait.
#[derive(Debug, Default)]
struct Disk {
    stands_still: Mutex<bool>,
    moved: Condvar,
}

/// Syncs wait while this lives. It ends with the test in any case, because closing a store needs a
/// last sync.
struct StandsStill(Arc<Disk>);

impl StandsStill {
    fn new(disk: &Arc<Disk>) -> Self {
        disk.set(true);
        Self(Arc::clone(disk))
    }
}

impl Drop for StandsStill {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Disk {
    fn set(&self, stands_still: bool) {
        *self.stands_still.lock().expect("nobody panics holding it") = stands_still;
        self.moved.notify_all();
    }

    fn wait(&self) {
        let standing = self.stands_still.lock().expect("nobody panics holding it");
        drop(
            self.moved
                .wait_while(standing, |stands_still| *stands_still),
        );
    }
}

/// Storage on such a disk.
fn stalling(disk: &Arc<Disk>) -> Arc<dyn Storage> {
    let disk = Arc::clone(disk);
    Arc::new(Intercepted::new(DiskStorage, move |operation, _| {
        if operation == Operation::SyncData {
            disk.wait();
        }
        Ok(())
    }))
}

/// T5, P4. No client sees a write that is visible to the engine and not yet durable, not even its
/// writer.
#[tokio::test]
async fn state_that_is_not_durable_is_never_shown() {
    let disk = Arc::<Disk>::default();
    let soon = Duration::from_millis(200);
    let config = Config {
        commit_answer_timeout: soon,
        ..Config::default()
    };
    let engine = Engine::on(stalling(&disk), config).await;
    let server = engine.serve_within(Limits::default()).await;
    // Only the calls that wait for the disk have so little time.
    let hasty = engine
        .serve_within(Limits {
            answer_timeout: 2 * soon,
            ..Limits::default()
        })
        .await;
    assert_eq!(
        code(&server.get("/v1/state/k").await),
        404,
        "known to be absent, without asking the store"
    );
    let standing = StandsStill::new(&disk);
    let written = hasty.send("PUT", "/v1/state/k", "", "v").await;
    assert_eq!(problem(&written), (503, "outcome-unknown".into()));
    let read = hasty.get("/v1/state/k").await;
    assert_eq!(
        problem(&read),
        (503, "unavailable".into()),
        "it is there, but it could still be lost"
    );
    drop(standing);
    let read = server.get("/v1/state/k").await;
    assert_eq!((code(&read), body(&read)), (200, "v"));
}

/// P5. A function whose state is not durable has not been told otherwise, so its result cannot
/// depend on it.
#[tokio::test]
async fn a_functions_result_depends_on_durable_state_only() {
    let disk = Arc::<Disk>::default();
    // The last call is answered within it.
    let config = Config {
        commit_answer_timeout: Duration::from_secs(5),
        ..Config::default()
    };
    let engine = Engine::on(stalling(&disk), config).await;
    let services = Arc::<Services>::default();
    services.provide_transactions((*engine).clone());
    let inside = InProcessRouter::new(services, &Limits::default());
    let keeps = move |_: &str, _: Bytes| {
        let inside = inside.clone();
        async move {
            let request = Request::put("/v1/state/k")
                .body(Body::from("v"))
                .expect("a request");
            let kept = inside.call(None, None, request).await.status().as_u16();
            Ok(Ok(Bytes::from(
                json!({ "statusCode": 200, "body": kept.to_string() }).to_string(),
            )))
        }
        .boxed()
    };
    let service = service(&engine, Box::new(keeps)).await;
    service
        .deploy("keeps", manifest(&[("f", "f", r#"{ http = "/f" }"#)]))
        .await
        .expect("it is deployed");
    let server = engine.serve_functions("127.0.0.1:0", None, service).await;
    let standing = StandsStill::new(&disk);
    assert_eq!(
        body(&server.get("/http/f").await),
        "503",
        "it hears that the outcome is not known"
    );
    drop(standing);
    assert_eq!(body(&server.get("/http/f").await), "204");
}
