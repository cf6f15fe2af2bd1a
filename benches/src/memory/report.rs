//! The report of a run as Markdown.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::{limits::Limits, load::Measured, objects::size, servers::Kind};
use crate::{
    figures::Machine,
    table::{grid, strings, thousands},
};

/// The whole report.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The command line.
    pub command: String,
    /// Where and when.
    pub machine: Machine,
    /// The time of a measurement, in seconds.
    pub measure_seconds: f64,
    /// A line for each server that was left out.
    pub skipped: Vec<String>,
    /// The rates that the machine allows.
    pub limits: Limits,
    /// One row per load and server.
    pub cells: Vec<Cell>,
    /// The memory of the servers.
    pub memory: Vec<Memory>,
}

/// One load on one server.
#[derive(Debug, Serialize)]
pub struct Cell {
    /// The length of each object.
    pub object_bytes: usize,
    /// GETs of 100 requests.
    pub reads_percent: u8,
    /// Connections.
    pub connections: usize,
    /// The server.
    pub server: Kind,
    /// Content per second.
    pub bytes_per_second: f64,
    /// The same in objects.
    pub requests_per_second: f64,
    /// The GETs.
    pub gets: Option<Latency>,
    /// The PUTs.
    pub puts: Option<Latency>,
    /// CPU time of all processes of the server, for each request; none: no request was answered.
    pub cpu_us_per_request: Option<f64>,
    /// CPU time of the generator, for each request.
    pub generator_us_per_request: Option<f64>,
}

/// Percentiles in milliseconds.
#[derive(Debug, Serialize)]
pub struct Latency {
    /// How many there were.
    pub count: u64,
    /// Median.
    pub p50_ms: f64,
    /// Of ten the slowest but one.
    pub p90_ms: f64,
    /// Of a hundred the slowest but one.
    pub p99_ms: f64,
}

/// The memory of one server after its loads on objects of one size.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// The length of each object.
    pub object_bytes: usize,
    /// All objects together.
    pub stored_bytes: usize,
    /// The server.
    pub server: Kind,
    /// Anonymous memory of its first process.
    pub anonymous_bytes: u64,
    /// Anonymous memory of its other processes together.
    pub children_anonymous_bytes: u64,
}

/// The CPU time of the server and of the generator within a measurement, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    /// The server.
    pub server: f64,
    /// This process.
    pub generator: f64,
}

impl Cell {
    /// The figures of a measurement. A request that was under way counts by its bytes.
    pub fn new(
        server: Kind,
        object_bytes: usize,
        reads_percent: u8,
        connections: usize,
        measured: &Measured,
        cpu: Cpu,
    ) -> Self {
        let requests = measured.bytes as f64 / object_bytes as f64;
        let seconds = measured.elapsed.as_secs_f64();
        let each = |cpu: f64| (requests > 0.0).then(|| cpu * 1e6 / requests);
        Self {
            object_bytes,
            reads_percent,
            connections,
            server,
            bytes_per_second: measured.bytes as f64 / seconds,
            requests_per_second: requests / seconds,
            gets: latency(&measured.gets_us),
            puts: latency(&measured.puts_us),
            cpu_us_per_request: each(cpu.server),
            generator_us_per_request: each(cpu.generator),
        }
    }
}

fn latency(histogram: &Histogram<u64>) -> Option<Latency> {
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    (!histogram.is_empty()).then(|| Latency {
        count: histogram.len(),
        p50_ms: at(0.5),
        p90_ms: at(0.9),
        p99_ms: at(0.99),
    })
}

/// The report for a person.
pub fn markdown(report: &Report) -> String {
    let machine = &report.machine;
    let gibibytes = machine.memory_bytes as f64 / f64::from(1 << 30);
    let mut text = format!(
        "`{}`, {}\n\n{} x {}, {gibibytes:.0} GiB, Linux {}, load average {} before the run. Each measurement took {} s. MB are 10^6 bytes.\n\n",
        report.command,
        machine.date,
        machine.processors,
        machine.processor,
        machine.kernel,
        machine.load_average,
        report.measure_seconds
    );
    for line in &report.skipped {
        text.push_str(line);
        text.push_str(".\n\n");
    }
    limits(&mut text, &report.limits);
    loads(&mut text, &report.cells);
    memory(&mut text, &report.memory);
    text
}

fn limits(text: &mut String, limits: &Limits) {
    let mut cells = vec![strings(["limit of the machine", "MB/s"])];
    let mut row = |name: String, rate: f64| cells.push(vec![name, megabytes(rate)]);
    row("copy of memory, one thread".to_owned(), limits.copy);
    for (connections, rate) in &limits.loopback {
        row(format!("loopback, connections: {connections}"), *rate);
    }
    row("new files of 12 MB, synced".to_owned(), limits.synced);
    row("the same, four at a time".to_owned(), limits.synced_at_once);
    grid(text, &cells);
    text.push('\n');
}

fn loads(text: &mut String, cells: &[Cell]) {
    let mut rows = vec![strings([
        "objects, GET:PUT, connections",
        "server",
        "MB/s",
        "requests/s",
        "GET p50 ms",
        "p90",
        "p99",
        "PUT p50 ms",
        "p90",
        "p99",
        "CPU us/request",
        "generator us",
    ])];
    for cell in cells {
        let reads = cell.reads_percent;
        let mut row = vec![
            format!(
                "{}, {reads}:{}, {}",
                size(cell.object_bytes),
                100 - reads,
                cell.connections
            ),
            cell.server.name().to_owned(),
            megabytes(cell.bytes_per_second),
            thousands(cell.requests_per_second),
        ];
        for latency in [&cell.gets, &cell.puts] {
            let shown = |of: fn(&Latency) -> f64| {
                latency
                    .as_ref()
                    .map_or_else(String::new, |latency| format!("{:.2}", of(latency)))
            };
            row.push(shown(|latency| latency.p50_ms));
            row.push(shown(|latency| latency.p90_ms));
            row.push(shown(|latency| latency.p99_ms));
        }
        for cpu in [cell.cpu_us_per_request, cell.generator_us_per_request] {
            row.push(cpu.map_or_else(String::new, thousands));
        }
        rows.push(row);
    }
    grid(text, &rows);
    text.push('\n');
}

fn memory(text: &mut String, memory: &[Memory]) {
    let mut rows = vec![strings([
        "after the loads on objects",
        "server",
        "stored, MB",
        "anonymous, MB",
        "child processes', MB",
    ])];
    rows.extend(memory.iter().map(|memory| {
        vec![
            size(memory.object_bytes),
            memory.server.name().to_owned(),
            megabytes(memory.stored_bytes as f64),
            megabytes(memory.anonymous_bytes as f64),
            megabytes(memory.children_anonymous_bytes as f64),
        ]
    }));
    grid(text, &rows);
}

fn megabytes(bytes: f64) -> String {
    thousands(bytes / 1e6)
}
