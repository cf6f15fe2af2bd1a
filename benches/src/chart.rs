//! A report as one picture: how we compare with the peer, row by row.
//!
//! The absolute figures of one request at a time and of a thousand differ by two orders of
//! magnitude. The bars therefore show ratios, and the figures stand beside them as text. The peer
//! is the line at one.

use crate::{
    drawing::{BAD, Drawing, GOOD},
    figures::{Report, Row},
    table::thousands,
};

const WIDTH: usize = 1120;
const LABEL_X: f64 = 190.0;
const PANEL_WIDTH: f64 = 230.0;
const SPEED_X: f64 = 200.0;
const CPU_X: f64 = 680.0;
/// Longer bars are cut here; the figure beside them gives the ratio.
const RATIO_MAX: f64 = 8.0;

/// The report as an SVG document.
pub fn svg(report: &Report) -> String {
    let rows: Vec<&Row> = report
        .rows
        .iter()
        .filter(|row| row.throughput_ratio().is_some())
        .collect();
    let mut drawing = Drawing::new("Landfast beside ZooKeeper", WIDTH, rows.len());
    let panels = [
        Panel::new(
            SPEED_X,
            "throughput, times ZooKeeper's (longer is better)",
            &rows,
            Row::throughput_ratio,
        ),
        Panel::new(
            CPU_X,
            "server CPU per operation, times ZooKeeper's (shorter is better)",
            &rows,
            Row::cpu_ratio,
        ),
    ];
    for (index, row) in rows.iter().enumerate() {
        let y = Drawing::row(index);
        drawing.name(LABEL_X, y, &format!("{} {}", row.workload, row.shape));
        let (Some(peer), Some(ours)) = (row.zookeeper, row.landfast) else {
            continue;
        };
        let (speed, cpu) = (
            row.throughput_ratio().unwrap_or(0.0),
            row.cpu_ratio().unwrap_or(0.0),
        );
        let figures = format!(
            "{speed:.1}x · {} / {} per s",
            thousands(ours.operations_per_second),
            thousands(peer.operations_per_second)
        );
        panels[0].bar(&mut drawing, y, speed, speed >= 1.0, &figures);
        let figures = format!(
            "{cpu:.2}x · {:.0} / {:.0} us",
            ours.cpu_us_per_operation, peer.cpu_us_per_operation
        );
        panels[1].bar(&mut drawing, y, cpu, cpu <= 1.0, &figures);
    }
    for panel in &panels {
        panel.frame(&mut drawing, rows.len());
    }
    let notes =
        "Rows: workload, connections x requests outstanding; figures: Landfast / ZooKeeper.";
    drawing.end(&report.machine, notes)
}

/// One of the two columns of bars.
struct Panel {
    x: f64,
    title: &'static str,
    ratio_max: f64,
}

impl Panel {
    fn new(
        x: f64,
        title: &'static str,
        rows: &[&Row],
        ratio: impl Fn(&Row) -> Option<f64>,
    ) -> Self {
        let longest = rows
            .iter()
            .filter_map(|row| ratio(row))
            .fold(1.0_f64, f64::max);
        Self {
            x,
            title,
            ratio_max: (longest * 1.05).clamp(1.25, RATIO_MAX),
        }
    }

    fn width(&self, ratio: f64) -> f64 {
        ratio.min(self.ratio_max) / self.ratio_max * PANEL_WIDTH
    }

    fn bar(&self, drawing: &mut Drawing, y: f64, ratio: f64, good: bool, figures: &str) {
        let (width, color) = (self.width(ratio), if good { GOOD } else { BAD });
        let figures_x = self.x + width.max(self.width(1.0)) + 8.0;
        drawing.bar((self.x, y), width, color, figures_x, figures);
    }

    fn frame(&self, drawing: &mut Drawing, rows: usize) {
        drawing.heading(self.x, 58.0, self.title);
        let x = self.x + self.width(1.0);
        drawing.line(x, rows);
        drawing.label(x, 75.0, "middle", "<tspan font-size=\"11\">1x</tspan>");
    }
}
