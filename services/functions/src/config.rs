//! The ports and settings that the service is built from.

use std::sync::Arc;

use ports::{
    Clock, CodeStore, Entropy, Logs, Runtime,
    functions::Register,
    key_value::SharedKeyValue,
    objects::ObjectStore,
    queue::{SharedQueue, SharedQueueAdmin},
};

/// The parts of the service.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The store of the deployment rows.
    pub key_value: SharedKeyValue,
    /// The store of their archives.
    pub objects: Arc<dyn ObjectStore>,
    /// The queues that start functions.
    pub queue: SharedQueue,
    /// The administration of these queues: backlogs and dead letters.
    pub queue_admin: SharedQueueAdmin,
    /// The provider's name of a client's queue.
    pub queue_name: fn(&str) -> String,
    /// Checks the address of a far store. The error must not contain the address, which may hold a
    /// password.
    pub check_far: fn(&str) -> std::result::Result<(), String>,
    /// Whether functions reach objects here.
    pub serves_objects: bool,
    /// Whether other processes deploy to the same store.
    pub among_others: bool,
    /// Decides when functions run.
    pub functions: Arc<dyn Register>,
    /// Keeps the unpacked code in this process.
    pub code_store: Arc<dyn CodeStore>,
    /// Runs functions.
    pub runtime: Arc<dyn Runtime>,
    /// The lines that functions printed.
    pub logs: Arc<dyn Logs>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The source of ids that are unique and cannot be guessed.
    pub entropy: Arc<dyn Entropy>,
}
