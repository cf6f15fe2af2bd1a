//! The command that checks a volume: through its server, or without one.

mod offline;

use std::{borrow::Cow, fmt::Write as _, process::ExitCode, time::Duration};

use bytes::Bytes;
use clap::Args;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::volumes::Volume;
use crate::{
    commands::{
        print,
        request::{Request, parsed},
    },
    settings::Places,
};

/// The time for a check.
const CHECK_MAX: Duration = Duration::from_hours(24);
const A_REPORT: &str = "the report of a check";

/// The volume to check.
#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    volume: Volume,
    /// Repair what can be repaired
    #[arg(long)]
    repair: bool,
    /// Check names and attributes alone, and read no data
    #[arg(long)]
    metadata: bool,
    /// Open the data directory instead of asking a server, which must not run; also checks the store and its objects, and with
    /// --repair deletes objects that hold no value
    #[arg(long)]
    offline: bool,
    #[command(flatten)]
    places: Places,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
struct Report<'a> {
    counts: Counts,
    #[serde(borrow)]
    findings: Vec<&'a RawValue>,
    findings_left_off: u64,
    /// Of an offline check.
    objects: Option<CheckedObjects<'a>>,
    /// The first damage of the store.
    store_damage: Option<Cow<'a, str>>,
}

/// The objects that hold large values.
#[derive(Debug, Deserialize)]
struct CheckedObjects<'a> {
    count: u64,
    unreferenced: u64,
    deleted: u64,
    #[serde(borrow)]
    findings: Vec<ObjectFinding<'a>>,
    findings_left_off: u64,
}

#[derive(Debug, Deserialize)]
struct ObjectFinding<'a> {
    object: &'a str,
    problem: &'a str,
}

#[derive(Debug, Deserialize)]
struct Counts {
    inodes: u64,
    entries: u64,
    blocks: u64,
}

#[derive(Debug, Deserialize)]
struct Finding {
    ino: u64,
    path: Option<String>,
    problem: String,
    repair: String,
    /// Of a damaged block: its number.
    block: Option<u64>,
}

impl Check {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let body = if self.offline {
            offline::check(self)?
        } else {
            self.ask()?
        };
        let report: Report<'_> = parsed(&body, A_REPORT)?;
        let (text, is_sound) = shown(&report)?;
        if self.json {
            print(&format!("{}\n", String::from_utf8_lossy(&body)))?;
        } else {
            print(&text)?;
        }
        Ok(if is_sound {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// The report of the server.
    fn ask(&self) -> anyhow::Result<Bytes> {
        let asked = [(self.repair, "repair"), (self.metadata, "metadata")];
        let asked = asked.iter().filter(|(is_asked, _)| *is_asked);
        let asked: Vec<&str> = asked.map(|(_, name)| *name).collect();
        let path = self.volume.path(&format!("/check?{}", asked.join("&")));
        let request = Request {
            method: "POST",
            wait_max: CHECK_MAX,
            ..Request::get(&path)
        };
        Ok(self.volume.target.send(&request)?.body)
    }
}

/// The report as text, and whether no problem is left.
fn shown(report: &Report<'_>) -> anyhow::Result<(String, bool)> {
    let (mut text, mut left) = (String::new(), report.findings_left_off);
    for finding in &report.findings {
        let finding: Finding = parsed(finding.get().as_bytes(), A_REPORT)?;
        let place = finding
            .path
            .unwrap_or_else(|| format!("inode {}", finding.ino));
        let block = finding
            .block
            .map(|block| format!(" {block}"))
            .unwrap_or_default();
        let problem = finding.problem.replace('_', " ");
        writeln!(
            text,
            "{place}: {problem}{block} (repair {})",
            finding.repair
        )?;
        left += u64::from(finding.repair != "done");
    }
    if let Some(objects) = &report.objects {
        left += show_objects(&mut text, objects)?;
    }
    if let Some(damage) = &report.store_damage {
        writeln!(text, "the store: {damage} (repair impossible)")?;
        left += 1;
    }
    let Counts {
        inodes,
        entries,
        blocks,
    } = report.counts;
    writeln!(
        text,
        "checked {inodes} inodes, {entries} names, {blocks} blocks: {left} problems are left"
    )?;
    Ok((text, left == 0))
}

/// Adds what an offline check found out about objects. Returns the number of problems.
fn show_objects(text: &mut String, objects: &CheckedObjects<'_>) -> anyhow::Result<u64> {
    for ObjectFinding { object, problem } in &objects.findings {
        writeln!(text, "{object}: {problem} object (repair impossible)")?;
    }
    let CheckedObjects {
        count,
        unreferenced,
        deleted,
        ..
    } = objects;
    write!(text, "checked {count} objects of large values")?;
    match (unreferenced - deleted, deleted) {
        (0, 0) => writeln!(text)?,
        (0, deleted) => writeln!(text, "; deleted {deleted} that held none")?,
        (waiting, _) => writeln!(
            text,
            "; {waiting} hold none and are deleted by the next server, or by --repair"
        )?,
    }
    Ok(objects.findings.len() as u64 + objects.findings_left_off)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_that_are_left_are_counted() {
        let report = r#"{"slot": 1, "counts": {"inodes": 3, "entries": 2, "blocks": 1, "bytes": 4}, "findings": [
            {"ino": 7, "path": "/a", "problem": "damaged_block", "block": 5, "repair": "impossible"},
            {"ino": 8, "path": null, "problem": "lost", "repair": "done"}], "findings_left_off": 0}"#;
        let report: Report<'_> = parsed(report.as_bytes(), A_REPORT).expect("a report");
        let (text, is_sound) = shown(&report).expect("shown");
        assert_eq!(
            text,
            "/a: damaged block 5 (repair impossible)\ninode 8: lost (repair done)\n\
             checked 3 inodes, 2 names, 1 blocks: 1 problems are left\n"
        );
        assert!(!is_sound);
    }
}
