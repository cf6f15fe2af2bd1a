//! The six loads of Filebench that the FaaSFS paper used (section 5.2), by a generator of our own.
//!
//! The calls of an iteration are those of Filebench's personalities. The file sets are smaller. Half
//! of the clients use each mount. A client replaces, appends to and deletes only its own files, and
//! reads those of all clients. So each read can be verified: a client knows the generation and the
//! length of its own files, and of others a prefix must be whole.
//!
//! On a mount each call is a transaction of its own; an iteration is not one.

mod client;

use std::{
    fs::OpenOptions,
    path::PathBuf,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

use self::client::{Client, Counts, Log, Outcome};
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
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

    fn iterate(self, client: &mut Client<'_>) -> Outcome {
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

/// Runs one load on a target.
pub fn measure(target: &Target, personality: Personality, scale: Scale) -> Result<Figures> {
    let name = personality.name();
    let directories = target.directory(name)?;
    let files = personality.files(scale);
    let log = Log::default();
    let mut clients: Vec<Client<'_>> = (0..scale.clients)
        .map(|number| {
            let directory = directories[number as usize % 2].clone();
            Client::new(personality, number, scale.clients, files, directory, &log)
        })
        .collect();
    for client in &mut clients {
        client.fill()?;
    }
    drop_caches();
    let (counts, elapsed) = run(clients, personality, scale.time)?;
    let lost = log.lost(&directories.clone().map(|directory| directory.join("log")))?;
    let mut figures = Figures::new(Part::Personalities, target.kind);
    let rate = counts.calls as f64 / elapsed.as_secs_f64();
    figures.push(name, "calls/s", rate);
    figures.push(name, "errors", (counts.errors + counts.wrong + lost) as f64);
    if personality == Personality::Videoserver {
        let wanted = VIDEO_RATE * f64::from(scale.clients) * elapsed.as_secs_f64();
        figures.push(name, "% of the rate", counts.blocks as f64 * 100.0 / wanted);
    }
    if let Some(error) = counts.first {
        eprintln!("{name} on {}: first error: {error}", target.kind.name());
    }
    if counts.wrong + lost > 0 {
        eprintln!(
            "{name} on {}: {} reads returned wrong content, {lost} log records are lost or torn",
            target.kind.name(),
            counts.wrong
        );
    }
    target.remove(name)?;
    Ok(figures)
}

fn run(
    clients: Vec<Client<'_>>,
    personality: Personality,
    time: Duration,
) -> Result<(Counts, Duration)> {
    let barrier = Barrier::new(clients.len() + 1);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .map(|mut client| {
                let (barrier, ended) = (&barrier, &ended);
                scope.spawn(move || {
                    barrier.wait();
                    while !ended.load(Ordering::Relaxed) {
                        let outcome = personality.iterate(&mut client);
                        client.note(outcome);
                    }
                    client.counts
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

fn fileserver(client: &mut Client<'_>) -> Outcome {
    let own = client.own();
    client.replace(own)?;
    client.append(own, APPEND_BYTES)?;
    client.read(own)?;
    client.delete(own)?;
    let any = client.any();
    client.stat(any)
}

fn networkfs(client: &mut Client<'_>) -> Outcome {
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

fn varmail(client: &mut Client<'_>) -> Outcome {
    let own = client.own();
    client.delete(own)?;
    client.replace_synced(own)?;
    let own = client.own();
    client.read(own)?;
    client.append_synced(own, APPEND_BYTES)?;
    let any = client.any();
    client.read(any)
}

fn videoserver(client: &mut Client<'_>) -> Outcome {
    if client.is_due(VIDEO_INTERVAL) {
        let own = client.own();
        client.replace_by_rename(own)?;
    }
    let any = client.any();
    client.view(any, VIDEO_READ_BYTES, VIDEO_RATE)
}

fn webproxy(client: &mut Client<'_>) -> Outcome {
    let own = client.own();
    client.delete(own)?;
    client.replace(own)?;
    for _ in 0..5 {
        let any = client.any();
        client.read(any)?;
    }
    client.log(APPEND_BYTES)
}

fn webserver(client: &mut Client<'_>) -> Outcome {
    for _ in 0..10 {
        let any = client.any();
        client.read(any)?;
    }
    client.log(APPEND_BYTES)
}

/// Opens the log of all clients for appends.
fn open_log(path: &PathBuf) -> std::io::Result<std::fs::File> {
    OpenOptions::new().append(true).create(true).open(path)
}
