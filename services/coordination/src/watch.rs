//! Watches: who is to hear of which change, and the function that brings the news.
//!
//! A watch lives in the gateway that its client is connected to, and dies with the connection, as in
//! ZooKeeper; the distributor knows nothing of it. That is where this departs from FaaSKeeper (sections 3.3
//! and 4.4), whose watches are rows that the distributor reads on every change and whose epoch counter
//! tells clients of deliveries under way. Here every gateway reads the distributor's log in order, so the
//! log itself is the epoch: what lies between a gateway's place in it and the cursor is under way.
//!
//! The watch *function* stays: a free function that the distributor invokes with each applied slot, and
//! that wakes the gateways of its process. If the wake-up is lost the log still has the slot.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use ports::{Event, Handler, functions::Failure};

use crate::{
    records::{Wake, decode},
    tail::Tail,
};

/// The watch function of one process.
#[derive(Debug)]
pub struct Watch {
    tail: Arc<Tail>,
}

impl Watch {
    /// Wakes `tail`.
    pub fn new(tail: Arc<Tail>) -> Self {
        Self { tail }
    }
}

#[async_trait]
impl Handler for Watch {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let Event::Call { payload, .. } = event else {
            return Err(Failure::new("the watch function is called only"));
        };
        let wake: Wake = decode(&payload, "a wake-up")?;
        self.tail.offer(wake);
        Ok(Bytes::new())
    }
}
