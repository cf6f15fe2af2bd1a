//! The results of one run, as tables.

use std::fmt::Write as _;

use serde::Serialize;

use super::{
    application::Language,
    runs::{Answered, Quantiles},
    single_function::{Function, Protocol, Took},
};
use crate::{
    figures::Machine,
    table::{grid, strings, thousands},
};

/// Four steps over the distant store.
#[derive(Debug, Clone, Serialize)]
pub struct Far {
    /// The protocol of its writes.
    pub protocol: Protocol,
    /// The language of the functions.
    pub language: Language,
    /// Computing time of each step, in milliseconds.
    pub pause_ms: u64,
    /// The figures.
    pub answered: Answered,
}

/// The workflow of table 5.1 under one protocol.
#[derive(Debug, Clone, Serialize)]
pub struct Grading {
    /// The protocol.
    pub protocol: Protocol,
    /// The end of each step, in milliseconds since the start of the run, and the time of the
    /// response.
    pub ended_ms: Vec<(String, f64)>,
}

/// Four durable steps near, or the peer's equivalent.
#[derive(Debug, Clone, Serialize)]
pub struct Near {
    /// The system.
    pub system: String,
    /// The figures.
    pub answered: Answered,
}

/// Warm invocations of an empty function.
#[derive(Debug, Clone, Serialize)]
pub struct Warm {
    /// The language.
    pub language: Language,
    /// Whether the machine's cores were kept from halting.
    pub awake: bool,
    /// One client over HTTP.
    pub over_http: Answered,
    /// One caller through the runtime's port; each call begins with the response to the one before.
    pub back_to_back: Quantiles,
    /// The same once the instance has asked for its next invocation.
    pub at_rest: Quantiles,
    /// Two threads that pass the same number of bytes to and fro.
    pub bare: Quantiles,
}

/// First invocations of empty functions.
#[derive(Debug, Clone, Serialize)]
pub struct Cold {
    /// The language.
    pub language: Language,
    /// First invocations of functions without an instance, started the ordinary way, in
    /// milliseconds, sorted.
    pub cold_ms: Vec<f64>,
    /// The same where a pre-warmed interpreter was ready; empty if this language has none.
    pub spare_ms: Vec<f64>,
}

/// Many functions without callers.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Idle {
    /// How many.
    pub functions: usize,
    /// The server's resident memory with them.
    pub resident_bytes: u64,
    /// The server's resident memory before their deployment.
    pub resident_before_bytes: u64,
    /// CPU time of the server without any call, in milliseconds per second.
    pub cpu_ms_per_second: f64,
}

/// All results of one run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The command line.
    pub command: String,
    /// The machine.
    pub machine: Machine,
    /// The latency of any response of the distant store, and of the response to a write, in
    /// milliseconds.
    pub distance_ms: (u64, u64),
    /// Figures 5.1 and 5.2.
    pub single_function: Vec<Took>,
    /// Four steps over the distant store.
    pub far: Vec<Far>,
    /// Table 5.1.
    pub grading: Vec<Grading>,
    /// Four steps near.
    pub near: Vec<Near>,
    /// Empty functions.
    pub warm: Vec<Warm>,
    /// First invocations.
    pub cold: Vec<Cold>,
    /// `python3 -c "import awslambdaric"`, in milliseconds, sorted.
    pub import_ms: Vec<f64>,
    /// The same by the interpreter that runs functions here, with its own site packages, sorted.
    pub machines_import_ms: Vec<f64>,
    /// Functions without callers.
    pub idle: Option<Idle>,
}

impl Report {
    /// The duration of a function under a protocol.
    pub fn took(&self, function: Function, protocol: Protocol) -> Option<f64> {
        let is_it = |took: &&Took| took.function == function && took.protocol == protocol;
        self.single_function
            .iter()
            .find(is_it)
            .map(|took| took.p50_ms)
    }
}

/// The median of sorted figures.
pub fn median(ordered: &[f64]) -> f64 {
    ordered.get(ordered.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The report in Markdown.
pub fn markdown(report: &Report) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "`{}`, {}\n\n{} x {}, Linux {}, load average {} before the run. The distant store is a Redis whose answers take {} ms, \
         and those to writes {} ms.\n\n",
        report.command,
        machine.date,
        machine.processors,
        machine.processor,
        machine.kernel,
        machine.load_average,
        report.distance_ms.0,
        report.distance_ms.1
    );
    if !report.far.is_empty() {
        text.push_str("Four steps, each of which writes 1 KiB, over the distant store:\n\n");
        grid(&mut text, &far(&report.far));
    }
    if !report.grading.is_empty() {
        text.push_str("\nThe paper's table 5.1 (its three steps compute as long as they did there), milliseconds since the run began:\n\n");
        grid(&mut text, &grading(&report.grading));
    }
    if !report.single_function.is_empty() {
        text.push_str(
            "\nOne function that computes and writes in turn (figures 5.1 and 5.2), p50 in milliseconds:\n\n",
        );
        grid(&mut text, &single_function(report));
    }
    if !report.near.is_empty() {
        text.push_str("\nFour durable steps that write 1 KiB each, near alone:\n\n");
        grid(&mut text, &near(&report.near));
    }
    if !report.warm.is_empty() {
        text.push_str("\nA warm empty function with one caller, p50 and p99 in microseconds; *kept awake*: by loops of idle priority that every other thread goes before, so that no core halts; *bare*: two threads that pass 200 bytes to and fro over loopback:\n\n");
        grid(&mut text, &warm(&report.warm));
    }
    if !report.cold.is_empty() {
        text.push_str("\nThe first invocation of an empty function, over HTTP:\n\n");
        grid(&mut text, &cold(&report.cold));
        if !report.import_ms.is_empty() {
            let _ = writeln!(
                text,
                "\n`python3 -c \"import awslambdaric\"` takes {:.1} ms (p50); {:.1} ms by the interpreter that runs functions here.",
                median(&report.import_ms),
                median(&report.machines_import_ms)
            );
        }
    }
    if let Some(idle) = report.idle {
        let _ = writeln!(
            text,
            "\n{} deployed functions without calls: {:.0} MB resident ({:.0} MB before they were deployed), {:.2} ms of CPU a second.",
            thousands(idle.functions as f64),
            idle.resident_bytes as f64 / 1e6,
            idle.resident_before_bytes as f64 / 1e6,
            idle.cpu_ms_per_second
        );
    }
    text
}

fn far(cells: &[Far]) -> Vec<Vec<String>> {
    let head = [
        "writes return",
        "functions",
        "each computes, ms",
        "clients",
        "p50 ms",
        "p99 ms",
        "runs/s",
    ];
    let row = |cell: &Far| {
        let answered = &cell.answered;
        vec![
            cell.protocol.name().to_owned(),
            cell.language.name().to_owned(),
            cell.pause_ms.to_string(),
            answered.clients.to_string(),
            format!("{:.0}", answered.p50_ms),
            format!("{:.0}", answered.p99_ms),
            format!("{:.1}", answered.per_second),
        ]
    };
    std::iter::once(strings(head))
        .chain(cells.iter().map(row))
        .collect()
}

fn grading(cells: &[Grading]) -> Vec<Vec<String>> {
    let mut head = vec!["until".to_owned()];
    head.extend(cells.iter().map(|cell| cell.protocol.name().to_owned()));
    let names = cells.first().map_or(&[][..], |cell| &cell.ended_ms);
    let row = |(place, (name, _)): (usize, &(String, f64))| {
        let figures = cells
            .iter()
            .map(|cell| format!("{:.0}", cell.ended_ms[place].1));
        std::iter::once(name.clone()).chain(figures).collect()
    };
    std::iter::once(head)
        .chain(names.iter().enumerate().map(row))
        .collect()
}

fn single_function(report: &Report) -> Vec<Vec<String>> {
    let head = [
        "writes",
        "each computes, ms",
        "sync",
        "serial",
        "external",
        "serial gains",
        "external gains",
    ];
    let functions = report
        .single_function
        .iter()
        .filter(|took| took.protocol == Protocol::Sync);
    let row = |took: &Took| {
        let of = |protocol| report.took(took.function, protocol).unwrap_or(f64::NAN);
        let gain = |protocol| format!("{:.0} %", 100.0 * (1.0 - of(protocol) / took.p50_ms));
        vec![
            took.function.repetitions.to_string(),
            took.function.pause_ms.to_string(),
            format!("{:.0}", took.p50_ms),
            format!("{:.0}", of(Protocol::Serial)),
            format!("{:.0}", of(Protocol::External)),
            gain(Protocol::Serial),
            gain(Protocol::External),
        ]
    };
    std::iter::once(strings(head))
        .chain(functions.map(row))
        .collect()
}

fn near(cells: &[Near]) -> Vec<Vec<String>> {
    let head = [
        "system",
        "clients",
        "runs/s",
        "p50 ms",
        "p99 ms",
        "server CPU ms/run",
    ];
    let row = |cell: &Near| {
        let answered = &cell.answered;
        vec![
            cell.system.clone(),
            answered.clients.to_string(),
            thousands(answered.per_second),
            format!("{:.1}", answered.p50_ms),
            format!("{:.1}", answered.p99_ms),
            format!("{:.2}", answered.cpu_ms),
        ]
    };
    std::iter::once(strings(head))
        .chain(cells.iter().map(row))
        .collect()
}

fn warm(cells: &[Warm]) -> Vec<Vec<String>> {
    let head = [
        "functions",
        "cores",
        "over HTTP",
        "back to back",
        "at rest",
        "bare",
        "server CPU",
    ];
    let both = |quantiles: Quantiles| format!("{} / {}", quantiles.p50_us, quantiles.p99_us);
    let row = |cell: &Warm| {
        vec![
            cell.language.name().to_owned(),
            if cell.awake {
                "kept awake"
            } else {
                "as they are"
            }
            .to_owned(),
            format!(
                "{:.0} / {:.0}",
                cell.over_http.p50_ms * 1e3,
                cell.over_http.p99_ms * 1e3
            ),
            both(cell.back_to_back),
            both(cell.at_rest),
            both(cell.bare),
            format!("{:.0}", cell.over_http.cpu_ms * 1e3),
        ]
    };
    std::iter::once(strings(head))
        .chain(cells.iter().map(row))
        .collect()
}

fn cold(cells: &[Cold]) -> Vec<Vec<String>> {
    let head = [
        "functions",
        "p50 ms",
        "worst ms",
        "by a spare p50 ms",
        "by a spare worst ms",
    ];
    let row = |cell: &Cold| {
        vec![
            cell.language.name().to_owned(),
            format!("{:.1}", median(&cell.cold_ms)),
            format!("{:.1}", cell.cold_ms.last().copied().unwrap_or(f64::NAN)),
            cell.spare_ms
                .last()
                .map_or_else(String::new, |_| format!("{:.1}", median(&cell.spare_ms))),
            cell.spare_ms
                .last()
                .map_or_else(String::new, |worst| format!("{worst:.1}")),
        ]
    };
    std::iter::once(strings(head))
        .chain(cells.iter().map(row))
        .collect()
}
