//! A report as one picture: how we stand to the peer, row by row.
//!
//! Absolute figures of a row of one request at a time and of a thousand differ by two orders of magnitude, so
//! the bars show ratios, and the figures stand beside them as text. The peer is the line at one.

use std::fmt::Write;

use crate::{
    figures::{Report, Row},
    table::thousands,
};

const WIDTH: usize = 1120;
const ROW_HEIGHT: usize = 24;
const TOP: usize = 84;
const BOTTOM: usize = 40;
const LABEL_X: usize = 190;
const PANEL_WIDTH: f64 = 230.0;
const SPEED_X: f64 = 200.0;
const CPU_X: f64 = 680.0;
/// Bars end here however long they would be; the figure beside them says how long.
const RATIO_MAX: f64 = 8.0;

const GOOD: &str = "#2a78a8";
const BAD: &str = "#c8553d";

/// The report as an SVG document.
pub fn svg(report: &Report) -> String {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.throughput_ratio().is_some()).collect();
    let height = TOP + rows.len() * ROW_HEIGHT + BOTTOM;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#222\">"
    );
    let _ = writeln!(text, "<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>");
    label(
        &mut text,
        20.0,
        28.0,
        "start",
        "<tspan font-size=\"17\" font-weight=\"600\">Landfast beside ZooKeeper</tspan>",
    );
    let panels = [
        Panel::new(SPEED_X, "throughput, times ZooKeeper's (longer is better)", &rows, Row::throughput_ratio),
        Panel::new(
            CPU_X,
            "server CPU per operation, times ZooKeeper's (shorter is better)",
            &rows,
            Row::cpu_ratio,
        ),
    ];
    for (index, row) in rows.iter().enumerate() {
        let y = (TOP + index * ROW_HEIGHT) as f64;
        label(&mut text, LABEL_X as f64, y + 15.0, "end", &format!("{} {}", row.workload, row.shape));
        let (Some(peer), Some(ours)) = (row.zookeeper, row.landfast) else { continue };
        let (speed, cpu) = (row.throughput_ratio().unwrap_or(0.0), row.cpu_ratio().unwrap_or(0.0));
        let figures = format!(
            "{speed:.1}x · {} / {} per s",
            thousands(ours.operations_per_second),
            thousands(peer.operations_per_second)
        );
        panels[0].bar(&mut text, y, speed, speed >= 1.0, &figures);
        let figures =
            format!("{cpu:.2}x · {:.0} / {:.0} us", ours.cpu_us_per_operation, peer.cpu_us_per_operation);
        panels[1].bar(&mut text, y, cpu, cpu <= 1.0, &figures);
    }
    for panel in &panels {
        panel.frame(&mut text, rows.len());
    }
    let machine = &report.machine;
    let below = format!(
        "<tspan fill=\"#777\" font-size=\"11\">{} x {}, {}. Rows: workload, connections x requests outstanding; figures: Landfast / ZooKeeper.</tspan>",
        machine.processors,
        escape(&machine.processor),
        escape(&machine.date)
    );
    label(&mut text, 20.0, (height - 14) as f64, "start", &below);
    text.push_str("</svg>\n");
    text
}

/// One of the two columns of bars.
struct Panel {
    x: f64,
    title: &'static str,
    ratio_max: f64,
}

impl Panel {
    fn new(x: f64, title: &'static str, rows: &[&Row], ratio: impl Fn(&Row) -> Option<f64>) -> Self {
        let longest = rows.iter().filter_map(|row| ratio(row)).fold(1.0_f64, f64::max);
        Self { x, title, ratio_max: (longest * 1.05).clamp(1.25, RATIO_MAX) }
    }

    fn width(&self, ratio: f64) -> f64 {
        ratio.min(self.ratio_max) / self.ratio_max * PANEL_WIDTH
    }

    fn bar(&self, text: &mut String, y: f64, ratio: f64, good: bool, figures: &str) {
        let (width, color) = (self.width(ratio), if good { GOOD } else { BAD });
        let _ = writeln!(
            text,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"16\" rx=\"2\" fill=\"{color}\"/>",
            self.x,
            y + 2.0
        );
        label(text, self.x + width.max(self.width(1.0)) + 8.0, y + 15.0, "start", figures);
    }

    fn frame(&self, text: &mut String, rows: usize) {
        label(text, self.x, 58.0, "start", &format!("<tspan fill=\"#555\">{}</tspan>", self.title));
        let x = self.x + self.width(1.0);
        let bottom = TOP + rows * ROW_HEIGHT;
        let _ = writeln!(
            text,
            "<path d=\"M{x:.1} {} V{bottom}\" stroke=\"#222\" stroke-width=\"1.5\" stroke-dasharray=\"3 3\"/>",
            TOP - 6
        );
        label(text, x, 75.0, "middle", "<tspan font-size=\"11\">1x</tspan>");
    }
}

fn label(text: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    let _ = writeln!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
