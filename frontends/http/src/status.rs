//! The status of the server: one value behind `/v1/status`, `/metrics`, `/health/ready` and the page,
//! so that they cannot disagree.
//!
//! The command line reads the same type back. Fields may be added; none is renamed or changes its unit.

use std::{collections::BTreeMap, fmt::Debug};

use serde::{Deserialize, Serialize};
use transactions::Figures;

/// Gives the status as it is now. Called once per request: it must not block.
pub trait Snapshot: Debug + Send + Sync {
    /// The status now.
    fn status(&self) -> Status;
}

/// The phase of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Stores are being opened; nothing is served yet.
    #[default]
    Starting,
    /// Every listener accepts.
    Ready,
    /// Connections are being ended.
    Stopping,
}

/// The whole status.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// The phase of the server.
    pub phase: Phase,
    /// Milliseconds since the server started.
    pub uptime_ms: u64,
    /// The provider of key-value items and queues.
    pub provider: String,
    /// Front ends by name, with the address each accepts on.
    pub listeners: BTreeMap<String, String>,
    /// The coordination service, once it runs.
    pub coordination: Option<Coordination>,
    /// The transactions service, once it runs.
    pub transactions: Option<Figures>,
    /// The functions that are deployed, once they can be run.
    pub functions: Option<Functions>,
    /// Workflows, once they can be run.
    pub workflows: Option<Workflows>,
    /// Function memory and its S3 endpoint, if it is served.
    pub memory: Option<Memory>,
    /// The provider's journal, if it keeps one.
    pub journal: Option<Journal>,
    /// The shared store, if the provider is one.
    pub store: Option<Store>,
    /// Whether the disk of `--objects` is full: it refused the last value, and still has no room.
    pub objects_full: bool,
    /// Whether the directory of `--objects` is not the one that was opened, as where a mount has fallen off.
    pub objects_missing: bool,
    /// Queue groups whose first message has failed permanently and blocks the later ones (rule P1). An
    /// operator has to look.
    pub blocked_groups: u64,
    /// Lines of the log that were dropped, because stderr was not read or its disk was full.
    pub log_lines_dropped: u64,
    /// The calls of each port since the start.
    pub usage: Vec<Usage>,
    /// The same by service.
    pub usage_by_service: BTreeMap<String, Vec<Usage>>,
}

impl Status {
    /// Why no traffic should be sent here. `None`: it should.
    pub fn why_not_ready(&self) -> Option<&'static str> {
        match self.phase {
            Phase::Starting => return Some("the server is starting"),
            Phase::Stopping => return Some("the server is stopping"),
            Phase::Ready => {}
        }
        let (journal, store) = (self.journal.as_ref(), self.store.as_ref());
        let figures = self.transactions.as_ref();
        if journal.is_some_and(|journal| !journal.serving) {
            Some("the store is recovering from a failed write")
        } else if journal.is_some_and(|journal| journal.full) {
            Some(
                "the disk is full: writes are refused until something is deleted or room is made, reads go on",
            )
        } else if self.objects_missing {
            Some(
                "the directory of --objects is not the one that was opened: values over 1 KiB are neither written nor read until it is back",
            )
        } else if self.objects_full {
            Some(
                "the disk of --objects is full: values over 1 KiB are refused until something is deleted or room is made",
            )
        } else if store.is_some_and(|store| !store.serving) {
            Some("the store cannot be reached")
        } else if figures.is_some_and(|figures| figures.starting_over) {
            Some("transactions do not start: the log says why")
        } else {
            None
        }
    }
}

/// The coordination service in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Coordination {
    /// Sessions this process answers for.
    pub sessions: u64,
    /// Connections of clients.
    pub connections: u64,
    /// Watches that clients have armed.
    pub watches: u64,
    /// The last zxid applied.
    pub zxid: i64,
    /// Requests read from clients since the start.
    pub requests: u64,
    /// Replies and events written to clients since the start.
    pub responses: u64,
    /// Connections closed, and requests refused, since the start because of malformed packets.
    pub malformed: u64,
}

/// Deployed functions in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Functions {
    /// Functions that are deployed.
    pub deployed: u64,
    /// Instances that have an invocation.
    pub instances_busy: u64,
    /// Idle instances that run.
    pub instances_warm: u64,
    /// Idle instances that are frozen.
    pub instances_frozen: u64,
    /// Invocations that were given to an instance since the start.
    pub invocations: u64,
    /// New instances that were started for a call since the start.
    pub cold_starts: u64,
    /// Those of them for which a spare interpreter stood ready.
    pub adopted: u64,
    /// Interpreters that stand ready for instances to come.
    pub spares: u64,
    /// Calls refused since the start because all instances were at work.
    pub throttled: u64,
    /// Calls refused since the start because no instance could be started.
    pub unavailable: u64,
    /// Invocations that failed since the start, by how: a fixed list.
    pub failures: BTreeMap<String, u64>,
    /// Events and messages that wait for a function or are with one, as seen some seconds ago.
    pub events_waiting: u64,
    /// Those that were given up, as seen some seconds ago.
    pub dead_letters: u64,
}

/// Function memory in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Instances of function memory.
    pub instances: u64,
    /// Fragments of objects in their memory.
    pub fragments: u64,
    /// Groups of instances that are active.
    pub groups_active: u64,
    /// Groups of instances that are released later, unless their objects are read.
    pub groups_degraded: u64,
    /// Groups of instances that were released since the start.
    pub groups_released: u64,
    /// Fragments since the start that had no place in function memory.
    pub fragments_refused: u64,
    /// Bytes in the buffer before a distant object store.
    pub buffered_bytes: u64,
    /// Fragments in the buffer, which a distant object store does not have yet.
    pub buffered_fragments: u64,
    /// The use that costs money.
    pub metered: Metered,
    /// The file with the keys of S3 clients; empty if the environment gave them.
    pub credentials: String,
}

/// The use of function memory since the start, for `landfast cost`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Metered {
    /// For reads and writes of objects.
    pub io: Invocations,
    /// To keep instances from being reclaimed.
    pub warm_up: Invocations,
    /// To bring chunks back after the death of an instance.
    pub recovery: Invocations,
    /// The memory limit of an instance; 0: none was started.
    pub instance_bytes: u64,
    /// The memory of all instances that run.
    pub running_bytes: u64,
    /// The same times the seconds that it ran.
    pub running_byte_seconds: u64,
    /// Content of objects in function memory, without parity.
    pub resident_bytes: u64,
    /// The most of it at any time.
    pub resident_bytes_max: u64,
    /// Bytes in the object store of objects that were written since the start.
    pub stored_bytes: u64,
    /// The same times the seconds that they were stored.
    pub stored_byte_seconds: u64,
}

/// Invocations of functions that a cloud would bill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Invocations {
    /// Their number. Failed ones count.
    pub count: u64,
    /// The bytes that they moved into or out of functions.
    pub bytes: u64,
}

/// Workflows in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Workflows {
    /// Runs under way.
    pub active: u64,
    /// Runs begun since the start.
    pub begun: u64,
    /// Runs that have succeeded since the start.
    pub succeeded: u64,
    /// Runs that have failed permanently since the start.
    pub failed: u64,
    /// Runs that were cancelled since the start.
    pub cancelled: u64,
    /// The far stores that were used since the start, in the order of their addresses, [`FAR_STORES_MAX`] at most.
    pub far_stores: Vec<FarStore>,
    /// How many more there are.
    pub far_stores_more: u64,
}

/// Far stores that are shown one by one.
pub const FAR_STORES_MAX: usize = 16;

/// A far store of workflows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FarStore {
    /// Its address, without what opens it.
    pub address: String,
    /// Whether it answered as it should when it was last needed.
    pub reachable: bool,
    /// Why not, if not.
    pub trouble: Option<String>,
    /// How long ago a write or a sign of life was sent that it has answered, in milliseconds; none: none since it was opened.
    pub answered_ms_ago: Option<u64>,
    /// Bytes ordered here that are not durable there.
    pub waiting_bytes: u64,
    /// How long the oldest of them has waited.
    pub waiting_ms: u64,
    /// Runs whose writes a permanent error of it has stopped.
    pub stopped_runs: u64,
}

/// The journal in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Journal {
    /// Whether it takes changes and answers reads now.
    pub serving: bool,
    /// Whether the disk is full, for the journal or for objects: writes fail, reads go on.
    pub full: bool,
    /// The last fault that has not been repaired, if any.
    pub trouble: Option<String>,
    /// Bytes not yet folded into the checkpoint store.
    pub bytes: u64,
    /// The position of the last change in order.
    pub position: u64,
    /// The position up to which changes are durable.
    pub durable: u64,
    /// How often it was synced to disk since the start.
    pub syncs: u64,
    /// How often it was folded into the checkpoint store since the start.
    pub checkpoints: u64,
}

/// A shared store: servers that other processes reach too.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Store {
    /// The servers that take writes, as host and port.
    pub servers: Vec<String>,
    /// The durability of an acknowledged write: `append-only-file`, `replicas-N` or `memory`.
    pub acknowledged: String,
    /// Whether every server could be used when it was last needed.
    pub serving: bool,
    /// Why not, if not.
    pub trouble: Option<String>,
}

/// One operation of one port.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// The port's method: `key_value.update`, `queue.send`.
    pub operation: String,
    /// How often it was called.
    pub calls: u64,
    /// How many of the calls returned an error.
    pub failures: u64,
    /// Items, messages or objects carried by it.
    pub items: u64,
    /// Bytes carried by it in either direction.
    pub bytes: u64,
}
