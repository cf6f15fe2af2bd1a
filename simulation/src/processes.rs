//! Processes of the program on one store, each with its functions, its follower of the log and its
//! membership.
//!
//! They run the code of `landfast serve` on a shared store: triggers that compete for messages, a
//! watch function that only reaches its own process, and a member that renews its session. Only the
//! store, time and randomness are simulated. A process may die, pause, or be partitioned from the
//! store while its clock continues ([`partitionable`]). Clients and operators are elsewhere
//! ([`crate::actor`]).
//!
//! Each process reports continuously how it would answer: whether it may answer, what it leads, and
//! which nodes it considers gone. The [`observer`] compares the reports of all processes at each
//! moment.

pub mod observer;
pub mod partitionable;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use coordination::{Config, Gateway, Parts, Service};
use in_process::Functions;
use ports::Clock;
use simulated::World;
use tokio::task::JoinHandle;
use transactions::{
    broken::Broken,
    membership::{Address, Coordinated, Membership},
    model::NodeId,
};

use self::{
    observer::Observer,
    partitionable::{
        PartitionableClock, PartitionableKeyValue, PartitionableQueue, ProcessControl,
    },
};

/// How long a message stays with a process that does not extend it, as in the program.
const MESSAGES_HIDDEN: Duration = Duration::from_secs(2);
/// How often a process with clients polls the log, as in the program.
const LOOK_AT_LOG: Duration = Duration::from_millis(500);
/// The pause before a process starts or joins again.
const AGAIN_AFTER: Duration = Duration::from_millis(250);
/// How often a process reports how it would answer.
const SAYS_EVERY: Duration = Duration::from_millis(25);

/// The rules that a mutant drops.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dropped {
    /// Of coordination.
    pub coordination: Option<coordination::broken::Broken>,
    /// Of membership.
    pub membership: Option<Broken>,
}

/// All processes of one store.
#[derive(Debug)]
pub struct Processes {
    world: World,
    dropped: Dropped,
    numbers: Arc<AtomicU32>,
    observer: Arc<Mutex<Observer>>,
    running: Mutex<Vec<Process>>,
}

/// The present node of a process.
type Node = Arc<Mutex<Option<NodeId>>>;

/// One process.
#[derive(Debug)]
pub struct Process {
    control: ProcessControl,
    gateway: Gateway,
    membership: Arc<Coordinated>,
    node: Node,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Processes {
    /// No processes yet, on the store of `world`.
    pub fn new(world: &World, dropped: Dropped) -> Self {
        let (numbers, observer, running) = Default::default();
        Self {
            world: world.clone(),
            dropped,
            numbers,
            observer,
            running,
        }
    }

    /// Starts one more process, which joins as soon as it can.
    pub fn start(&self) {
        let control = ProcessControl::new(self.world.clock());
        let parts = self.parts(&control);
        let (clock, functions) = (parts.clock.clone(), Arc::new(self.functions(&control)));
        let log_poll_period = Some(LOOK_AT_LOG);
        let config = Config {
            mutant: self.dropped.coordination.into(),
            log_poll_period,
            ..Config::default()
        };
        let service = Arc::new(Service::new(
            Parts {
                functions: Arc::clone(&functions) as Arc<_>,
                ..parts
            },
            config,
        ));
        for definition in service.functions() {
            functions.register(definition);
        }
        let membership = Arc::new(Coordinated::with(
            service.gateway(),
            Arc::clone(&clock),
            Address("somewhere".into()),
            self.dropped.membership.into(),
        ));
        let (node, gateway) = (Node::default(), service.gateway());
        let starting = Starting {
            service,
            membership: Arc::clone(&membership),
            clock: Arc::clone(&clock),
            numbers: Arc::clone(&self.numbers),
            node: Arc::clone(&node),
        };
        let says = says(
            Arc::clone(&self.observer),
            clock,
            Arc::clone(&membership),
            Arc::clone(&node),
        );
        let tasks = vec![tokio::spawn(starting.run()), tokio::spawn(says)];
        held(&self.running).push(Process {
            control,
            gateway,
            membership,
            node,
            tasks,
        });
    }

    /// The number of processes.
    pub fn count(&self) -> usize {
        held(&self.running).len()
    }

    /// The controls of `process`.
    pub fn control(&self, process: usize) -> ProcessControl {
        held(&self.running)[process].control.clone()
    }

    /// The gateway of `process`, to which clients connect.
    pub fn gateway(&self, process: usize) -> Gateway {
        held(&self.running)[process].gateway.clone()
    }

    /// Kills `process` between any two of its calls. Returns its node.
    pub fn kill(&self, process: usize) -> Option<NodeId> {
        let process = held(&self.running).remove(process);
        process.control.end();
        *held(&process.node)
    }

    /// Whether every process is a member and knows exactly all others.
    pub fn are_whole(&self) -> bool {
        let running = held(&self.running);
        let mut nodes: Vec<NodeId> = running
            .iter()
            .filter_map(|process| *held(&process.node))
            .collect();
        nodes.sort_unstable();
        let knows_all = |process: &Process| {
            process
                .membership
                .members()
                .nodes
                .into_keys()
                .eq(nodes.iter().copied())
        };
        nodes.len() == running.len() && running.iter().all(knows_all)
    }

    /// Whether no member considers `node` a member any more.
    pub fn have_missed(&self, node: NodeId) -> bool {
        let running = held(&self.running);
        running
            .iter()
            .all(|process| !process.membership.members().nodes.contains_key(&node))
    }

    /// The reports so far.
    pub fn observer(&self) -> MutexGuard<'_, Observer> {
        held(&self.observer)
    }

    fn parts(&self, control: &ProcessControl) -> Parts {
        let world = &self.world;
        let items = Arc::new(PartitionableKeyValue::new(
            world.key_value(),
            control.clone(),
        ));
        Parts {
            system: items.clone(),
            items,
            objects: world.objects(),

            queue: Arc::new(PartitionableQueue::new(world.queue(), control.clone())),
            functions: world.functions(),
            clock: Arc::new(PartitionableClock::new(
                world.skewed_clock(),
                control.clone(),
            )),
            entropy: world.entropy(),
        }
    }

    fn functions(&self, control: &ProcessControl) -> Functions {
        let queue = Arc::new(PartitionableQueue::new(self.world.queue(), control.clone()));
        Functions::over_shared_queue(queue, MESSAGES_HIDDEN, &*self.world.entropy())
    }
}

/// A process from its start on.
struct Starting {
    service: Arc<Service>,
    membership: Arc<Coordinated>,
    clock: Arc<dyn Clock>,
    numbers: Arc<AtomicU32>,
    node: Node,
}

impl Starting {
    async fn run(self) {
        while self.service.start().await.is_err() {
            self.clock.sleep(AGAIN_AFTER).await;
        }
        tokio::select! {
            biased;
            () = self.service.run() => {}
            () = self.stay() => {}
        }
    }

    /// Joins, and joins again under a new number whenever the lease has expired.
    async fn stay(&self) {
        loop {
            let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
            if self.membership.join(NodeId(number)).await.is_ok() {
                *held(&self.node) = Some(NodeId(number));
                while !self.membership.members().nodes.is_empty() {
                    self.membership
                        .changed(self.membership.members().view)
                        .await;
                }
                *held(&self.node) = None;
            }
            self.clock.sleep(AGAIN_AFTER).await;
        }
    }
}

/// Reports repeatedly how a process would answer.
async fn says(
    observer: Arc<Mutex<Observer>>,
    clock: Arc<dyn Clock>,
    membership: Arc<Coordinated>,
    node: Node,
) {
    loop {
        let node = *held(&node);
        if let Some(node) = node {
            held(&observer).record(node, clock.monotonic(), &*membership);
        }
        clock.sleep(SAYS_EVERY).await;
    }
}

fn held<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
