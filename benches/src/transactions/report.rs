//! What one run found, as tables.

use std::fmt::Write as _;

use serde::Serialize;

use super::{
    collection::{Collecting, Collection},
    disk::DiskRate,
    lengths::Length,
    packs::Packing,
    run::Figures,
};
use crate::{
    figures::Machine,
    table::{grid, strings, thousands},
};

/// A store under a load.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// The store, and the way to it.
    pub store: &'static str,
    /// The exponent of the keys' heat.
    pub zipf: f64,
    /// Clients at once.
    pub clients: usize,
    /// Length of a value.
    pub value_bytes: usize,
    /// What came of it.
    pub figures: Figures,
    /// CPU time per transaction, in microseconds, of each process that took part.
    pub cpu_us: Vec<(String, f64)>,
}

/// Everything one run found out.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What was called.
    pub command: String,
    /// Where.
    pub machine: Machine,
    /// How the Redis server keeps what it answers.
    pub redis: String,
    /// Plain Redis beside Landfast on the same server.
    pub beside_redis: Vec<Cell>,
    /// The embedded store.
    pub embedded: Vec<Cell>,
    /// The disk below it.
    pub disk: Vec<DiskRate>,
    /// Collection on and off, on the embedded store.
    pub collection: Option<Collection>,
    /// Transactions of more and more functions.
    pub lengths: Vec<Length>,
    /// What packed values cost an object store.
    pub packing: Vec<Packing>,
    /// What the engine in this process asked of Redis for one transaction, at the first heat.
    pub port_calls: Vec<(String, f64)>,
    /// Commits for each slot of the engine's log in that run.
    pub commits_per_slot: f64,
}

/// The report in Markdown.
pub fn markdown(report: &Report) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "`{}`, {}\n\n{} x {}, Linux {}, load average {} before the run. {}.\n\n",
        report.command,
        machine.date,
        machine.processors,
        machine.processor,
        machine.kernel,
        machine.load_average,
        report.redis
    );
    if !report.beside_redis.is_empty() {
        text.push_str(
            "Transactions that saw something which read atomic isolation excludes, and how long they took: two \
             functions of two reads and a write each (6 IOs).\n\n",
        );
        grid(&mut text, &beside_redis(&report.beside_redis));
        let _ = writeln!(
            text,
            "\nOne transaction in process asks Redis for (Zipf {}, the writing of the keys before the run included):\n",
            report.beside_redis[0].zipf
        );
        let mut calls = vec![strings(["operation", "calls per transaction"])];
        calls.extend(report.port_calls.iter().map(|(name, calls)| vec![name.clone(), format!("{calls:.2}")]));
        grid(&mut text, &calls);
        let _ = writeln!(text, "\n{:.2} commits share a slot of the log.\n", report.commits_per_slot);
    }
    if !report.embedded.is_empty() {
        text.push_str("Throughput on the embedded store, every commit durable, 6 IOs each:\n\n");
        grid(&mut text, &embedded(&report.embedded));
        text.push_str("\nThe disk by itself, overwriting a file in order, each write synced:\n\n");
        grid(&mut text, &disk(&report.disk));
    }
    if let Some(collection) = &report.collection {
        let _ = writeln!(
            text,
            "\nCollection on and off, in process on the embedded store; then both at {} per second:\n",
            thousands(collection.steady_per_second)
        );
        grid(&mut text, &collected(collection));
    }
    if !report.lengths.is_empty() {
        text.push_str(
            "\nTransactions of more functions, each of two reads and a write, in process, ten clients:\n\n",
        );
        grid(&mut text, &by_length(&report.lengths));
    }
    if !report.packing.is_empty() {
        text.push_str(
            "\nValues in packs, in process on the embedded store with objects as files, a pack every 100 ms at the most:\n\n",
        );
        grid(&mut text, &packed(&report.packing));
    }
    text
}

fn beside_redis(cells: &[Cell]) -> Vec<Vec<String>> {
    let mut rows = vec![strings([
        "store",
        "Zipf",
        "transactions",
        "own write not read",
        "fractured reads",
        "no valid version",
        "p50 ms",
        "p99 ms",
        "p50 to plain",
        "per second",
        "CPU us each",
    ])];
    rows.extend(cells.iter().map(|cell| {
        let plain = cells.iter().find(|other| other.zipf.total_cmp(&cell.zipf).is_eq()).unwrap_or(cell);
        let anomalies = cell.figures.anomalies.unwrap_or_default();
        vec![
            cell.store.to_owned(),
            format!("{:.1}", cell.zipf),
            cell.figures.transactions.to_string(),
            anomalies.own_write_not_read.to_string(),
            anomalies.fractured.to_string(),
            cell.figures.no_valid_version.to_string(),
            format!("{:.2}", cell.figures.p50_ms),
            format!("{:.2}", cell.figures.p99_ms),
            format!("{:.2}x", cell.figures.p50_ms / plain.figures.p50_ms),
            thousands(cell.figures.per_second),
            cpu(cell),
        ]
    }));
    rows
}

fn embedded(cells: &[Cell]) -> Vec<Vec<String>> {
    let mut rows = vec![strings([
        "way",
        "value",
        "clients",
        "per second",
        "values, MiB/s",
        "p50 ms",
        "p99 ms",
        "CPU us each",
    ])];
    rows.extend(cells.iter().map(|cell| {
        vec![
            cell.store.to_owned(),
            format!("{} B", cell.value_bytes),
            cell.clients.to_string(),
            thousands(cell.figures.per_second),
            // Each of the two functions writes one.
            mebibytes(2.0 * cell.value_bytes as f64 * cell.figures.per_second),
            format!("{:.2}", cell.figures.p50_ms),
            format!("{:.2}", cell.figures.p99_ms),
            cpu(cell),
        ]
    }));
    rows
}

fn disk(rates: &[DiskRate]) -> Vec<Vec<String>> {
    let mut rows = vec![strings(["write, KiB", "MiB/s", "syncs per second"])];
    rows.extend(rates.iter().map(|rate| {
        vec![
            (rate.write_bytes >> 10).to_string(),
            mebibytes(rate.bytes_per_second),
            thousands(rate.syncs_per_second),
        ]
    }));
    rows
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.0}", bytes / f64::from(1 << 20))
}

fn collected(collection: &Collection) -> Vec<Vec<String>> {
    let mut rows = vec![strings([
        "collection",
        "per second",
        "CPU us each",
        "p50 ms then",
        "p99 ms then",
        "CPU us each then",
        "MiB in the end",
        "versions collected",
    ])];
    rows.extend(collection.runs.iter().map(|run| {
        let name = match run.collecting {
            Collecting::On => "on",
            Collecting::Off => "off",
        };
        vec![
            name.to_owned(),
            thousands(run.saturated.per_second),
            format!("{:.0}", run.saturated_cpu_us),
            format!("{:.2}", run.steady.p50_ms),
            format!("{:.2}", run.steady.p99_ms),
            format!("{:.0}", run.steady_cpu_us),
            run.stored.last().map_or(0, |(_, bytes)| bytes >> 20).to_string(),
            thousands(run.collected_versions as f64),
        ]
    }));
    rows
}

fn by_length(lengths: &[Length]) -> Vec<Vec<String>> {
    let mut rows = vec![strings(["functions", "p50 ms", "p99 ms", "p50 to the first", "per second"])];
    let first = lengths.first().map_or(1.0, |length| length.figures.p50_ms);
    rows.extend(lengths.iter().map(|length| {
        vec![
            length.functions.to_string(),
            format!("{:.2}", length.figures.p50_ms),
            format!("{:.2}", length.figures.p99_ms),
            format!("{:.2}x", length.figures.p50_ms / first),
            thousands(length.figures.per_second),
        ]
    }));
    rows
}

fn packed(packing: &[Packing]) -> Vec<Vec<String>> {
    let mut rows = vec![strings([
        "per second",
        "values per second",
        "object puts per second",
        "MiB put per second",
        "packs compacted",
        "p50 ms",
        "p99 ms",
    ])];
    rows.extend(packing.iter().map(|packing| {
        vec![
            thousands(packing.figures.per_second),
            thousands(packing.values_per_second),
            format!("{:.1}", packing.puts_per_second),
            format!("{:.2}", packing.put_bytes_per_second / f64::from(1 << 20)),
            packing.compacted.to_string(),
            format!("{:.2}", packing.figures.p50_ms),
            format!("{:.2}", packing.figures.p99_ms),
        ]
    }));
    rows
}

fn cpu(cell: &Cell) -> String {
    cell.cpu_us.iter().map(|(name, us)| format!("{name} {us:.0}")).collect::<Vec<_>>().join(", ")
}
