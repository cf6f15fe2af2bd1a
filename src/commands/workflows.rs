//! `landfast workflows`: runs workflows on a running server, shows runs and ends them.

mod timeline;

use std::{
    fmt::Write as _,
    fs,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use in_process::SystemEntropy;
use ports::Entropy as _;
use serde::Deserialize;

use super::{
    listing,
    request::{Request, Target, parsed, segment},
};
use timeline::{Shown, Step, Timeline};

/// The longest wait for a run, in seconds.
const WAIT_S_MAX: u64 = 900;
/// The exit code of `run` if the run has not ended in time, or its end cannot be seen yet.
const NOT_ENDED: u8 = 3;
/// The time for the response beyond that.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a workflow and print what it comes to; exits 1 if it fails, 3 if it has not ended in time or cannot be seen
    Run(Run),
    /// List the runs of a workflow, or the workflows
    List(List),
    /// Show a run with its steps
    Show(Show),
    /// Cancel a run; the writes of its finished steps stay
    Cancel(OneRun),
}

/// The workflow to run.
#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    target: Target,
    /// The workflow
    name: String,
    /// The input in JSON: as text, `@FILE` or `file://FILE` for the content of a file, `-` for stdin
    #[arg(
        long,
        value_name = "JSON",
        default_value = "{}",
        allow_hyphen_values = true
    )]
    input: String,
    /// A name for the run: the same name is the same run
    #[arg(long)]
    id: Option<String>,
    /// How long to wait for its end, 900 at the most; 0 prints its id and does not wait
    #[arg(long, value_name = "SECONDS", default_value_t = WAIT_S_MAX, value_parser = clap::value_parser!(u64).range(..=WAIT_S_MAX))]
    wait: u64,
    /// Show when each step ran, and when the answer was durable, on stderr
    #[arg(long)]
    timeline: bool,
    /// Draw that into a file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the server's JSON as it is
    #[arg(long)]
    json: bool,
}

/// The runs to list.
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    target: Target,
    /// The workflow; without it the workflows are listed
    name: Option<String>,
    /// Those of this status: running, succeeded, failed or cancelled
    #[arg(long, requires = "name")]
    status: Option<String>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// The run to show.
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    run: OneRun,
    /// Draw its timeline into a file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Which run.
#[derive(Debug, Args)]
pub(crate) struct OneRun {
    #[command(flatten)]
    target: Target,
    /// The workflow
    name: String,
    /// The run
    run: String,
}

#[derive(Debug, Deserialize)]
struct Workflows {
    workflows: Vec<Listed>,
}

#[derive(Debug, Deserialize)]
struct Listed {
    name: String,
    functions: Vec<String>,
    far: Option<String>,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(run) => run.run(),
        Command::List(list) => list.run(),
        Command::Show(show) => show.run(),
        Command::Cancel(run) => run.cancel(),
    }
}

fn path_of(name: &str, run: &str) -> String {
    format!("/v1/workflows/{}/runs/{}", segment(name), segment(run))
}

/// A random id for a run, in the server's form.
fn drawn_id() -> String {
    let entropy = SystemEntropy::default();
    format!("{:016x}{:016x}", entropy.next_u64(), entropy.next_u64())
}

fn now_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.unwrap_or_default().as_millis() as u64
}

/// The run with its steps, drawn into a file if one is given.
fn timeline(
    target: &Target,
    name: &str,
    shown: Shown,
    durable_ms: Option<u64>,
    svg: Option<&Path>,
) -> anyhow::Result<Timeline> {
    #[derive(Deserialize)]
    struct Steps {
        steps: Vec<Step>,
    }
    let body = target.get(&format!("{}/steps", path_of(name, &shown.run)))?;
    let Steps { steps } = parsed(body.as_bytes(), "a list of steps")?;
    let timeline = Timeline {
        workflow: name.to_owned(),
        run: shown,
        durable_ms,
        steps,
    };
    if let Some(file) = svg {
        fs::write(file, timeline.svg()?).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(timeline)
}

impl Run {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let input = super::input(&self.input)?;
        let wait = self.wait;
        let id = self.id.clone().unwrap_or_else(drawn_id);
        let (name, encoded_id) = (segment(&self.name), segment(&id));
        let path = format!("/v1/workflows/{name}/runs?wait={wait}&id={encoded_id}");
        // After an interrupt or a lost connection the user can still look the run up.
        if wait > 0 && io::stderr().is_terminal() {
            eprintln!("run {id}");
        }
        let request = Request {
            method: "POST",
            body: &input,
            wait_max: Duration::from_secs(wait) + ANSWER_MAX,
            ..Request::get(&path)
        };
        let asked_ms = now_ms();
        let asked = self.target.ask(&request);
        let answer = asked.with_context(|| format!("the run, if it has begun, is {id}"))?;
        if let Some(unseen) = answer.unseen() {
            super::print_aside(&format!("landfast: {unseen}\n"));
            return Ok(ExitCode::from(NOT_ENDED));
        }
        let answer = answer.accepted(&self.target, &path)?;
        let answered_ms = now_ms();
        let shown: Shown = parsed(&answer.body, "a run")?;
        // For a run that had ended before the request, the time of its durability is not known.
        let is_new = shown.ended_ms.is_none_or(|ended| ended >= asked_ms);
        let durable_ms = is_new.then_some(answered_ms);
        let drawn = self.draw(&shown, durable_ms);
        let code = self.end(&shown, &String::from_utf8_lossy(&answer.body))?;
        drawn.map(|()| code)
    }

    fn draw(&self, shown: &Shown, durable_ms: Option<u64>) -> anyhow::Result<()> {
        if self.timeline || self.svg.is_some() {
            let (shown, svg) = (shown.clone(), self.svg.as_deref());
            let timeline = timeline(&self.target, &self.name, shown, durable_ms, svg)?;
            if self.timeline {
                super::print_aside(&timeline.text()?);
            }
        }
        Ok(())
    }

    /// Prints the result of the run. Stdout gets nothing else, so that it can be piped.
    fn end(&self, shown: &Shown, whole: &str) -> anyhow::Result<ExitCode> {
        let Shown { run, status, .. } = shown;
        let is_late = status == "running" && self.wait > 0;
        let failure = shown.failure().filter(|_| !self.json);
        if let Some(failure) = &failure {
            super::print_aside(&format!("landfast: {failure}\n"));
        }
        let text = match shown.came_to() {
            _ if self.json => whole,
            _ if failure.is_some() || is_late => "",
            Some(came_to) => came_to,
            None => &format!("{run} {status}"),
        };
        if !text.is_empty() {
            super::print(&format!("{text}\n"))?;
        }
        if is_late {
            let name = &self.name;
            super::print_aside(&format!(
                "the run {run} goes on: look at it with `landfast workflows show {name} {run}`\n"
            ));
            return Ok(ExitCode::from(NOT_ENDED));
        }
        Ok(match status.as_str() {
            "failed" | "cancelled" => ExitCode::FAILURE,
            _ => ExitCode::SUCCESS,
        })
    }
}

impl List {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let Some(name) = &self.name else {
            return self.workflows();
        };
        let path = |after: Option<&str>| {
            let query = [("status", self.status.as_deref()), ("after", after)];
            let query = query.iter().filter_map(|(parameter, value)| {
                let value = value.map(segment)?;
                Some(format!("{parameter}={value}"))
            });
            let query = query.collect::<Vec<_>>().join("&");
            format!("/v1/workflows/{}/runs?{query}", segment(name))
        };
        listing::print_all(&self.target, "a list of runs", self.json, path, line)
    }

    fn workflows(&self) -> anyhow::Result<ExitCode> {
        let body = self.target.get("/v1/workflows")?;
        if self.json {
            return super::print(&format!("{body}\n"));
        }
        let Workflows { workflows } = parsed(body.as_bytes(), "a list of workflows")?;
        let mut text = String::new();
        for listed in workflows {
            let (name, far) = (listed.name, listed.far.unwrap_or_default());
            let functions = listed.functions.join(" ");
            writeln!(text, "{name:<24} {functions:<48} {far}")?;
        }
        super::print(&text)
    }
}

fn line(shown: Shown) -> String {
    let took = shown
        .ended_ms
        .map(|ended| format!("{} ms", ended.saturating_sub(shown.began_ms)));
    let (run, status, took) = (shown.run, shown.status, took.unwrap_or_default());
    format!("{run:<34} {status:<10} {took}")
}

impl Show {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let OneRun { target, name, run } = &self.run;
        let shown: Shown = parsed(target.get(&path_of(name, run))?.as_bytes(), "a run")?;
        let timeline = timeline(target, name, shown, None, self.svg.as_deref())?;
        let (Shown { run, status, .. }, steps) = (&timeline.run, timeline.text()?);
        let came_to = timeline.run.came_to().unwrap_or_default();
        super::print(&format!("{run} {status}\n{steps}{came_to}\n"))
    }
}

impl OneRun {
    fn cancel(&self) -> anyhow::Result<ExitCode> {
        let path = path_of(&self.name, &self.run);
        let request = Request {
            method: "DELETE",
            wait_max: ANSWER_MAX,
            ..Request::get(&path)
        };
        let answer = self.target.send(&request)?;
        let Shown { run, status, .. } = parsed(&answer.body, "a run")?;
        super::print(&format!("{run} {status}\n"))
    }
}
