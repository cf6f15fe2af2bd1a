//! C5, P6: a sync fails, the store rolls back to its durable state, and all clients that saw more
//! recover.

use std::{future::Future, path::Path, sync::Arc, time::Duration};

use coordination::{
    Client, Config, Parts, Service, access,
    dependency::TrackedStore,
    model::{Connect, Lifetime, Naming, Output, Request, Response, Watching, Zxid},
    storage::session,
};
use embedded::{Embedded, Health};
use in_process::{Functions, SystemClock, SystemEntropy};

use crate::disk::{Faults, faulty_disk};

/// The bound of every wait. A session's timeout is longer.
const PATIENCE: Duration = Duration::from_mins(2);
const TIMEOUT: Duration = Duration::from_mins(10);

/// Updates lost at a time: more than a client's attempts to reconnect.
const LOST: i32 = 20;

fn create(path: &str, lifetime: Lifetime) -> Request {
    Request::Create {
        path: path.into(),
        data: None,
        acl: access::open(),
        lifetime,
        naming: Naming::Given,
    }
}

fn set(path: &str, data: &'static str) -> Request {
    Request::SetData {
        path: path.into(),
        data: Some(data.into()),
        version: -1,
    }
}

async fn result(client: &mut Client, request: Request) -> Result<Response, coordination::Error> {
    client.submit(1, request);
    let mut outputs = Vec::new();
    loop {
        let pumped = client.pump(&mut outputs).await;
        if let Some(Output::Reply { result, .. }) = outputs.pop() {
            return result;
        }
        pumped.expect("the session lives");
        client.wait().await;
    }
}

/// Fails after a bounded wait.
async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(PATIENCE, future).await else {
        panic!("waited in vain: {what}")
    };
    value
}

/// The service on a store in `directory`, on a disk that can fail.
async fn house(directory: &Path, faults: &Arc<Faults>) -> (Embedded, Arc<Service>) {
    let storage = faulty_disk(Arc::clone(faults));
    let config = embedded::Config {
        storage,
        journal_segment_bytes: 256 << 10,
        ..embedded::Config::new(directory)
    };
    let store = Embedded::open(config).await.expect("the store opens");
    let functions = Arc::new(Functions::new(store.queue()));
    let parts = Parts {
        system: store.key_value_with_reserve(),
        items: store.key_value_with_reserve(),
        objects: store.objects(),
        queue: store.queue(),
        functions: Arc::clone(&functions) as Arc<_>,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy::default()),
    };
    let config = Config {
        session_timeout_max: TIMEOUT,
        ..Config::default()
    };
    let service = Arc::new(Service::new(parts, config));
    for definition in service.functions() {
        functions.register(definition);
    }
    service.start().await.expect("the service starts");
    let follower = Arc::clone(&service);
    tokio::spawn(async move { follower.run().await });
    (store, service)
}

/// A client sets `/a` a few times. The updates are decided and applied, and then lost. Returns its
/// session, resumed.
async fn lose_updates(
    store: &Embedded,
    service: &Service,
    faults: &Faults,
    mut client: Client,
) -> Client {
    let (id, resume) = (
        client.session(),
        Some((client.session(), client.password())),
    );
    let applied = async || {
        let row = session::get(&mut TrackedStore::new(store.key_value()), id)
            .await
            .expect("the store serves");
        row.expect("the session lives").applied
    };
    let (before, incarnation) = (applied().await, store.status().incarnation);
    faults.hold();
    (0..LOST).for_each(|tag| client.submit(tag, set("/a", "lost")));
    client
        .pump(&mut Vec::new())
        .await
        .expect("the session lives");
    in_time("all are applied", async {
        while applied().await < before + LOST as u64 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    faults.fail_once();
    in_time("the store serves what is durable", async {
        while store.status().incarnation == incarnation || store.status().health != Health::Serving
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(
        applied().await < before + LOST as u64,
        "not all were durable"
    );
    drop(client);
    in_time("the session connects again", async {
        loop {
            let connect = Connect {
                last_zxid_seen: Zxid(0),
                timeout: TIMEOUT,
                resume,
            };
            match service.gateway().connect(connect).await {
                Ok(client) => return client,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await
}

/// C5, C-3.
#[test]
fn a_failed_sync_loses_only_unanswered_updates() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime
        .worker_threads(2)
        .thread_keep_alive(Duration::ZERO)
        .enable_all()
        .build();
    runtime.expect("a runtime starts").block_on(async {
        let faults = Arc::new(Faults::default());
        let (store, service) = house(directory.path(), &faults).await;
        let connect = Connect {
            last_zxid_seen: Zxid(0),
            timeout: TIMEOUT,
            resume: None,
        };
        let mut client = service
            .gateway()
            .connect(connect)
            .await
            .expect("a new session");
        for request in [
            create("/a", Lifetime::Persistent),
            create("/e", Lifetime::Ephemeral),
            set("/a", "kept"),
        ] {
            result(&mut client, request).await.expect("it is done");
        }
        for _ in 0..3 {
            client = lose_updates(&store, &service, &faults, client).await;
            for path in ["/a", "/e"] {
                let read = Request::GetData {
                    path: path.into(),
                    watching: Watching::No,
                };
                let found = in_time("a read", result(&mut client, read)).await;
                let Ok(Response::Data { data, .. }) = found else {
                    panic!("{path}: {found:?}")
                };
                assert!(path == "/e" || data.as_deref() == Some(b"kept"), "{data:?}");
            }
            in_time("an update", result(&mut client, set("/a", "kept")))
                .await
                .expect("it is set");
        }
        store
            .key_value()
            .externalize(store.key_value().point())
            .await
            .expect("the store serves");
    });
}
