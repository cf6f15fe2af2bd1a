//! A blog over SQLite by `benches/files/web.py`, as functions of one and of two instances.
//!
//! ext4 has as many processes of the same application beside it, without HTTP, and pages only.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{
    report::{Figures, Part},
    targets::{Kind, Running, Target},
};

/// How to run it.
#[derive(Debug, Clone)]
pub struct Load {
    /// The Python script.
    pub script: PathBuf,
    /// The interpreter.
    pub python: PathBuf,
    /// The server's program.
    pub program: PathBuf,
    /// Seconds for each number of instances.
    pub seconds: f64,
}

#[derive(Debug, Deserialize)]
struct Outcome {
    instances: u32,
    rate: f64,
    application_ms: f64,
    server_ms: f64,
    failed: u64,
}

/// Serves the blog with one and with two instances, or runs as many processes on ext4.
pub fn measure(target: &Target, load: &Load, scratch: &Path, running: &Running) -> Result<Figures> {
    let mut figures = Figures::new(Part::Web, target.kind);
    let mut command = Command::new(&load.python);
    command.arg("-B").arg(&load.script);
    command.arg("--program").arg(&load.program);
    command.args(["--seconds", &load.seconds.to_string()]);
    // It is kept between runs, as its packages take long to install.
    command
        .arg("--directory")
        .arg(scratch.with_file_name("web"));
    match target.kind {
        Kind::Ext4 => command.arg("--alone"),
        Kind::Landfast => &mut command,
        Kind::Glusterfs | Kind::GlusterfsStrict => return Ok(figures),
    };
    ensure!(
        load.script.is_file(),
        "{} is not there; run from the repository, or give --web",
        load.script.display()
    );
    let output = scratch.join("web.out");
    let pid = running.spawn(command, &output)?;
    let ended = running.wait(pid);
    let printed = fs::read_to_string(&output)?;
    ended.with_context(|| format!("web.py: {}", printed.trim()))?;
    for line in printed.lines().filter(|line| line.starts_with('{')) {
        let outcome: Outcome =
            serde_json::from_str(line).with_context(|| format!("web.py printed {line:?}"))?;
        let plural = if outcome.instances == 1 { "" } else { "s" };
        let case = format!("{} instance{plural}", outcome.instances);
        eprintln!("{}, {case}: {line}", target.kind.name());
        figures.push(&*case, "requests/s", outcome.rate);
        figures.push(&*case, "CPU ms of the application", outcome.application_ms);
        figures.push(&*case, "CPU ms of the server", outcome.server_ms);
        figures.push(&*case, "failed", outcome.failed as f64);
    }
    Ok(figures)
}
