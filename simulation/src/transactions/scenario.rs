//! Running a scenario for many seeds: the clients, the faults, the disasters, the checks, and the
//! command that replays a failure.

use std::{collections::BTreeMap, ops::Range, panic, rc::Rc, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use futures_util::future::join_all;
use simulated::{Options, World};
use transactions::{
    Config, Figures,
    broken::Broken,
    layout::Buckets,
    model::{Begin, Begun, Call, Isolation, Key, Outcome as Became, TransactionId},
};

pub use super::fault_schedule::Disaster;
use super::{
    client::{self, Habits, Record},
    cluster::{Among, Cluster, Connection, Failure},
    crashable::Life,
    effects::{self, Receipt, Receipts},
    ensemble::Ensemble,
    fault_schedule::FaultSchedule,
    fractures,
    history::{Answer, Execution, Writer},
    leftovers,
    network::{Network, Trouble},
    outcomes, serializability,
    stored_state::StoredState,
    workload::{Mix, key},
};
pub use crate::scenario::seeds;
use crate::{budget::Budget, faults::FaultProfile};

/// The wait after the clients are done and the faults have ended. By then every abandoned attempt
/// has timed out, every window but that of client ids has passed, and the store has been swept.
const AFTERWARDS: Duration = Duration::from_mins(30);

/// The number of buckets. It is small because a sweep and the final checks read each bucket twice.
const BUCKETS: Buckets = Buckets::through(3);

/// How often the checks poll whether a node serves again after its store lost data, and how long
/// that may take.
const STARTS_MAX: usize = 100;
const START: Duration = Duration::from_millis(100);

/// By how much the end of a window must lie after a repeated request whose outcome must still be
/// known.
const WINDOW_SLACK: Duration = Duration::from_secs(20);

/// After this time every node knows of a commit, if no fault strikes.
const SEEN_WITHIN: Duration = Duration::from_secs(2);

/// A scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The transactions.
    pub mix: Mix,
    /// The behaviour of their clients.
    pub habits: Habits,
    /// The faults of port calls.
    pub fault_profile: FaultProfile,
    /// The faults of nodes and store, in this order.
    pub disasters: Vec<Disaster>,
    /// The number of nodes.
    pub nodes: usize,
    /// With several nodes: whether the keyspace is sequenced before the clients begin.
    pub sequenced: bool,
    /// The faults of the network between them.
    pub network: Trouble,
    /// The largest difference of their clocks.
    pub skew: Duration,
    /// By how much the clock of each start is behind that of the previous one.
    pub clock_set_back: Duration,
    /// The time after which an acknowledged commit must be visible; none: a replaced node may
    /// return older values.
    pub seen_within: Option<Duration>,
    /// Whether no leftovers may exist at the end.
    pub leaves_nothing: bool,
    /// Whether values go into packs.
    pub packs: bool,
    /// The settings of the service.
    pub config: Config,
    /// The options of the cloud.
    pub cloud: Options,
}

/// Small transactions on few keys, without faults.
impl Default for Scenario {
    fn default() -> Self {
        Self {
            mix: Mix {
                functions: 2,
                reads: 2,
                writes: 1,
                value_bytes: 0,
                keys: 6,
                zipf: 0.5,
                one_delete_in: 6,
                clients: 3,
                transactions: 30,
                reads_together: false,
                effects: 0,
            },
            habits: Habits {
                one_named_in: 2,
                pause: Duration::from_millis(10),
                ..Habits::default()
            },
            fault_profile: FaultProfile::Calm,
            disasters: Vec::new(),
            nodes: 1,
            sequenced: false,
            network: Trouble::default(),
            skew: Duration::ZERO,
            clock_set_back: Duration::ZERO,
            seen_within: Some(Duration::ZERO),
            leaves_nothing: true,
            packs: false,
            config: Config {
                buckets: BUCKETS,
                ..Config::default()
            },
            cloud: Options::default(),
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The violations.
    pub violations: Vec<String>,
    /// The number of port calls, including those of the checks.
    pub port_calls: u64,
    /// How many of them fell into an hour without transactions.
    pub idle_port_calls: u64,
    /// The number of acknowledged commits.
    pub committed: usize,
    /// A hash of the whole run.
    pub trace_hash: u64,
}

impl Scenario {
    /// The same scenario with a rule dropped.
    pub fn without(mut self, rule: Broken) -> Self {
        self.config.mutant = rule.into();
        self
    }

    /// Runs one seed.
    pub fn run(&self, seed: u64) -> Outcome {
        simulated::run(self.clone().play(seed))
    }

    async fn play(self, seed: u64) -> Outcome {
        let mut cloud = self.cloud.clone();
        // Commits are grouped if the store can, and proceed step by step in every second run.
        cloud.key_value.transact_across_partitions &= seed.is_multiple_of(2);
        let world = World::with_options(seed, cloud);
        let mut rng = Rng::with_seed(seed);
        let cluster = self.cluster(&world, seed);
        let skews = self.boot(&cluster, &mut rng).await;
        if self.sequenced {
            sequence(&cluster).await;
        }
        let receipts = if self.mix.effects > 0 {
            effects::receive(&world, rng.fork()).await
        } else {
            Receipts::default()
        };
        self.fault_profile.strike(&world);
        let record = Record::default();
        let clients = (0..self.mix.clients).map(|number| {
            let record = Rc::clone(&record);
            client::work(
                cluster.clone(),
                number,
                self.mix,
                self.habits,
                record,
                rng.fork(),
            )
        });
        let clients = join_all(clients.collect::<Vec<_>>());
        let mut schedule = FaultSchedule {
            disasters: &self.disasters,
            apart: Duration::ZERO,
            clock_set_back: self.clock_set_back,
            cluster: &cluster,
            rng,
            skew_ms: 0,
            skews,
        };
        let is_done = tokio::select! {
            biased;
            _ = clients => true,
            () = schedule.strike() => unreachable!("disasters never end by themselves"),
            () = tokio::time::sleep(Duration::from_hours(1)) => false,
        };
        schedule.heal().await;
        receipts.calm();
        let executions = record.take();
        if std::env::var_os("LANDFAST_HISTORY").is_some() {
            println!("{executions:#?}\n{}", world.trace());
        }
        if !is_done {
            return Outcome {
                violations: vec!["a client waited for an hour".to_owned()],
                ..Outcome::default()
            };
        }
        self.judge(&cluster, &executions, &receipts).await
    }

    /// Starts a node at each place; returns the errors of their clocks in milliseconds.
    async fn boot(&self, cluster: &Cluster, rng: &mut Rng) -> Vec<i64> {
        let mut skews = Vec::new();
        for place in 0..self.nodes {
            let skew = if self.nodes > 1 {
                self.skew.mul_f64(rng.f64()).as_millis() as i64
            } else {
                0
            };
            skews.push(skew);
            cluster.boot_at(place, Life::default(), skew).await;
        }
        skews
    }

    fn cluster(&self, world: &World, seed: u64) -> Cluster {
        let config = self.config.clone();
        let cluster = if self.nodes == 1 {
            Cluster::new(world, config)
        } else {
            // A separate random stream, so that faults of messages do not change what clients do.
            let network = Network::new(Rng::with_seed(seed ^ 0x6e65), self.network);
            let ensemble = Ensemble::new(Rng::with_seed(seed ^ 0x656e));
            Cluster::among(
                world,
                config,
                Among {
                    network,
                    ensemble,
                    places: self.nodes,
                },
            )
        };
        if self.packs {
            cluster.packing()
        } else {
            cluster
        }
    }

    /// Lets the remaining work finish, and compares the stored state with the histories.
    pub async fn judge(
        &self,
        cluster: &Cluster,
        executions: &[Execution],
        receipts: &Receipts,
    ) -> Outcome {
        let world = cluster.world();
        wait_until_all_serve(cluster).await;
        let certain = cluster
            .moment()
            .saturating_sub(self.config.retry_window.saturating_sub(WINDOW_SLACK));
        // The window begins at the commit. A client may learn of the commit long afterwards.
        let lately = |execution: &&Execution| {
            execution.commit.is_some_and(|commit| {
                commit.answer != Answer::Unknown && commit.span.asked > certain
            })
        };
        let lately: Vec<_> = executions.iter().filter(lately).cloned().collect();
        let early = StoredState::read(cluster).await;
        let mut violations = answered_otherwise(cluster, &lately, &early, Asked::Lately).await;
        tokio::time::sleep(AFTERWARDS).await;
        let idle_port_calls = self.idle_port_calls(world).await;
        let figures = cluster
            .serving()
            .map(|connection| connection.engine.figures())
            .unwrap_or_default();
        let mut remembered = Vec::new();
        for place in (0..self.nodes).filter(|_| self.several_serve()) {
            remembered.push(shown_by(cluster.serving_at(place), self.mix.keys).await);
        }
        let stored_state = stored_state(cluster, self.mix.keys).await;
        for shown in &remembered {
            violations.extend(said((
                "not seen",
                outcomes::not_shown(&stored_state, shown),
            )));
        }
        violations.extend(self.violations(executions, &stored_state, &figures));
        violations.extend(
            self.effect_violations(cluster, &receipts.all(), &stored_state)
                .await,
        );
        let long_afterwards = Asked::LongAfterwards {
            ids_expire: self.ids_expire(),
        };
        violations
            .extend(answered_otherwise(cluster, executions, &stored_state, long_afterwards).await);
        let acknowledged = |execution: &&Execution| execution.answer() == Some(Answer::Committed);
        Outcome {
            violations,
            port_calls: world.port_calls(),
            idle_port_calls,
            committed: executions.iter().filter(acknowledged).count(),
            trace_hash: world.trace().hash(),
        }
    }

    /// The port calls of an hour without transactions, or of two minutes with several nodes, which
    /// keep announcing that there are no news.
    async fn idle_port_calls(&self, world: &World) -> u64 {
        let calls_before = world.port_calls();
        let idle = if self.nodes == 1 {
            Duration::from_hours(1)
        } else {
            Duration::from_mins(2)
        };
        tokio::time::sleep(idle).await;
        world.port_calls() - calls_before
    }

    fn several_serve(&self) -> bool {
        self.nodes > 1
    }

    fn violations(
        &self,
        executions: &[Execution],
        stored_state: &StoredState,
        figures: &Figures,
    ) -> Vec<String> {
        let order = stored_state.order();
        let mut violations = vec![
            ("dirty", outcomes::dirty(executions, stored_state)),
            ("foreign", outcomes::foreign(executions)),
            ("fractured", fractures::fractured(executions, &order)),
            ("not repeatable", fractures::not_repeatable(executions)),
            (
                "own write not read",
                fractures::own_write_not_read(executions),
            ),
            ("lost", outcomes::lost(executions, stored_state)),
            ("record before data", stored_state.too_early.clone()),
            (
                "refused and committed",
                outcomes::refused_and_committed(executions, stored_state),
            ),
            ("doubled", outcomes::doubled(executions, stored_state)),
            ("mixed", outcomes::mixed(stored_state)),
            (
                "cycle",
                // The timestamps of several nodes do not follow real time.
                if self.several_serve() && !self.sequenced {
                    Vec::new()
                } else {
                    serializability::cycles(executions, stored_state)
                },
            ),
            (
                "reader in conflict",
                serializability::readers_in_conflict(executions),
            ),
            ("held", leftovers::held(figures)),
        ];
        // A node's commits get versions above those that it knows. With several nodes, real time
        // alone orders nothing.
        let blind = if self.several_serve() {
            SEEN_WITHIN
        } else {
            Duration::ZERO
        };
        if let Some(within) = self.seen_within {
            violations.push((
                "not seen",
                outcomes::not_seen_in_time(executions, stored_state, within, blind),
            ));
            violations.push((
                "no version",
                outcomes::no_valid_version(executions, stored_state, within),
            ));
        }
        if self.leaves_nothing {
            violations.push(("leftover", leftovers::leftovers(stored_state)));
        }
        if self.ids_expire() {
            let kept = stored_state
                .kept
                .iter()
                .map(|id| format!("the name {id:?} is kept beyond its window"));
            violations.push(("leftover", kept.collect()));
        }
        violations.into_iter().flat_map(said).collect()
    }

    /// Whether the window of client ids has passed at the end, too.
    fn ids_expire(&self) -> bool {
        self.config.named_window < AFTERWARDS / 4
    }

    async fn effect_violations(
        &self,
        cluster: &Cluster,
        receipts: &[Receipt],
        stored_state: &StoredState,
    ) -> Vec<String> {
        let mut violations = vec![
            ("uncommitted", effects::uncommitted(receipts, stored_state)),
            ("unsent", effects::unsent(receipts, stored_state)),
            ("miscounted", effects::miscounted(receipts)),
            ("misnamed", effects::misnamed(receipts)),
            ("reordered", effects::reordered(receipts)),
        ];
        if self.leaves_nothing {
            violations.push((
                "effect left",
                effects::left(&cluster.world().key_value(), stored_state).await,
            ));
        }
        violations.into_iter().flat_map(said).collect()
    }

    /// Runs all requested seeds and panics at the first violation, with the command that replays
    /// it.
    pub fn holds(&self, test: &str) {
        self.holds_for(seeds(), test);
    }

    /// The same for `seeds`.
    pub fn holds_for(&self, seeds: Range<u64>, test: &str) {
        let (mut committed, mut budget) = (0, Budget::default());
        for seed in seeds {
            let violations = match panic::catch_unwind(|| self.run(seed)) {
                Ok(outcome) if outcome.violations.is_empty() => {
                    budget.spend(seed, outcome.port_calls);
                    assert_eq!(
                        outcome.idle_port_calls, 0,
                        "port calls that seed {seed} made without transactions"
                    );
                    committed += outcome.committed;
                    continue;
                }
                Ok(outcome) => outcome.violations.join("\n  "),
                Err(_) => "it panicked, see above".to_owned(),
            };
            panic!(
                "seed {seed} of {test}:\n  {violations}\nreplay: LANDFAST_SEED={seed} cargo test --profile \
                 simulation -p landfast-simulation {test}"
            );
        }
        budget.report(test);
        assert!(
            committed > 0,
            "no transaction committed, so nothing was tested"
        );
    }

    /// Runs seeds until one shows a violation of `check`. Panics if `seeds_max` of them show none:
    /// the scenario does not catch this mutant.
    pub fn is_caught(&self, check: &str, seeds_max: u64) {
        let quiet = panic::take_hook();
        panic::set_hook(Box::new(|_| {}));
        let shows = |violation: &String| violation.starts_with(check);
        let caught = (0..seeds_max).find(|seed| match panic::catch_unwind(|| self.run(*seed)) {
            Ok(outcome) => outcome.violations.iter().any(shows),
            Err(_) => false,
        });
        panic::set_hook(quiet);
        match caught {
            Some(seed) => println!("{:?} was caught by seed {seed}", self.config.mutant),
            None => panic!(
                "{:?} was not caught by {seeds_max} seeds",
                self.config.mutant
            ),
        }
    }
}

/// Waits until a node serves at each place. If the store lost data after the end of all work, the
/// next call notices it, and the node starts over.
async fn wait_until_all_serve(cluster: &Cluster) {
    let mut serving = 0;
    for _ in 0..STARTS_MAX {
        // One place after the other.
        let connection = cluster.connect().await;
        let serves = connection
            .shown(connection.engine.get_now(&key(0)))
            .await
            .is_ok();
        serving = if serves { serving + 1 } else { 0 };
        if serving == cluster.places() {
            break;
        }
        if !serves {
            tokio::time::sleep(START).await;
        }
    }
}

/// Requests a serializable transaction, and waits until it is available.
async fn sequence(cluster: &Cluster) {
    let connection = cluster.connect().await;
    let begin = Begin {
        isolation: Isolation::Serializable,
        ..Begin::default()
    };
    let begun = loop {
        match connection
            .shown(connection.engine.begin(begin.clone()))
            .await
        {
            Ok(begun) => break begun,
            Err(_) => tokio::time::sleep(START).await,
        }
    };
    match begun {
        Begun::Open { id, attempt } => {
            let call = Call {
                id,
                attempt: Some(attempt),
            };
            connection
                .call(connection.engine.abort(&call))
                .await
                .expect("a calm world");
        }
        Begun::Committed { .. } => unreachable!("it has no name"),
    }
}

fn said((check, found): (&str, Vec<String>)) -> Vec<String> {
    found
        .into_iter()
        .map(|violation| format!("{check}: {violation}"))
        .collect()
}

/// The stored state, and the values of all keys as a node returns them from the store alone.
pub async fn stored_state(cluster: &Cluster, keys: usize) -> StoredState {
    let mut stored_state = StoredState::read(cluster).await;
    cluster.kill();
    cluster.boot(Life::default(), 0).await;
    stored_state.shown = shown_by(Some(cluster.connect().await), keys).await;
    stored_state
}

/// The values of all keys as a node returns them.
async fn shown_by(connection: Option<Connection>, keys: usize) -> BTreeMap<Key, Option<Bytes>> {
    let connection = connection.expect("a world that is healed");
    let mut all = BTreeMap::new();
    for key in (0..keys).map(key) {
        let shown = connection
            .shown(connection.engine.get_now(&key))
            .await
            .expect("a calm world");
        all.insert(key, shown);
    }
    all
}

/// When an outcome is requested again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Within its window.
    Lately,
    /// When at most client ids are still known.
    LongAfterwards {
        /// Whether the window of client ids has passed too.
        ids_expire: bool,
    },
}

/// The outcome of a transaction for a client that asks again while its node, or another node that
/// must be asked, is being replaced.
async fn status_in_time(connection: &Connection, id: &TransactionId) -> Result<Became, Failure> {
    for _ in 0..STARTS_MAX {
        match connection.shown(connection.engine.status(id)).await {
            Err(Failure::Refused(transactions::Error::Unavailable(_))) => {
                tokio::time::sleep(START).await;
            }
            status => return status,
        }
    }
    connection.shown(connection.engine.status(id)).await
}

/// T4: commits whose repeated request has another answer than before or than their rows. After its
/// window, the record of a server-generated or random id may have expired.
async fn answered_otherwise(
    cluster: &Cluster,
    executions: &[Execution],
    stored_state: &StoredState,
    asked: Asked,
) -> Vec<String> {
    let connection = cluster.connect().await;
    let mut violations = Vec::new();
    let committed = stored_state.order().committed;
    // A transaction without writes may have left no record.
    for execution in executions
        .iter()
        .filter(|execution| !execution.writes().is_empty())
    {
        let Writer { id, attempt } = execution.writer.clone();
        let may_expire = match asked {
            Asked::Lately => false,
            Asked::LongAfterwards { ids_expire } => {
                ids_expire || id.is_random() || id.generated().is_some()
            }
        };
        let status = status_in_time(&connection, &id).await;
        let is_committed = matches!(status, Ok(Became::Committed));
        let is_expired = matches!(
            status,
            Ok(Became::Expired) | Err(Failure::Refused(transactions::Error::NoSuchTransaction))
        );
        let expected = committed.keys().any(|writer| writer.id == id);
        if is_committed != expected && !(may_expire && is_expired) {
            violations.push(format!(
                "answered otherwise: {id:?} is {status:?}, and its row is not"
            ));
        }
        let call = Call {
            id,
            attempt: Some(attempt),
        };
        let again = match connection.call(connection.engine.commit(&call)).await {
            Ok(_) => Answer::Committed,
            Err(Failure::Refused(
                transactions::Error::Expired | transactions::Error::NoSuchTransaction,
            )) if may_expire => {
                continue;
            }
            Err(_) => Answer::Refused,
        };
        let before = execution
            .answer()
            .map_or(Answer::Refused, |answer| match answer {
                Answer::Conflict => Answer::Refused,
                answer => answer,
            });
        if before != Answer::Unknown && again != before {
            violations.push(format!(
                "answered otherwise: {:?} was {before:?}, then {again:?}",
                call.id
            ));
        }
    }
    violations
}
