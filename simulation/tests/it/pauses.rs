//! The pauses of sessions on several processes, of which one dies.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use coordination::{
    Client, ConnectError, Gateway,
    broken::Broken,
    model::{Connect, Output, Password, SessionId, Zxid},
};
use fastrand::Rng;
use futures_util::future::join_all;
use ports::{Clock, Monotonic};
use simulated::{World, percent};
use simulation::{
    processes::{Dropped, Processes, partitionable::ProcessControl},
    scenario::{everything, multis, seeds},
    transactions::crashable::Side,
};
use tokio::task::JoinHandle;

/// The longest pause of a session whose own process lives. The dead process's messages are hidden
/// for 2 s, and the rest is work.
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// How long clients send requests before a death, and after it.
const AROUND_DEATH: Duration = Duration::from_millis(100);
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
const PROCESSES: usize = 3;
const CLIENTS_PER_PROCESS: usize = 2;
const WINDOW_MAX: usize = 4;
/// The pause between two windows of a client.
const THINKS: Duration = Duration::from_millis(5);

/// A process, to which clients connect.
type Home = (Gateway, ProcessControl);

/// A window of requests: when it was first sent, and when it was answered.
type Window = (Monotonic, Monotonic);

/// A client that stays with its process until that dies, and then moves to another.
struct Homed {
    number: usize,
    homes: Vec<Home>,
    clock: Arc<dyn Clock>,
    rng: Rng,
    resume: Option<(SessionId, Password)>,
    last_zxid_seen: Zxid,
    windows: Vec<Window>,
    /// When the window was sent that has no reply yet.
    waits_since: Option<Monotonic>,
    stop: Arc<AtomicBool>,
}

impl Homed {
    async fn act(mut self) -> Vec<Window> {
        let mut home = self.number % PROCESSES;
        while self.goes_on() {
            let (gateway, control) = self.homes[home].clone();
            tokio::select! {
                biased;
                () = control.life().over() => home = (home + 1) % PROCESSES,
                () = self.stay(&gateway) => {}
            }
            self.clock.sleep(THINKS).await;
        }
        self.windows
    }

    fn goes_on(&self) -> bool {
        self.waits_since.is_some() || !self.stop.load(Ordering::Relaxed)
    }

    async fn stay(&mut self, gateway: &Gateway) {
        let connect = Connect {
            last_zxid_seen: self.last_zxid_seen,
            timeout: SESSION_TIMEOUT,
            resume: self.resume,
        };
        let mut client = match gateway.connect(connect).await {
            Ok(client) => client,
            Err(ConnectError::Expired) => return self.resume = None,
            Err(_) => return,
        };
        self.resume = Some((client.session(), client.password()));
        while self.goes_on() && self.window(&mut client).await {
            self.clock.sleep(THINKS).await;
        }
    }

    /// Sends a window and waits for its replies. Returns false if the connection ended before.
    async fn window(&mut self, client: &mut Client) -> bool {
        let sent = *self
            .waits_since
            .get_or_insert_with(|| self.clock.monotonic());
        let mut replies = self.rng.usize(1..=WINDOW_MAX);
        for request in 0..replies {
            let mix = if self.rng.bool() { everything } else { multis };
            let asked = mix(&mut self.rng, self.number, self.windows.len());
            client.submit(request as i32, asked);
        }
        loop {
            let mut outputs = Vec::new();
            if client.pump(&mut outputs).await.is_err() {
                return false;
            }
            for output in outputs {
                if let Output::Reply { zxid, .. } = output {
                    self.last_zxid_seen = self.last_zxid_seen.max(zxid);
                    replies -= 1;
                }
            }
            if replies == 0 {
                self.windows.push((sent, self.clock.monotonic()));
                self.waits_since = None;
                return true;
            }
            client.wait().await;
        }
    }
}

/// The clients and the processes of a run.
struct Run {
    processes: Processes,
    homes: Vec<Home>,
    clock: Arc<dyn Clock>,
    rng: Rng,
    clients: Vec<JoinHandle<Vec<Window>>>,
    stop: Arc<AtomicBool>,
}

impl Run {
    async fn start(seed: u64, broken: Option<Broken>) -> Self {
        let (world, mut rng) = (World::new(seed), Rng::with_seed(seed));
        let longest_ms = rng.u64(1..=10);
        let clock: Arc<dyn Clock> = world.clock();
        let delays = Duration::ZERO..=Duration::from_millis(longest_ms);
        world.faults().delay(percent(50), delays);
        let dropped = Dropped {
            coordination: broken,
            ..Dropped::default()
        };
        let processes = Processes::new(&world, dropped);
        (0..PROCESSES).for_each(|_| processes.start());
        let homes: Vec<Home> = (0..PROCESSES)
            .map(|process| (processes.gateway(process), processes.control(process)))
            .collect();
        while !processes.are_whole() {
            clock.sleep(Duration::from_millis(50)).await;
        }
        let stop = Arc::<AtomicBool>::default();
        let clients = (0..PROCESSES * CLIENTS_PER_PROCESS).map(|number| {
            let client = Homed {
                number,
                homes: homes.clone(),
                clock: clock.clone(),
                rng: rng.fork(),
                resume: None,
                last_zxid_seen: Zxid(0),
                windows: Vec::new(),
                waits_since: None,
                stop: Arc::clone(&stop),
            };
            tokio::spawn(client.act())
        });
        let clients = clients.collect();
        Self {
            processes,
            homes,
            clock,
            rng,
            clients,
            stop,
        }
    }

    /// Lets all clients finish. Returns the longest wait for a reply after `since`, of the clients
    /// of living processes.
    async fn longest_wait(self, since: Monotonic) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        let mut longest = Duration::ZERO;
        for (number, windows) in join_all(self.clients).await.into_iter().enumerate() {
            let windows = windows.expect("a client does not panic");
            let pauses = windows
                .iter()
                .map(|(sent, end)| end.since(since.max(*sent)));
            if !self.homes[number % PROCESSES].1.life().is_over() {
                longest = longest.max(pauses.max().unwrap_or_default());
            }
        }
        longest
    }
}

async fn wait_after_a_death(seed: u64, broken: Option<Broken>) -> Duration {
    let mut run = Run::start(seed, broken).await;
    let clock = run.clock.clone();
    clock.sleep(AROUND_DEATH).await;
    let victim = run.rng.usize(..PROCESSES);
    let life = run.homes[victim].1.life().clone();
    let side = if run.rng.bool() {
        Side::Before
    } else {
        Side::After
    };
    life.ends_after(run.rng.u64(..40), side);
    life.over().await;
    let died = clock.monotonic();
    run.processes.kill(victim);
    clock.sleep(AROUND_DEATH).await;
    run.longest_wait(died).await
}

/// A session whose process lives resumes soon after another process has died.
#[test]
fn a_death_delays_the_sessions_of_others_for_seconds_at_most() {
    for seed in seeds() {
        let waited = simulated::run(wait_after_a_death(seed, None));
        assert!(waited < PAUSE_MAX, "seed {seed}: {waited:?}");
    }
}

/// C-1, broken: waiters do not see that a dead writer's lock is over.
#[test]
fn waiting_for_dead_writers_is_caught() {
    let waits = |seed| {
        let broken = Some(Broken::WaitsForDeadWriters);
        simulated::run(wait_after_a_death(seed, broken)) > PAUSE_MAX
    };
    assert!((0..400).any(waits), "it was not caught by 400 seeds");
}
