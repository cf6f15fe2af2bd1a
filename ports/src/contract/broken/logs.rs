//! Logs that break G1 to G3, and U5 of their runtime.

use std::{fmt::Debug, io, sync::Arc};

use async_trait::async_trait;

use super::Broken;
use crate::{
    Logs,
    contract::logs::Subject,
    logs::{Line, Page},
};

/// Every broken kind of logs, at least one per promise.
pub const BROKEN: &[Broken<Subject>] = &[
    Broken::new("G1", "BeginsAtTheFirst", |subject| {
        twisted_logs(subject, BeginsAtTheFirst)
    }),
    Broken::new("G2", "IgnoresTheBytes", |subject| {
        twisted_logs(subject, IgnoresTheBytes)
    }),
    Broken::new("G2", "LeavesOutLongLines", |subject| {
        twisted_logs(subject, LeavesOutLongLines)
    }),
    Broken::new("G3", "WakesForNothing", |subject| {
        twisted_logs(subject, WakesForNothing)
    }),
];

/// Logs that differ from honest ones in what they override.
#[async_trait]
pub(super) trait LogsTwist: Debug + Send + Sync + 'static {
    fn honest(&self) -> &Arc<dyn Logs>;

    async fn lines(&self, function: &str, page: Page) -> io::Result<Vec<Line>> {
        self.honest().lines(function, page).await
    }
    async fn more_lines(&self, function: &str, from: u64) {
        self.honest().more_lines(function, from).await;
    }
}

/// Makes a [`LogsTwist`] a port.
#[derive(Debug)]
struct Twisted<T>(T);

#[async_trait]
impl<T: LogsTwist> Logs for Twisted<T> {
    async fn lines(&self, function: &str, page: Page) -> io::Result<Vec<Line>> {
        self.0.lines(function, page).await
    }
    async fn more_lines(&self, function: &str, from: u64) {
        self.0.more_lines(function, from).await;
    }
}

/// The subject, with its logs twisted.
pub(super) fn twisted_logs<T: LogsTwist>(
    subject: Subject,
    around: fn(Arc<dyn Logs>) -> T,
) -> Subject {
    Subject {
        logs: Arc::new(Twisted(around(subject.logs))),
        ..subject
    }
}

/// Files all lines under one invocation (U5).
#[derive(Debug)]
pub(super) struct MixesInvocations(pub(super) Arc<dyn Logs>);

#[async_trait]
impl LogsTwist for MixesInvocations {
    fn honest(&self) -> &Arc<dyn Logs> {
        &self.0
    }
    async fn lines(&self, function: &str, page: Page) -> io::Result<Vec<Line>> {
        let lines = self.0.lines(function, page).await?;
        let last = lines.last().map(|line| line.id.clone()).unwrap_or_default();
        Ok(lines
            .into_iter()
            .map(|line| Line {
                id: last.clone(),
                ..line
            })
            .collect())
    }
}

/// Keeps no lines (U5).
#[derive(Debug)]
pub(super) struct KeepsNoLines(pub(super) Arc<dyn Logs>);

#[async_trait]
impl LogsTwist for KeepsNoLines {
    fn honest(&self) -> &Arc<dyn Logs> {
        &self.0
    }
    async fn lines(&self, _: &str, _: Page) -> io::Result<Vec<Line>> {
        Ok(Vec::new())
    }
}

/// Reads from the first line, wherever the reader wants to go on (G1).
#[derive(Debug)]
struct BeginsAtTheFirst(Arc<dyn Logs>);

#[async_trait]
impl LogsTwist for BeginsAtTheFirst {
    fn honest(&self) -> &Arc<dyn Logs> {
        &self.0
    }
    async fn lines(&self, function: &str, page: Page) -> io::Result<Vec<Line>> {
        self.0.lines(function, Page { from: 0, ..page }).await
    }
}

/// Ignores the bound on bytes (G2).
#[derive(Debug)]
struct IgnoresTheBytes(Arc<dyn Logs>);

#[async_trait]
impl LogsTwist for IgnoresTheBytes {
    fn honest(&self) -> &Arc<dyn Logs> {
        &self.0
    }
    async fn lines(&self, function: &str, page: Page) -> io::Result<Vec<Line>> {
        self.0
            .lines(
                function,
                Page {
                    bytes_max: usize::MAX,
                    ..page
                },
            )
            .await
    }
}

/// Leaves out lines longer than the bound (G2).
#[derive(Debug)]
struct LeavesOutLongLines(Arc<dyn Logs>);

#[async_trait]
impl LogsTwist for LeavesOutLongLines {
    fn honest(&self) -> &Arc<dyn Logs> {
        &self.0
    }
    async fn lines(&self, function: &str, page: Page) -> io::Result<Vec<Line>> {
        let mut lines = self.0.lines(function, page).await?;
        lines.retain(|line| line.text.len() <= page.bytes_max);
        Ok(lines)
    }
}

/// Wakes readers for no line (G3).
#[derive(Debug)]
struct WakesForNothing(Arc<dyn Logs>);

#[async_trait]
impl LogsTwist for WakesForNothing {
    fn honest(&self) -> &Arc<dyn Logs> {
        &self.0
    }
    async fn more_lines(&self, _: &str, _: u64) {}
}
