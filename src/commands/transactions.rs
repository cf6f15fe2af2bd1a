//! `landfast transactions`: the open transactions of a running server.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Deserialize;

use super::{listing, request::Target};

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the open transactions of the server, the oldest first
    List(List),
}

/// How to show the list.
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    target: Target,
    /// Print one JSON object per transaction
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
struct Listed {
    id: String,
    status: String,
    isolation: String,
    age_ms: u64,
    idle_ms: u64,
    writes: u64,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(list) => list.run(),
    }
}

impl List {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let path = |after: Option<&str>| {
            let after = after.unwrap_or("0");
            format!("/v1/transactions?after={after}")
        };
        let line = |listed: Listed| {
            let (id, status, isolation) = (listed.id, listed.status, listed.isolation);
            let (age_s, idle_s, writes) =
                (listed.age_ms / 1000, listed.idle_ms / 1000, listed.writes);
            format!(
                "{id:<40} {status:<10} {isolation:<12} {age_s:>5} s old, idle for {idle_s} s, {writes} keys written"
            )
        };
        listing::print_all(
            &self.target,
            "a list of transactions",
            self.json,
            path,
            line,
        )
    }
}
