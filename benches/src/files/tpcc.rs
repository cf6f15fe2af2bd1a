//! TPC-C on SQLite by `benches/files/tpcc.py`: one database file for each warehouse.
//!
//! The peers run with SQLite's journal (DELETE, NORMAL). Landfast runs so on its mounts, and then
//! without journal and sync in a function with the volume. There each transaction is an invocation
//! over HTTP, so one transaction of Landfast, which a conflict repeats.

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
}

/// How Landfast runs a transaction of SQLite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// On a mount, as the peers.
    Mounts,
    /// In a function.
    Functions,
}

/// Its name.
const FUNCTION: &str = "tpcc";

#[derive(Debug, Deserialize)]
struct Outcome {
    tpmc: f64,
    transactions: u64,
    errors: u64,
    busy: u64,
    first: Option<String>,
    wrong: Vec<String>,
}

/// Loads the warehouses anew for each number of clients, runs, and checks.
pub fn measure(
    target: &Target,
    load: &Load,
    mode: Mode,
    scratch: &Path,
    running: &Running,
) -> Result<Figures> {
    let mut figures = Figures::new(Part::Tpcc, target.kind);
    let url = match mode {
        Mode::Mounts => None,
        Mode::Functions => Some(deploy(target, load, scratch)?),
    };
    for clients in &load.clients {
        let directories = target.directory("tpcc")?;
        script(load, "load", &directories[..1], &[], scratch, running)?;
        drop_caches();
        let plural = if *clients == 1 { "" } else { "s" };
        let clients = clients.to_string();
        let seconds = load.seconds.to_string();
        let mut options = vec!["--clients", &clients, "--seconds", &seconds];
        if let Some(url) = &url {
            options.extend(["--function", url, "--journal", "off", "--sync", "off"]);
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
        let case = match mode {
            Mode::Functions => format!("{clients} client{plural}, in transactions"),
            Mode::Mounts => format!("{clients} client{plural}"),
        };
        eprintln!(
            "TPC-C on {name}, {case}: {:.0} tpmC, {} transactions",
            result.tpmc, result.transactions
        );
        figures.push(&*case, "tpmC", result.tpmc);
        figures.push(&*case, "errors", (result.errors + result.busy) as f64);
        figures.push(&*case, "inconsistent", result.wrong.len() as f64);
        target.remove("tpcc")?;
    }
    Ok(figures)
}

/// Deploys the script as a function. Returns the URL of its invocations.
fn deploy(target: &Target, load: &Load, scratch: &Path) -> Result<String> {
    let server = { target.server.as_ref() }.context("the bench started no server")?;
    // The interpreter itself: a sandbox shows no links in the directories of users.
    let mut where_is = Command::new(&load.python);
    where_is.args([
        "-c",
        "import os, sys; print(os.path.realpath(sys.executable))",
    ]);
    let python = String::from_utf8(where_is.output()?.stdout)?;
    let clients = load.clients.iter().max().unwrap_or(&1);
    let lines = format!(
        "runtime = \"python3\"\nhandler = \"tpcc.handler\"\npython = \"{}\"\nconcurrency = {clients}\ntimeout_s = 30",
        python.trim()
    );
    let function = [(FUNCTION.to_owned(), lines)];
    server.deploy(&scratch.join("functions"), &load.script, &function)?;
    Ok(server.invocations(FUNCTION))
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
