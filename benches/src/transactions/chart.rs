//! The report as one picture: anomalies and median latency of each store, heat by heat.

use std::fmt::Write as _;

use super::report::{Cell, Report};

const WIDTH: usize = 1000;
const ROW_HEIGHT: usize = 24;
const TOP: usize = 84;
const BOTTOM: usize = 40;
const LABEL_X: f64 = 230.0;
const PANEL_WIDTH: f64 = 220.0;
const ANOMALIES_X: f64 = 240.0;
const LATENCY_X: f64 = 620.0;

const RIGHT: &str = "#2a78a8";
const WRONG: &str = "#c8553d";

/// The part beside Redis as an SVG document.
pub fn svg(report: &Report) -> String {
    let cells = &report.beside_redis;
    let height = TOP + cells.len() * ROW_HEIGHT + BOTTOM;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#222\">"
    );
    let _ = writeln!(text, "<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>");
    let title = "<tspan font-size=\"17\" font-weight=\"600\">Transactions of two functions, beside plain Redis</tspan>";
    label(&mut text, 20.0, 28.0, "start", title);
    label(
        &mut text,
        ANOMALIES_X,
        64.0,
        "start",
        "<tspan fill=\"#555\">transactions that saw an anomaly</tspan>",
    );
    label(&mut text, LATENCY_X, 64.0, "start", "<tspan fill=\"#555\">median latency, ms</tspan>");
    let most_wrong = cells.iter().map(wrong).fold(1.0, f64::max);
    let slowest = cells.iter().map(|cell| cell.figures.p50_ms).fold(0.001, f64::max);
    for (index, cell) in cells.iter().enumerate() {
        let y = (TOP + index * ROW_HEIGHT) as f64;
        label(&mut text, LABEL_X, y + 15.0, "end", &format!("{}, Zipf {:.1}", cell.store, cell.zipf));
        let of = format!("{} of {}", wrong(cell), cell.figures.transactions);
        bar(&mut text, ANOMALIES_X, y, wrong(cell) / most_wrong, WRONG, &of);
        let p50 = cell.figures.p50_ms;
        bar(
            &mut text,
            LATENCY_X,
            y,
            p50 / slowest,
            RIGHT,
            &format!("{p50:.2} (p99 {:.2})", cell.figures.p99_ms),
        );
    }
    let machine = &report.machine;
    let below = format!(
        "<tspan fill=\"#777\" font-size=\"11\">{} x {}, {}. {}.</tspan>",
        machine.processors, machine.processor, machine.date, report.redis
    );
    label(&mut text, 20.0, (height - 14) as f64, "start", &below);
    text.push_str("</svg>\n");
    text
}

fn wrong(cell: &Cell) -> f64 {
    let anomalies = cell.figures.anomalies.unwrap_or_default();
    (anomalies.own_write_not_read + anomalies.fractured) as f64
}

fn bar(text: &mut String, x: f64, y: f64, share: f64, color: &str, figures: &str) {
    let width = share * PANEL_WIDTH;
    let _ = writeln!(
        text,
        "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"16\" rx=\"2\" fill=\"{color}\"/>",
        y + 2.0
    );
    label(text, x + width + 8.0, y + 15.0, "start", figures);
}

fn label(text: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    let _ = writeln!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
}
