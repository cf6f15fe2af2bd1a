//! Memory after a restart: fragments that were hot are loaded before they are read.
//!
//! A row for each fragment in memory says since when. The rows are written after a PUT, in batches,
//! and no PUT waits for them: they may miss the last second, and may name fragments that are
//! deleted. A start loads the fragments that came into memory in the last active intervals, at a
//! bounded rate, and removes the rows of the others.
//!
//! In the paper, the log nodes and snapshots of a function are objects, and are stored before a PUT
//! returns (section 5.5.1), because only they say what a function held. Here the daemon knows that,
//! and instances end with it. Only a start needs the rows. The journal and the checkpoints of the
//! key-value store are the nodes and the snapshots.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join;

use crate::{
    Result,
    fragment::Fragment,
    migration::Migration,
    resident_changes::{Changes, ROWS_MAX},
    storage::{pending, resident, rows::ResidentRow, table::Table},
};

/// The time in which changes are collected before they are written.
const WINDOW: Duration = Duration::from_secs(1);
/// The content that a start loads in a second. Requests need the store, too.
const BYTES_PER_SECOND: u64 = 256 << 20;

/// Writes the rows, and reads them once.
#[derive(Debug)]
pub(crate) struct Resumption {
    pub(crate) table: Table,
    pub(crate) migration: Migration,
    pub(crate) changes: Arc<Changes>,
    /// The time in which fragments are hot.
    pub(crate) hot: Duration,
}

impl Resumption {
    /// Runs until the service ends.
    pub(crate) async fn run(self) {
        let resumed = async {
            if let Err(error) = self.resume().await {
                tracing::debug!(%error, "function memory starts empty");
            }
        };
        join(resumed, self.record()).await;
    }

    async fn record(&self) {
        loop {
            self.changes.wait().await;
            self.table.clock.sleep(WINDOW).await;
            let changes = self.changes.take().into_iter();
            let writes = changes.map(|(name, present)| match present {
                Some((fragment, partition)) => resident::put(&self.table, fragment, partition),
                None => resident::remove(&self.table, name),
            });
            let writes: Vec<_> = writes.collect();
            if let Err(error) = self.table.write_all(&writes).await {
                tracing::debug!(%error, "the next start does not know of all fragments in memory");
            }
        }
    }

    async fn resume(&self) -> Result<()> {
        let (mut rows, mut from) = (Vec::new(), Some(Bytes::new()));
        while let Some(start) = from.take().filter(|_| rows.len() < ROWS_MAX) {
            let (page, next) = resident::page(&self.table, start).await?;
            rows.extend(page);
            from = next;
        }
        self.drop_garbage(&mut rows).await?;
        let newest = rows.iter().map(|(_, row)| row.since).max();
        // Cached ones take the space that is left (section 5.4).
        rows.sort_by_key(|(_, row)| (row.partition, Reverse(row.since)));
        for (fragment, row) in rows {
            let ResidentRow {
                partition, since, ..
            } = row;
            let age = Duration::from_millis(newest.map_or(0, |newest| newest.ms_since(since)));
            if age < self.hot && self.migration.load_early(fragment, partition).await {
                let pause = fragment.bytes as f64 / BYTES_PER_SECOND as f64;
                self.table.clock.sleep(Duration::from_secs_f64(pause)).await;
            } else if self.migration.residency.chunks(fragment.name).is_none() {
                self.changes.left(fragment.name);
            }
        }
        Ok(())
    }
    /// Drops the rows of segments that no object has, and that are not collected yet.
    async fn drop_garbage(&self, rows: &mut Vec<(Fragment, ResidentRow)>) -> Result<()> {
        let mut from = Some(Bytes::new());
        while let Some(start) = from.take() {
            let (page, next) = pending::page(&self.table, self.table.member(), start).await?;
            let segments = page.into_iter().flat_map(|(_, segments)| segments);
            let garbage: BTreeSet<_> = segments.map(|segment| segment.id).collect();
            let dropped = rows.extract_if(.., |row| garbage.contains(&row.0.name.segment));
            dropped.for_each(|(fragment, _)| self.changes.left(fragment.name));
            from = next;
        }
        Ok(())
    }
}
