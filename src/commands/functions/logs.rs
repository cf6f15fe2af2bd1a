//! The log of a function: its past lines and new ones.
//!
//! Following goes on over restarts of the server. After an error or a temporary refusal the command
//! asks again from the last line that it has shown. That line shows whether the numbers continue,
//! which they do if the log was kept.
//!
//! Invariants
//! - No line is shown twice.

use std::{process::ExitCode, thread, time::Duration};

use clap::Args;
use ports::logs::Line;
use serde::Deserialize;

use crate::commands::{
    print, print_aside,
    request::{Request, Target, Unavailable, parsed, segment},
};

/// How long one request waits for lines on the server, in seconds.
const WAIT_S: u64 = 5;
/// The pause before the next request to a server that is away.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// The log, and the output format.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    target: Target,
    /// The function
    name: String,
    /// Follow the log until Ctrl-C, over restarts of the server too
    #[arg(long, short)]
    follow: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
struct Lines {
    lines: Vec<Line>,
    next: u64,
}

/// How far a log was shown.
#[derive(Debug, Default)]
struct Shown {
    /// The number of the next line.
    next: u64,
    /// Whether the server has responded yet.
    has_begun: bool,
    last: Option<Line>,
    /// Lines up to this age have been shown, whatever their numbers are.
    until_ms: u64,
}

impl Shown {
    /// Whether `lines`, which begin with the last shown one, belong to the same log. A server that
    /// lost its logs begins a new one, where the numbers belong to other lines.
    fn is_of(&self, lines: &[Line]) -> bool {
        let Some(last) = &self.last else { return true };
        let is_next = |first: &Line| first.number > last.number || first == last;
        lines.first().is_some_and(is_next)
    }

    /// The shown lines are all that existed before another log began.
    fn begin_anew(&mut self) {
        self.next = 0;
        self.until_ms = self.last.take().map_or(0, |last| last.at_ms);
    }
}

impl Logs {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let mut shown = Shown::default();
        loop {
            let page = self.page(shown.next, if self.follow { WAIT_S } else { 0 });
            let Lines { lines, next } = match page {
                Ok(page) => page,
                // The server was there, so it may return.
                Err(error) if self.follow && shown.has_begun && error.is::<Unavailable>() => {
                    self.wait_for_the_server(&error, &mut shown)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if lines.is_empty() && !self.follow {
                return Ok(ExitCode::SUCCESS);
            }
            for line in lines {
                if line.at_ms > shown.until_ms {
                    print(&self.line(&line)?)?;
                }
                shown.last = Some(line);
            }
            shown.next = next;
            shown.has_begun = true;
        }
    }

    /// Returns once the server responds again, with the lines to show. Errors: it refuses.
    fn wait_for_the_server(&self, why: &anyhow::Error, shown: &mut Shown) -> anyhow::Result<()> {
        let url = self.target.url();
        print_aside(&format!(
            "landfast: {url} does not answer, and this goes on once it does: {why:#}\n"
        ));
        loop {
            thread::sleep(ASK_AGAIN);
            let last = shown.last.as_ref().map_or(shown.next, |last| last.number);
            match self.page(last, 0) {
                Ok(page) => {
                    if !shown.is_of(&page.lines) {
                        shown.begin_anew();
                    }
                    return Ok(());
                }
                Err(error) if error.is::<Unavailable>() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Lines from this number on. If there are none yet, those that come within `wait_s` seconds.
    fn page(&self, from: u64, wait_s: u64) -> anyhow::Result<Lines> {
        let path = format!(
            "/v1/functions/{}/logs?from={from}&wait={wait_s}",
            segment(&self.name)
        );
        let request = Request {
            wait_max: Duration::from_secs(2 * WAIT_S),
            ..Request::get(&path)
        };
        parsed(&self.target.send(&request)?.body, "a list of lines")
    }

    fn line(&self, line: &Line) -> anyhow::Result<String> {
        if self.json {
            return Ok(format!("{}\n", serde_json::to_string(line)?));
        }
        let Line {
            at_ms, id, text, ..
        } = line;
        let (seconds, ms) = (at_ms / 1000 % 86_400, at_ms % 1000);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let id = if id.is_empty() { "-" } else { id };
        Ok(format!(
            "{hours:02}:{minutes:02}:{seconds:02}.{ms:03} {id:.8} {text}\n"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(number: u64, at_ms: u64) -> Line {
        Line {
            number,
            at_ms,
            id: String::new(),
            text: format!("{number} of {at_ms}"),
        }
    }

    #[test]
    fn a_log_that_goes_on_is_told_from_another_with_the_same_numbers() {
        let mut shown = Shown {
            next: 8,
            last: Some(line(7, 100)),
            ..Shown::default()
        };
        assert!(shown.is_of(&[line(7, 100), line(8, 120)]));
        assert!(shown.is_of(&[line(9, 130)]), "its older half has gone");
        assert!(!shown.is_of(&[line(7, 130)]), "another line has its number");
        assert!(!shown.is_of(&[]), "the last line is not there");
        assert!(Shown::default().is_of(&[]), "nothing was shown");
        shown.begin_anew();
        assert_eq!((shown.next, shown.until_ms), (0, 100));
    }
}
