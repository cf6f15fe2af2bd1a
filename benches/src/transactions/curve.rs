//! The bytes stored under steady overwrites, over time, as a picture: with collection and without.

use std::fmt::Write as _;

use super::{collection::Collecting, overwrites::Overwrites};
use crate::figures::Machine;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 70.0;
const STEPS: u32 = 5;
const MIB: f64 = 1_048_576.0;

/// The curves as an SVG document.
pub fn svg(overwrites: &Overwrites, machine: &Machine) -> String {
    let points = || overwrites.runs.iter().flat_map(|run| &run.stored);
    let longest = points().map(|(seconds, _)| *seconds).fold(0.001, f64::max);
    let most = points()
        .map(|(_, bytes)| *bytes as f64 / MIB)
        .fold(0.001, f64::max)
        * 1.05;
    let x = |seconds: f64| LEFT + seconds / longest * (WIDTH - LEFT - RIGHT);
    let y = |mib: f64| HEIGHT - BOTTOM - mib / most * (HEIGHT - TOP - BOTTOM);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
    );
    let title =
        "<tspan font-size=\"17\" font-weight=\"600\">Stored under steady overwrites</tspan>";
    label(&mut text, 20.0, 28.0, "start", title);
    let rate = format!(
        "MiB of the checkpoint store; {:.0} transactions of two writes offered per second",
        overwrites.offered_per_second
    );
    label(&mut text, 20.0, 50.0, "start", &grey(&rate));
    for step in 0..=STEPS {
        let share = f64::from(step) / f64::from(STEPS);
        let (mib, seconds) = (most * share, longest * share);
        let _ = writeln!(
            text,
            "<path d=\"M{LEFT} {:.1} H{:.1}\" stroke=\"#ddd\"/>",
            y(mib),
            WIDTH - RIGHT
        );
        label(
            &mut text,
            LEFT - 8.0,
            y(mib) + 4.0,
            "end",
            &format!("{mib:.0}"),
        );
        label(
            &mut text,
            x(seconds),
            HEIGHT - BOTTOM + 20.0,
            "middle",
            &format!("{seconds:.0} s"),
        );
    }
    for run in &overwrites.runs {
        let (color, name) = match run.collecting {
            Collecting::On => ("#2a78a8", "collected"),
            Collecting::Off => ("#c8553d", "not collected"),
        };
        let line: Vec<String> = run
            .stored
            .iter()
            .map(|(seconds, bytes)| format!("{:.1},{:.1}", x(*seconds), y(*bytes as f64 / MIB)))
            .collect();
        let points = line.join(" ");
        let _ = writeln!(
            text,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>"
        );
        if let Some((seconds, bytes)) = run.stored.last() {
            let place = (x(*seconds) + 8.0, y(*bytes as f64 / MIB) + 4.0);
            label(
                &mut text,
                place.0,
                place.1,
                "start",
                &format!("<tspan fill=\"{color}\">{name}</tspan>"),
            );
        }
    }
    let below = format!(
        "{} x {}, {}. Outcomes are kept for {:.0} s.",
        machine.processors, machine.processor, machine.date, overwrites.window_seconds
    );
    label(&mut text, 20.0, HEIGHT - 14.0, "start", &grey(&below));
    text.push_str("</svg>\n");
    text
}

fn grey(content: &str) -> String {
    let escaped = content.replace('&', "&amp;").replace('<', "&lt;");
    format!("<tspan fill=\"#777\">{escaped}</tspan>")
}

fn label(text: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    let _ = writeln!(
        text,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>"
    );
}
