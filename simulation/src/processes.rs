//! Processes of the program on one store: each with functions, a place in the log and a membership of its own.
//!
//! What runs here is what `landfast serve` runs on a shared store: triggers that compete for messages, a watch function
//! that reaches its own process alone, a member that renews its session. Only the store, time and chance are simulated. A
//! process may die, stand still, or be cut off from the store while its clock goes on ([`reach`]); clients and operators
//! are somebody else's ([`crate::actor`]).
//!
//! Each process says all the time what it would answer: whether it may, what it leads, whom it takes for gone
//! ([`witness`]). That is compared over all processes, at each moment.

pub mod reach;
pub mod witness;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use coordination::{Config, Parts, Region, Service};
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
    reach::{Reach, ReachedClock, ReachedKeyValue, ReachedQueue},
    witness::Witness,
};

/// How long a message stays with a process that is not heard of, as in the program.
const MESSAGES_HIDDEN: Duration = Duration::from_secs(2);
/// How often a process that has clients looks at the log, as in the program.
const LOOK_AT_LOG: Duration = Duration::from_millis(500);
/// How long a process waits before it starts or joins again.
const AGAIN_AFTER: Duration = Duration::from_millis(250);
/// How often it says what it would answer.
const SAYS_EVERY: Duration = Duration::from_millis(25);

/// Which rules are dropped.
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
    witness: Arc<Mutex<Witness>>,
    running: Mutex<Vec<Process>>,
}

/// The node that a process is at the moment.
type Node = Arc<Mutex<Option<NodeId>>>;

/// One process.
#[derive(Debug)]
pub struct Process {
    reach: Reach,
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
    /// None yet, on the store of `world`.
    pub fn new(world: &World, dropped: Dropped) -> Self {
        let (numbers, witness, running) = Default::default();
        Self {
            world: world.clone(),
            dropped,
            numbers,
            witness,
            running,
        }
    }

    /// Starts one more, which joins as soon as it can.
    pub fn start(&self) {
        let reach = Reach::new(self.world.clock());
        let parts = self.parts(&reach);
        let (clock, functions) = (parts.clock.clone(), Arc::new(self.functions(&reach)));
        let (broken, log_look_period) = (self.dropped.coordination, Some(LOOK_AT_LOG));
        let config = Config {
            broken,
            log_look_period,
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
            self.dropped.membership,
        ));
        let node = Node::default();
        let starting = Starting {
            service,
            membership: Arc::clone(&membership),
            clock: Arc::clone(&clock),
            numbers: Arc::clone(&self.numbers),
            node: Arc::clone(&node),
        };
        let says = says(
            Arc::clone(&self.witness),
            clock,
            Arc::clone(&membership),
            Arc::clone(&node),
        );
        let tasks = vec![tokio::spawn(starting.run()), tokio::spawn(says)];
        held(&self.running).push(Process {
            reach,
            membership,
            node,
            tasks,
        });
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        held(&self.running).len()
    }

    /// What `process` can do, to be changed.
    pub fn reach(&self, process: usize) -> Reach {
        held(&self.running)[process].reach.clone()
    }

    /// Ends `process` where it stands, between any two of its calls. Says which node it was.
    pub fn kill(&self, process: usize) -> Option<NodeId> {
        let process = held(&self.running).remove(process);
        process.reach.end();
        *held(&process.node)
    }

    /// Whether every process is a member, and knows of all others and of nobody else.
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

    /// Whether `node` is no member any more for anybody who is one.
    pub fn have_missed(&self, node: NodeId) -> bool {
        let running = held(&self.running);
        running
            .iter()
            .all(|process| !process.membership.members().nodes.contains_key(&node))
    }

    /// What was said.
    pub fn witness(&self) -> MutexGuard<'_, Witness> {
        held(&self.witness)
    }

    fn parts(&self, reach: &Reach) -> Parts {
        let world = &self.world;
        let items = Arc::new(ReachedKeyValue::new(world.key_value(), reach.clone()));
        Parts {
            system: items.clone(),
            regions: vec![Region {
                items,
                objects: world.objects(),
            }],
            queue: Arc::new(ReachedQueue::new(world.queue(), reach.clone())),
            functions: world.functions(),
            clock: Arc::new(ReachedClock::new(world.skewed_clock(), reach.clone())),
            entropy: world.entropy(),
        }
    }

    fn functions(&self, reach: &Reach) -> Functions {
        let queue = Arc::new(ReachedQueue::new(self.world.queue(), reach.clone()));
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

    /// Joins, and again under another number whenever the lease has run out.
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

/// Says again and again what a process would answer.
async fn says(
    witness: Arc<Mutex<Witness>>,
    clock: Arc<dyn Clock>,
    membership: Arc<Coordinated>,
    node: Node,
) {
    loop {
        let node = *held(&node);
        if let Some(node) = node {
            held(&witness).hears(node, clock.monotonic(), &*membership);
        }
        clock.sleep(SAYS_EVERY).await;
    }
}

fn held<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
