//! A deployed function as the Functions port runs it.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    Event, Handler,
    functions::{Failure, Room},
    runtime::{FunctionError, Invocation},
};

use crate::{
    batch::Batch,
    event, failure,
    service::{Inner, own_name, request_id, told_id},
    timer::Ticks,
};

/// Runs whatever is deployed under `name` at the time.
#[derive(Debug)]
pub(crate) struct Deployed {
    pub(crate) name: String,
    pub(crate) service: Weak<Inner>,
    pub(crate) ticks: Ticks,
}

#[async_trait]
impl Handler for Deployed {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        self.handle_in(Room::default(), event).await
    }

    /// A place among its instances (A8). One that was removed has none: what waits for it is not tried, however long, and by
    /// nobody again and again.
    async fn room(&self) -> Room {
        loop {
            let Some(service) = self.service.upgrade() else { return Room::default() };
            let changed = service.changed();
            let Some(function) = service.function(&self.name) else {
                drop(service);
                changed.await;
                continue;
            };
            // None: it was deployed anew meanwhile, and may be gone.
            if let Some(room) = service.parts.runtime.room(&function).await {
                return room;
            }
        }
    }

    async fn handle_in(&self, room: Room, event: Event) -> Result<Bytes, Failure> {
        let service = self.service.upgrade().ok_or_else(|| Failure::new("the server stops"))?;
        match event {
            Event::Call { id, payload } => {
                let id = id.map_or_else(|| service.new_id(), |id| request_id(&id));
                self.run(&service, room, id, payload).await
            }
            Event::Messages { queue, deliveries } => {
                let batch = Batch { queue: service.own_queue_name(&self.name, queue), deliveries };
                self.run_batch(&service, room, &batch).await
            }
            Event::Timer => {
                self.ticks.tick(&service, &self.name).await;
                Ok(Bytes::new())
            }
            Event::Failed { function, id, payload, reason } => {
                let id = id.map_or_else(|| service.new_id(), |id| request_id(&id));
                let failed = Told { function: &function, id: &id, payload: &payload, reason: &reason };
                let (own_id, payload) = failed.to(&self.name, &service);
                self.run(&service, room, own_id, payload).await
            }
        }
    }
}

/// An event that `function` gave up on, of which another is told.
#[derive(Debug)]
pub(crate) struct Told<'a> {
    pub(crate) function: &'a str,
    /// Its request id.
    pub(crate) id: &'a str,
    pub(crate) payload: &'a [u8],
    pub(crate) reason: &'a str,
}

impl Told<'_> {
    /// The request id under which `told` runs for it, and what that is given now.
    pub(crate) fn to(&self, told: &str, service: &Inner) -> (String, Bytes) {
        let Self { function, id, payload, reason } = *self;
        let function = own_name(function);
        let attempts = service.retries(function).map(|retries| 1 + retries);
        let failed = event::Failed { function, id, payload, reason, attempts };
        (told_id(told, function, id), event::failed(&failed, service.parts.clock.now()))
    }
}

impl Deployed {
    pub(crate) async fn run(
        &self,
        service: &Arc<Inner>,
        room: Room,
        id: String,
        payload: Bytes,
    ) -> Result<Bytes, Failure> {
        let function = service
            .function(&self.name)
            .ok_or_else(|| Failure::new(format!("there is no function {:?} any more", self.name)))?;
        let invocation = Invocation { room, ..Invocation::new(id, payload, true) };
        let ran = service.parts.runtime.run(&function, invocation).await;
        let ran = ran.map_err(|refused| Failure::new(refused.to_string()))?;
        ran.result.map_err(|FunctionError { payload }| Failure::new(failure::kept(&payload)))
    }
}
