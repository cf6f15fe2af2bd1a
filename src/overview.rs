//! The status of the running server: the figures of every layer, gathered at each request.
//!
//! Front ends and providers keep their own counters. Nothing is copied or added up between two
//! requests.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use coordination::Gateway;
use embedded::ObjectDirectory;
use http_frontend::{
    Snapshot,
    status::{
        Coordination, FAR_STORES_MAX, FarStore, Functions, Invocations, Memory, Metered, Phase,
        Status, Usage, Workflows,
    },
};
use ports::metering::{
    self, Meter,
    function_memory::{Category, FunctionMemoryUsage},
};
use transactions::Engine;
use zookeeper_frontend::Statistics;

use crate::{
    log::Log,
    provider::{NamedObjects, Provider},
};

/// The server as `/v1/status` and `/metrics` show it.
#[derive(Debug)]
pub(crate) struct Overview {
    started: Instant,
    provider: &'static str,
    log: Log,
    progress: Mutex<Progress>,
    opened: OnceLock<Sources>,
    zookeeper: OnceLock<Arc<Statistics>>,
}

#[derive(Debug, Clone, Default)]
struct Progress {
    phase: Phase,
    listeners: BTreeMap<String, String>,
}

/// The sources of the figures, once the stores are open.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) provider: Arc<Provider>,
    /// The directory for values of transactions, if it is a separate one.
    pub(crate) packs: Option<NamedObjects>,
    /// The number of blocked queue groups, if something checks that from time to time.
    pub(crate) blocked_groups: Arc<AtomicU64>,
    pub(crate) gateway: Gateway,
    pub(crate) engine: Engine,
    pub(crate) functions: functions::Service,
    pub(crate) workflows: workflows::Service,
    /// Function memory and the file of its keys, if S3 is served.
    pub(crate) memory: Option<(memory::Service, Option<PathBuf>)>,
    pub(crate) meters: Meters,
}

/// A meter for each service whose ports are metered.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    pub(crate) coordination: Arc<Meter>,
    pub(crate) transactions: Arc<Meter>,
    pub(crate) workflows: Arc<Meter>,
    pub(crate) memory: Arc<Meter>,
}

impl Meters {
    fn by_service(&self) -> [(&'static str, metering::Usage); 4] {
        [
            ("coordination", self.coordination.usage()),
            ("transactions", self.transactions.usage()),
            ("workflows", self.workflows.usage()),
            ("memory", self.memory.usage()),
        ]
    }
}

impl Overview {
    /// A server that has just begun to start, with the name of its provider and its log.
    pub(crate) fn new(provider: &'static str, log: Log) -> Self {
        Self {
            started: Instant::now(),
            provider,
            log,
            progress: Mutex::default(),
            opened: OnceLock::new(),
            zookeeper: OnceLock::new(),
        }
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.progress().phase = phase;
    }

    pub(crate) fn listens(&self, front_end: &str, address: impl fmt::Display) {
        self.progress()
            .listeners
            .insert(front_end.to_owned(), address.to_string());
    }

    pub(crate) fn knows(&self, sources: Sources) {
        self.opened
            .set(sources)
            .expect("the stores are opened once");
    }

    pub(crate) fn counts(&self, statistics: Arc<Statistics>) {
        self.zookeeper
            .set(statistics)
            .expect("a front end is opened once");
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress
            .lock()
            .expect("nothing panics while it holds this lock")
    }

    fn coordination(&self, gateway: &Gateway) -> Coordination {
        let (clients, watches) = gateway.counts();
        let statistics = self.zookeeper.get();
        let count = |figure: fn(&Statistics) -> u64| statistics.map_or(0, |all| figure(all));
        Coordination {
            sessions: clients as u64,
            connections: count(Statistics::connections_open),
            watches: watches as u64,
            zxid: gateway.applied().0,
            requests: count(|counted| counted.requests.get()),
            responses: count(|counted| counted.packets_sent.get()),
            malformed: count(|counted| counted.malformed.get()),
        }
    }
}

impl Snapshot for Overview {
    fn status(&self) -> Status {
        let Progress { phase, listeners } = self.progress().clone();
        let opened = self.opened.get();
        let provider = opened.map(|sources| &sources.provider);
        let packs = opened.and_then(|sources| sources.packs.as_ref()?.directory());
        let metered = opened.map_or_else(Vec::new, |sources| sources.meters.by_service().into());
        let sum = metered
            .iter()
            .fold(metering::Usage::default(), |sum, (_, used)| sum.plus(used));
        let looked = || opened.map_or(0, |sources| sources.blocked_groups.load(Ordering::Relaxed));
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            phase,
            uptime_ms: self.started.elapsed().as_millis() as u64,
            provider: self.provider.to_owned(),
            listeners,
            coordination: opened.map(|sources| self.coordination(&sources.gateway)),
            transactions: opened.map(|sources| sources.engine.figures()),
            functions: opened.map(|sources| functions(&sources.functions.figures())),
            workflows: opened.map(|sources| workflows(&sources.workflows)),
            memory: opened
                .and_then(|sources| sources.memory.as_ref())
                .map(memory_status),
            objects_full: packs.is_some_and(ObjectDirectory::is_full),
            objects_missing: packs.is_some_and(ObjectDirectory::is_missing),
            blocked_groups: provider
                .and_then(|provider| provider.blocked_groups())
                .unwrap_or_else(looked),
            journal: provider.and_then(|provider| provider.journal()),
            store: provider.and_then(|provider| provider.shared_store()),
            log_lines_dropped: self.log.dropped(),
            usage: usage(&sum),
            usage_by_service: metered
                .iter()
                .map(|(service, used)| ((*service).to_owned(), usage(used)))
                .collect(),
        }
    }
}

fn functions(figures: &functions::Figures) -> Functions {
    let (runtime, failed) = (&figures.runtime, &figures.runtime.failed);
    let failures = [
        ("function", failed.by_function),
        ("timed-out", failed.timed_out),
        ("out-of-memory", failed.out_of_memory),
        ("exited", failed.exited),
        ("not-started", failed.not_started),
        ("not-answered", failed.not_answered),
        ("too-long", failed.too_long),
        ("not-committed", failed.not_committed),
    ];
    Functions {
        deployed: figures.deployed,
        instances_busy: runtime.busy,
        instances_warm: runtime.warm,
        instances_frozen: runtime.frozen,
        invocations: runtime.invocations,
        cold_starts: runtime.cold_starts,
        adopted: runtime.adopted,
        spares: runtime.spares,
        throttled: runtime.throttled,
        unavailable: runtime.unavailable,
        failures: failures
            .into_iter()
            .map(|(kind, count)| (kind.to_owned(), count))
            .collect(),
        events_waiting: figures.events_waiting,
        dead_letters: figures.dead_letters,
    }
}

fn memory_status((service, file): &(memory::Service, Option<PathBuf>)) -> Memory {
    let figures = service.figures();
    let path = file.as_ref().map(|file| file.display().to_string());
    Memory {
        instances: figures.instances as u64,
        fragments: figures.fragments as u64,
        groups_active: figures.groups_active as u64,
        groups_degraded: figures.groups_degraded as u64,
        groups_released: figures.groups_released,
        fragments_refused: figures.fragments_refused,
        buffered_bytes: figures.buffered_bytes,
        buffered_fragments: figures.buffered_fragments as u64,
        metered: metered(&service.usage()),
        credentials: path.unwrap_or_default(),
    }
}

fn workflows(service: &workflows::Service) -> Workflows {
    let figures = service.figures();
    let stores = service.far_stores();
    let far_stores_more = stores.len().saturating_sub(FAR_STORES_MAX) as u64;
    let shown = stores.into_iter().take(FAR_STORES_MAX);
    let far_stores = shown.map(|(address, store)| FarStore {
        address,
        reachable: store.trouble.is_none(),
        trouble: store.trouble,
        answered_ms_ago: store.answered.map(|answered| answered.as_millis() as u64),
        waiting_bytes: store.waiting_bytes,
        waiting_ms: store.waiting_for.as_millis() as u64,
        stopped_runs: store.stopped_runs,
    });
    Workflows {
        active: figures.active,
        begun: figures.begun,
        succeeded: figures.succeeded,
        failed: figures.failed,
        cancelled: figures.cancelled,
        far_stores: far_stores.collect(),
        far_stores_more,
    }
}

fn metered(usage: &FunctionMemoryUsage) -> Metered {
    let invocations = |category| {
        let counted = usage.of(category);
        Invocations {
            count: counted.count,
            bytes: counted.bytes,
        }
    };
    let byte_seconds = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
    Metered {
        io: invocations(Category::Io),
        warm_up: invocations(Category::WarmUp),
        recovery: invocations(Category::Recovery),
        instance_bytes: usage.instance_bytes,
        running_bytes: usage.running.bytes,
        running_byte_seconds: byte_seconds(usage.running.byte_seconds),
        resident_bytes: usage.resident.bytes,
        resident_bytes_max: usage.resident.bytes_max,
        stored_bytes: usage.stored.bytes,
        stored_byte_seconds: byte_seconds(usage.stored.byte_seconds),
    }
}

fn usage(usage: &metering::Usage) -> Vec<Usage> {
    let lines = usage.operations().map(|(operation, count)| Usage {
        operation: operation.name().to_owned(),
        calls: count.calls,
        failures: count.failures,
        items: count.items,
        bytes: count.bytes,
    });
    lines.collect()
}
