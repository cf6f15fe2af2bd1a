//! A report as a Markdown table, which the terminal shows too.

use std::fmt::Write;

use crate::figures::{Footprint, Load, Report};

/// The whole report: the machine, the servers beside their loads, and a row per load.
pub fn markdown(report: &Report) -> String {
    let mut text = String::new();
    let machine = &report.machine;
    let gibibytes = machine.memory_bytes as f64 / f64::from(1 << 30);
    let lines = [
        format!("`{}`, {}", report.command, machine.date),
        format!(
            "{} x {}, {gibibytes:.0} GiB, Linux {}, load average {} before the run.",
            machine.processors, machine.processor, machine.kernel, machine.load_average
        ),
    ];
    for line in lines {
        text.push_str(&line);
        text.push_str("\n\n");
    }
    let mut cells = vec![strings([
        "server",
        "start to ready, ms",
        "idle RSS, MB",
        "peak RSS, MB",
    ])];
    cells.extend(
        [&report.zookeeper, &report.landfast]
            .into_iter()
            .flatten()
            .map(footprint),
    );
    grid(&mut text, &cells);
    text.push('\n');
    let mut cells = vec![strings([
        "workload",
        "C x P",
        "ZooKeeper ops/s",
        "Landfast ops/s",
        "ratio",
        "p50 ms",
        "",
        "p99 ms",
        "",
        "CPU us/op",
        "",
        "ratio",
    ])];
    cells.extend(report.rows.iter().map(|row| {
        let (peer, ours) = (row.zookeeper.as_ref(), row.landfast.as_ref());
        vec![
            row.workload.to_string(),
            row.shape.to_string(),
            load(peer, |load| thousands(load.operations_per_second)),
            load(ours, |load| thousands(load.operations_per_second)),
            ratio(row.throughput_ratio()),
            load(peer, |load| format!("{:.2}", load.p50_ms)),
            load(ours, |load| format!("{:.2}", load.p50_ms)),
            load(peer, |load| format!("{:.2}", load.p99_ms)),
            load(ours, |load| format!("{:.2}", load.p99_ms)),
            load(peer, |load| format!("{:.1}", load.cpu_us_per_operation)),
            load(ours, |load| format!("{:.1}", load.cpu_us_per_operation)),
            ratio(row.cpu_ratio()),
        ]
    }));
    if !report.rows.is_empty() {
        grid(&mut text, &cells);
    }
    text.push_str("\nOf two columns under one name the left is ZooKeeper's. C x P: connections x requests outstanding on each.\n");
    if !report.measures.is_empty() {
        text.push('\n');
        grid(&mut text, &measures(report));
    }
    text
}

fn measures(report: &Report) -> Vec<Vec<String>> {
    let figure = |figure: Option<f64>| match figure {
        None => String::new(),
        Some(figure) if figure >= 1000.0 => thousands(figure),
        Some(figure) => format!("{figure:.2}"),
    };
    let mut cells = vec![strings(["measure", "ZooKeeper", "Landfast", "ratio"])];
    cells.extend(report.measures.iter().map(|measure| {
        let both = measure.landfast.zip(measure.zookeeper);
        vec![
            measure.name.clone(),
            figure(measure.zookeeper),
            figure(measure.landfast),
            ratio(both.map(|(ours, peers)| ours / peers)),
        ]
    }));
    cells
}

/// Cells as an aligned Markdown table whose first row is the head.
pub fn grid(text: &mut String, cells: &[Vec<String>]) {
    let columns = cells.first().map_or(0, Vec::len);
    let width = |column: usize| {
        cells
            .iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
            .max(3)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for (index, row) in cells.iter().enumerate() {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // The first column is a name, all others are figures.
            let padded = if column == 0 {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            };
            let _ = write!(text, "| {padded} ");
        }
        text.push_str("|\n");
        if index == 0 {
            for (column, width) in widths.iter().enumerate() {
                let _ = match column {
                    0 => write!(text, "| {} ", "-".repeat(*width)),
                    _ => write!(text, "| {}: ", "-".repeat(width - 1)),
                };
            }
            text.push_str("|\n");
        }
    }
}

/// Strings for a row.
pub fn strings<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

/// A whole number with thousands separators.
pub fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn footprint(footprint: &Footprint) -> Vec<String> {
    let megabytes = |bytes: u64| format!("{:.0}", bytes as f64 / 1e6);
    vec![
        footprint.name.clone(),
        format!("{:.0}", footprint.ready_ms),
        megabytes(footprint.idle_rss_bytes),
        megabytes(footprint.peak_rss_bytes),
    ]
}

fn load(load: Option<&Load>, show: impl Fn(&Load) -> String) -> String {
    load.map_or_else(String::new, show)
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}x"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0.0, 999.0, 1000.0, 1_234_567.0].map(thousands)[..]
        );
    }

    #[test]
    fn a_grid_is_aligned() {
        let mut text = String::new();
        grid(&mut text, &[strings(["name", "n"]), strings(["a", "10"])]);
        assert_eq!(text, "| name |   n |\n| ---- | --: |\n| a    |  10 |\n");
    }
}
