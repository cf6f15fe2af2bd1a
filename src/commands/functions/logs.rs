//! What a function has printed, and prints.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use ports::runtime::Line;
use serde::Deserialize;

use crate::commands::{
    print,
    request::{Request, Target},
};

/// How long one request waits for lines, as the server has it, in seconds.
const WAIT_S: u64 = 5;

/// What to print.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    target: Target,
    /// The function
    name: String,
    /// Go on with what it prints from now on, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
struct Lines {
    lines: Vec<Line>,
    next: u64,
}

impl Logs {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let mut next = 0;
        loop {
            let wait = if self.follow { WAIT_S } else { 0 };
            let path = format!("/v1/functions/{}/logs?from={next}&wait={wait}", self.name);
            let request = Request { wait_max: Duration::from_secs(2 * WAIT_S), ..Request::get(&path) };
            let answer = self.target.ask(&request)?.accepted(&self.target, &path)?;
            let Lines { lines, next: behind } =
                serde_json::from_slice(&answer.body).context("the answer is not a list of lines")?;
            if lines.is_empty() && !self.follow {
                return Ok(ExitCode::SUCCESS);
            }
            for line in &lines {
                print(&self.shown(line)?)?;
            }
            next = behind;
        }
    }

    fn shown(&self, line: &Line) -> anyhow::Result<String> {
        if self.json {
            return Ok(format!("{}\n", serde_json::to_string(line)?));
        }
        let seconds = line.at_ms / 1000 % 86_400;
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let time = format!("{hours:02}:{minutes:02}:{seconds:02}.{:03}", line.at_ms % 1000);
        let text = if io::stdout().is_terminal() { printable(&line.text) } else { line.text.clone() };
        Ok(format!("{time} {:.8} {text}\n", if line.id.is_empty() { "-" } else { &line.id }))
    }
}

/// Without what would drive a terminal: a function prints what it was sent.
fn printable(text: &str) -> String {
    text.chars()
        .map(|letter| if letter.is_control() && letter != '\t' { '\u{fffd}' } else { letter })
        .collect()
}
