//! Running a scenario for many seeds: the plans, the faults, the checks, and the command that
//! replays a failure.

mod by_itself;

use std::{ops::Range, panic, time::Duration};

use coordination::{
    Config,
    broken::Broken,
    model::{Acl, Lifetime, Naming, Request, WatchKind, WatchMode, Watching},
};
use fastrand::Rng;
use futures_util::{
    FutureExt as _,
    future::{join, join_all},
};
use simulated::{Options, World};

pub use self::by_itself::{expiring, quotas};
use crate::{
    actor::{self, Plan},
    budget::Budget,
    checks,
    cluster::{Cluster, Instances},
    faults::{self, FaultProfile},
    history::History,
    timeline::Timeline,
};

/// The wait after the clients are done and the faults have ended. Every abandoned session has
/// expired by then.
const AFTERWARDS: Duration = Duration::from_mins(1);

/// The longest time between two losses of the store. Most of them then strike while clients are
/// active.
const FALL_BACK_MS_MAX: u64 = 150;

/// A scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The number of concurrent clients.
    pub clients: usize,
    /// The number of requests of each client.
    pub requests: usize,
    /// How many requests a client sends before it waits (a window).
    pub window_max: usize,
    /// One in this many windows ends with a broken connection; zero: none does.
    pub one_break_in: usize,
    /// The number of machines.
    pub machines: usize,
    /// The faults.
    pub fault_profile: FaultProfile,
    /// What the cloud keeps of functions.
    pub instances: Instances,
    /// How often the whole cluster crashes.
    pub crashes: usize,
    /// How often the store loses what is not durable while all processes live on.
    pub fall_backs: usize,
    /// Whether clients pause between windows for about the lifetime of an unused session.
    pub lingers: bool,
    /// Whether every session is used so often that none may expire.
    pub expires_nobody: bool,
    /// The requests.
    pub mix: fn(&mut Rng, usize, usize) -> Request,
    /// The settings of the service.
    pub config: Config,
    /// The options of the cloud.
    pub cloud: Options,
}

impl Default for Scenario {
    fn default() -> Self {
        let locks = coordination::config::LockOptions {
            wait_min: Duration::from_millis(2),
            ..coordination::config::LockOptions::locking()
        };
        Self {
            clients: 3,
            requests: 10,
            window_max: 3,
            one_break_in: 0,
            machines: 2,
            fault_profile: FaultProfile::Calm,
            instances: Instances::Warm,
            crashes: 0,
            fall_backs: 0,
            lingers: false,
            expires_nobody: false,
            mix: everything,
            config: Config {
                locks,
                session_timeout_min: Duration::from_secs(12),
                ..Config::default()
            },
            cloud: Options::default(),
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The violations.
    pub violations: Vec<String>,
    /// The number of port calls, including those of the checks.
    pub port_calls: u64,
    /// How many of them fell into an hour without connections.
    pub idle_port_calls: u64,
    /// The number of answered requests.
    pub answered: usize,
    /// A hash of the whole run.
    pub trace_hash: u64,
}

impl Scenario {
    /// The same scenario with a rule dropped.
    pub fn without(mut self, rule: Broken) -> Self {
        self.config.mutant = rule.into();
        self
    }

    /// The same scenario in which no session may expire.
    pub fn without_expiry(mut self) -> Self {
        self.expires_nobody = true;
        self
    }

    /// Runs one seed.
    pub fn run(&self, seed: u64) -> Outcome {
        simulated::run(self.clone().play(seed))
    }

    /// How writers decide: under locks, in one transaction, or in one that also applies. The seed
    /// chooses. A mutant's scenario takes locks unless its own settings say otherwise, because most
    /// rules are about the separate steps. Requests are applied directly only where one process
    /// uses the store.
    fn decides(&self, seed: u64) -> (Config, usize) {
        let (mut config, mut machines) = (self.config.clone(), self.machines);
        if !config.mutant.is_any() {
            let way = seed % 3;
            config.locks.is_optimistic = way != 0;
            config.applies_directly = way == 2;
        }
        if config.applies_directly {
            machines = 1;
        }
        (config, machines)
    }

    async fn play(self, seed: u64) -> Outcome {
        let world = World::with_options(seed, self.cloud.clone());
        let (config, machines) = self.decides(seed);
        let cluster = Cluster::start_on(&world, config, machines, self.instances).await;
        let mut rng = Rng::with_seed(seed);
        self.fault_profile.strike(&world);
        let plans: Vec<(Plan, Rng)> = (0..self.clients)
            .map(|client| (self.plan(client, &mut rng), rng.fork()))
            .collect();
        let actors = plans.into_iter().enumerate();
        let actors = join_all(
            actors.map(|(client, (plan, rng))| actor::act(cluster.clone(), client, plan, rng)),
        );
        let disasters = self.disasters(&cluster, rng);
        let histories = tokio::select! {
            biased;
            histories = actors => histories,
            () = join(disasters, faults::wait_and_calm(&world)).map(drop) => unreachable!("neither ends by itself"),
            () = tokio::time::sleep(Duration::from_hours(1)) => {
                if std::env::var_os("LANDFAST_HISTORY").is_some() {
                    world.trace().entries().for_each(|entry| println!("{entry:?}"));
                }
                let violations = vec!["a client waited for an hour".to_owned()];
                return Outcome { violations, port_calls: 0, idle_port_calls: 0, answered: 0, trace_hash: 0 };
            }
        };
        self.check(&world, &histories).await
    }

    /// Crashes and losses of the store, one after the other; never ends.
    async fn disasters(&self, cluster: &Cluster, mut rng: Rng) {
        for _ in 0..self.crashes {
            tokio::time::sleep(Duration::from_millis(rng.u64(1..400))).await;
            cluster.crash().await;
        }
        for _ in 0..self.fall_backs {
            tokio::time::sleep(Duration::from_millis(rng.u64(1..FALL_BACK_MS_MAX))).await;
            cluster.world().fall_back_keeping_some();
        }
        std::future::pending::<()>().await;
    }

    /// Ends the faults, waits until every session has ended, and runs the checks.
    async fn check(&self, world: &World, histories: &[History]) -> Outcome {
        world.faults().calm();
        tokio::time::sleep(AFTERWARDS).await;
        let calls_before = world.port_calls();
        tokio::time::sleep(Duration::from_hours(1)).await;
        let idle_port_calls = world.port_calls() - calls_before;
        let timeline = Timeline::read(world.key_value()).await;
        if std::env::var_os("LANDFAST_HISTORY").is_some() {
            print_histories(histories, &timeline);
            world
                .trace()
                .entries()
                .for_each(|entry| println!("{entry:?}"));
        }
        let mut violations = checks::all(histories, &timeline);
        violations.extend(checks::nothing_is_left(world).await);
        if self.expires_nobody {
            violations.extend(checks::sessions_that_expired(histories));
        }
        Outcome {
            violations,
            port_calls: world.port_calls(),
            idle_port_calls,
            answered: histories.iter().map(History::answered).sum(),
            trace_hash: world.trace().hash(),
        }
    }

    fn plan(&self, client: usize, rng: &mut Rng) -> Plan {
        Plan {
            requests: (0..self.requests)
                .map(|request| (self.mix)(rng, client, request))
                .collect(),
            window_max: self.window_max,
            one_break_in: self.one_break_in,
            closes: rng.bool(),
            timeout: Duration::from_secs(rng.u64(12..=16)),
            pause: match (self.expires_nobody, self.lingers) {
                (true, _) => Duration::from_secs(2),
                (false, true) => Duration::from_secs(rng.u64(11..=19)),
                (false, false) => Duration::ZERO,
            },
        }
    }

    /// Runs all requested seeds and panics at the first violation, with the command that replays
    /// it.
    pub fn holds(&self, test: &str) {
        let mut budget = Budget::default();
        for seed in seeds() {
            let outcome = panic::catch_unwind(|| self.run(seed));
            let violations = match outcome {
                Ok(outcome) if outcome.violations.is_empty() => {
                    budget.spend(seed, outcome.port_calls);
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
    }

    /// Runs seeds until one shows a violation. Panics if `seeds_max` of them show none: the
    /// scenario does not catch this mutant. A seed that panics does not count, because its panic
    /// may be unrelated to the rule.
    pub fn is_caught(&self, seeds_max: u64) {
        self.is_caught_where(seeds_max, |outcome| {
            outcome.is_ok_and(|outcome| !outcome.violations.is_empty())
        });
    }

    /// The same for a rule that the program itself asserts with this message.
    pub fn is_caught_by(&self, assertion: &str, seeds_max: u64) {
        self.is_caught_where(seeds_max, |outcome| {
            outcome.is_err_and(|said| said.contains(assertion))
        });
    }

    fn is_caught_where(&self, seeds_max: u64, shows: impl Fn(Result<Outcome, &str>) -> bool) {
        let quiet = panic::take_hook();
        panic::set_hook(Box::new(|_| {}));
        let mut panicked = None;
        let caught = (0..seeds_max).any(|seed| match panic::catch_unwind(|| self.run(seed)) {
            Ok(outcome) => shows(Ok(outcome)),
            Err(payload) => {
                let said = payload
                    .downcast::<String>()
                    .map(|said| *said)
                    .unwrap_or_default();
                let shows = shows(Err(&said));
                panicked = Some((seed, said));
                shows
            }
        });
        panic::set_hook(quiet);
        let mutant = self.config.mutant;
        assert!(
            caught,
            "{mutant:?} was not caught by {seeds_max} seeds; the last to panic: {panicked:?}"
        );
    }
}

/// Prints the histories when a seed is replayed with `LANDFAST_HISTORY=1`.
fn print_histories(histories: &[History], timeline: &Timeline) {
    for (zxid, entry) in &timeline.entries {
        println!("{zxid:?} {entry:?}");
    }
    for history in histories {
        for moment in &history.moments {
            println!("client {} {moment:?}", history.client);
        }
    }
}

/// The requested seeds, or a few.
pub fn seeds() -> Range<u64> {
    simulated::seeds(20)
}

/// A mix of all requests on few paths.
pub fn everything(rng: &mut Rng, client: usize, request: usize) -> Request {
    const PATHS: [&str; 4] = ["/a", "/b", "/a/c", "/a/d"];
    let path = PATHS[rng.usize(..PATHS.len())].to_owned();
    let watching = if rng.bool() {
        Watching::Yes
    } else {
        Watching::No
    };
    match rng.usize(..12) {
        0..=2 => create(
            path,
            client,
            request,
            [Lifetime::Persistent, Lifetime::Ephemeral][rng.usize(..2)],
            Naming::Given,
        ),
        3 => create(
            "/q-".into(),
            client,
            request,
            Lifetime::Ephemeral,
            Naming::Sequential,
        ),
        4 | 5 => set(path, client, request, -1),
        6 => Request::Delete { path, version: -1 },
        7 | 8 => Request::GetData { path, watching },
        9 => Request::Exists { path, watching },
        10 => Request::GetChildren {
            path: ["/", "/a"][rng.usize(..2)].into(),
            watching,
        },
        _ => Request::Sync { path: Some(path) },
    }
}

/// Multis of one to four parts on few paths, between reads.
pub fn multis(rng: &mut Rng, client: usize, request: usize) -> Request {
    const PATHS: [&str; 5] = ["/a", "/b", "/a/c", "/a/d", "/b/e"];
    if rng.bool() {
        return everything(rng, client, request);
    }
    let parts = (0..rng.usize(1..=4)).map(|_| {
        let path = PATHS[rng.usize(..PATHS.len())].to_owned();
        match rng.usize(..8) {
            0..=2 => create(path, client, request, Lifetime::Persistent, Naming::Given),
            3 => create(
                format!("{path}/q-"),
                client,
                request,
                Lifetime::Ephemeral,
                Naming::Sequential,
            ),
            4 | 5 => set(path, client, request, -1),
            6 => Request::Delete { path, version: -1 },
            _ => Request::Check { path, version: -1 },
        }
    });
    Request::Multi(parts.collect())
}

/// All clients work on one line of znodes, often far below the existing ones.
pub fn deep(rng: &mut Rng, client: usize, request: usize) -> Request {
    const LINE: [&str; 6] = [
        "/a",
        "/a/b",
        "/a/b/c",
        "/a/b/c/d",
        "/a/b/c/d/e",
        "/a/b/c/d/e/f",
    ];
    let near = LINE[rng.usize(..2)].to_owned();
    let far = LINE[rng.usize(2..LINE.len())].to_owned();
    match rng.usize(..8) {
        0..=2 => create(near, client, request, Lifetime::Persistent, Naming::Given),
        3 => Request::Delete {
            path: near,
            version: -1,
        },
        4 | 5 => create(far, client, request, Lifetime::Persistent, Naming::Given),
        6 => Request::Delete {
            path: far,
            version: -1,
        },
        _ => set(far, client, request, -1),
    }
}

/// Occasional requests with pings in between: a client that pauses for long but keeps its session.
pub fn patient(rng: &mut Rng, client: usize, request: usize) -> Request {
    match rng.usize(..4) {
        0 => create(
            "/q-".into(),
            client,
            request,
            Lifetime::Ephemeral,
            Naming::Sequential,
        ),
        _ => Request::Ping,
    }
}

/// Every other client watches all it can; the others change it.
pub fn watched(rng: &mut Rng, client: usize, request: usize) -> Request {
    const PATHS: [&str; 10] = ["/a", "/b", "/c", "/d", "/e", "/f", "/g", "/h", "/i", "/j"];
    let (path, watching) = (PATHS[rng.usize(..PATHS.len())].to_owned(), Watching::Yes);
    match (client % 2, rng.usize(..8)) {
        (0, 0) => Request::Delete { path, version: -1 },
        (0, 1..=3) => create(path, client, request, Lifetime::Persistent, Naming::Given),
        (0, _) => set(path, client, request, -1),
        (_, 0..=4) => Request::Exists { path, watching },
        (_, 5..=6) => Request::GetData { path, watching },
        _ => Request::GetChildren {
            path: "/".into(),
            watching,
        },
    }
}

/// Every other client keeps watches that stay, among one-shot ones; the others change the tree.
pub fn watched_for_long(rng: &mut Rng, client: usize, request: usize) -> Request {
    const PATHS: [&str; 5] = ["/a", "/b", "/a/c", "/a/d", "/ab"];
    let path = PATHS[rng.usize(..PATHS.len())].to_owned();
    let watched = ["/", "/a", "/a/c", "/b"][rng.usize(..4)].to_owned();
    let mode = [WatchMode::Persistent, WatchMode::Recursive][rng.usize(..2)];
    let kinds = [
        WatchKind::Any,
        WatchKind::Data,
        WatchKind::Persistent,
        WatchKind::Recursive,
    ];
    match (client % 2, rng.usize(..9)) {
        (0, 0 | 1) => Request::Delete { path, version: -1 },
        (0, 2..=4) => create(path, client, request, Lifetime::Persistent, Naming::Given),
        (0, _) => set(path, client, request, -1),
        (_, 0 | 1 | 8) => Request::AddWatch {
            path: watched,
            mode,
        },
        (_, 3) => Request::RemoveWatches {
            path: watched,
            kind: kinds[rng.usize(..kinds.len())],
            only_checks: rng.bool(),
        },
        (_, 4) => Request::Exists {
            path,
            watching: Watching::Yes,
        },
        (_, 5) => Request::GetChildren {
            path: watched,
            watching: Watching::Yes,
        },
        _ => Request::GetData {
            path,
            watching: Watching::No,
        },
    }
}

/// Sets of few znodes, many of which share one slot of the log.
pub fn sets(rng: &mut Rng, client: usize, request: usize) -> Request {
    let path = ["/a", "/b", "/c"][rng.usize(..3)].to_owned();
    match rng.usize(..8) {
        0 => Request::Delete { path, version: -1 },
        1 | 2 => create(path, client, request, Lifetime::Persistent, Naming::Given),
        3 => Request::GetData {
            path,
            watching: Watching::No,
        },
        _ => set(path, client, request, -1),
    }
}

/// Ephemeral znodes that all clients create and delete, also each other's.
pub fn ephemerals(rng: &mut Rng, client: usize, request: usize) -> Request {
    let path = ["/e", "/f"][rng.usize(..2)].to_owned();
    match rng.usize(..3) {
        0 => Request::Delete { path, version: -1 },
        1 => create(
            "/q-".into(),
            client,
            request,
            Lifetime::Ephemeral,
            Naming::Sequential,
        ),
        _ => create(path, client, request, Lifetime::Ephemeral, Naming::Given),
    }
}

/// Locks, queues and persistent znodes under one parent that is itself created and deleted.
pub fn locks(rng: &mut Rng, client: usize, request: usize) -> Request {
    let watching = if rng.bool() {
        Watching::Yes
    } else {
        Watching::No
    };
    match rng.usize(..12) {
        0 | 1 => create(
            "/l".into(),
            client,
            request,
            Lifetime::Persistent,
            Naming::Given,
        ),
        2 => Request::Delete {
            path: "/l".into(),
            version: -1,
        },
        3 | 4 => create(
            "/l/lock".into(),
            client,
            request,
            Lifetime::Ephemeral,
            Naming::Given,
        ),
        5 | 6 => Request::Delete {
            path: "/l/lock".into(),
            version: -1,
        },
        7 => create(
            "/l/q-".into(),
            client,
            request,
            Lifetime::Ephemeral,
            Naming::Sequential,
        ),
        8 => Request::Delete {
            path: format!("/l/q-{:010}", rng.u8(..4)),
            version: -1,
        },
        9 => create(
            "/l/lock".into(),
            client,
            request,
            Lifetime::Persistent,
            Naming::Given,
        ),
        10 => Request::Exists {
            path: "/l/lock".into(),
            watching,
        },
        _ => Request::GetChildren {
            path: "/l".into(),
            watching,
        },
    }
}

/// All clients set the same znode at its last seen version, and read it.
pub fn contended(rng: &mut Rng, client: usize, request: usize) -> Request {
    match (request, rng.usize(..3)) {
        (0, _) => create(
            "/hot".into(),
            client,
            request,
            Lifetime::Persistent,
            Naming::Given,
        ),
        (_, 0) => Request::GetData {
            path: "/hot".into(),
            watching: Watching::Yes,
        },
        (_, 1) => set("/hot".into(), client, request, rng.i32(0..4)),
        _ => create(
            "/hot/n-".into(),
            client,
            request,
            Lifetime::Persistent,
            Naming::Sequential,
        ),
    }
}

/// Writers change two znodes in order; readers watch the first and read the second.
pub fn configuration(rng: &mut Rng, client: usize, request: usize) -> Request {
    let watching = Watching::Yes;
    match (client, request) {
        (0, 0) => create(
            "/valid".into(),
            client,
            request,
            Lifetime::Persistent,
            Naming::Given,
        ),
        (0, 1) => create(
            "/parameter".into(),
            client,
            request,
            Lifetime::Persistent,
            Naming::Given,
        ),
        (0, request) => set(
            ["/valid", "/parameter"][request % 2].into(),
            client,
            request,
            -1,
        ),
        _ if rng.bool() => Request::GetData {
            path: "/valid".into(),
            watching,
        },
        _ => Request::GetData {
            path: "/parameter".into(),
            watching: Watching::No,
        },
    }
}

fn create(
    path: String,
    client: usize,
    request: usize,
    lifetime: Lifetime,
    naming: Naming,
) -> Request {
    let acl = vec![Acl {
        permissions: 31,
        scheme: "world".into(),
        id: "anyone".into(),
    }];
    Request::Create {
        path,
        data: Some(data(client, request)),
        acl,
        lifetime,
        naming,
    }
}

fn set(path: String, client: usize, request: usize, version: i32) -> Request {
    Request::SetData {
        path,
        data: Some(data(client, request)),
        version,
    }
}

fn data(client: usize, request: usize) -> bytes::Bytes {
    format!("{client}.{request}").into()
}
