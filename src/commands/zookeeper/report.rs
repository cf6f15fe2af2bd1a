//! The result of a copy: counts, and the differences that are left.

use std::fmt::Write as _;

use serde::Serialize;

use super::connection::Hosts;
use crate::commands::counted;

/// The listed differences. More of them are only counted.
const LISTED_MAX: usize = 100;

/// The counts of a whole copy, and of its last pass.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    from: String,
    to: String,
    pub(super) passes: u32,
    pub(super) created: u64,
    /// Those of them that are containers, and that have a TTL.
    pub(super) containers: u64,
    pub(super) ttls: u64,
    pub(super) updated: u64,
    pub(super) deleted: u64,
    pub(super) raised_counters: u64,
    #[serde(flatten)]
    pub(super) last: Last,
}

/// The counts of the last pass.
#[derive(Debug, Default, Serialize)]
pub(super) struct Last {
    /// Found equal on both sides.
    pub(super) equal: u64,
    pub(super) ephemerals: u64,
    /// Changed by the pass, so it has not seen them equal.
    pub(super) changed: u64,
    /// Subtrees of the target alone.
    pub(super) extra: u64,
    pub(super) failed: u64,
    /// Parents whose next sequence number is lower on the target.
    pub(super) low_counters: u64,
    differences: Vec<Difference>,
}

#[derive(Debug, Serialize)]
struct Difference {
    path: String,
    what: String,
}

/// Something that keeps the two sides from being equal.
#[derive(Debug)]
pub(super) enum Finding {
    /// The pass has changed the target, or the source changed during the pass.
    Changed(&'static str),
    /// Only on the target, and why it stays.
    Extra(String),
    Failed(String),
}

impl Finding {
    pub(super) fn text(self) -> String {
        match self {
            Self::Changed(what) => what.to_owned(),
            Self::Extra(why) => format!("only on the target{why}"),
            Self::Failed(why) => why,
        }
    }
}

impl Last {
    pub(super) fn add(&mut self, path: String, finding: Finding) {
        match finding {
            Finding::Changed(_) => self.changed += 1,
            Finding::Extra(_) => self.extra += 1,
            Finding::Failed(_) => self.failed += 1,
        }
        if self.differences.len() < LISTED_MAX {
            let what = finding.text();
            self.differences.push(Difference { path, what });
        }
    }
}

impl Report {
    pub(super) fn between(from: &Hosts, to: &Hosts) -> Self {
        Self {
            from: from.to_string(),
            to: to.to_string(),
            ..Self::default()
        }
    }

    pub(super) fn begin(&mut self, pass: u32) {
        self.passes = pass;
        self.last = Last::default();
    }

    /// Whether the last pass found every znode of the source equal on the target.
    pub(super) fn is_verified(&self) -> bool {
        self.last.changed == 0 && self.last.failed == 0
    }

    pub(super) fn json(&self) -> anyhow::Result<String> {
        let mut report = serde_json::to_value(self)?;
        report["verified"] = self.is_verified().into();
        Ok(format!("{report}\n"))
    }

    pub(super) fn text(&self) -> Result<String, std::fmt::Error> {
        let (last, mut text) = (&self.last, String::new());
        writeln!(text, "from {} to {}", self.from, self.to)?;
        let created = counted(self.created, "znode");
        let containers = counted(self.containers, "container");
        let (ttls, updated, deleted) = (self.ttls, self.updated, self.deleted);
        writeln!(
            text,
            "created {created} ({containers}, {ttls} with a TTL), updated {updated}, deleted {deleted} (passes: {})",
            self.passes
        )?;
        let equal = counted(last.equal, "znode");
        let ephemerals = counted(last.ephemerals, "ephemeral znode");
        writeln!(
            text,
            "the last pass found {equal} equal on both sides; {ephemerals} not copied"
        )?;
        for Difference { path, what } in &last.differences {
            writeln!(text, "  {path}: {what}")?;
        }
        let differences = last.changed + last.failed + last.extra;
        let more = differences - last.differences.len() as u64;
        for (count, noun, advice) in [
            (more, "more difference", "beyond this list"),
            (
                last.low_counters,
                "parent",
                "of sequential znodes: the target would give out lower numbers than the source; --sequences raises them",
            ),
            (
                last.extra,
                "subtree",
                "on the target alone; --delete deletes those without ephemeral znodes",
            ),
            (
                last.changed,
                "change",
                "in the last pass: the source is in use; stop its clients, and run this again",
            ),
            (
                last.failed,
                "failure",
                "to copy a znode; mend what is listed, and run this again",
            ),
        ] {
            if count > 0 {
                writeln!(text, "{} {advice}", counted(count, noun))?;
            }
        }
        if self.is_verified() {
            text += "verified\n";
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_are_named() -> anyhow::Result<()> {
        let report = Report::between(&"tls://a:1,b:2".parse()?, &"c:3".parse()?);
        let text = report.text()?;
        assert!(text.starts_with("from tls://a:1,b:2 to c:3\n"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&report.json()?)?;
        assert_eq!(
            (&json["from"], &json["to"]),
            (&"tls://a:1,b:2".into(), &"c:3".into())
        );
        Ok(())
    }

    #[test]
    fn one_of_a_kind_is_written_in_the_singular() -> anyhow::Result<()> {
        let mut report = Report {
            created: 1,
            ..Report::default()
        };
        report.begin(1);
        (report.last.equal, report.last.ephemerals) = (1, 1);
        report.last.low_counters = 1;
        let text = report.text()?;
        for line in [
            "created 1 znode (0 containers,",
            "found 1 znode equal on both sides; 1 ephemeral znode not copied",
            "1 parent of sequential znodes",
        ] {
            assert!(text.contains(line), "{text}");
        }
        report.last.equal = 2;
        assert!(report.text()?.contains("found 2 znodes equal"));
        Ok(())
    }
}
