//! `landfast queues`: the queues that start functions of a running server.

use std::{process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use serde::Deserialize;

use super::{
    listing,
    request::{Request, Target, parsed, segment},
};

/// The time to remove the messages of a queue.
const PURGE_MAX: Duration = Duration::from_mins(10);

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the queues that start deployed functions, with their waiting messages and dead letters
    ///
    /// A queue is made by the deployment of a function that it starts. Once that function is removed, the queue is not listed, and
    /// keeps its messages: the other commands take its name.
    List(List),
    /// Send a message to a queue
    Send(Send),
    /// Show the first messages of a queue, ten at most, without delivering them
    Peek(Peek),
    /// Remove the messages that wait in a queue, and print how many; one that a function has stays
    Purge(Purge),
}

/// How to show the list.
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    target: Target,
    /// Print one JSON object per queue
    #[arg(long)]
    json: bool,
}

/// The message to send.
#[derive(Debug, Args)]
pub(crate) struct Send {
    #[command(flatten)]
    target: Target,
    /// The queue
    queue: String,
    /// The message: as text, `@FILE` or `file://FILE` for the content of a file, `-` for stdin
    #[arg(allow_hyphen_values = true)]
    message: String,
    /// The message is text as it is, also if it begins with `@` or `file://`, or is `-`
    #[arg(long)]
    raw: bool,
    /// Its group: messages of one group are delivered in their order
    #[arg(long, default_value = "")]
    group: String,
}

/// The queue to look at.
#[derive(Debug, Args)]
pub(crate) struct Peek {
    #[command(flatten)]
    target: Target,
    /// The queue
    queue: String,
    /// Print one JSON object per message
    #[arg(long)]
    json: bool,
}

/// The queue to empty.
#[derive(Debug, Args)]
pub(crate) struct Purge {
    #[command(flatten)]
    target: Target,
    /// The queue
    queue: String,
    /// Print the server's JSON as it is
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
struct Listed {
    queue: String,
    function: String,
    application: String,
    messages: u64,
    dead_letters: u64,
}

#[derive(Debug, Deserialize)]
struct Message {
    group: String,
    attempts: u32,
    body: String,
    body_bytes: usize,
}

#[derive(Debug, Deserialize)]
struct Purged {
    purged: u64,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(list) => list.run(),
        Command::Send(send) => send.run(),
        Command::Peek(peek) => peek.run(),
        Command::Purge(purge) => purge.run(),
    }
}

impl List {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let path = |after: Option<&str>| {
            let query = after.map(|queue| format!("?after={}", segment(queue)));
            format!("/v1/queues{}", query.unwrap_or_default())
        };
        let line = |listed: Listed| {
            let (messages, dead) = (listed.messages, listed.dead_letters);
            let function = format!("{} of {}", listed.function, listed.application);
            let queue = listed.queue;
            format!("{queue:<24} {function:<32} {messages:>8} waiting {dead:>6} dead")
        };
        listing::print_all(&self.target, "a list of queues", self.json, path, line)
    }
}

impl Send {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let (queue, group) = (segment(&self.queue), segment(&self.group));
        let path = format!("/v1/queues/{queue}/messages?group={group}");
        let message = if self.raw {
            self.message.clone().into_bytes()
        } else {
            super::input(&self.message)?
        };
        let request = Request {
            method: "POST",
            body: &message,
            ..Request::get(&path)
        };
        self.target.send(&request)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Peek {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let path = |_: Option<&str>| format!("/v1/queues/{}/messages", segment(&self.queue));
        let line = |message: Message| {
            let Message {
                group,
                attempts,
                body,
                body_bytes,
            } = message;
            let body = body.lines().collect::<Vec<_>>().join("\n    ");
            format!("group {group:?}, given {attempts} times, {body_bytes} bytes\n    {body}")
        };
        listing::print_all(&self.target, "a list of messages", self.json, path, line)
    }
}

impl Purge {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let path = format!("/v1/queues/{}/messages", segment(&self.queue));
        let request = Request {
            method: "DELETE",
            wait_max: PURGE_MAX,
            ..Request::get(&path)
        };
        let answer = self.target.send(&request)?;
        if self.json {
            return super::print(&format!("{}\n", String::from_utf8_lossy(&answer.body)));
        }
        let Purged { purged } = parsed(&answer.body, "a number of messages")?;
        super::print(&format!("removed: {purged}\n"))
    }
}
