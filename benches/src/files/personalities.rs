//! The six loads of Filebench that the FaaSFS paper used (section 5.2), by a generator of our own.
//!
//! The calls of an iteration are those of Filebench's personalities. The file sets are smaller. Half
//! of the clients use each mount. A client replaces, appends to and deletes only its own files, and
//! reads those of all clients. So each read can be verified: a client knows the generation and the
//! length of its own files, and of others a prefix must be whole.
//!
//! On a mount each call is a transaction of its own. Landfast also runs each iteration as one
//! transaction: the clients are functions with the volume, and an iteration is an invocation.

mod client;
mod function;

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};

pub use self::function::serve;
use self::{
    client::{Client, Counts, Outcome},
    function::Caller,
};
use super::{
    report::{Figures, Part},
    targets::{Target, drop_caches},
};

const KIB: u64 = 1024;
/// Appends have this length, a mean in Filebench.
const APPEND_BYTES: u64 = 16 * KIB;
/// A video's blocks.
const VIDEO_READ_BYTES: u64 = 256 * KIB;
const VIDEO_BYTES: u64 = 8 << 20;
/// Reads per second of one viewer: 24 MiB/s.
const VIDEO_RATE: f64 = 96.0;
/// A new video replaces an old one this often, in each client.
const VIDEO_INTERVAL: Duration = Duration::from_millis(500);

/// A load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Personality {
    /// Creates, appends, whole reads and deletes of 128 KiB.
    Fileserver,
    /// The mix of a network file server: small files, rewritten through a second name.
    Networkfs,
    /// Mail: small files, each append synced.
    Varmail,
    /// Viewers at a fixed rate, while videos are replaced.
    Videoserver,
    /// A cache of pages: replaced once, read five times, a log.
    Webproxy,
    /// Ten pages read, one line of a log.
    Webserver,
}

/// The size of a run.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Clients, each a thread.
    pub clients: u32,
    /// The time of each load.
    pub time: Duration,
    /// Files of the small file sets.
    pub files: u32,
}

impl Personality {
    /// In the order of the table.
    pub const ALL: [Self; 6] = [
        Self::Fileserver,
        Self::Networkfs,
        Self::Varmail,
        Self::Videoserver,
        Self::Webproxy,
        Self::Webserver,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Fileserver => "fileserver",
            Self::Networkfs => "networkfs",
            Self::Varmail => "varmail",
            Self::Videoserver => "videoserver",
            Self::Webproxy => "webproxy",
            Self::Webserver => "webserver",
        }
    }

    fn files(self, scale: Scale) -> u32 {
        match self {
            Self::Fileserver => scale.files / 2,
            Self::Videoserver => 4 * scale.clients,
            _ => scale.files,
        }
    }

    /// The length of a new file.
    fn length(self, random: &mut fastrand::Rng) -> u64 {
        let words = |bytes: u64| bytes / 8 * 8;
        match self {
            Self::Fileserver => words(random.u64(64 * KIB..192 * KIB)),
            Self::Videoserver => VIDEO_BYTES,
            Self::Networkfs => {
                // Filebench's table: a third of the files have 1 KiB, one of a hundred up to 1.7 MiB.
                let (from, to) = match random.u32(0..100) {
                    0..33 => (1, 2),
                    33..54 => (1, 3),
                    54..67 => (3, 5),
                    67..77 => (5, 11),
                    77..85 => (11, 21),
                    85..90 => (21, 43),
                    90..94 => (43, 85),
                    94..97 => (85, 171),
                    97..99 => (171, 341),
                    _ => (341, 1707),
                };
                words(random.u64(from * KIB..to * KIB))
            }
            _ => words(random.u64(8 * KIB..24 * KIB)),
        }
    }

    fn iterate(self, client: &mut Client) -> Outcome {
        match self {
            Self::Fileserver => fileserver(client),
            Self::Networkfs => networkfs(client),
            Self::Varmail => varmail(client),
            Self::Videoserver => videoserver(client),
            Self::Webproxy => webproxy(client),
            Self::Webserver => webserver(client),
        }
    }
}

impl std::fmt::Display for Personality {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Where the clients of a load run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode<'a> {
    /// On the mounts.
    Mounts,
    /// In functions, which are deployed from this scratch directory.
    Functions(&'a Path),
}

/// Runs one load on a target.
pub fn measure(
    target: &Target,
    personality: Personality,
    scale: Scale,
    mode: Mode<'_>,
) -> Result<Figures> {
    let name = personality.name();
    let directories = target.directory(name)?;
    let files = personality.files(scale);
    let client = |number| {
        let directory = directories[number as usize % 2].clone();
        Client::new(personality, number, scale.clients, files, directory)
    };
    let mut clients: Vec<Client> = (0..scale.clients).map(client).collect();
    for client in &mut clients {
        client.fill()?;
    }
    let (counts, elapsed) = match mode {
        Mode::Mounts => {
            drop_caches();
            let iterate = |mut client: Client| {
                move || {
                    let outcome = personality.iterate(&mut client);
                    client.note(outcome);
                    std::mem::take(&mut client.counts)
                }
            };
            run(clients.into_iter().map(iterate), scale.time)?
        }
        Mode::Functions(scratch) => {
            let mut callers = Caller::deploy(target, personality, scale, scratch)?;
            drop_caches();
            let call = |mut caller: Caller| move || caller.call();
            run(callers.drain(..).map(call), scale.time)?
        }
    };
    let lost = client::lost(&directories[0].join("log"), &counts.appended)?;
    let case = match mode {
        Mode::Mounts => name.to_owned(),
        Mode::Functions(_) => format!("{name}, in transactions"),
    };
    let mut figures = Figures::new(Part::Personalities, target.kind);
    let rate = counts.calls as f64 / elapsed.as_secs_f64();
    let errors = counts.errors + counts.wrong + lost;
    figures.push(&*case, "calls/s", rate);
    figures.push(&*case, "errors", errors as f64);
    if personality == Personality::Videoserver {
        let wanted = VIDEO_RATE * f64::from(scale.clients) * elapsed.as_secs_f64();
        let share = counts.blocks as f64 * 100.0 / wanted;
        figures.push(&*case, "% of the rate", share);
    }
    let case = format!("{case} on {}", target.kind.name());
    eprintln!(
        "{case}: {rate:.0} calls/s, {} iterations, {} conflicts",
        counts.iterations, counts.conflicts
    );
    tell_faults(&case, &counts, lost);
    target.remove(name)?;
    Ok(figures)
}

fn tell_faults(case: &str, counts: &Counts, lost: u64) {
    if let Some(error) = &counts.first {
        eprintln!("{case}: first error: {error}");
    }
    if counts.wrong + lost > 0 {
        eprintln!(
            "{case}: {} reads returned wrong content, {lost} log records are lost or torn",
            counts.wrong
        );
    }
}

/// Repeats the iterations of all clients at once.
fn run<I: FnMut() -> Counts + Send>(
    clients: impl ExactSizeIterator<Item = I>,
    time: Duration,
) -> Result<(Counts, Duration)> {
    let barrier = Barrier::new(clients.len() + 1);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let threads: Vec<_> = clients
            .map(|mut iterate| {
                let (barrier, ended) = (&barrier, &ended);
                scope.spawn(move || {
                    // A first iteration, so that functions are warm.
                    let mut counts = Counts {
                        calls: 0,
                        blocks: 0,
                        ..iterate()
                    };
                    barrier.wait();
                    while !ended.load(Ordering::Relaxed) {
                        counts.add(iterate());
                        counts.iterations += 1;
                    }
                    counts
                })
            })
            .collect();
        barrier.wait();
        let begun = Instant::now();
        thread::sleep(time);
        ended.store(true, Ordering::Relaxed);
        let mut counts = Counts::default();
        for thread in threads {
            counts.add(thread.join().map_err(|_| anyhow!("a client panicked"))?);
        }
        Ok((counts, begun.elapsed()))
    })
}

fn fileserver(client: &mut Client) -> Outcome {
    let own = client.own();
    client.replace(own)?;
    client.append(own, APPEND_BYTES)?;
    client.read(own)?;
    client.delete(own)?;
    let any = client.any();
    client.stat(any)
}

fn networkfs(client: &mut Client) -> Outcome {
    for _ in 0..3 {
        let any = client.any();
        client.read(any)?;
    }
    for _ in 0..6 {
        let any = client.any();
        client.read(any)?;
        let own = client.own();
        client.replace_by_rename(own)?;
    }
    for _ in 0..3 {
        let own = client.own();
        client.append(own, 8 * KIB)?;
    }
    let any = client.any();
    client.stat(any)
}

fn varmail(client: &mut Client) -> Outcome {
    let own = client.own();
    client.delete(own)?;
    client.replace_synced(own)?;
    let own = client.own();
    client.read(own)?;
    client.append_synced(own, APPEND_BYTES)?;
    let any = client.any();
    client.read(any)
}

fn videoserver(client: &mut Client) -> Outcome {
    if client.is_due(VIDEO_INTERVAL) {
        let own = client.own();
        client.replace_by_rename(own)?;
    }
    let any = client.any();
    client.view(any, VIDEO_READ_BYTES, VIDEO_RATE)
}

fn webproxy(client: &mut Client) -> Outcome {
    let own = client.own();
    client.delete(own)?;
    client.replace(own)?;
    for _ in 0..5 {
        let any = client.any();
        client.read(any)?;
    }
    client.log()
}

fn webserver(client: &mut Client) -> Outcome {
    for _ in 0..10 {
        let any = client.any();
        client.read(any)?;
    }
    client.log()
}

/// Opens the log of all clients for appends.
fn open_log(path: &PathBuf) -> std::io::Result<std::fs::File> {
    OpenOptions::new().append(true).create(true).open(path)
}
