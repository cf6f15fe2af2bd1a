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
use crate::{config::Options, startup_error};

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

/// The result of one check, and the advice for it.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    found: String,
    advice: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            verdict: Verdict::Ok,
            found: found.into(),
            advice: None,
        }
    }

    fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            check,
            verdict: Verdict::Warn,
            found: found.into(),
            advice: Some(advice.into()),
        }
    }

    fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            check,
            verdict: Verdict::Fail,
            found: found.into(),
            advice: Some(advice.into()),
        }
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
        Ok(settings) => {
            let mut findings = checks::all(&settings, &arguments.target);
            if arguments.verify {
                findings.push(checks::stored_bytes(&settings));
            }
            findings
        }
        Err(error) => {
            vec![Finding::fail(
                "configuration",
                startup_error::of(&error),
                "correct it; the rest was not checked",
            )]
        }
    };
    let failed = findings
        .iter()
        .any(|finding| finding.verdict == Verdict::Fail);
    let text = if arguments.json {
        json(&findings)?
    } else {
        lines(&findings)?
    };
    super::print(&text)?;
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn json(findings: &[Finding]) -> serde_json::Result<String> {
    let has = |verdict| findings.iter().any(|finding| finding.verdict == verdict);
    let verdict = match (has(Verdict::Fail), has(Verdict::Warn)) {
        (true, _) => Verdict::Fail,
        (false, true) => Verdict::Warn,
        (false, false) => Verdict::Ok,
    };
    Ok(serde_json::to_string_pretty(&Report {
        verdict,
        checks: findings,
    })? + "\n")
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
