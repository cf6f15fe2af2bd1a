//! The figures of a run, and their tables.

use std::{fmt::Write as _, time::Duration};

use serde::Serialize;

use super::targets::Kind;
use crate::{
    figures::Machine,
    table::{grid, thousands},
};

/// A part of the bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Latency of single calls.
    Operations,
    /// The six loads of Filebench.
    Personalities,
    /// TPC-C on SQLite.
    Tpcc,
    /// A web application over SQLite.
    Web,
    /// One long file.
    Sequential,
    /// One directory with many files.
    Directory,
}

impl Part {
    fn title(self) -> &'static str {
        match self {
            Self::Operations => "single calls, 1 KiB",
            Self::Personalities => "Filebench personalities",
            Self::Tpcc => "TPC-C on SQLite",
            Self::Web => "a blog over SQLite, for each request",
            Self::Sequential => "one long file",
            Self::Directory => "one directory",
        }
    }
}

/// One number.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// The part.
    pub part: Part,
    /// The row.
    pub case: String,
    /// What the number counts, with its unit.
    pub measure: &'static str,
    /// The file system.
    pub target: Kind,
    /// The number.
    pub value: f64,
}

/// The figures of one part on one target.
#[derive(Debug)]
pub struct Figures {
    part: Part,
    target: Kind,
    numbers: Vec<Figure>,
}

impl Figures {
    /// No figures yet.
    pub fn new(part: Part, target: Kind) -> Self {
        Self {
            part,
            target,
            numbers: Vec::new(),
        }
    }

    /// Adds a number.
    pub fn push(&mut self, case: impl Into<String>, measure: &'static str, value: f64) {
        self.numbers.push(Figure {
            part: self.part,
            case: case.into(),
            measure,
            target: self.target,
            value,
        });
    }

    /// Adds the median and the 99th percentile of `times`, in nanoseconds.
    pub fn push_times(&mut self, case: &str, mut times: Vec<Duration>) {
        times.sort_unstable();
        for (measure, percent) in [("p50 ns", 50), ("p99 ns", 99)] {
            if let Some(time) = times.get((times.len() * percent / 100).min(times.len().max(1) - 1))
            {
                self.push(case, measure, time.as_nanos() as f64);
            }
        }
    }

    /// All figures.
    pub fn into_inner(self) -> Vec<Figure> {
        self.numbers
    }
}

/// A whole run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The command line.
    pub command: String,
    /// Where and when.
    pub machine: Machine,
    /// What was left out, and why.
    pub skipped: Vec<String>,
    /// The numbers.
    pub figures: Vec<Figure>,
}

impl Report {
    /// A table for each part.
    pub fn markdown(&self) -> String {
        let machine = &self.machine;
        let mut text = format!(
            "`{}`, {}\n\n{} x {}, {:.0} GiB, Linux {}, load average {} before the run.\n\n",
            self.command,
            machine.date,
            machine.processors,
            machine.processor,
            machine.memory_bytes as f64 / f64::from(1 << 30),
            machine.kernel,
            machine.load_average
        );
        for line in &self.skipped {
            let _ = writeln!(text, "{line}.\n");
        }
        let mut parts: Vec<Part> = self.figures.iter().map(|figure| figure.part).collect();
        parts.dedup();
        for part in parts {
            self.part(part, &mut text);
        }
        text
    }

    fn part(&self, part: Part, text: &mut String) {
        let figures: Vec<&Figure> = { self.figures.iter() }
            .filter(|figure| figure.part == part)
            .collect();
        let cases = distinct(figures.iter().map(|figure| figure.case.as_str()));
        let mut columns = Vec::new();
        for measure in distinct(figures.iter().map(|figure| figure.measure)) {
            for target in distinct(figures.iter().map(|figure| figure.target)) {
                columns.push((measure, target));
            }
        }
        let heads = columns
            .iter()
            .map(|(measure, target)| format!("{} {measure}", target.name()));
        let mut rows = vec![
            std::iter::once(part.title().to_owned())
                .chain(heads)
                .collect(),
        ];
        for case in cases {
            let cell = |(measure, target): &(&str, Kind)| {
                let found = figures.iter().find(|figure| {
                    figure.case == case && figure.measure == *measure && figure.target == *target
                });
                found.map_or_else(String::new, |figure| number(figure.value))
            };
            let cells = columns.iter().map(cell);
            rows.push(
                std::iter::once(case.to_owned())
                    .chain(cells)
                    .collect::<Vec<_>>(),
            );
        }
        grid(text, &rows);
        text.push('\n');
    }
}

fn number(value: f64) -> String {
    if value == 0.0 || value >= 100.0 {
        thousands(value)
    } else {
        format!("{value:.1}")
    }
}

fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for item in items {
        if !found.contains(&item) {
            found.push(item);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let mut figures = Figures::new(Part::Operations, Kind::Ext4);
        figures.push_times("open", (0..200).rev().map(Duration::from_nanos).collect());
        figures.push_times("nothing", Vec::new());
        let values = figures.into_inner().into_iter().map(|figure| figure.value);
        assert_eq!(values.collect::<Vec<_>>(), [100.0, 198.0]);
    }
}
