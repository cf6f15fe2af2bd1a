//! Concurrent connections with requests for objects, and their measurements.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use fastrand::Rng;
use hdrhistogram::Histogram;
use simulation::transactions::workload::Zipf;
use tokio::task::JoinSet;

use super::{
    client::{Check, Connection, Protocol, Requests},
    objects::Content,
};

/// The skew of the keys' popularity.
const ZIPF: f64 = 0.99;
const LATENCY_US_MAX: u64 = 600_000_000;
const LOOK: Duration = Duration::from_millis(5);
/// A measurement with few responses goes on for up to this many times its time.
const EXTENSIONS_MAX: u32 = 4;

/// What the connections do.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// GETs of 100 requests; the others are PUTs.
    pub reads_percent: u8,
    /// Connections with one request outstanding each.
    pub connections: usize,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Time of the measurement, which goes on until as many requests as connections are answered.
    pub measure: Duration,
}

/// The server of a load, and the objects on it.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its address.
    pub address: SocketAddr,
    /// Its language.
    pub protocol: Protocol,
    /// The objects' content.
    pub content: Arc<Content>,
}

/// The results of a load.
#[derive(Debug)]
pub struct Measured {
    /// Time of each GET that ended within the measurement, in microseconds.
    pub gets_us: Histogram<u64>,
    /// The same for PUTs.
    pub puts_us: Histogram<u64>,
    /// Bytes of content that arrived, or that were acknowledged, within it.
    pub bytes: u64,
    /// Its time.
    pub elapsed: Duration,
}

impl Measured {
    fn new() -> Self {
        let histogram =
            || Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are valid");
        Self {
            gets_us: histogram(),
            puts_us: histogram(),
            bytes: 0,
            elapsed: Duration::ZERO,
        }
    }
}

#[derive(Debug, Default)]
struct Meter {
    measuring: AtomicBool,
    stopped: AtomicBool,
    answered: AtomicUsize,
}

/// Writes each object once over `connections`. Returns the time.
pub async fn fill(target: &Target, connections: usize) -> Result<Duration> {
    each_once(target, connections, Once::Put).await
}

/// Reads each object once and compares all of its bytes.
pub async fn verify(target: &Target, connections: usize) -> Result<()> {
    each_once(target, connections, Once::Verify).await?;
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum Once {
    Put,
    Verify,
}

async fn each_once(target: &Target, connections: usize, work: Once) -> Result<Duration> {
    let objects = target.content.objects();
    let requests = Arc::new(Requests::new(target.protocol, target.address, objects));
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..connections.min(objects.count) {
        let (target, requests, next) = (target.clone(), Arc::clone(&requests), Arc::clone(&next));
        tasks.spawn(async move {
            let content = &target.content;
            let mut connection = Connection::to(target.address, Arc::default()).await?;
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= objects.count {
                    return anyhow::Ok(());
                }
                match work {
                    Once::Put => connection.put(&requests, content, index).await,
                    Once::Verify => {
                        connection
                            .get(&requests, content, index, Check::Bytes)
                            .await
                    }
                }
                .with_context(|| format!("object {index}"))?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(started.elapsed())
}

/// Runs the requests of `shape`, and calls `cpu` at the begin and at the end of the measurement.
pub async fn run<T>(
    target: &Target,
    shape: Shape,
    seed: u64,
    mut cpu: impl FnMut() -> Result<T>,
) -> Result<(Measured, T, T)> {
    let objects = target.content.objects();
    let requests = Arc::new(Requests::new(target.protocol, target.address, objects));
    let zipf = Arc::new(Zipf::new(objects.count, ZIPF));
    let (meter, moved) = (Arc::new(Meter::default()), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for number in 0..shape.connections {
        let client = Client {
            connection: Connection::to(target.address, Arc::clone(&moved)).await?,
            requests: Arc::clone(&requests),
            content: Arc::clone(&target.content),
            zipf: Arc::clone(&zipf),
            meter: Arc::clone(&meter),
            rng: Rng::with_seed(seed.wrapping_add(number as u64)),
            shape,
            next: number,
        };
        tasks.spawn(client.drive());
    }
    settled(&mut tasks, shape.warm_up, || true).await?;
    let before = cpu()?;
    let (begun, moved_before) = (Instant::now(), moved.load(Ordering::Relaxed));
    meter.measuring.store(true, Ordering::Relaxed);
    settled(&mut tasks, shape.measure, || {
        meter.answered.load(Ordering::Relaxed) >= shape.connections
            || begun.elapsed() > shape.measure * EXTENSIONS_MAX
    })
    .await?;
    meter.measuring.store(false, Ordering::Relaxed);
    let mut all = Measured::new();
    all.elapsed = begun.elapsed();
    all.bytes = moved.load(Ordering::Relaxed) - moved_before;
    let after = cpu()?;
    meter.stopped.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        let one = ended??;
        all.gets_us.add(&one.gets_us)?;
        all.puts_us.add(&one.puts_us)?;
    }
    Ok((all, before, after))
}

/// Waits for `time`, and until `is_enough`. A client that fails ends the wait.
async fn settled(
    tasks: &mut JoinSet<Result<Measured>>,
    time: Duration,
    is_enough: impl Fn() -> bool,
) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < time || !is_enough() {
        tokio::time::sleep(LOOK).await;
        if let Some(ended) = tasks.try_join_next() {
            ended??;
        }
    }
    Ok(())
}

/// One connection and its requests.
struct Client {
    connection: Connection,
    requests: Arc<Requests>,
    content: Arc<Content>,
    zipf: Arc<Zipf>,
    meter: Arc<Meter>,
    rng: Rng,
    shape: Shape,
    /// The object of the next PUT, if there are only PUTs.
    next: usize,
}

impl Client {
    async fn drive(mut self) -> Result<Measured> {
        let mut measured = Measured::new();
        while !self.meter.stopped.load(Ordering::Relaxed) {
            let (index, is_read) = self.draw();
            let begun = Instant::now();
            if is_read {
                let got = self
                    .connection
                    .get(&self.requests, &self.content, index, Check::Length);
                got.await.with_context(|| format!("GET object {index}"))?;
            } else {
                let put = self.connection.put(&self.requests, &self.content, index);
                put.await.with_context(|| format!("PUT object {index}"))?;
            }
            if self.meter.measuring.load(Ordering::Relaxed) {
                let latencies = if is_read {
                    &mut measured.gets_us
                } else {
                    &mut measured.puts_us
                };
                latencies.saturating_record((begun.elapsed().as_micros() as u64).max(1));
                self.meter.answered.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(measured)
    }

    /// The next object, and whether it is read. With nothing but PUTs all objects take turns, since
    /// servers serialise the PUTs of one object.
    fn draw(&mut self) -> (usize, bool) {
        let count = self.content.objects().count;
        if self.shape.reads_percent == 0 {
            let index = self.next % count;
            self.next += self.shape.connections;
            return (index, false);
        }
        let is_read = self.rng.u8(0..100) < self.shape.reads_percent;
        (self.zipf.draw(&mut self.rng), is_read)
    }
}
