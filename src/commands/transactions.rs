//! `landfast transactions`: the open transactions of a running server.

use std::{fmt::Write as _, process::ExitCode};

use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::request::{Target, parsed};

const A_LIST: &str = "a list of transactions";

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
struct Page {
    transactions: Vec<Box<RawValue>>,
    next: Option<u64>,
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
        let mut after = 0;
        loop {
            let body = self
                .target
                .get(&format!("/v1/transactions?after={after}"))?;
            let Page { transactions, next } = parsed(body.as_bytes(), A_LIST)?;
            let mut text = String::new();
            for transaction in &transactions {
                if self.json {
                    writeln!(text, "{transaction}")?;
                    continue;
                }
                let listed: Listed = parsed(transaction.get().as_bytes(), A_LIST)?;
                let (id, status, isolation) = (listed.id, listed.status, listed.isolation);
                let (age_s, idle_s, writes) =
                    (listed.age_ms / 1000, listed.idle_ms / 1000, listed.writes);
                writeln!(
                    text,
                    "{id:<40} {status:<10} {isolation:<12} {age_s:>5} s old, idle for {idle_s} s, {writes} keys written"
                )?;
            }
            super::print(&text)?;
            match next {
                Some(next) => after = next,
                None => return Ok(ExitCode::SUCCESS),
            }
        }
    }
}
