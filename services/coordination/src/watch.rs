//! The watch function: announces applied slots to the clients of its process.
//!
//! A watch is state of the gateway that its client is connected to, and ends with the connection,
//! as in ZooKeeper ([`crate::tail::watches`]). The distributor knows no watches. In this we depart
//! from FaaSKeeper (sections 3.3 and 4.4). Its watches are rows that the distributor reads on every
//! change, and its epoch counter tells clients of deliveries under way. Here every gateway reads
//! the distributor's log in order, so the log is the epoch: the slots between a gateway's position
//! and the cursor are under way.
//!
//! The watch *function* remains: a function that the distributor invokes with each applied slot,
//! and that wakes the gateways of its process. If a wake-up is lost, the log still has the slot.

use async_trait::async_trait;
use bytes::Bytes;
use ports::{Event, Handler, functions::Failure};

use crate::{
    records::{Wake, decode},
    tail::Tail,
};

#[async_trait]
impl Handler for Tail {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let Event::Call { payload, .. } = event else {
            return Err(Failure::new("the watch function accepts only calls"));
        };
        let wake: Wake = decode(&payload, "a wake-up")?;
        self.announce(wake);
        Ok(Bytes::new())
    }
}
