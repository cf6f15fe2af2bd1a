//! `landfast doctor`: whether this machine is fit to run the server, and what to do if not.
//!
//! It checks exactly what `landfast serve` with the same options would use. Each check is one
//! function that returns one finding. A check changes nothing but a temporary file in the data
//! directory. Slow checks run only on request.

mod checks;

use std::{fmt::Write as _, process::ExitCode};

use clap::Args;
use serde::Serialize;

use super::request::Target;
use crate::{settings::Options, startup_error};

/// The options of the checks.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    target: Target,
    /// Also read the whole checkpoint store back, which takes as long as reading its file; the server must not run
    #[arg(long)]
    verify: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Serialize)]
struct Finding {
    /// [`checks::all`] names it.
    check: &'static str,
    verdict: Verdict,
    found: String,
    advice: Option<String>,
}

fn ok(found: impl Into<String>) -> Finding {
    Finding {
        check: "",
        verdict: Verdict::Ok,
        found: found.into(),
        advice: None,
    }
}

fn warn(found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding {
        verdict: Verdict::Warn,
        advice: Some(advice.into()),
        ..ok(found)
    }
}

fn fail(found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding {
        verdict: Verdict::Fail,
        ..warn(found, advice)
    }
}

impl Finding {
    fn of(self, check: &'static str) -> Self {
        Self { check, ..self }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    verdict: Verdict,
    checks: &'a [Finding],
}

/// Runs every check and prints the findings. Fails if a check failed.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let findings = match arguments.options.settle() {
        Ok(settings) => checks::all(&settings, &arguments.target, arguments.verify),
        Err(error) => {
            let advice = "correct it; the rest was not checked";
            vec![fail(startup_error::of(&error), advice).of("configuration")]
        }
    };
    let has = |verdict| findings.iter().any(|finding| finding.verdict == verdict);
    let verdict = match (has(Verdict::Fail), has(Verdict::Warn)) {
        (true, _) => Verdict::Fail,
        (false, true) => Verdict::Warn,
        (false, false) => Verdict::Ok,
    };
    let report = Report {
        verdict,
        checks: &findings,
    };
    super::print(&if arguments.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        lines(&findings)?
    })?;
    Ok(match verdict {
        Verdict::Fail => ExitCode::FAILURE,
        Verdict::Ok | Verdict::Warn => ExitCode::SUCCESS,
    })
}

fn lines(findings: &[Finding]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for finding in findings {
        let verdict = format!("{:?}", finding.verdict).to_lowercase();
        writeln!(text, "{verdict:<5} {:<15} {}", finding.check, finding.found)?;
        if let Some(advice) = &finding.advice {
            writeln!(text, "      {:<15} -> {advice}", "")?;
        }
    }
    Ok(text)
}
