//! The frame that our charts share: a title, rows of bars with their figures beside them, and a
//! line about the machine below.

use std::fmt::Write as _;

use crate::figures::Machine;

pub(crate) const ROW_HEIGHT: usize = 24;
/// Where the first row begins.
pub(crate) const TOP: usize = 84;
const BOTTOM: usize = 40;

pub(crate) const GOOD: &str = "#2a78a8";
pub(crate) const BAD: &str = "#c8553d";

/// A document while it is drawn.
#[derive(Debug)]
pub(crate) struct Drawing {
    text: String,
    height: usize,
}

impl Drawing {
    /// An empty document with its title, for this many rows.
    pub(crate) fn new(title: &str, width: usize, rows: usize) -> Self {
        let height = TOP + rows * ROW_HEIGHT + BOTTOM;
        let mut text = String::new();
        let _ = writeln!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#222\">"
        );
        let _ = writeln!(
            text,
            "<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>"
        );
        let mut drawing = Self { text, height };
        let title = format!("<tspan font-size=\"17\" font-weight=\"600\">{title}</tspan>");
        drawing.label(20.0, 28.0, "start", &title);
        drawing
    }

    /// The top of a row.
    pub(crate) fn row(index: usize) -> f64 {
        (TOP + index * ROW_HEIGHT) as f64
    }

    /// Text at a point; `anchor` is SVG's.
    pub(crate) fn label(&mut self, x: f64, y: f64, anchor: &str, content: &str) {
        let _ = writeln!(
            self.text,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>"
        );
    }

    /// The heading of a column.
    pub(crate) fn heading(&mut self, x: f64, y: f64, content: &str) {
        self.label(
            x,
            y,
            "start",
            &format!("<tspan fill=\"#555\">{content}</tspan>"),
        );
    }

    /// The name of a row.
    pub(crate) fn name(&mut self, x: f64, y: f64, content: &str) {
        self.label(x, y + 15.0, "end", content);
    }

    /// A bar in the row at `y`, with its figures at `figures_x`.
    pub(crate) fn bar(
        &mut self,
        (x, y): (f64, f64),
        width: f64,
        color: &str,
        figures_x: f64,
        figures: &str,
    ) {
        let _ = writeln!(
            self.text,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"16\" rx=\"2\" fill=\"{color}\"/>",
            y + 2.0
        );
        self.label(figures_x, y + 15.0, "start", figures);
    }

    /// A dashed line from above the first row to below the last of `rows`.
    pub(crate) fn line(&mut self, x: f64, rows: usize) {
        let (top, bottom) = (TOP - 6, TOP + rows * ROW_HEIGHT);
        let _ = writeln!(
            self.text,
            "<path d=\"M{x:.1} {top} V{bottom}\" stroke=\"#222\" stroke-width=\"1.5\" stroke-dasharray=\"3 3\"/>"
        );
    }

    /// The finished document, with the machine and further notes below.
    pub(crate) fn end(mut self, machine: &Machine, notes: &str) -> String {
        let below = format!(
            "<tspan fill=\"#777\" font-size=\"11\">{} x {}, {}. {}</tspan>",
            machine.processors,
            escape(&machine.processor),
            escape(&machine.date),
            escape(notes)
        );
        self.label(20.0, (self.height - 14) as f64, "start", &below);
        self.text.push_str("</svg>\n");
        self.text
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
