//! A replay as a picture: the number of functions, and the working set that it follows.

use std::fmt::Write as _;

use crate::replay::{Outcome, Sample};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 880.0;
const PANEL_HEIGHT: f64 = 170.0;
/// The most points of a curve.
const POINTS_MAX: usize = 800;

/// A picture as an SVG document.
pub fn svg(outcome: &Outcome, title: &str) -> String {
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} 480\" width=\"{WIDTH}\" height=\"480\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <rect width=\"{WIDTH}\" height=\"480\" fill=\"#fff\"/>\n"
    );
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    label(&mut text, 20.0, 28.0, "start", &title);
    let active: fn(&Sample) -> f64 = |one| one.active as f64;
    let all: fn(&Sample) -> f64 = |one| (one.active + one.degraded) as f64;
    let hour: fn(&Sample) -> f64 = |one| one.hour_bytes as f64 / 1e9;
    panel(
        &mut text,
        outcome,
        60.0,
        "functions: all, and active ones below",
        &[(all, "#2a78a8"), (active, "#c8553d")],
    );
    panel(
        &mut text,
        outcome,
        260.0,
        "working set of the last hour, GB",
        &[(hour, "#444")],
    );
    for part in 0..=5_u64 {
        let x = LEFT + (RIGHT - LEFT) * part as f64 / 5.0;
        let hours = format!("{:.0} h", outcome.hours as f64 * part as f64 / 5.0);
        label(&mut text, x, 455.0, "middle", &hours);
    }
    text.push_str("</svg>\n");
    text
}

fn label(text: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    let _ = writeln!(
        text,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>"
    );
}

type Curve = (fn(&Sample) -> f64, &'static str);

fn panel(text: &mut String, outcome: &Outcome, top: f64, title: &str, curves: &[Curve]) {
    let samples = &outcome.samples;
    let values = curves.iter().flat_map(|(of, _)| samples.iter().map(of));
    let most = values.fold(1.0, f64::max);
    let bottom = top + PANEL_HEIGHT;
    let _ = writeln!(
        text,
        "<path d=\"M{LEFT} {top} V{bottom} H{RIGHT}\" fill=\"none\" stroke=\"#999\"/>"
    );
    label(text, LEFT + 8.0, top + 4.0, "start", title);
    label(text, LEFT - 8.0, top + 8.0, "end", &format!("{most:.0}"));
    label(text, LEFT - 8.0, bottom, "end", "0");
    let step = samples.len().div_ceil(POINTS_MAX).max(1);
    for (of, color) in curves {
        let mut path = String::new();
        for (index, sample) in samples.iter().enumerate().step_by(step) {
            let x = LEFT + (RIGHT - LEFT) * index as f64 / samples.len() as f64;
            let y = bottom - of(sample) / most * (PANEL_HEIGHT - 20.0);
            let command = if index == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{x:.1} {y:.1}");
        }
        let _ = writeln!(
            text,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.2\"/>"
        );
    }
}
