//! Nothing leaves before it is durable: the disk stands still, and so do the answers.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use embedded::storage::{DiskStorage, Intercepted, Operation, Storage};
use http_frontend::Limits;
use transactions::Config;

use crate::{body, code, engine::Engine, problem};

/// A disk whose syncs can be made to wait.
#[derive(Debug, Default)]
struct Disk {
    stands_still: Mutex<bool>,
    moved: Condvar,
}

/// While it lives, syncs wait. It ends with the test, however that ends: a store is closed with a last sync.
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
        drop(self.moved.wait_while(standing, |stands_still| *stands_still));
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

/// T5, P4. A write that is visible inside and not yet durable is shown to nobody, its writer included.
#[tokio::test]
async fn what_is_not_durable_is_shown_to_nobody() {
    let disk = Arc::<Disk>::default();
    let soon = Duration::from_millis(200);
    let config = Config { commit_answer_timeout: soon, ..Config::default() };
    let engine = Engine::on(stalling(&disk), config).await;
    let server = engine.serve_within(Limits { answer_timeout: 2 * soon, ..Limits::default() }).await;
    assert_eq!(code(&server.get("/v1/state/k").await), 404, "known to be absent, without asking the store");
    let standing = StandsStill::new(&disk);
    let written = server.send("PUT", "/v1/state/k", "", "v").await;
    assert_eq!(problem(&written), (503, "outcome-unknown".into()));
    let read = server.get("/v1/state/k").await;
    assert_eq!(problem(&read), (503, "unavailable".into()), "it is there, but it could still be lost");
    drop(standing);
    let read = server.get("/v1/state/k").await;
    assert_eq!((code(&read), body(&read)), (200, "v"));
}
