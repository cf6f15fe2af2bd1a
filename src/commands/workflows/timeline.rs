//! The times of a run's steps, as text and as a picture.

use std::fmt::{self, Write as _};

use serde::Deserialize;

/// The width of the bars, in characters.
const COLUMNS: u64 = 48;
/// Their width in the picture, and the height of a row.
const WIDTH: u64 = 640;
const ROW: u64 = 26;
/// Where the bars begin.
const LEFT: u64 = 200;

/// A step that counts.
#[derive(Debug, Deserialize)]
pub(crate) struct Step {
    pub(crate) path: String,
    pub(crate) function: String,
    pub(crate) tries: u32,
    pub(crate) began_ms: u64,
    pub(crate) ended_ms: u64,
}

/// Why a run failed. The failed step is not among those that count.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Failure {
    /// Empty if no step is at fault, such as when the run took too long.
    #[serde(default)]
    step: String,
    #[serde(default)]
    error_type: String,
    #[serde(default)]
    error_message: String,
}

impl Failure {
    fn line(&self) -> String {
        let Self {
            step,
            error_type,
            error_message,
        } = self;
        let what = if step.is_empty() { "the run" } else { step };
        format!(
            "{what} failed: {error_type}: {}",
            error_message.lines().next().unwrap_or_default()
        )
    }
}

/// A run.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) name: String,
    pub(crate) began_ms: u64,
    pub(crate) ended_ms: Option<u64>,
    /// When its output arrived: then all of it is durable.
    pub(crate) durable_ms: Option<u64>,
    pub(crate) steps: Vec<Step>,
    pub(crate) failure: Option<Failure>,
}

/// A bar: its label, its begin and end, and whether it is the wait for durability.
struct Bar {
    name: String,
    from_ms: u64,
    until_ms: u64,
    is_barrier: bool,
}

impl Timeline {
    fn bars(&self) -> Vec<Bar> {
        let since = |at: u64| at.saturating_sub(self.began_ms);
        let mut bars: Vec<Bar> = self
            .steps
            .iter()
            .map(|step| {
                let tries = if step.tries > 1 {
                    format!(" (try {})", step.tries)
                } else {
                    String::new()
                };
                let name = format!("{} {}{tries}", step.path, step.function);
                Bar {
                    name,
                    from_ms: since(step.began_ms),
                    until_ms: since(step.ended_ms),
                    is_barrier: false,
                }
            })
            .collect();
        if let (Some(ended), Some(durable)) = (self.ended_ms, self.durable_ms) {
            let (from_ms, until_ms) = (since(ended), since(durable.max(ended)));
            bars.push(Bar {
                name: "until durable".to_owned(),
                from_ms,
                until_ms,
                is_barrier: true,
            });
        }
        bars
    }

    fn longest(bars: &[Bar]) -> u64 {
        bars.iter()
            .map(|bar| bar.until_ms)
            .max()
            .unwrap_or(0)
            .max(1)
    }

    /// A line for each step, and one for the failure of the run.
    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        let bars = self.bars();
        let longest = Self::longest(&bars);
        let mut text = String::new();
        for bar in &bars {
            let (from, until) = (
                bar.from_ms * COLUMNS / longest,
                bar.until_ms * COLUMNS / longest,
            );
            let drawn =
                if bar.is_barrier { "░" } else { "█" }.repeat((until - from).max(1) as usize);
            let before = " ".repeat(from.min(COLUMNS - 1) as usize);
            writeln!(
                text,
                "{:<26.26} {before}{drawn}  {} ms",
                bar.name,
                bar.until_ms - bar.from_ms
            )?;
        }
        if let Some(failure) = &self.failure {
            writeln!(text, "{}", failure.line())?;
        }
        Ok(text)
    }

    /// A picture.
    pub(crate) fn svg(&self) -> Result<String, fmt::Error> {
        let bars = self.bars();
        let longest = Self::longest(&bars);
        let (width, height) = (LEFT + WIDTH + 100, ROW * (bars.len() as u64 + 2));
        let mut svg = String::new();
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">"
        )?;
        writeln!(svg, "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>")?;
        writeln!(
            svg,
            "<text x=\"8\" y=\"18\" font-weight=\"bold\">{}</text>",
            escaped(&self.name)
        )?;
        for (row, bar) in (1..).zip(&bars) {
            let y = row * ROW;
            let (x, end) = (
                LEFT + bar.from_ms * WIDTH / longest,
                LEFT + bar.until_ms * WIDTH / longest,
            );
            let color = if bar.is_barrier { "#f0b429" } else { "#2f6f9f" };
            writeln!(
                svg,
                "<text x=\"8\" y=\"{}\">{}</text>",
                y + 17,
                escaped(&bar.name)
            )?;
            let drawn = (end - x).max(2);
            writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{}\" width=\"{drawn}\" height=\"{}\" fill=\"{color}\"/>",
                y + 4,
                ROW - 8
            )?;
            let took = bar.until_ms - bar.from_ms;
            writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" fill=\"#555\">{took} ms</text>",
                x + drawn + 6,
                y + 17
            )?;
        }
        writeln!(svg, "</svg>")?;
        Ok(svg)
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> Timeline {
        let step = |path: &str, began_ms, ended_ms| Step {
            path: path.to_owned(),
            function: "f<g>".to_owned(),
            tries: 2,
            began_ms,
            ended_ms,
        };
        Timeline {
            name: "w run".to_owned(),
            began_ms: 1_000,
            ended_ms: Some(1_050),
            durable_ms: Some(1_100),
            steps: vec![step("0", 1_000, 1_020), step("1", 1_020, 1_050)],
            failure: None,
        }
    }

    #[test]
    fn bars_lie_where_their_steps_ran() {
        let text = timeline().text().expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("0 f<g> (try 2)") && lines[0].ends_with("20 ms"),
            "{text}"
        );
        assert_eq!(
            lines[2].chars().filter(|letter| *letter == '░').count(),
            24,
            "{text}"
        );
    }

    #[test]
    fn the_step_that_a_run_failed_of_is_named_behind_those_that_count() {
        let failed = |error: &str| {
            let failure = Some(serde_json::from_str(error).expect("a failure"));
            let text = Timeline {
                failure,
                ..timeline()
            }
            .text()
            .expect("text");
            text.lines().last().expect("a line").to_owned()
        };
        let said =
            r#"{"step":"ship","errorType":"KeyError","errorMessage":"'item'\n","stackTrace":[]}"#;
        assert_eq!(failed(said), "ship failed: KeyError: 'item'");
        let said = r#"{"step":"","errorType":"Workflow.TimedOut","errorMessage":"too long"}"#;
        assert_eq!(failed(said), "the run failed: Workflow.TimedOut: too long");
    }

    #[test]
    fn a_picture_is_xml_whatever_steps_are_called() {
        let svg = timeline().svg().expect("text");
        assert!(svg.contains("f&lt;g&gt;") && !svg.contains("f<g>"));
        assert_eq!(svg.matches("<rect").count(), 4);
        let nothing = Timeline {
            steps: Vec::new(),
            ended_ms: None,
            durable_ms: None,
            ..timeline()
        };
        assert!(nothing.text().expect("text").is_empty() && nothing.svg().is_ok());
    }
}
