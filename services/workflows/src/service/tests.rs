//! A late response names the store that it waited for.

mod stops;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use functions::manifest::workflow::Workflow;
use ports::{
    key_value::SharedKeyValue,
    runtime::{Invocation, Ran},
};
use simulated::World;

use super::response::AwaitedStore;
use crate::{FarStores, Options, Parts, Runner, Service};

const AWAY: &str = "redis://away:1";

/// A workflow whose deployed definition names another far store than its runs have.
#[derive(Debug)]
struct Moved;

#[async_trait]
impl Runner for Moved {
    fn workflow(&self, _: &str) -> Option<Arc<Workflow>> {
        let now = serde_json::json!({ "steps": ["f"], "far": "redis://here:1" });
        Some(Arc::new(serde_json::from_value(now).expect("it is one")))
    }

    fn workflows(&self) -> BTreeMap<String, Arc<Workflow>> {
        self.workflow("w")
            .map(|workflow| ("w".to_owned(), workflow))
            .into_iter()
            .collect()
    }

    fn retries(&self, _: &str) -> Option<u32> {
        None
    }

    async fn run(&self, _: &str, _: Invocation) -> Result<Ran, String> {
        Err("nothing runs here".to_owned())
    }
}

#[derive(Debug)]
struct AllButOne(World);

#[async_trait]
impl FarStores for AllButOne {
    async fn open(&self, address: &str) -> ports::Result<SharedKeyValue> {
        if address == AWAY {
            Err(ports::Error::unavailable("reach it"))
        } else {
            Ok(self.0.key_value())
        }
    }
}

fn service(near: &World) -> Service {
    service_of(near, Arc::new(Moved), near.key_value()).0
}

/// A service whose functions are those of `runner`, and its transactions; neither has started.
fn service_of(
    near: &World,
    runner: Arc<dyn Runner>,
    key_value: SharedKeyValue,
) -> (Service, transactions::Service) {
    let (clock, entropy) = (near.clock(), near.entropy());
    let parts = transactions::Parts {
        key_value: Arc::clone(&key_value),
        clock: Arc::clone(&clock),
        entropy: Arc::clone(&entropy),
    };
    let engine = transactions::Service::builder(parts).build(transactions::Config::default());
    let parts = Parts {
        runner,
        key_value,
        transactions: engine.engine(),
        far_stores: Arc::new(AllButOne(World::new(2))),
        clock,
        entropy,
    };
    (Service::new(parts, Options::default()), engine)
}

/// A response names no trouble of the workflow's earlier far store when it waits for the present one.
#[test]
fn a_late_response_names_the_far_store_that_it_waited_for() {
    simulated::run(async {
        let service = service(&World::new(1));
        let placement = &service.executor.placement;
        placement
            .near()
            .list_far_store("w", AWAY)
            .await
            .expect("it is noted");
        service.start().await.expect("it starts");
        let awaited = AwaitedStore::default();
        let late = || service.late(&awaited).to_string();
        service
            .find("w", "run", &awaited)
            .await
            .expect_err("the run may be in the unreachable store");
        assert!(
            late().contains(&format!("the far store {AWAY} does not take it: ")),
            "{}",
            late()
        );
        service
            .current_store("w", &awaited)
            .await
            .expect("this one answers");
        assert!(
            late().contains("its store does not answer in time"),
            "{}",
            late()
        );
        service.stop().await;
    });
}
