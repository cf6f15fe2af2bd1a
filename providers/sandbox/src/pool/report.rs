//! The report line at the end of an invocation's log, in Lambda's format.

use std::time::Duration;

use ports::instances::Death;

use crate::figures::Failed;

#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) id: &'a str,
    pub(super) failed: Option<Failed>,
    pub(super) death: Option<Death>,
    pub(super) took: Duration,
    /// The time of the start, for a new instance.
    pub(super) start: Option<Duration>,
    pub(super) memory_bytes: u64,
    pub(super) memory_peak: Option<u64>,
}

impl Report<'_> {
    pub(super) fn line(&self) -> String {
        let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
        let (id, took) = (self.id, ms(self.took));
        let billed = took.ceil();
        let memory = self.memory_bytes >> 20;
        let peak = self
            .memory_peak
            .map(|peak| format!("\tMax Memory Used: {} MB", peak.div_ceil(1 << 20)));
        let start = self
            .start
            .map(|start| format!("\tInit Duration: {:.2} ms", ms(start)));
        [
            format!("REPORT RequestId: {id}\tDuration: {took:.2} ms\tBilled Duration: {billed} ms"),
            format!("\tMemory Size: {memory} MB"),
            peak.unwrap_or_default(),
            start.unwrap_or_default(),
            self.status().to_owned(),
        ]
        .concat()
    }

    fn status(&self) -> &'static str {
        match self.failed {
            Some(Failed::TimedOut) => "\tStatus: timeout",
            Some(Failed::OutOfMemory) => "\tStatus: error\tError Type: Runtime.OutOfMemory",
            _ if self.death == Some(Death::OutOfMemory) => {
                "\tStatus: error\tError Type: Runtime.OutOfMemory"
            }
            Some(Failed::Exited | Failed::ExitedAtStart) => {
                "\tStatus: error\tError Type: Runtime.ExitError"
            }
            Some(Failed::NotAnswered) => "\tStatus: error\tError Type: Runtime.NoAnswer",
            // The function's own error has everything else.
            _ => "",
        }
    }
}
