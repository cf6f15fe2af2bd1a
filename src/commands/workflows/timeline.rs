//! The times of a run's steps, as text and as a picture.

use std::fmt::{self, Write as _};

use serde::Deserialize;
use serde_json::value::RawValue;

/// The width of the bars, in characters.
const COLUMNS: u64 = 48;
/// Their width in the picture, and the height of a row.
const WIDTH: u64 = 640;
const ROW: u64 = 26;
/// Where the bars begin.
const LEFT: u64 = 200;

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
struct Failure {
    /// Empty if no step is at fault, such as when the run took too long.
    #[serde(default)]
    step: String,
    #[serde(default)]
    error_type: String,
    #[serde(default)]
    error_message: String,
}

/// A run in the server's JSON.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Shown {
    pub(crate) run: String,
    pub(crate) status: String,
    output: Option<Box<RawValue>>,
    error: Option<Box<RawValue>>,
    pub(crate) began_ms: u64,
    pub(crate) ended_ms: Option<u64>,
}

impl Shown {
    /// Its output or its error, once it has ended.
    pub(crate) fn came_to(&self) -> Option<&str> {
        let came_to = self.output.as_deref().or(self.error.as_deref());
        came_to.map(RawValue::get)
    }

    /// Why it failed, if the error has the usual form.
    pub(crate) fn failure(&self) -> Option<String> {
        let Failure {
            step,
            error_type,
            error_message,
        } = serde_json::from_str(self.error.as_ref()?.get()).ok()?;
        let what = if step.is_empty() { "the run" } else { &step };
        let why = error_message.lines().next().unwrap_or_default();
        Some(format!("{what} failed: {error_type}: {why}"))
    }
}

#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) workflow: String,
    pub(crate) run: Shown,
    /// When its output arrived: then all of it is durable.
    pub(crate) durable_ms: Option<u64>,
    pub(crate) steps: Vec<Step>,
}

/// A bar: its label, its begin and end, and whether it is the wait for durability.
struct Bar {
    name: String,
    from_ms: u64,
    until_ms: u64,
    is_barrier: bool,
}

impl Timeline {
    /// The bars, and the end of the last one.
    fn bars(&self) -> (Vec<Bar>, u64) {
        let since = |at: u64| at.saturating_sub(self.run.began_ms);
        let steps = self.steps.iter().map(|step| {
            let tries = match step.tries {
                0 | 1 => String::new(),
                tries => format!(" (try {tries})"),
            };
            Bar {
                name: format!("{} {}{tries}", step.path, step.function),
                from_ms: since(step.began_ms),
                until_ms: since(step.ended_ms),
                is_barrier: false,
            }
        });
        let durable = self.run.ended_ms.zip(self.durable_ms);
        let barrier = durable.map(|(ended, durable)| Bar {
            name: "until durable".to_owned(),
            from_ms: since(ended),
            until_ms: since(durable.max(ended)),
            is_barrier: true,
        });
        let bars: Vec<Bar> = steps.chain(barrier).collect();
        let longest = bars.iter().map(|bar| bar.until_ms).max();
        (bars, longest.unwrap_or(0).max(1))
    }

    /// A line for each step, and one for the failure of the run.
    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        let (bars, longest) = self.bars();
        let mut text = String::new();
        for bar in &bars {
            let from = bar.from_ms * COLUMNS / longest;
            let until = bar.until_ms * COLUMNS / longest;
            let block = if bar.is_barrier { "░" } else { "█" };
            let drawn = block.repeat((until - from).max(1) as usize);
            let before = " ".repeat(from.min(COLUMNS - 1) as usize);
            let took = bar.until_ms - bar.from_ms;
            writeln!(text, "{:<26.26} {before}{drawn}  {took} ms", bar.name)?;
        }
        if let Some(failure) = self.run.failure() {
            writeln!(text, "{failure}")?;
        }
        Ok(text)
    }

    pub(crate) fn svg(&self) -> Result<String, fmt::Error> {
        let (bars, longest) = self.bars();
        let (width, height) = (LEFT + WIDTH + 100, ROW * (bars.len() as u64 + 2));
        let title = escaped(&format!("{} {}", self.workflow, self.run.run));
        let mut svg = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="13">
<rect width="100%" height="100%" fill="white"/>
<text x="8" y="18" font-weight="bold">{title}</text>
"#
        );
        for (row, bar) in (1..).zip(&bars) {
            let (text_y, bar_y, bar_height) = (row * ROW + 17, row * ROW + 4, ROW - 8);
            let (x, end) = (
                LEFT + bar.from_ms * WIDTH / longest,
                LEFT + bar.until_ms * WIDTH / longest,
            );
            let color = if bar.is_barrier { "#f0b429" } else { "#2f6f9f" };
            let (name, drawn) = (escaped(&bar.name), (end - x).max(2));
            let (took, took_x) = (bar.until_ms - bar.from_ms, x + drawn + 6);
            write!(
                svg,
                r##"<text x="8" y="{text_y}">{name}</text>
<rect x="{x}" y="{bar_y}" width="{drawn}" height="{bar_height}" fill="{color}"/>
<text x="{took_x}" y="{text_y}" fill="#555">{took} ms</text>
"##
            )?;
        }
        svg.push_str("</svg>\n");
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
            workflow: "w".to_owned(),
            run: Shown {
                run: "run".to_owned(),
                status: "succeeded".to_owned(),
                output: None,
                error: None,
                began_ms: 1_000,
                ended_ms: Some(1_050),
            },
            durable_ms: Some(1_100),
            steps: vec![step("0", 1_000, 1_020), step("1", 1_020, 1_050)],
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
            let mut timeline = timeline();
            timeline.run.error = Some(serde_json::from_str(error).expect("a failure"));
            let text = timeline.text().expect("text");
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
            durable_ms: None,
            ..timeline()
        };
        assert!(nothing.text().expect("text").is_empty() && nothing.svg().is_ok());
    }
}
