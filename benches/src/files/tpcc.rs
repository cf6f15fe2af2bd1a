//! TPC-C on SQLite by `benches/files/tpcc.py`: one database file for each warehouse.
//!
//! The peers run with SQLite's journal (DELETE, NORMAL). Landfast runs so on its mounts, and with
//! `--wrap` without journal and sync, each transaction of SQLite in one transaction of Landfast.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{
    report::{Figures, Part},
    targets::{Running, Target, drop_caches},
};

const WAREHOUSES: usize = 4;

/// How to run it.
#[derive(Debug, Clone)]
pub struct Load {
    /// The Python script.
    pub script: PathBuf,
    /// The interpreter.
    pub python: PathBuf,
    /// Numbers of clients.
    pub clients: Vec<u32>,
    /// Seconds for each number of clients.
    pub seconds: f64,
    /// Share of TPC-C's rows in a warehouse.
    pub scale: f64,
    /// Runs each transaction, without SQLite's journal and sync.
    pub wrap: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Outcome {
    tpmc: f64,
    errors: u64,
    busy: u64,
    first: Option<String>,
    wrong: Vec<String>,
}

/// Loads the warehouses anew for each number of clients, runs, and checks.
pub fn measure(target: &Target, load: &Load, scratch: &Path, running: &Running) -> Result<Figures> {
    let mut figures = Figures::new(Part::Tpcc, target.kind);
    for clients in &load.clients {
        let directories = target.directory("tpcc")?;
        script(load, "load", &directories[..1], &[], scratch, running)?;
        drop_caches();
        let plural = if *clients == 1 { "" } else { "s" };
        let clients = clients.to_string();
        let seconds = load.seconds.to_string();
        let mut options = vec!["--clients", &clients, "--seconds", &seconds];
        if let Some(wrap) = &load.wrap {
            options.extend(["--wrap", wrap, "--journal", "off", "--sync", "off"]);
        }
        let output = script(load, "run", &directories, &options, scratch, running)?;
        let result: Outcome =
            serde_json::from_str(&output).with_context(|| format!("tpcc.py printed {output:?}"))?;
        let name = target.kind.name();
        if let Some(first) = result.first {
            eprintln!("TPC-C on {name}, {clients} clients: first error: {first}");
        }
        for wrong in &result.wrong {
            eprintln!("TPC-C on {name}, {clients} clients: inconsistent: {wrong}");
        }
        let case = match &load.wrap {
            Some(_) => format!("{clients} client{plural}, in transactions"),
            None => format!("{clients} client{plural}"),
        };
        figures.push(&*case, "tpmC", result.tpmc);
        figures.push(&*case, "errors", (result.errors + result.busy) as f64);
        figures.push(&*case, "inconsistent", result.wrong.len() as f64);
        target.remove("tpcc")?;
    }
    Ok(figures)
}

fn script(
    load: &Load,
    action: &str,
    directories: &[PathBuf],
    options: &[&str],
    scratch: &Path,
    running: &Running,
) -> Result<String> {
    ensure!(
        load.script.is_file(),
        "{} is not there; run from the repository, or give --tpcc",
        load.script.display()
    );
    let mut command = Command::new(&load.python);
    command.arg("-B").arg(&load.script).arg(action);
    command.args(directories).args(options);
    command.args(["--warehouses", &WAREHOUSES.to_string()]);
    command.args(["--scale", &load.scale.to_string()]);
    let output = scratch.join("tpcc.out");
    let pid = running.spawn(command, &output)?;
    let ended = running.wait(pid);
    let printed = fs::read_to_string(&output)?;
    ended.with_context(|| format!("tpcc.py {action}: {}", printed.trim()))?;
    Ok(printed)
}
