//! The Functions port over deployed functions, for other services, which use the functions' own
//! names.
//!
//! Only manifests arm queue triggers and timers, so those calls are refused here.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    Error, Functions, Receipt, Result,
    functions::{FunctionLimits, QueueTrigger},
    runtime::Invocation,
};

use crate::{
    error::Error as ServiceError,
    ids::registered_name,
    service::{EVENT_BYTES_MAX, Service},
};

const LIMITS: FunctionLimits = FunctionLimits {
    payload_bytes_max: EVENT_BYTES_MAX,
    timeout_max: Duration::from_mins(15),
};

#[async_trait]
impl Functions for Service {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Bytes> {
        let attempted = || format!("invoke the function {function:?}");
        let invocation = Invocation::new(self.new_request_id(), payload, false);
        match self.run(function, invocation).await {
            Ok(ran) => ran.result.map_err(|error| {
                Error::invalid(format!(
                    "{}: {}",
                    attempted(),
                    String::from_utf8_lossy(&error.payload)
                ))
            }),
            Err(error) => Err(Error::invalid(attempted()).caused_by(error)),
        }
    }

    async fn send(&self, function: &str, id: Option<Bytes>, payload: Bytes) -> Result<Receipt> {
        // It existed when the send was promised, and may exist again: after the start, or after a
        // deployment (A8).
        if self.function(function).is_err() {
            return Err(Error::unavailable(format!(
                "run {function:?}, which is not deployed"
            )));
        }
        self.events()
            .send(&registered_name(function), id, payload)
            .await
    }

    async fn knows(&self, function: &str) -> Result<bool> {
        match self.function(function) {
            Ok(_) => return Ok(true),
            Err(ServiceError::Port(not_yet)) => return Err(not_yet),
            Err(_) => {}
        }
        // Transactions are served before all deployments are in place.
        if self.context.lookup.catalogue.is_in_place() {
            return Ok(false);
        }
        Err(Error::unavailable(format!(
            "find the function {function:?} while functions are put in place"
        )))
    }

    async fn arm_queue(&self, trigger: QueueTrigger) -> Result<()> {
        Err(by_manifest(&trigger.function))
    }

    async fn disarm_queue(&self, queue: &str) -> Result<()> {
        Err(by_manifest(queue))
    }

    async fn arm_timer(&self, function: &str, _: Duration) -> Result<()> {
        Err(by_manifest(function))
    }

    async fn disarm_timer(&self, function: &str) -> Result<()> {
        Err(by_manifest(function))
    }

    fn limits(&self) -> &FunctionLimits {
        &LIMITS
    }
}

fn by_manifest(of: &str) -> Error {
    Error::invalid(format!(
        "arm or disarm {of:?}: triggers of deployed functions are set by their manifests"
    ))
}
