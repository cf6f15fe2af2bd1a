//! Running a scenario of volumes for many seeds.

use std::{cell::RefCell, collections::BTreeMap, panic, rc::Rc, time::Duration};

use fastrand::Rng;
use futures_util::future::join_all;
use simulated::{Options, World};
use transactions::{
    Config, Error,
    broken::Broken,
    layout::Buckets,
    serializable::{
        model::{BlockBytes, Slot, Verdict},
        volumes::{VolumeName, VolumeSettings},
    },
};

use super::{
    checks::{self, Evidence, Survivor, slot_of},
    client::{Client, Habits},
    history::History,
};
use crate::{
    budget::Budget,
    faults::FaultProfile,
    scenario::seeds,
    transactions::{
        cluster::{Among, Cluster},
        crashable::Life,
        ensemble::Ensemble,
        fault_schedule::{Disaster, FaultSchedule},
        network::{Network, Trouble},
    },
};

/// The wait after the faults have ended, in which all that may go is collected.
const AFTERWARDS: Duration = Duration::from_mins(3);
/// How long the clients may take.
const WORK_MAX: Duration = Duration::from_hours(1);

/// A scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The behaviour of the clients.
    pub habits: Habits,
    /// The faults of port calls.
    pub fault_profile: FaultProfile,
    /// The number of nodes. Clients call them in rotation until one serves.
    pub nodes: usize,
    /// The faults of node and store, in this order.
    pub disasters: Vec<Disaster>,
    /// How far they are apart at most, beyond what each waits by itself.
    pub apart: Duration,
    /// The settings of the service.
    pub config: Config,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            habits: Habits {
                clients: 3,
                transactions: 12,
                one_loss_in: 16,
                one_double_in: 6,
                one_long_pause_in: 0,
                one_old_in: 6,
                pins: false,
                leases: false,
            },
            fault_profile: FaultProfile::Slow,
            nodes: 1,
            disasters: Vec::new(),
            apart: Duration::ZERO,
            config: Config {
                buckets: Buckets::through(3),
                ..Config::default()
            },
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The violations.
    pub violations: Vec<String>,
    /// The number of port calls.
    pub port_calls: u64,
    /// The number of proposals that have committed in the end.
    pub committed: usize,
    /// The number of conflicts.
    pub conflicts: usize,
    /// The number of reads from leased memory.
    pub leased: usize,
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
        let mut cloud = Options::default();
        // Rows are installed in one step if the store can, and one by one in every second run.
        cloud.key_value.transact_across_partitions &= seed.is_multiple_of(2);
        let world = World::with_options(seed, cloud);
        let mut rng = Rng::with_seed(seed);
        let cluster = self.cluster(&world, seed);
        for place in 0..self.nodes {
            cluster.boot_at(place, Life::default(), 0).await;
        }
        let name = create(&cluster).await;
        self.fault_profile.strike(&world);
        let history = Rc::new(RefCell::new(History::default()));
        let client = |number, rng| {
            let (cluster, name, history) = (cluster.clone(), name.clone(), Rc::clone(&history));
            Client::new(cluster, name, number, self.habits, rng, history)
        };
        let clients = (0..self.habits.clients).map(|number| client(number, rng.fork()).work());
        let clients = join_all(clients.collect::<Vec<_>>());
        let mut reader = client(self.habits.clients, rng.fork());
        let mut schedule = FaultSchedule {
            disasters: &self.disasters,
            apart: self.apart,
            clock_set_back: Duration::ZERO,
            cluster: &cluster,
            rng,
            skew_ms: 0,
            skews: vec![0; self.nodes],
        };
        let is_done = tokio::select! {
            biased;
            _ = clients => true,
            () = schedule.strike() => unreachable!("disasters never end by themselves"),
            () = tokio::time::sleep(WORK_MAX) => false,
        };
        schedule.heal().await;
        if !is_done {
            return violated("a client waited for an hour");
        }
        reader.read_all().await;
        cluster.kill();
        cluster.boot(Life::default(), 0).await;
        let last = reader.read_all().await;
        tokio::time::sleep(AFTERWARDS).await;
        reader.read_all().await;
        // A start without a cache reads what the collection has left.
        cluster.kill();
        cluster.boot(Life::default(), 0).await;
        let left = reader.read_all().await;
        let Some(last) = last.filter(|_| left.is_some()) else {
            return violated("V2: the volume is not readable in the end");
        };
        let survivors = survivors(&mut reader, &history, last).await;
        judge(&world, history.take(), &survivors)
    }

    fn cluster(&self, world: &World, seed: u64) -> Cluster {
        let config = self.config.clone();
        if self.nodes == 1 {
            return Cluster::new(world, config);
        }
        let among = Among {
            network: Network::new(Rng::with_seed(seed ^ 0x6e65), Trouble::default()),
            ensemble: Ensemble::new(Rng::with_seed(seed ^ 0x656e)),
            places: self.nodes,
        };
        Cluster::among(world, config, among)
    }

    /// Runs all requested seeds and panics at the first violation, with the command that replays
    /// it.
    pub fn holds(&self, test: &str) {
        let (mut committed, mut conflicts, mut budget) = (0, 0, Budget::default());
        let mut leased = 0;
        for seed in seeds() {
            let violations = match panic::catch_unwind(|| self.run(seed)) {
                Ok(outcome) if outcome.violations.is_empty() => {
                    budget.spend(seed, outcome.port_calls);
                    committed += outcome.committed;
                    conflicts += outcome.conflicts;
                    leased += outcome.leased;
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
        println!("{test}: {committed} commits, {conflicts} conflicts, {leased} leased reads");
        assert!(
            leased > 0 || !self.habits.leases,
            "no read was leased, so nothing was tested"
        );
        assert!(
            committed > 0,
            "no proposal committed, so nothing was tested"
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
        let mutant = self.config.mutant;
        match caught {
            Some(seed) => println!("{mutant:?} was caught by seed {seed}"),
            None => panic!("{mutant:?} was not caught by {seeds_max} seeds"),
        }
    }
}

async fn create(cluster: &Cluster) -> VolumeName {
    let name = VolumeName::new("demo").expect("a name");
    let settings = VolumeSettings {
        block_bytes: BlockBytes::new(4096).expect("a power of two"),
        quota_bytes: None,
    };
    for _ in 0..cluster.places() {
        let volumes = cluster.connect().await.engine.volumes();
        match volumes.create(name.clone(), settings).await {
            Err(Error::Unavailable(_)) => {}
            created => {
                created.expect("a calm world");
                return name;
            }
        }
    }
    panic!("no node serves volumes");
}

/// The transactions that have committed at or before slot `last`. To learn them, `reader` sends the
/// last attempt of each transaction again.
async fn survivors(reader: &mut Client, history: &RefCell<History>, last: Slot) -> Vec<Survivor> {
    let mut attempts = BTreeMap::new();
    for (place, transaction) in history.borrow().transactions.iter().enumerate() {
        if !transaction.writes.is_empty() {
            let id = transaction.proposal.id.id().clone();
            attempts.entry(id).or_insert_with(Vec::new).push(place);
        }
    }
    let mut survivors = Vec::new();
    for places in attempts.into_values() {
        let Some(newest) = places.last().copied() else {
            continue;
        };
        let proposal = history.borrow().transactions[newest].proposal.clone();
        let verdict = reader.verdict(&proposal).await;
        let Some(Verdict::Committed { slot, appended_at }) = verdict else {
            continue;
        };
        if slot > last {
            // Its commit was lost, and it has committed again.
            continue;
        }
        let is_it = |place: &usize| {
            let sent = &history.borrow().transactions[*place].sent;
            sent.iter().any(|sent| slot_of(sent) == Some(slot))
        };
        let place = places.iter().copied().find(is_it).unwrap_or(newest);
        survivors.push(Survivor {
            place,
            slot,
            appended_at,
        });
    }
    survivors
}

fn judge(world: &World, mut history: History, survivors: &[Survivor]) -> Outcome {
    if std::env::var_os("LANDFAST_HISTORY").is_some() {
        println!("{history:#?}\n{survivors:#?}\n{}", world.trace());
    }
    let store = world.key_value();
    let leased = history.looks.iter().filter(|look| look.is_leased).count();
    checks::place_leased(&mut history, survivors, &|point| store.is_durable(point));
    let history = &history;
    let evidence = Evidence {
        history,
        survivors,
        is_durable: &|point| store.is_durable(point),
    };
    let answers = history.transactions.iter().flat_map(|one| &one.sent);
    let answers = answers.filter_map(|sent| sent.answer.as_ref());
    let conflicts = answers.filter(|(_, verdict, _)| matches!(verdict, Verdict::Conflict { .. }));
    Outcome {
        violations: evidence.violations(),
        port_calls: world.port_calls(),
        committed: survivors.len(),
        conflicts: conflicts.count(),
        leased,
        trace_hash: world.trace().hash(),
    }
}

fn violated(what: &str) -> Outcome {
    Outcome {
        violations: vec![what.to_owned()],
        ..Outcome::default()
    }
}
