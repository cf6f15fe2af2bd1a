//! One service in a calm world, with the test's own faults in its store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use coordination::{
    Client, Config, ConnectError, Error, Gateway, Parts, Service, access,
    broken::Broken,
    model::{Connect, Lifetime, Naming, Output, Password, Request, Response, SessionId, Zxid},
};
use ports::faults::{Fault, FaultSchedule, FaultyKeyValue};
use simulated::World;

/// The timeout of every session.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(40);

/// Refuses to make anything durable while it is switched on.
#[derive(Debug, Default)]
pub(crate) struct NothingDurable(pub(crate) AtomicBool);

impl FaultSchedule for NothingDurable {
    fn next(&self, operation: &'static str) -> Fault {
        match operation {
            "key_value.externalize" if self.0.load(Ordering::Relaxed) => Fault::RefuseBefore,
            _ => Fault::None,
        }
    }
}

/// A service whose functions are registered and whose triggers are armed. No follower of its log
/// runs yet.
pub(crate) async fn started(
    world: &World,
    faults: Arc<dyn FaultSchedule>,
    config: Config,
) -> Arc<Service> {
    let items = Arc::new(FaultyKeyValue::new(
        world.key_value(),
        faults,
        world.clock(),
    ));
    started_with(
        world,
        Parts {
            system: items.clone(),
            items,
            ..parts(world)
        },
        config,
    )
    .await
}

/// The same with these `parts`.
pub(crate) async fn started_with(world: &World, parts: Parts, config: Config) -> Arc<Service> {
    let service = Arc::new(Service::new(parts, config));
    for definition in service.functions() {
        world.functions().register(definition);
    }
    service.start().await.expect("a calm start");
    service
}

/// As [`started`], with a follower of its log.
pub(crate) async fn following(
    world: &World,
    faults: Arc<dyn FaultSchedule>,
    config: Config,
) -> Arc<Service> {
    let service = started(world, faults, config).await;
    follow(&service);
    service
}

/// As [`started_with`], with a follower of its log.
pub(crate) async fn following_with(world: &World, parts: Parts, config: Config) -> Arc<Service> {
    let service = started_with(world, parts, config).await;
    follow(&service);
    service
}

/// A configuration in which one rule is dropped.
pub(crate) fn without(broken: Option<Broken>) -> Config {
    Config {
        mutant: broken.into(),
        ..Config::default()
    }
}

/// The unmodified ports of a world.
pub(crate) fn parts(world: &World) -> Parts {
    Parts {
        system: world.key_value(),
        items: world.key_value(),
        objects: world.objects(),

        queue: world.queue(),
        functions: world.functions(),
        clock: world.clock(),
        entropy: world.entropy(),
    }
}

/// Starts the follower of the log.
pub(crate) fn follow(service: &Arc<Service>) {
    let follower = service.clone();
    tokio::spawn(async move { follower.run().await });
}

/// A new session.
pub(crate) async fn connect(gateway: &Gateway) -> Result<Client, ConnectError> {
    connect_to(gateway, None, TIMEOUT).await
}

/// The session `resume`, or a new one with this timeout.
pub(crate) async fn connect_to(
    gateway: &Gateway,
    resume: Option<(SessionId, Password)>,
    timeout: Duration,
) -> Result<Client, ConnectError> {
    let connect = Connect {
        last_zxid_seen: Zxid(0),
        timeout,
        resume,
    };
    gateway.connect(connect).await
}

/// Creates a znode without data.
pub(crate) fn create(path: &str, lifetime: Lifetime) -> Request {
    Request::Create {
        path: path.into(),
        data: None,
        acl: access::open(),
        lifetime,
        naming: Naming::Given,
    }
}

/// Sets a znode's data to empty, at any version.
pub(crate) fn set(path: &str) -> Request {
    Request::SetData {
        path: path.into(),
        data: None,
        version: -1,
    }
}

/// All outputs up to the reply to `request`, the last request; none if the client ends before.
pub(crate) async fn shown(client: &mut Client, request: Request) -> Option<Vec<Output>> {
    client.submit(1, request);
    let mut outputs = Vec::new();
    loop {
        let pumped = client.pump(&mut outputs).await;
        if matches!(outputs.last(), Some(Output::Reply { .. })) {
            return Some(outputs);
        }
        pumped.ok()?;
        client.wait().await;
    }
}

/// Whether `request` is answered before the client ends.
pub(crate) async fn is_answered(client: &mut Client, request: Request) -> bool {
    shown(client, request).await.is_some()
}

/// The result of `request`, the last request; panics if the client ends before.
pub(crate) async fn result(client: &mut Client, request: Request) -> Result<Response, Error> {
    match shown(client, request)
        .await
        .and_then(|mut outputs| outputs.pop())
    {
        Some(Output::Reply { result, .. }) => result,
        other => panic!("the client ended before {other:?}"),
    }
}
