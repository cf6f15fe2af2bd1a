//! Running a scenario for many seeds: the clients, the weather, the disasters, the checks, and how to replay a
//! failure.

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

use super::{
    at_rest::AtRest,
    client::{self, Habits, Record},
    effects::{self, Receipt, Receipts},
    ensemble::Ensemble,
    fate::Fate,
    fractures,
    history::{Answer, Execution, Writer},
    house::{Among, Connection, Failure, House},
    leftovers,
    mortal::Life,
    network::{Network, Trouble},
    outcomes, serializability,
    workload::{Mix, key},
};
pub use crate::scenario::seeds;
use crate::{budget::Budget, faults::Weather};

/// After the clients are done and the world is healed: every attempt that was left open has timed out by then, every
/// window but that of names is over, and the store was swept.
const AFTERWARDS: Duration = Duration::from_mins(30);

/// A sweep looks into each of them twice, and so do the checks at the end: so they are few.
const BUCKETS: Buckets = Buckets::through(3);

/// How often it is asked whether a node serves again whose store went back, and how long it may take between.
const STARTS_MAX: usize = 100;
const START: Duration = Duration::from_millis(100);

/// What is asked again while it is certain was first asked for at least so long before its window ends.
const WINDOW_SLACK: Duration = Duration::from_secs(20);

/// After so long every node has heard of a commit, if nothing fails.
const SEEN_WITHIN: Duration = Duration::from_secs(2);

/// What happens to all at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disaster {
    /// The node dies between two of its port calls; the store goes on.
    Node,
    /// Node and store die: what was not durable is lost.
    Everything,
    /// The store alone dies: what was not durable is lost under the node.
    Store,
    /// The node is taken for dead and replaced, and goes on for a while.
    Replacement,
    /// The node is told to stop, and may die before it has.
    Departure,
    /// One of several nodes dies between two of its port calls, and another process takes its place after a while.
    OneOfMany,
    /// One of several nodes dies, and who takes its place reaches none of the others for a while.
    JoinsApart,
    /// Two of several nodes do not reach each other for a while.
    Partition,
    /// One of several nodes reaches neither the others nor whoever counts members, for long enough to be none.
    CutOff,
}

/// What is run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What transactions do.
    pub mix: Mix,
    /// How their clients behave.
    pub habits: Habits,
    /// What goes wrong with calls.
    pub weather: Weather,
    /// What goes wrong with nodes and store, in this order.
    pub disasters: Vec<Disaster>,
    /// How many nodes there are.
    pub nodes: usize,
    /// Whether the keyspace is sequenced before the clients begin, where there are several.
    pub sequenced: bool,
    /// How bad the network between them is.
    pub network: Trouble,
    /// How far their clocks differ, at most.
    pub skew: Duration,
    /// By how much the clock of each start is behind that of the one before.
    pub clock_set_back: Duration,
    /// How long after its acknowledgement a commit has to be seen; none: an old self may show older things.
    pub seen_within: Option<Duration>,
    /// Whether everything has to be tidy at the end.
    pub leaves_nothing: bool,
    /// Whether values go into packs.
    pub packs: bool,
    /// The service's settings.
    pub config: Config,
    /// The cloud's.
    pub cloud: Options,
}

/// Small transactions on few keys, in calm weather.
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
            weather: Weather::Calm,
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

/// What a run came to.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What it did that it must not.
    pub violations: Vec<String>,
    /// How many port calls it made, the checks' included.
    pub port_calls: u64,
    /// How many of them in an hour without transactions.
    pub idle_port_calls: u64,
    /// How many commits were acknowledged.
    pub committed: usize,
    /// Identifies everything that happened.
    pub trace_hash: u64,
}

impl Scenario {
    /// The same scenario with a rule dropped.
    pub fn without(mut self, rule: Broken) -> Self {
        self.config.broken = Some(rule);
        self
    }

    /// Runs one seed.
    pub fn run(&self, seed: u64) -> Outcome {
        simulated::run(self.clone().play(seed))
    }

    async fn play(self, seed: u64) -> Outcome {
        let mut cloud = self.cloud.clone();
        // Commits go in groups where the store can, and step by step in every second run.
        cloud.key_value.transact_across_partitions &= seed.is_multiple_of(2);
        let world = World::with_options(seed, cloud);
        let mut rng = Rng::with_seed(seed);
        let house = self.house(&world, seed);
        let mut skews = Vec::new();
        for place in 0..self.nodes {
            let skew = if self.nodes > 1 {
                self.skew.mul_f64(rng.f64()).as_millis() as i64
            } else {
                0
            };
            skews.push(skew);
            house.boot_at(place, Life::default(), skew).await;
        }
        if self.sequenced {
            sequence(&house).await;
        }
        let receipts = if self.mix.effects > 0 {
            effects::receive(&world, rng.fork()).await
        } else {
            Receipts::default()
        };
        self.weather.strike(&world);
        let record = Record::default();
        let clients = (0..self.mix.clients).map(|number| {
            let record = Rc::clone(&record);
            client::work(
                house.clone(),
                number,
                self.mix,
                self.habits,
                record,
                rng.fork(),
            )
        });
        let clients = join_all(clients.collect::<Vec<_>>());
        let mut fate = Fate {
            scenario: &self,
            house: &house,
            rng,
            skew_ms: 0,
            skews,
        };
        let is_done = tokio::select! {
            biased;
            _ = clients => true,
            () = fate.strike() => unreachable!("disasters never end by themselves"),
            () = tokio::time::sleep(Duration::from_hours(1)) => false,
        };
        fate.heal().await;
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
        self.judge(&house, &executions, &receipts).await
    }

    fn house(&self, world: &World, seed: u64) -> House {
        let config = self.config.clone();
        let house = if self.nodes == 1 {
            House::new(world, config)
        } else {
            // Of their own, so that what clients do is the same whatever becomes of a message.
            let network = Network::new(Rng::with_seed(seed ^ 0x6e65), self.network);
            let ensemble = Ensemble::new(Rng::with_seed(seed ^ 0x656e));
            House::among(
                world,
                config,
                Among {
                    network,
                    ensemble,
                    places: self.nodes,
                },
            )
        };
        if self.packs { house.packing() } else { house }
    }

    /// Lets what is left come to its end, and compares what stands there with what was told.
    pub async fn judge(
        &self,
        house: &House,
        executions: &[Execution],
        receipts: &Receipts,
    ) -> Outcome {
        let world = house.world();
        // A store that went back when all was done is noticed by the next call, and then the node starts over.
        let mut serving = 0;
        for _ in 0..STARTS_MAX {
            // One place after the other.
            let connection = house.connect().await;
            let serves = connection
                .shown(connection.engine.get_now(&key(0)))
                .await
                .is_ok();
            serving = if serves { serving + 1 } else { 0 };
            if serving == house.places() {
                break;
            }
            if !serves {
                tokio::time::sleep(START).await;
            }
        }
        let certain = house
            .moment()
            .saturating_sub(self.config.retry_window.saturating_sub(WINDOW_SLACK));
        // The window begins with the commit, which may be long over when a client is told of it at last.
        let lately = |execution: &&Execution| {
            execution.commit.is_some_and(|commit| {
                commit.answer != Answer::Unknown && commit.span.asked > certain
            })
        };
        let lately: Vec<_> = executions.iter().filter(lately).cloned().collect();
        let early = AtRest::read(house).await;
        let mut violations = answered_otherwise(house, &lately, &early, Asked::Lately).await;
        tokio::time::sleep(AFTERWARDS).await;
        let calls_before = world.port_calls();
        // Several nodes go on telling each other that there is nothing to tell.
        let idle = if self.nodes == 1 {
            Duration::from_hours(1)
        } else {
            Duration::from_mins(2)
        };
        tokio::time::sleep(idle).await;
        let idle_port_calls = world.port_calls() - calls_before;
        let figures = house
            .serving()
            .map(|connection| connection.engine.figures())
            .unwrap_or_default();
        let mut remembered = Vec::new();
        for place in (0..self.nodes).filter(|_| self.several_serve()) {
            remembered.push(shown_by(house.serving_at(place), self.mix.keys).await);
        }
        let at_rest = at_rest(house, self.mix.keys).await;
        for shown in &remembered {
            violations.extend(said(("not seen", outcomes::not_shown(&at_rest, shown))));
        }
        violations.extend(self.violations(executions, &at_rest, &figures));
        violations.extend(
            self.effect_violations(house, &receipts.all(), &at_rest)
                .await,
        );
        let long_afterwards = Asked::LongAfterwards {
            names_expire: self.names_expire(),
        };
        violations.extend(answered_otherwise(house, executions, &at_rest, long_afterwards).await);
        let acknowledged = |execution: &&Execution| execution.answer() == Some(Answer::Committed);
        Outcome {
            violations,
            port_calls: world.port_calls(),
            idle_port_calls,
            committed: executions.iter().filter(acknowledged).count(),
            trace_hash: world.trace().hash(),
        }
    }

    fn several_serve(&self) -> bool {
        self.nodes > 1
    }

    fn violations(
        &self,
        executions: &[Execution],
        at_rest: &AtRest,
        figures: &Figures,
    ) -> Vec<String> {
        let order = at_rest.order();
        let mut violations = vec![
            ("dirty", outcomes::dirty(executions, at_rest)),
            ("foreign", outcomes::foreign(executions)),
            ("fractured", fractures::fractured(executions, &order)),
            ("not repeatable", fractures::not_repeatable(executions)),
            (
                "own write not read",
                fractures::own_write_not_read(executions),
            ),
            ("lost", outcomes::lost(executions, at_rest)),
            ("record before data", at_rest.too_early.clone()),
            (
                "refused and committed",
                outcomes::refused_and_committed(executions, at_rest),
            ),
            ("doubled", outcomes::doubled(executions, at_rest)),
            ("mixed", outcomes::mixed(at_rest)),
            (
                "cycle",
                // Timestamps of several nodes are in no order of real time.
                if self.several_serve() && !self.sequenced {
                    Vec::new()
                } else {
                    serializability::cycles(executions, at_rest)
                },
            ),
            (
                "reader in conflict",
                serializability::readers_in_conflict(executions),
            ),
            ("held", leftovers::held(figures)),
        ];
        // What one node commits goes above what it has heard: real time alone orders nothing among several.
        let blind = if self.several_serve() {
            SEEN_WITHIN
        } else {
            Duration::ZERO
        };
        if let Some(within) = self.seen_within {
            violations.push((
                "not seen",
                outcomes::not_seen_in_time(executions, at_rest, within, blind),
            ));
            violations.push((
                "no version",
                outcomes::no_valid_version(executions, at_rest, within),
            ));
        }
        if self.leaves_nothing {
            violations.push(("leftover", leftovers::leftovers(at_rest)));
        }
        if self.names_expire() {
            let kept = at_rest
                .kept
                .iter()
                .map(|id| format!("the name {id:?} is kept beyond its window"));
            violations.push(("leftover", kept.collect()));
        }
        violations.into_iter().flat_map(said).collect()
    }

    /// Whether the window of names is over, too, when all is.
    fn names_expire(&self) -> bool {
        self.config.named_window < AFTERWARDS / 4
    }

    async fn effect_violations(
        &self,
        house: &House,
        receipts: &[Receipt],
        at_rest: &AtRest,
    ) -> Vec<String> {
        let mut violations = vec![
            ("uncommitted", effects::uncommitted(receipts, at_rest)),
            ("unsent", effects::unsent(receipts, at_rest)),
            ("miscounted", effects::miscounted(receipts)),
            ("misnamed", effects::misnamed(receipts)),
            ("reordered", effects::reordered(receipts)),
        ];
        if self.leaves_nothing {
            violations.push((
                "effect left",
                effects::left(&house.world().key_value(), at_rest).await,
            ));
        }
        violations.into_iter().flat_map(said).collect()
    }

    /// Runs every seed asked for and panics at the first that violates anything, saying how to replay it.
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
            "nobody committed anything, so nothing was tested"
        );
    }

    /// Runs seeds until one shows a violation of `check`, and panics if `seeds_max` of them show none: a broken
    /// variant that its scenario does not catch.
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
            Some(seed) => println!("{:?} was caught by seed {seed}", self.config.broken),
            None => panic!(
                "{:?} was not caught by {seeds_max} seeds",
                self.config.broken
            ),
        }
    }
}

/// Asks for a serializable transaction, and waits until it can be had.
async fn sequence(house: &House) {
    let connection = house.connect().await;
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

/// What the store holds, and what a node shows of all keys that has it from there alone.
pub async fn at_rest(house: &House, keys: usize) -> AtRest {
    let mut at_rest = AtRest::read(house).await;
    house.kill();
    house.boot(Life::default(), 0).await;
    at_rest.shown = shown_by(Some(house.connect().await), keys).await;
    at_rest
}

/// What a node shows of all keys.
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

/// When an outcome is asked for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Within its window.
    Lately,
    /// When only names that were chosen are known, or not even those.
    LongAfterwards {
        /// Whether their window is over, too.
        names_expire: bool,
    },
}

/// What became of a transaction, as a client hears it that asks again while its node, or one that this has to ask, is being
/// replaced.
async fn status_in_time(connection: &Connection, id: &TransactionId) -> Result<Became, Failure> {
    for _ in 0..STARTS_MAX {
        match connection.shown(connection.engine.status(id)).await {
            Err(Failure::Refused(transactions::Error::Unavailable(_))) => {
                tokio::time::sleep(START).await
            }
            status => return status,
        }
    }
    connection.shown(connection.engine.status(id)).await
}

/// T4: commits that are asked for again, and are answered otherwise than before or than the rows say. Past its window a
/// generated or random id may have expired.
async fn answered_otherwise(
    house: &House,
    executions: &[Execution],
    at_rest: &AtRest,
    asked: Asked,
) -> Vec<String> {
    let connection = house.connect().await;
    let mut violations = Vec::new();
    let committed = at_rest.order().committed;
    // What wrote nothing may have left nothing to answer from.
    for execution in executions
        .iter()
        .filter(|execution| !execution.writes().is_empty())
    {
        let Writer { id, attempt } = execution.writer.clone();
        let may_expire = match asked {
            Asked::Lately => false,
            Asked::LongAfterwards { names_expire } => {
                names_expire || id.is_random() || id.generated().is_some()
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
