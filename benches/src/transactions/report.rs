//! The results of one run, as tables.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use serde::Serialize;

use super::{
    collection::{Collection, Compared, Side},
    conditions::{Conditions, Written},
    disk::DiskRate,
    lengths::Length,
    overwrites::Overwrites,
    packs::Packing,
    run::{Anomalies, Figures},
};
use crate::{
    figures::Machine,
    table::{grid, strings, thousands},
};

/// A store that reaches this fraction of the offered rate keeps up.
const KEPT_UP: f64 = 0.95;

/// A store under a load.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// The store, and the access path to it.
    pub store: &'static str,
    /// The exponent of Zipf's law for the keys.
    pub zipf: f64,
    /// Concurrent clients.
    pub clients: usize,
    /// Length of a value.
    pub value_bytes: usize,
    /// The figures of all turns together.
    pub figures: Figures,
    /// Observations that read atomic isolation excludes; none if the run did not check.
    pub anomalies: Option<Anomalies>,
    /// CPU time per transaction, in microseconds, of each process that took part.
    pub cpu_us: Vec<(String, f64)>,
}

/// All results of one run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The command line.
    pub command: String,
    /// The machine.
    pub machine: Machine,
    /// The Redis setup, and how it persists acknowledged writes.
    pub redis: String,
    /// Number of turns of each of several stores.
    pub rounds: u32,
    /// Path of the chart.
    pub chart: Option<String>,
    /// Path of the curve of the stored bytes.
    pub curve: Option<String>,
    /// Plain Redis beside Landfast on the same servers.
    pub beside_redis: Vec<Cell>,
    /// The embedded store.
    pub embedded: Vec<Cell>,
    /// The disk below it.
    pub disk: Vec<DiskRate>,
    /// Collection on and off, on the embedded store.
    pub collection: Option<Collection>,
    /// Bytes stored there under steady overwrites.
    pub overwrites: Option<Overwrites>,
    /// Transactions of more and more functions.
    pub lengths: Vec<Length>,
    /// Plain writes with and without a condition, on the embedded store.
    pub conditions: Vec<Conditions>,
    /// The cost of packed values on an object store.
    pub packing: Vec<Packing>,
    /// Requests of the in-process engine to Redis for one transaction, at the first skew.
    pub port_calls: Vec<(String, f64)>,
    /// Commits for each slot of the engine's log in that run.
    pub commits_per_slot: f64,
}

/// The report in Markdown.
pub fn markdown(report: &Report) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "`{}`, {}\n\n{} x {}, Linux {}, load average {} before the run. {}\n\n",
        report.command,
        machine.date,
        machine.processors,
        machine.processor,
        machine.kernel,
        machine.load_average,
        report.redis
    );
    if !report.beside_redis.is_empty() {
        on_redis(&mut text, report);
    }
    if !report.embedded.is_empty() {
        on_the_disk(&mut text, report);
    }
    if let Some(collection) = &report.collection {
        cost_of_collection(&mut text, collection);
    }
    if let Some(overwrites) = &report.overwrites {
        steady_overwrites(&mut text, overwrites, report.curve.as_deref());
    }
    if !report.lengths.is_empty() {
        text.push_str(
            "Transactions of more functions, each of two reads and a write, in process, ten clients:\n\n",
        );
        grid(&mut text, &by_length(&report.lengths));
        text.push('\n');
    }
    if !report.conditions.is_empty() {
        text.push_str(
            "Plain writes of 1 KiB on the embedded store, with and without a condition, each client with keys of its own:\n\n",
        );
        grid(&mut text, &conditional(&report.conditions));
        text.push('\n');
    }
    if !report.packing.is_empty() {
        text.push_str(
            "Values in packs, in process on the embedded store with objects as files, a pack every 100 ms at the most:\n\n",
        );
        grid(&mut text, &packed(&report.packing));
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn on_redis(text: &mut String, report: &Report) {
    if let Some(path) = &report.chart {
        let _ = writeln!(
            text,
            "![Anomalies and median latency beside plain Redis]({path})\n"
        );
    }
    let _ = writeln!(
        text,
        "Transactions that saw something which read atomic isolation excludes, and how long they took: two functions of two reads \
         and a write each (6 IOs). At each heat the stores had {} turns each, and another began each round; all turns are counted \
         together. CPU includes what was put off until after a turn, as collection is.\n",
        report.rounds
    );
    grid(text, &beside_redis(&report.beside_redis));
    let _ = writeln!(
        text,
        "\nOne transaction in process asks Redis for (Zipf {}, the writing of the keys before the run included):\n",
        report.beside_redis[0].zipf
    );
    let mut calls = vec![strings(["operation", "calls per transaction"])];
    calls.extend(
        report
            .port_calls
            .iter()
            .map(|(name, calls)| vec![name.clone(), format!("{calls:.2}")]),
    );
    grid(text, &calls);
    let _ = writeln!(
        text,
        "\n{:.2} commits share a slot of the log.\n",
        report.commits_per_slot
    );
}

fn on_the_disk(text: &mut String, report: &Report) {
    let _ = writeln!(
        text,
        "Throughput on the embedded store, every commit durable, 6 IOs each, in {} turns beside the disk; *of the disk* is what \
         the values are of the bytes that the disk by itself takes in its longest writes:\n",
        report.rounds
    );
    grid(text, &embedded(&report.embedded, &report.disk));
    text.push_str("\nThe disk by itself, overwriting a file in order, each write synced:\n\n");
    grid(text, &disk(&report.disk));
    text.push('\n');
}

fn cost_of_collection(text: &mut String, collection: &Collection) {
    let Collection {
        turn_seconds,
        saturated,
        offered_per_second,
        steady,
    } = collection;
    let _ = writeln!(
        text,
        "Collection on and off, in process on the embedded store, in turns of {turn_seconds} s on a fresh store each, all keys \
         equally hot, as fast as they go:\n"
    );
    grid(text, &compared(saturated));
    let [off, on] = [&saturated.off, &saturated.on];
    let _ = writeln!(
        text,
        "\nIn the second halves of its turns throughput is {:.2}x that of the first without collection, and {:.2}x with it. \
         First halves alone, where the stores are about as large: {:.2}x with collection.",
        off.second_half_to_first(),
        on.second_half_to_first(),
        on.halves_per_second[0] / off.halves_per_second[0]
    );
    if off.second_half_to_first() < KEPT_UP {
        text.push_str(
            "Without collection the store gets slower while it grows: versions pile up, and each look at a key costs more. So whole \
             turns flatter collection, and first halves are what tells what it costs.\n",
        );
    }
    let _ = writeln!(
        text,
        "\nThe same at {} per second, 70 % of what both bear by the medians:\n",
        thousands(*offered_per_second)
    );
    grid(text, &compared(steady));
    text.push('\n');
}

fn steady_overwrites(text: &mut String, overwrites: &Overwrites, curve: Option<&str>) {
    let _ = writeln!(
        text,
        "Overwritten for {} s at {} per second, keys by Zipf's law, outcomes kept for {} s:\n",
        overwrites.seconds,
        thousands(overwrites.offered_per_second),
        overwrites.window_seconds
    );
    if let Some(path) = curve {
        let _ = writeln!(text, "![Stored under steady overwrites]({path})\n");
    }
    grid(text, &overwritten(overwrites));
    text.push('\n');
    for run in &overwrites.runs {
        let reached = run.figures.per_second / overwrites.offered_per_second;
        if reached < KEPT_UP {
            let _ = writeln!(
                text,
                "With collection {} the store did not keep up: it reached {:.0} % of what was offered.\n",
                run.collecting.name(),
                reached * 100.0,
            );
        }
    }
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
        "p99 to plain",
        "per second",
        "CPU us each",
    ])];
    rows.extend(cells.iter().map(|cell| {
        let plain = cells
            .iter()
            .find(|other| other.zipf.total_cmp(&cell.zipf).is_eq())
            .unwrap_or(cell);
        let anomalies = cell.anomalies.unwrap_or_default();
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
            format!("{:.2}x", cell.figures.p99_ms / plain.figures.p99_ms),
            thousands(cell.figures.per_second),
            cpu(cell),
        ]
    }));
    rows
}

fn embedded(cells: &[Cell], disk: &[DiskRate]) -> Vec<Vec<String>> {
    let most = disk
        .last()
        .map_or(f64::INFINITY, |rate| rate.bytes_per_second);
    let mut rows = vec![strings([
        "way",
        "value",
        "clients",
        "per second",
        "values, MiB/s",
        "of the disk",
        "p50 ms",
        "p99 ms",
        "CPU us each",
    ])];
    rows.extend(cells.iter().map(|cell| {
        // Each of the two functions writes one value.
        let values = 2.0 * cell.value_bytes as f64 * cell.figures.per_second;
        vec![
            cell.store.to_owned(),
            format!("{} B", cell.value_bytes),
            cell.clients.to_string(),
            thousands(cell.figures.per_second),
            mebibytes(values),
            format!("{:.0} %", values / most * 100.0),
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

fn compared(compared: &Compared) -> Vec<Vec<String>> {
    let mut rows = vec![strings([
        "collection",
        "per second, turn by turn",
        "median",
        "to off",
        "p50 ms",
        "p99 ms",
        "CPU us each",
        "versions collected",
    ])];
    rows.extend([&compared.off, &compared.on].map(|side: &Side| {
        let turns: Vec<String> = side
            .turns_per_second
            .iter()
            .map(|turn| thousands(*turn))
            .collect();
        let median = side.median_per_second();
        vec![
            side.collecting.name().to_owned(),
            turns.join(" "),
            thousands(median),
            format!("{:.2}x", median / compared.off.median_per_second()),
            format!("{:.2}", side.figures.p50_ms),
            format!("{:.2}", side.figures.p99_ms),
            format!("{:.0}", side.cpu_us),
            thousands(side.collected_versions as f64),
        ]
    }));
    rows
}

fn overwritten(overwrites: &Overwrites) -> Vec<Vec<String>> {
    let mut rows = vec![strings([
        "collection",
        "reached per second",
        "p50 ms",
        "p99 ms",
        "CPU us each",
        "MiB in the end",
        "versions collected",
    ])];
    rows.extend(overwrites.runs.iter().map(|run| {
        vec![
            run.collecting.name().to_owned(),
            thousands(run.figures.per_second),
            format!("{:.2}", run.figures.p50_ms),
            format!("{:.2}", run.figures.p99_ms),
            format!("{:.0}", run.cpu_us),
            run.stored
                .last()
                .map_or(0, |(_, bytes)| bytes >> 20)
                .to_string(),
            thousands(run.collected_versions as f64),
        ]
    }));
    rows
}

fn by_length(lengths: &[Length]) -> Vec<Vec<String>> {
    let mut rows = vec![strings([
        "functions",
        "p50 ms",
        "p99 ms",
        "p50 to the first",
        "per second",
    ])];
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

fn conditional(conditions: &[Conditions]) -> Vec<Vec<String>> {
    let mut rows = vec![strings([
        "way",
        "write",
        "clients",
        "p50 ms",
        "p99 ms",
        "p50 to plain",
        "per second",
    ])];
    rows.extend(conditions.iter().map(|row| {
        let plain = conditions
            .iter()
            .find(|other| other.way == row.way && other.written == Written::Plain)
            .unwrap_or(row);
        vec![
            row.way.to_owned(),
            row.written.name().to_owned(),
            row.clients.to_string(),
            format!("{:.2}", row.figures.p50_ms),
            format!("{:.2}", row.figures.p99_ms),
            format!("{:.2}x", row.figures.p50_ms / plain.figures.p50_ms),
            thousands(row.figures.per_second),
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
    cell.cpu_us
        .iter()
        .map(|(name, us)| format!("{name} {us:.0}"))
        .collect::<Vec<_>>()
        .join(", ")
}
