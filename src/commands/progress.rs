//! Progress on stderr: a bar if that is a terminal. Otherwise [`told`] prints a line now and then,
//! and a bar alone shows nothing.

use std::{fmt, pin::pin, time::Duration};

use indicatif::{HumanCount, ProgressBar, ProgressFinish, ProgressState, ProgressStyle};
use tokio::time::sleep;

use super::{counted, print_aside};

/// How often a line tells of progress where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// A bar of bytes. `None`: their number is not known.
pub(crate) fn bytes(total: Option<u64>) -> ProgressBar {
    match total {
        Some(total) => styled(
            ProgressBar::new(total),
            "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        ),
        None => styled(
            ProgressBar::new_spinner(),
            "{spinner} {bytes}, {bytes_per_sec}",
        ),
    }
}

/// The same bar in a style, whose template is one of ours. `{rate}` is a whole number a second. A
/// bar that is dropped leaves nothing on the terminal.
pub(crate) fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    let rate = |state: &ProgressState, out: &mut dyn fmt::Write| {
        let _ = write!(out, "{}/s", HumanCount(state.per_sec() as u64));
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.with_key("rate", rate)),
        Err(_) => bar,
    }
    .with_finish(ProgressFinish::AndClear)
}

/// Waits for `work`, which moves `bar`. Where there is no terminal, a line now and then tells how far
/// it is.
pub(crate) async fn told<T>(bar: &ProgressBar, noun: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = sleep(LINE_EVERY), if bar.is_hidden() => print_aside(&line(bar, noun)),
        }
    }
}

fn line(bar: &ProgressBar, noun: &str) -> String {
    let (prefix, done) = (bar.prefix(), counted(bar.position(), noun));
    // Zero: the number is not known.
    match bar.length().filter(|total| *total > 0) {
        Some(total) => format!("{prefix}: {done} of {total}\n"),
        None => format!("{prefix}: {done}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_how_far_the_work_is() {
        let bar = ProgressBar::hidden().with_prefix("pass 1");
        bar.inc(1);
        bar.set_length(0);
        assert_eq!(line(&bar, "znode"), "pass 1: 1 znode\n");
        bar.inc(1);
        bar.set_length(9);
        assert_eq!(line(&bar, "znode"), "pass 1: 2 znodes of 9\n");
    }
}
