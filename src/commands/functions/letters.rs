//! The dead letters of a function, which no caller was told of: list, redrive, purge.

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use clap::Args;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::commands::{
    print,
    request::{Request, Target, parsed, segment},
};

/// The time to redrive or purge all of them: 10,000 of each queue.
const SETTLE_MAX: Duration = Duration::from_mins(10);
/// The characters of a payload in a list.
const PAYLOAD_SHOWN: usize = 200;

const A_LIST: &str = "a list of dead letters";

/// The letters, and the action.
#[derive(Debug, Args)]
pub(crate) struct DeadLetters {
    #[command(flatten)]
    target: Target,
    /// The function
    name: String,
    /// Send them again, behind what waits, and print how many were asked for
    #[arg(long, conflicts_with = "purge")]
    redrive: bool,
    /// Remove them for good, and print how many were asked for
    #[arg(long)]
    purge: bool,
    /// Of this one alone, as the list calls it; one that is not there is an error
    #[arg(long)]
    id: Option<String>,
    /// Print one JSON object per letter, or the server's JSON as it is
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
struct Letters {
    letters: Vec<Box<RawValue>>,
    next: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Letter {
    id: String,
    queue: Option<String>,
    request_id: Option<String>,
    attempts: u32,
    reason: String,
    payload: String,
    payload_bytes: usize,
}

#[derive(Debug, Deserialize)]
struct Settled {
    #[serde(alias = "redriven", alias = "purged")]
    count: u64,
}

impl DeadLetters {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        if self.redrive {
            return self.settle("POST", "sent again");
        }
        if self.purge {
            return self.settle("DELETE", "removed");
        }
        let mut after = None;
        loop {
            let path = self.path("after", after.as_deref());
            let body = self.target.get(&path)?;
            let Letters { letters, next } = parsed(body.as_bytes(), A_LIST)?;
            for letter in letters {
                let shown = self.shown(&letter)?;
                if shown.is_empty() {
                    continue;
                }
                print(&shown)?;
                if self.id.is_some() {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            after = match (next, &self.id) {
                (Some(next), _) => Some(next),
                (None, None) => return Ok(ExitCode::SUCCESS),
                (None, Some(id)) => bail!(
                    "{} has no dead letter {id:?}: leave --id away to see those that there are",
                    self.name
                ),
            };
        }
    }

    fn settle(&self, method: &str, done: &str) -> anyhow::Result<ExitCode> {
        let path = self.path("id", self.id.as_deref());
        let request = Request {
            method,
            wait_max: SETTLE_MAX,
            ..Request::get(&path)
        };
        let answer = self.target.send(&request)?;
        if self.json {
            return print(&format!("{}\n", String::from_utf8_lossy(&answer.body)));
        }
        let Settled { count } = parsed(&answer.body, "a number of dead letters")?;
        print(&format!("{done}: {count}\n"))
    }

    fn path(&self, parameter: &str, value: Option<&str>) -> String {
        let query = value.map(|value| format!("?{parameter}={}", segment(value)));
        let (name, query) = (segment(&self.name), query.unwrap_or_default());
        format!("/v1/functions/{name}/dead-letters{query}")
    }

    /// A letter, as the server sends it.
    fn shown(&self, letter: &RawValue) -> anyhow::Result<String> {
        let shown: Letter = parsed(letter.get().as_bytes(), A_LIST)?;
        if self.id.as_ref().is_some_and(|id| *id != shown.id) {
            return Ok(String::new());
        }
        if self.json {
            return Ok(format!("{letter}\n"));
        }
        let (id, attempts) = (shown.id, shown.attempts);
        let what = match (shown.queue, shown.request_id) {
            (Some(queue), _) => format!("message of {queue}"),
            (None, Some(id)) => format!("event {id}"),
            (None, None) => "event".to_owned(),
        };
        let reason = in_one_line(&shown.reason);
        let payload = beginning(&shown.payload, shown.payload_bytes);
        Ok(format!(
            "{id}  {what}, given {attempts} times\n    {reason}\n    {payload}\n"
        ))
    }
}

/// The shown part of a payload of so many bytes. The server sends all of it, or more than is shown.
fn beginning(payload: &str, payload_bytes: usize) -> String {
    let beginning = &payload[..payload.floor_char_boundary(PAYLOAD_SHOWN)];
    let shown = in_one_line(beginning);
    // Not by the number of bytes: binary data takes two characters a byte.
    if beginning.len() < payload.len() {
        format!("{shown}... ({payload_bytes} bytes)")
    } else {
        shown
    }
}

fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_is_cut_is_said_to_be_so() {
        let hexadecimal = "ab".repeat(101);
        assert_eq!(
            beginning(&hexadecimal, 101),
            format!("{}... (101 bytes)", "ab".repeat(100))
        );
        assert_eq!(beginning(&hexadecimal[..200], 100), "ab".repeat(100));
        assert_eq!(beginning("{\n  \"n\": 1\n}", 13), "{ \"n\": 1 }");
    }
}
