//! Figures 5.1 and 5.2 of the paper as one picture: the gain of both protocols over synchronous
//! writes.

use std::fmt::Write as _;

use super::{
    report::Report,
    single_function::{Function, Protocol},
};

const WIDTH: f64 = 1_080.0;
const HEIGHT: f64 = 440.0;
const TOP: f64 = 80.0;
const BOTTOM: f64 = 80.0;
const PANEL_WIDTH: f64 = 420.0;
const COLORS: [&str; 4] = ["#8fb8d0", "#2a78a8", "#c8553d", "#7a5195"];
const TICKS: u32 = 5;

/// One of the two figures: lines of points.
struct Panel {
    left: f64,
    title: &'static str,
    x_most: f64,
}

/// One line: its name, and its points.
struct Line {
    name: String,
    protocol: Protocol,
    points: Vec<(f64, f64)>,
}

/// The report as an SVG document.
pub fn svg(report: &Report) -> String {
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
    );
    let title = "Time saved by external synchrony, in % of synchronous writes";
    label(
        &mut text,
        (20.0, 28.0),
        "start",
        &format!("<tspan font-size=\"17\" font-weight=\"600\">{title}</tspan>"),
    );
    let by =
        |fixed: fn(Function) -> u64, along: fn(Function) -> u64, values: &[u64], unit: &str| {
            let lines = values.iter().flat_map(|value| {
                [Protocol::External, Protocol::Serial].map(|protocol| Line {
                    name: format!("{value}{unit}"),
                    protocol,
                    points: points(report, protocol, |function| {
                        (fixed(function) == *value).then(|| along(function))
                    }),
                })
            });
            lines
                .filter(|line| line.points.len() > 1)
                .collect::<Vec<_>>()
        };
    let pause = |function: Function| function.pause_ms;
    let writes = |function: Function| function.repetitions as u64;
    let first = Panel {
        left: 70.0,
        title: "by computing before each write, ms",
        x_most: 200.0,
    };
    first.draw(&mut text, &by(writes, pause, &[1, 5, 10, 50], " writes"));
    let second = Panel {
        left: 600.0,
        title: "by number of writes",
        x_most: 150.0,
    };
    second.draw(&mut text, &by(pause, writes, &[0, 50, 100, 150], " ms"));
    let machine = &report.machine;
    let below = format!(
        "Solid: ours. Dashed: one far write under way, as in the paper. A far write takes {} ms. {} x {}, {}.",
        report.distance_ms.1, machine.processors, machine.processor, machine.date
    );
    label(&mut text, (20.0, HEIGHT - 12.0), "start", &grey(&below));
    text.push_str("</svg>\n");
    text
}

/// The position and the saving of each point, along the functions that `along` selects.
fn points(
    report: &Report,
    protocol: Protocol,
    along: impl Fn(Function) -> Option<u64>,
) -> Vec<(f64, f64)> {
    let of = report
        .single_function
        .iter()
        .filter(|took| took.protocol == protocol);
    let mut points: Vec<(f64, f64)> = of
        .filter_map(|took| {
            let x = along(took.function)?;
            let sync = report.took(took.function, Protocol::Sync)?;
            Some((x as f64, 100.0 * (1.0 - took.p50_ms / sync)))
        })
        .collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    points
}

impl Panel {
    fn draw(&self, text: &mut String, lines: &[Line]) {
        let x = |value: f64| self.left + value / self.x_most * PANEL_WIDTH;
        // A loss is drawn as a saving of zero.
        let y = |percent: f64| HEIGHT - BOTTOM - percent.max(0.0) / 100.0 * (HEIGHT - TOP - BOTTOM);
        label(text, (self.left, TOP - 24.0), "start", &grey(self.title));
        for tick in 0..=TICKS {
            let share = f64::from(tick) / f64::from(TICKS);
            let _ = writeln!(
                text,
                "<path d=\"M{:.1} {:.1} h{PANEL_WIDTH}\" stroke=\"#ddd\"/>",
                self.left,
                y(100.0 * share)
            );
            label(
                text,
                (self.left - 8.0, y(100.0 * share) + 4.0),
                "end",
                &format!("{:.0}", 100.0 * share),
            );
            label(
                text,
                (x(self.x_most * share), HEIGHT - BOTTOM + 20.0),
                "middle",
                &format!("{:.0}", self.x_most * share),
            );
        }
        for (number, line) in lines.iter().enumerate() {
            let color = COLORS[number / 2 % COLORS.len()];
            let dash = if line.protocol == Protocol::External {
                ""
            } else {
                " stroke-dasharray=\"4 4\""
            };
            let points: Vec<String> = line
                .points
                .iter()
                .map(|(at, percent)| format!("{:.1},{:.1}", x(*at), y(*percent)))
                .collect();
            let _ = writeln!(
                text,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>",
                points.join(" ")
            );
            if line.protocol == Protocol::External {
                let place = (self.left + (number / 2) as f64 * 90.0, TOP - 6.0);
                label(
                    text,
                    place,
                    "start",
                    &format!("<tspan fill=\"{color}\">{}</tspan>", line.name),
                );
            }
        }
    }
}

fn grey(content: &str) -> String {
    let escaped = content.replace('&', "&amp;").replace('<', "&lt;");
    format!("<tspan fill=\"#777\">{escaped}</tspan>")
}

fn label(text: &mut String, (x, y): (f64, f64), anchor: &str, content: &str) {
    let _ = writeln!(
        text,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>"
    );
}
