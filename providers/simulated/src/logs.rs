//! The logs port in memory: every line of every function, never dropped.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use ports::{
    Clock, Logs,
    logs::{Line, Page},
};
use tokio::sync::Notify;

use crate::run::lock;

/// The lines that functions of a [`SimulatedRuntime`](crate::runtime::SimulatedRuntime) printed.
#[derive(Debug)]
pub struct SimulatedLogs {
    clock: Arc<dyn Clock>,
    lines: Mutex<BTreeMap<String, Vec<Line>>>,
    printed: Notify,
}

impl SimulatedLogs {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            lines: Mutex::default(),
            printed: Notify::new(),
        }
    }

    /// Keeps what the invocation `id` of `function` printed.
    pub(crate) fn keep(&self, function: &str, id: &str, texts: &[String]) {
        let at_ms = self.clock.now().0;
        let mut lines = lock(&self.lines);
        let kept = lines.entry(function.to_owned()).or_default();
        for text in texts {
            let number = kept.len() as u64;
            kept.push(Line {
                number,
                at_ms,
                id: id.to_owned(),
                text: text.clone(),
            });
        }
        drop(lines);
        self.printed.notify_waiters();
    }
}

#[async_trait]
impl Logs for SimulatedLogs {
    async fn lines(&self, function: &str, page: Page) -> io::Result<Vec<Line>> {
        let lines = lock(&self.lines);
        let lines = lines.get(function).into_iter().flatten();
        let mut bytes = 0;
        let fitting = lines
            .filter(|line| line.number >= page.from)
            .take(page.lines_max)
            .enumerate();
        let fitting = fitting.take_while(|(index, line)| {
            bytes += line.text.len();
            *index == 0 || bytes <= page.bytes_max
        });
        Ok(fitting.map(|(_, line)| line.clone()).collect())
    }

    async fn more_lines(&self, function: &str, from: u64) {
        loop {
            let printed = self.printed.notified();
            let last = lock(&self.lines)
                .get(function)
                .and_then(|lines| lines.last())
                .map(|line| line.number);
            if last.is_some_and(|last| last >= from) {
                return;
            }
            printed.await;
        }
    }
}
