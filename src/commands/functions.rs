//! `landfast functions`: deploys, runs and observes functions of a running server.
//!
//! The command packs an application here: the manifest, the folders that it names, and the packages
//! of their `requirements.txt`. The server never reads a path of the client.

mod letters;
mod logs;
mod package;

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::{Args, Subcommand};
use serde::Deserialize;

use super::request::{Request, Target, Unavailable, parsed, segment};

/// The time for a deployment: it is sent, unpacked and made durable.
const DEPLOY_MAX: Duration = Duration::from_mins(2);
/// The time for an invocation: the longest of a function, and its start.
const INVOKE_MAX: Duration = Duration::from_secs(930);

/// The pause before a changed application is deployed again to a server that is away.
const TRY_AGAIN: Duration = Duration::from_secs(1);

const A_LIST: &str = "a list of functions";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Deploy the functions of an application; functions that it no longer has are removed
    Deploy(Deploy),
    /// Run a function and print its result; exits 1 if it fails
    Invoke(Invoke),
    /// Print what a function has printed
    Logs(logs::Logs),
    /// Show the events and messages that a function has failed for good, send them again, or remove them
    DeadLetters(letters::DeadLetters),
    /// List the deployed functions
    List(List),
    /// Remove an application with its functions
    Remove(Remove),
}

/// The application to deploy.
#[derive(Debug, Args)]
pub(crate) struct Deploy {
    #[command(flatten)]
    target: Target,
    /// The application's manifest, or its folder: there FOLDER.toml of the folder's own name, app.toml, or the only
    /// manifest
    #[arg(value_name = "APP.toml")]
    manifest: PathBuf,
    /// Deploy again whenever the manifest or its code changes, until Ctrl-C
    #[arg(long, conflicts_with = "dry_run")]
    watch: bool,
    /// List the files that would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the server's JSON as it is
    #[arg(long)]
    json: bool,
}

/// The function to run.
#[derive(Debug, Args)]
pub(crate) struct Invoke {
    #[command(flatten)]
    target: Target,
    /// The function
    name: String,
    /// The payload in JSON: as text, `@FILE` or `file://FILE` for the content of a file, `-` for stdin
    #[arg(
        long,
        value_name = "JSON",
        default_value = "{}",
        allow_hyphen_values = true
    )]
    payload: String,
    /// Have it run some time soon, with its retries, and print its request id
    #[arg(long)]
    event: bool,
    /// Show what it printed, on stderr
    #[arg(long)]
    log: bool,
    /// Print the error of a failed function in JSON, on stdout
    #[arg(long)]
    json: bool,
}

/// How to show the list.
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    target: Target,
    /// Print the server's JSON as it is
    #[arg(long)]
    json: bool,
}

/// The application to remove.
#[derive(Debug, Args)]
pub(crate) struct Remove {
    #[command(flatten)]
    target: Target,
    /// The application
    application: String,
}

#[derive(Debug, Deserialize)]
struct Listed {
    name: String,
    application: String,
    handler: String,
    memory_mb: u64,
    timeout_s: u64,
    concurrency: usize,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Deploy(deploy) => deploy.run(),
        Command::Invoke(invoke) => invoke.run(),
        Command::Logs(logs) => logs.run(),
        Command::DeadLetters(letters) => letters.run(),
        Command::List(list) => list.run(),
        Command::Remove(remove) => remove.run(),
    }
}

impl Deploy {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let manifest = package::manifest_at(&self.manifest)?;
        if self.dry_run {
            return dry_run(&manifest);
        }
        let deployed = self.deploy(&manifest)?;
        if self.watch {
            self.watch(&manifest, package::Seen::Whole(deployed))
        } else {
            Ok(ExitCode::SUCCESS)
        }
    }

    /// Deploys every version after `seen`, which is deployed.
    fn watch(&self, manifest: &Path, mut seen: package::Seen) -> anyhow::Result<ExitCode> {
        // Why `seen` is not deployed yet, if it is to be tried again.
        let mut owed: Option<String> = None;
        loop {
            match package::wait_for_change(manifest, &seen, TRY_AGAIN) {
                Some(now) => seen = now,
                None if owed.is_none() => continue,
                None => {}
            }
            let before = owed.take();
            // It is being edited. The deployed version stays, and the next change is tried.
            let refused = match &seen {
                package::Seen::Broken(_, why) => Some(why.clone()),
                package::Seen::Whole(_) => match self.deploy(manifest) {
                    Ok(now) => {
                        seen = package::Seen::Whole(now);
                        None
                    }
                    Err(error) if error.is::<Unavailable>() => {
                        let why = format!("{error:#}; tried again until it is");
                        owed = Some(why.clone());
                        Some(why).filter(|why| before.as_ref() != Some(why))
                    }
                    Err(error) => Some(format!("{error:#}")),
                },
            };
            if let Some(why) = refused {
                super::print(&format!("not deployed: {why}\n"))?;
            }
        }
    }

    /// Deploys the present version, and returns it.
    fn deploy(&self, manifest: &Path) -> anyhow::Result<package::State> {
        let state = package::State::of(manifest)?;
        let package = package::Package::make(manifest)?;
        let path = format!("/v1/applications/{}", segment(&package.name));
        let request = Request {
            method: "PUT",
            body: &package.content,
            wait_max: DEPLOY_MAX,
            ..Request::get(&path)
        };
        let answer = self.target.send(&request)?;
        if self.json {
            super::print(&format!("{}\n", String::from_utf8_lossy(&answer.body)))?;
        } else {
            let functions: Vec<Listed> = parsed(&answer.body, A_LIST)?;
            let functions = functions.into_iter().map(|function| function.name);
            let functions = functions.collect::<Vec<_>>().join(", ");
            let (name, kibibytes) = (package.name, package.content.len().div_ceil(1024));
            super::print(&format!("deployed {name} ({kibibytes} KiB): {functions}\n"))?;
        }
        Ok(state)
    }
}

impl Invoke {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let payload = super::input(&self.payload)?;
        let path = format!("/2015-03-31/functions/{}/invocations", segment(&self.name));
        let kind = if self.event {
            "Event"
        } else {
            "RequestResponse"
        };
        let log = if self.log { "Tail" } else { "None" };
        let headers = [("X-Amz-Invocation-Type", kind), ("X-Amz-Log-Type", log)];
        let request = Request {
            method: "POST",
            headers: &headers,
            body: &payload,
            wait_max: INVOKE_MAX,
            ..Request::get(&path)
        };
        let answer = self.target.send(&request)?;
        if let Some(log) = answer.header("x-amz-log-result") {
            let log = BASE64_STANDARD.decode(log);
            let log = log.context("the log is no base64")?;
            super::print_aside(&String::from_utf8_lossy(&log));
        }
        if self.event {
            let id = answer.header("x-amzn-requestid").unwrap_or_default();
            return super::print(&format!("{id}\n"));
        }
        let has_failed = answer.header("x-amz-function-error").is_some();
        if has_failed && !self.json {
            super::print_aside(&failure(&answer.body));
            return Ok(ExitCode::FAILURE);
        }
        super::print(&format!("{}\n", String::from_utf8_lossy(&answer.body)))?;
        Ok(if has_failed {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }
}

/// The error of a failed function, as people read it: its type, its message and where it arose.
fn failure(payload: &[u8]) -> String {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Failure {
        error_type: String,
        error_message: String,
        /// Python's lines; Node has its own in `trace`.
        #[serde(default)]
        stack_trace: Vec<String>,
        #[serde(default)]
        trace: Vec<String>,
    }
    let Ok(failure) = serde_json::from_slice::<Failure>(payload) else {
        return format!(
            "landfast: the function failed: {}\n",
            String::from_utf8_lossy(payload)
        );
    };
    let (kind, message) = (failure.error_type, failure.error_message);
    let mut text = format!("landfast: the function failed: {kind}: {message}\n");
    // Node's trace begins with the message.
    let trace = failure.trace.into_iter().skip(1);
    for line in failure.stack_trace.into_iter().chain(trace) {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Lists the files that a deployment would send, with their lengths.
fn dry_run(manifest: &Path) -> anyhow::Result<ExitCode> {
    let package = package::Package::make(manifest)?;
    let mut text = String::new();
    for (path, bytes) in &package.files {
        writeln!(text, "{bytes:>10}  {}", path.display())?;
    }
    let (name, count) = (&package.name, package.files.len());
    let kibibytes = package.content.len().div_ceil(1024);
    writeln!(
        text,
        "{name}: {count} files, packed {kibibytes} KiB; nothing was sent"
    )?;
    super::print(&text)
}

impl List {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let body = self.target.get("/v1/functions")?;
        if self.json {
            return super::print(&format!("{body}\n"));
        }
        let functions: Vec<Listed> = parsed(body.as_bytes(), A_LIST)?;
        let mut text = String::new();
        for function in functions {
            let (name, application) = (function.name, function.application);
            let (handler, memory_mb) = (function.handler, function.memory_mb);
            let (timeout_s, concurrency) = (function.timeout_s, function.concurrency);
            write!(text, "{name:<24} {application:<16} {handler:<24} ")?;
            writeln!(
                text,
                "{memory_mb:>6} MB {timeout_s:>4} s  {concurrency} at a time"
            )?;
        }
        super::print(&text)
    }
}

impl Remove {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let path = format!("/v1/applications/{}", segment(&self.application));
        let request = Request {
            method: "DELETE",
            wait_max: DEPLOY_MAX,
            ..Request::get(&path)
        };
        let answer = self.target.ask(&request)?;
        if answer.status == 404
            && let Some(function) = self.function()?
        {
            let (name, application) = (function.name, function.application);
            bail!(
                "{name} is a function of the application {application}: `landfast functions remove {application}` removes \
                 that with all its functions. To remove the function alone, deploy {application} without it"
            );
        }
        answer.accepted(&self.target, &path)?;
        super::print(&format!("removed {}\n", self.application))
    }

    /// The function of the name that was given for an application.
    fn function(&self) -> anyhow::Result<Option<Listed>> {
        let body = self.target.get("/v1/functions")?;
        let functions: Vec<Listed> = parsed(body.as_bytes(), A_LIST)?;
        let mut functions = functions.into_iter();
        Ok(functions.find(|function| function.name == self.application))
    }
}
