//! The ports' contracts: functions over the queues of each provider, and the clock.

use std::{sync::Arc, time::Duration};

use embedded::Embedded;
use in_process::{Functions, SystemClock, SystemEntropy};
use ports::{
    Clock,
    contract::{self, Case, Spawn},
    queue::{SharedQueue, SharedQueueAdmin},
};
use redis_provider::{Config, Redis};

use crate::{block_on, server};

const SPAWN: Spawn = |task| {
    let task = tokio::spawn(task);
    Box::pin(async move { task.await.expect("the task ends well") })
};

/// Runs a case of the functions contract with fresh `functions` over `queue`.
async fn run(
    case: Case<contract::functions::Subject>,
    functions: Functions,
    queue: SharedQueue,
    admin: SharedQueueAdmin,
) {
    let functions = Arc::new(functions);
    let registry = Arc::clone(&functions);
    case.run(contract::functions::Subject {
        functions: Arc::clone(&functions) as Arc<_>,
        register: Arc::new(move |definition| registry.register(definition)),
        queue,
        admin,
        clock: Arc::new(SystemClock),
    })
    .await;
    functions.stop();
}

fn over_embedded(case: Case<contract::functions::Subject>) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    block_on(async {
        let opened = Embedded::open(embedded::Config::new(directory.path())).await;
        let store = opened.expect("the store opens");
        run(
            case,
            Functions::new(store.queue()),
            store.queue(),
            store.queue_admin(),
        )
        .await;
        store.close().await;
    });
}

mod over_embedded {
    ports::functions_contract!(super::over_embedded);
}

fn over_redis(case: Case<contract::functions::Subject>) {
    let server = server::shared();
    // Each case has its own store, under a name within the length limit.
    let namespace = format!("{:.60}", case.name);
    let config = Config {
        namespace,
        ..Config::single(server.url())
    };
    block_on(async {
        let store = Redis::open(&config).await.expect("the store opens");
        let functions = Functions::over_shared_queue(
            store.queue(),
            Duration::from_secs(5),
            &SystemEntropy::default(),
        );
        run(case, functions, store.queue(), store.queue_admin()).await;
    });
}

mod over_redis {
    ports::functions_contract!(super::over_redis);
}

/// L1, L2, L4. The system's randomness has no seed, so L3 does not apply.
#[test]
fn the_clock_keeps_its_promises() {
    for case in contract::clock::CASES
        .iter()
        .filter(|case| case.promise != "L3")
    {
        block_on(async {
            let no_seed = |_| unreachable!("these cases draw nothing");
            let clocks = || Arc::new(SystemClock) as Arc<dyn Clock>;
            case.run(contract::clock::Subject::new(clocks, no_seed).spawning(SPAWN))
                .await;
        });
    }
}
