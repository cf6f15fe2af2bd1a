//! P6: a full store for clients.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use embedded::storage::DiskStorage;
use ports::faults::{Fault, FaultSchedule};

use crate::{body, code, document, engine::Engine, problem};

/// A store with the free space that it was given last.
#[derive(Debug, Default)]
struct Disk {
    is_full: AtomicBool,
}

impl FaultSchedule for Disk {
    fn next(&self, _: &'static str) -> Fault {
        Fault::None
    }

    fn has_room(&self) -> bool {
        !self.is_full.load(Ordering::SeqCst)
    }
}

/// P6, T15.
#[tokio::test]
async fn a_full_store_has_its_own_problem_for_every_call_that_adds_data() {
    let disk = Arc::new(Disk::default());
    let engine = Engine::amid(
        disk.clone(),
        Arc::new(DiskStorage),
        transactions::Config::default(),
    )
    .await;
    let server = engine.serve().await;
    let full = (507, "no-room".into());
    assert_eq!(
        code(&server.send("PUT", "/v1/state/k", "", "before").await),
        204
    );
    let begun = server.send("POST", "/v1/transactions", "", "").await;
    let keys = format!(
        "/v1/transactions/{}/keys",
        document(&begun)["id"].as_str().expect("an id")
    );

    let fill = |is_full| disk.is_full.store(is_full, Ordering::SeqCst);
    fill(true);
    assert_eq!(
        problem(&server.send("PUT", "/v1/state/k", "", "after").await),
        full
    );
    assert_eq!(
        problem(&server.send("PUT", &format!("{keys}/k"), "", "after").await),
        full
    );
    assert_eq!(
        problem(
            &server
                .send("POST", "/v1/transactions", "", r#"{"id":"order"}"#)
                .await
        ),
        full
    );
    assert_eq!(
        code(&server.send("POST", "/v1/transactions", "", "").await),
        201
    );
    assert_eq!(body(&server.get("/v1/state/k").await), "before");
    assert_eq!(body(&server.get(&format!("{keys}/k")).await), "before");
    assert_eq!(
        code(&server.send("DELETE", &format!("{keys}/k"), "", "").await),
        204
    );

    fill(false);
    assert_eq!(
        code(&server.send("PUT", "/v1/state/k", "", "after").await),
        204
    );
}
