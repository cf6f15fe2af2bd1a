//! The log of a function: its past lines and new ones.
//!
//! Following goes on over restarts of the server. After an error or a temporary refusal the command
//! asks again from the last line that it has shown. That line shows whether the numbers continue,
//! which they do if the log was kept.
//!
//! The server selects the lines of one invocation and those after a time. The last lines (`--tail`)
//! are selected here, because they are the last ones of that selection.
//!
//! Invariants
//! - No line is shown twice.

use std::{
    collections::VecDeque,
    process::ExitCode,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Args;
use ports::logs::Line;
use serde::Deserialize;

use crate::commands::{
    instant, print, print_aside,
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
    /// Only the last lines of those that are selected
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    tail: Option<u32>,
    /// Only lines that are younger than this: 90s, 5m, 2h or 7d
    #[arg(long, value_name = "AGE", value_parser = instant::age)]
    since: Option<Duration>,
    /// Only lines of the invocation with this request id
    #[arg(long, value_name = "ID")]
    request: Option<String>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
struct Lines {
    lines: Vec<Line>,
    next: u64,
}

/// Which lines of the log are wanted.
#[derive(Debug)]
struct Selection<'a> {
    since_ms: Option<u64>,
    request: Option<&'a str>,
}

impl Selection<'_> {
    /// The parameters that ask the server for these lines.
    fn query(&self) -> String {
        let since = self.since_ms.map(|ms| format!("&since_ms={ms}"));
        let request = self.request.map(|id| format!("&request={}", segment(id)));
        [since, request].into_iter().flatten().collect()
    }
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
        // Nothing was shown, but lines that were not selected may have been passed.
        let Some(last) = &self.last else {
            return self.next == 0;
        };
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
        let selection = Selection {
            since_ms: self.since.map(ms_ago),
            request: self.request.as_deref(),
        };
        // The last lines so far, until the present end of the log is reached.
        let mut last = self.tail.map(|_| VecDeque::new());
        loop {
            let wait_s = if self.follow && last.is_none() {
                WAIT_S
            } else {
                0
            };
            let Lines { lines, next } = match self.page(&selection, shown.next, wait_s) {
                Ok(page) => page,
                // The server was there, so it may return.
                Err(error) if self.follow && shown.has_begun && error.is::<Unavailable>() => {
                    self.wait_for_the_server(&error, &selection, &mut shown)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let is_the_end = lines.is_empty() && next == shown.next;
            for line in lines {
                self.show(line, &mut last, &mut shown)?;
            }
            (shown.next, shown.has_begun) = (next, true);
            if is_the_end {
                for line in last.take().into_iter().flatten() {
                    print(&self.line(&line)?)?;
                }
                if !self.follow {
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
    }

    /// Prints a line, or keeps it among the last ones.
    fn show(
        &self,
        line: Line,
        last: &mut Option<VecDeque<Line>>,
        shown: &mut Shown,
    ) -> anyhow::Result<()> {
        if line.at_ms > shown.until_ms {
            match last {
                Some(last) => {
                    last.push_back(line.clone());
                    if last.len() > self.tail.unwrap_or(u32::MAX) as usize {
                        last.pop_front();
                    }
                }
                None => drop(print(&self.line(&line)?)?),
            }
        }
        shown.last = Some(line);
        Ok(())
    }

    /// Returns once the server responds again, with the lines to show. Errors: it refuses.
    fn wait_for_the_server(
        &self,
        why: &anyhow::Error,
        selection: &Selection<'_>,
        shown: &mut Shown,
    ) -> anyhow::Result<()> {
        let url = self.target.url();
        print_aside(&format!(
            "landfast: {url} does not answer, and this goes on once it does: {why:#}\n"
        ));
        loop {
            thread::sleep(ASK_AGAIN);
            let last = shown.last.as_ref().map_or(shown.next, |last| last.number);
            match self.page(selection, last, 0) {
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
    fn page(&self, selection: &Selection<'_>, from: u64, wait_s: u64) -> anyhow::Result<Lines> {
        let path = format!(
            "/v1/functions/{}/logs?from={from}&wait={wait_s}{}",
            segment(&self.name),
            selection.query()
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
        let at = instant::shown(*at_ms);
        let id = if id.is_empty() { "-" } else { id };
        Ok(format!("{at} {id:.8} {text}\n"))
    }
}

/// The time that was `age` ago, in milliseconds since the epoch.
fn ms_ago(age: Duration) -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    now.saturating_sub(age).as_millis() as u64
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
        let passed = Shown {
            next: 8,
            ..Shown::default()
        };
        assert!(
            !passed.is_of(&[]),
            "lines were passed that may be of another log"
        );
        shown.begin_anew();
        assert_eq!((shown.next, shown.until_ms), (0, 100));
    }
}
