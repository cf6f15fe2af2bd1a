//! Closed-loop load: C connections, each with P requests outstanding.
//!
//! One thread drives all connections, since it shares the machine with the server under test. A
//! connection writes all requests it may send in one call, and reads all replies that have arrived
//! in one call. The clock is read once for each of the two. A reply out of order, an error code, a
//! zxid that goes back or a body of the wrong size ends the run. Every counted reply was therefore
//! right.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::LocalSet,
};

use crate::{
    figures::{Load, Shape, Workload},
    server::Process,
    wire,
};

/// The parent of a run's nodes.
const PARENT: &str = "/bench";
/// The body of a get's reply, beside the data: the data's length and a Stat.
const STAT_BYTES: usize = 68;
/// Nodes that one multi sets, and the body of its reply: a header and a Stat for each, and an end.
const MULTI_NODES: usize = 100;
const MULTI_REPLY_BYTES: usize = MULTI_NODES * (9 + STAT_BYTES) + 9;
/// Bytes that a multi sets in each node.
const MULTI_NODE_BYTES: usize = 100;
const SESSION_TIMEOUT_MS: i32 = 30_000;
/// Latencies above this bound are recorded as the bound.
const LATENCY_US_MAX: u64 = 60_000_000;
/// A reply that takes longer than this ends the run.
const REPLY_WAIT: Duration = Duration::from_secs(30);
const READ_BYTES: usize = 256 * 1024;
/// Requests outstanding while the nodes are created.
const PREPARE_PIPELINE: usize = 64;

/// The requests of a run, and the length of its measurement.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Nodes that gets and sets are spread over.
    pub nodes: usize,
    /// Bytes of data in each of them.
    pub node_bytes: usize,
    /// Time before the measurement starts.
    pub warm_up: Duration,
    /// Length of the measurement.
    pub measure: Duration,
}

/// Creates the nodes of a run on a fresh server.
pub async fn prepare(address: SocketAddr, plan: Plan) -> Result<()> {
    let data = data(plan.node_bytes);
    let mut packets = vec![wire::create(PARENT, b"")];
    packets.extend((0..plan.nodes).map(|node| wire::create(&node_path(node), &data)));
    let mut session = Session::open(address).await?;
    for chunk in packets.chunks_mut(PREPARE_PIPELINE) {
        for packet in chunk {
            session.send(packet, 0);
        }
        session.flush().await?;
        while !session.outstanding.is_empty() {
            session.receive(|_| {}).await?;
        }
    }
    session.close().await
}

/// The results of one load, or of several together.
#[derive(Debug)]
pub struct Measured {
    latencies_us: Histogram<u64>,
    elapsed: Duration,
    cpu: Duration,
}

impl Measured {
    /// Adds another measurement of the same load to this one.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        self.latencies_us.add(&other.latencies_us)?;
        self.elapsed += other.elapsed;
        self.cpu += other.cpu;
        Ok(())
    }

    /// Its figures.
    pub fn load(&self) -> Load {
        let operations = self.latencies_us.len();
        let millis = |quantile| self.latencies_us.value_at_quantile(quantile) as f64 / 1e3;
        Load {
            operations,
            operations_per_second: operations as f64 / self.elapsed.as_secs_f64(),
            p50_ms: millis(0.5),
            p99_ms: millis(0.99),
            cpu_seconds: self.cpu.as_secs_f64(),
            cpu_us_per_operation: self.cpu.as_secs_f64() * 1e6 / operations.max(1) as f64,
        }
    }
}

/// Puts one load on a server and measures it.
pub async fn run(
    server: &Process,
    workload: Workload,
    shape: Shape,
    plan: Plan,
) -> Result<Measured> {
    let requests = Rc::new(Requests::new(workload, plan));
    let meter = Rc::new(Meter::new());
    let local = LocalSet::new();
    let mut connections = Vec::new();
    for index in 0..shape.connections {
        let session = Session::open(server.address).await?;
        let connection = Connection {
            session,
            requests: Rc::clone(&requests),
            meter: Rc::clone(&meter),
            parent: format!("{PARENT}/c{index:03}"),
            window: shape.outstanding,
            turn: index.wrapping_mul(7919) as u64,
        };
        connections.push(local.spawn_local(connection.drive()));
    }
    local
        .run_until(async {
            tokio::time::sleep(plan.warm_up).await;
            let cpu_before = server.cpu()?;
            meter.start();
            tokio::time::sleep(plan.measure).await;
            let elapsed = meter.stop();
            let cpu = server.cpu()?.saturating_sub(cpu_before);
            for connection in connections {
                let ended = tokio::time::timeout(REPLY_WAIT, connection).await;
                ended
                    .context("a reply is 30 s late")?
                    .context("a connection's task")??;
            }
            Ok(meter.measured(elapsed, cpu))
        })
        .await
}

/// The meter that all connections record their latencies in.
struct Meter {
    measuring: Cell<bool>,
    stopped: Cell<bool>,
    started: Cell<Instant>,
    latencies_us: RefCell<Histogram<u64>>,
}

impl Meter {
    fn new() -> Self {
        let histogram =
            Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are valid");
        Self {
            measuring: Cell::new(false),
            stopped: Cell::new(false),
            started: Cell::new(Instant::now()),
            latencies_us: RefCell::new(histogram),
        }
    }

    fn start(&self) {
        self.started.set(Instant::now());
        self.measuring.set(true);
    }

    fn stop(&self) -> Duration {
        self.measuring.set(false);
        self.stopped.set(true);
        self.started.get().elapsed()
    }

    fn count(&self, latency: Duration) {
        if self.measuring.get() {
            self.latencies_us
                .borrow_mut()
                .saturating_record((latency.as_micros() as u64).max(1));
        }
    }

    fn measured(&self, elapsed: Duration, cpu: Duration) -> Measured {
        Measured {
            latencies_us: self.latencies_us.borrow().clone(),
            elapsed,
            cpu,
        }
    }
}

/// Every request of a workload, encoded.
struct Requests {
    workload: Workload,
    gets: Vec<Vec<u8>>,
    sets: Vec<Vec<u8>>,
    /// Only for that workload.
    multis: Vec<Vec<u8>>,
    data: Vec<u8>,
    get_reply_bytes: usize,
}

impl Requests {
    fn new(workload: Workload, plan: Plan) -> Self {
        let data = data(plan.node_bytes);
        let paths: Vec<String> = (0..plan.nodes).map(node_path).collect();
        let wanted = if workload == Workload::Multi {
            &paths[..]
        } else {
            &[]
        };
        let multis = wanted.chunks_exact(MULTI_NODES).map(|paths| {
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            wire::multi_set(&paths, &data[..MULTI_NODE_BYTES.min(data.len())])
        });
        Self {
            workload,
            multis: multis.collect(),
            gets: paths.iter().map(|path| wire::get_data(path)).collect(),
            sets: paths
                .iter()
                .map(|path| wire::set_data(path, &data))
                .collect(),
            get_reply_bytes: 4 + data.len() + STAT_BYTES,
            data,
        }
    }
}

/// One session that keeps `window` requests outstanding until the meter stops.
struct Connection {
    session: Session,
    requests: Rc<Requests>,
    meter: Rc<Meter>,
    parent: String,
    window: usize,
    turn: u64,
}

impl Connection {
    async fn drive(mut self) -> Result<()> {
        // Each connection creates under a parent of its own, as independent clients do.
        let mut create = wire::create(&wire::numbered(&self.parent, 0), &self.requests.data);
        let mut delete = wire::delete(&wire::numbered(&self.parent, 0));
        let creates = self.requests.workload == Workload::CreateDelete;
        if creates {
            self.once(wire::create(&self.parent, b"")).await?;
        }
        let mut sent = 0_u64;
        loop {
            let stopped = self.meter.stopped.get();
            // A create is always followed by the delete that it owes, so the next run finds the
            // tree clean.
            while self.session.outstanding.len() < self.window
                && (!stopped || (creates && sent % 2 == 1))
            {
                if creates {
                    let packet = if sent.is_multiple_of(2) {
                        &mut create
                    } else {
                        &mut delete
                    };
                    wire::set_number(packet, sent / 2);
                    self.session.send(packet, 0);
                } else {
                    self.turn = self
                        .turn
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    self.send_read_or_set(self.turn >> 33);
                }
                sent += 1;
            }
            if self.session.outstanding.is_empty() {
                break;
            }
            self.session.flush().await?;
            let meter = &self.meter;
            self.session.receive(|latency| meter.count(latency)).await?;
        }
        if creates {
            self.once(wire::delete(&self.parent)).await?;
        }
        self.session.close().await
    }

    fn send_read_or_set(&mut self, chance: u64) {
        let requests = &self.requests;
        let node = (chance / 100) as usize % requests.gets.len();
        if requests.workload == Workload::Multi {
            let multi = &requests.multis[node % requests.multis.len()];
            return self.session.send_copy(multi, MULTI_REPLY_BYTES);
        }
        let writes = match requests.workload {
            Workload::Get => false,
            Workload::Set | Workload::Multi => true,
            Workload::Mix | Workload::CreateDelete => chance % 100 < 10,
        };
        if writes {
            self.session.send_copy(&requests.sets[node], STAT_BYTES);
        } else {
            self.session
                .send_copy(&requests.gets[node], requests.get_reply_bytes);
        }
    }

    async fn once(&mut self, mut packet: Vec<u8>) -> Result<()> {
        self.session.send(&mut packet, 0);
        self.session.flush().await?;
        while !self.session.outstanding.is_empty() {
            self.session.receive(|_| {}).await?;
        }
        Ok(())
    }
}

/// A request in flight.
struct Outstanding {
    sent: Instant,
    /// Expected length of the body; zero accepts any.
    body_bytes: usize,
}

/// One ZooKeeper session over one socket.
struct Session {
    socket: TcpStream,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    filled: usize,
    outstanding: VecDeque<Outstanding>,
    /// Requests since the last flush; the next flush sets their time.
    unsent: usize,
    opened: Instant,
    next_xid: i32,
    answered_xid: i32,
    zxid: i64,
}

impl Session {
    async fn open(address: SocketAddr) -> Result<Self> {
        let mut socket = TcpStream::connect(address)
            .await
            .with_context(|| format!("connecting to {address}"))?;
        socket.set_nodelay(true)?;
        socket.write_all(&wire::connect(SESSION_TIMEOUT_MS)).await?;
        let mut answer = [0; 41];
        tokio::time::timeout(REPLY_WAIT, socket.read_exact(&mut answer))
            .await
            .context("no session was given")??;
        ensure!(
            i64::from_be_bytes(answer[12..20].try_into()?) != 0,
            "the session was refused"
        );
        Ok(Self {
            socket,
            outgoing: Vec::with_capacity(READ_BYTES),
            incoming: vec![0; READ_BYTES],
            filled: 0,
            outstanding: VecDeque::new(),
            unsent: 0,
            opened: Instant::now(),
            next_xid: 1,
            answered_xid: 0,
            zxid: 0,
        })
    }

    fn send(&mut self, packet: &mut [u8], body_bytes: usize) {
        self.send_copy(packet, body_bytes);
    }

    /// Queues a request; it is sent with the next [`Session::flush`].
    fn send_copy(&mut self, packet: &[u8], body_bytes: usize) {
        let start = self.outgoing.len();
        self.outgoing.extend_from_slice(packet);
        wire::set_xid(&mut self.outgoing[start..], self.next_xid);
        self.next_xid += 1;
        self.unsent += 1;
        self.outstanding.push_back(Outstanding {
            sent: self.opened,
            body_bytes,
        });
    }

    async fn flush(&mut self) -> Result<()> {
        let now = Instant::now();
        for outstanding in self.outstanding.iter_mut().rev().take(self.unsent) {
            outstanding.sent = now;
        }
        self.unsent = 0;
        self.socket.write_all(&self.outgoing).await?;
        self.outgoing.clear();
        Ok(())
    }

    /// Reads once and passes on every whole reply with the time it took.
    async fn receive(&mut self, mut each: impl FnMut(Duration)) -> Result<()> {
        if self.filled == self.incoming.len() {
            self.incoming.resize(self.filled * 2, 0);
        }
        let bytes = self.socket.read(&mut self.incoming[self.filled..]).await?;
        ensure!(bytes > 0, "the server closed the connection");
        self.filled += bytes;
        let now = Instant::now();
        let mut used = 0;
        while let Some((reply, reply_bytes)) =
            wire::decode_reply(&self.incoming[used..self.filled])?
        {
            used += reply_bytes;
            let outstanding = self.check(reply)?;
            each(now.duration_since(outstanding.sent));
        }
        self.incoming.copy_within(used..self.filled, 0);
        self.filled -= used;
        Ok(())
    }

    fn check(&mut self, reply: wire::Reply) -> Result<Outstanding> {
        self.answered_xid += 1;
        ensure!(
            reply.xid == self.answered_xid,
            "expected the reply {}, got {reply:?}",
            self.answered_xid
        );
        ensure!(reply.error == 0, "an error reply: {reply:?}");
        ensure!(
            reply.zxid >= self.zxid,
            "the zxid went back from {}: {reply:?}",
            self.zxid
        );
        self.zxid = reply.zxid;
        let Some(outstanding) = self.outstanding.pop_front() else {
            bail!("a reply to no request: {reply:?}")
        };
        let expected = outstanding.body_bytes;
        ensure!(
            expected == 0 || reply.body_bytes == expected,
            "expected a body of {expected} bytes: {reply:?}"
        );
        Ok(outstanding)
    }

    async fn close(mut self) -> Result<()> {
        self.send(&mut wire::close_session(), 0);
        self.flush().await?;
        self.receive(|_| {}).await
    }
}

fn data(bytes: usize) -> Vec<u8> {
    // A byte pattern with a long period, so that no compressor gains from it.
    (0..bytes)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

/// The path of a run's node.
pub fn node_path(node: usize) -> String {
    format!("{PARENT}/k{node:06}")
}
