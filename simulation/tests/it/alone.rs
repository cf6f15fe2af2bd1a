//! One service in a calm world, with faults of a test's own in its store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use coordination::{
    Client, Config, ConnectError, Gateway, Parts, Region, Service,
    model::{Connect, Output, Request, Zxid},
};
use ports::faults::{Fault, FaultSchedule, FaultyKeyValue};
use simulated::World;

/// Of every session.
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

/// A service whose functions are registered and whose triggers are armed. Nobody follows its log yet.
pub(crate) async fn started(world: &World, faults: Arc<dyn FaultSchedule>, config: Config) -> Arc<Service> {
    let items = Arc::new(FaultyKeyValue::new(world.key_value(), faults, world.clock()));
    let parts = Parts {
        system: items.clone(),
        regions: vec![Region { items, objects: world.objects() }],
        queue: world.queue(),
        functions: world.functions(),
        clock: world.clock(),
        entropy: world.entropy(),
    };
    let service = Arc::new(Service::new(parts, config));
    for definition in service.functions() {
        world.functions().register(definition);
    }
    service.start().await.expect("a calm start");
    service
}

/// Has somebody follow the log from now on.
pub(crate) fn follow(service: &Arc<Service>) {
    let follower = service.clone();
    tokio::spawn(async move { follower.run().await });
}

/// A new session.
pub(crate) async fn connect(gateway: &Gateway) -> Result<Client, ConnectError> {
    gateway.connect(Connect { last_zxid_seen: Zxid(0), timeout: TIMEOUT, resume: None }).await
}

/// Everything that is shown up to the reply to `request`, the last one; none if the client ends before.
pub(crate) async fn shown(client: &mut Client, request: Request) -> Option<Vec<Output>> {
    client.submit(1, request);
    let mut outputs = Vec::new();
    loop {
        client.pump(&mut outputs).await.ok()?;
        if matches!(outputs.last(), Some(Output::Reply { .. })) {
            return Some(outputs);
        }
        client.wait().await;
    }
}

/// Whether `request` is answered before the client ends.
pub(crate) async fn is_answered(client: &mut Client, request: Request) -> bool {
    shown(client, request).await.is_some()
}
