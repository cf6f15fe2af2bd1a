//! The report as one picture: anomalies and median latency of each store, heat by heat.

use super::report::{Cell, Report};
use crate::drawing::{BAD, Drawing, GOOD};

const WIDTH: usize = 1000;
const LABEL_X: f64 = 230.0;
const PANEL_WIDTH: f64 = 220.0;
const ANOMALIES_X: f64 = 240.0;
const LATENCY_X: f64 = 620.0;
const HEADINGS_Y: f64 = 64.0;

/// The part beside Redis as an SVG document.
pub fn svg(report: &Report) -> String {
    let cells = &report.beside_redis;
    let mut drawing = Drawing::new(
        "Transactions of two functions, beside plain Redis",
        WIDTH,
        cells.len(),
    );
    drawing.heading(ANOMALIES_X, HEADINGS_Y, "transactions that saw an anomaly");
    drawing.heading(LATENCY_X, HEADINGS_Y, "median latency, ms");
    let most_wrong = cells.iter().map(wrong).fold(1.0, f64::max);
    let slowest = cells
        .iter()
        .map(|cell| cell.figures.p50_ms)
        .fold(0.001, f64::max);
    for (index, cell) in cells.iter().enumerate() {
        let y = Drawing::row(index);
        drawing.name(
            LABEL_X,
            y,
            &format!("{}, Zipf {:.1}", cell.store, cell.zipf),
        );
        let of = format!("{} of {}", wrong(cell), cell.figures.transactions);
        bar(
            &mut drawing,
            (ANOMALIES_X, y),
            wrong(cell) / most_wrong,
            BAD,
            &of,
        );
        let p50 = cell.figures.p50_ms;
        let figures = format!("{p50:.2} (p99 {:.2})", cell.figures.p99_ms);
        bar(&mut drawing, (LATENCY_X, y), p50 / slowest, GOOD, &figures);
    }
    drawing.end(&report.machine, &report.redis)
}

fn wrong(cell: &Cell) -> f64 {
    let anomalies = cell.anomalies.unwrap_or_default();
    (anomalies.own_write_not_read + anomalies.fractured) as f64
}

fn bar(drawing: &mut Drawing, (x, y): (f64, f64), share: f64, color: &str, figures: &str) {
    let width = share * PANEL_WIDTH;
    drawing.bar((x, y), width, color, x + width + 8.0, figures);
}
