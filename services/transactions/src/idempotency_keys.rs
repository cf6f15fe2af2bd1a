//! Idempotency keys: rows of client ids are kept for days, because a function may be retried under
//! its id long after its first run. Rows of random ids, which only their clients ask for, are kept
//! for minutes.
//!
//! When the slot of a client id is trimmed, the id is noted in a retention bucket, by time. Once a
//! bucket is as old as the window, its ids are walked: each row is dropped, or released while it
//! has versions. A client id goes into the bucket of the present. A random id goes into an earlier
//! one, older by the difference of the windows. One order of buckets therefore tells which ids
//! expire next. Beyond a maximum number of ids, those of the oldest bucket are dropped early,
//! random ids before client ids.
//!
//! Invariants
//! - A bucket's row exists before its first id, so that a node that lists the buckets finds every
//!   id.
//! - An id is noted before its slot is trimmed, and its row is dropped before its note. Before a
//!   random id is dropped, the bound of its node's dropped attempts is raised: a caller that
//!   repeats its commit receives `Expired`.
//! - A bucket's row stays as long as ids may be noted in it, even if its first ids are dropped
//!   early.
//!
//! Every node notes ids. Among several nodes one walks them all, so it lists the buckets again and
//! again. Counts are estimates where an answer was lost: a bucket that is walked to its end has
//! none left, despite any count.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{TryStreamExt, stream};
use parking_lot::{Mutex, MutexGuard};
use ports::{
    Item, Update,
    key_value::{Action, Outcome, Scan},
};

use crate::{
    Error, Result,
    context::Context,
    model::{Attempt, TransactionId},
    node::Node,
    storage::layout,
};

/// The known number of ids in a bucket.
fn count_of(item: &Item) -> u64 {
    item.integer(COUNT)
        .and_then(|count| u64::try_from(count).ok())
        .unwrap_or(0)
}

const ATTEMPT: &str = "attempt";
pub(crate) const COUNT: &str = "names";

/// Retention buckets in a window.
const PERIODS: u32 = 7;
/// Ids walked at a time.
pub(crate) const NAMES_AT_ONCE: usize = 64;
/// Retention buckets read in one page.
const PAGE_PERIODS: usize = 100;
/// The longest wait between two reads of the wall clock, which may be set.
const LOOK: Duration = Duration::from_hours(1);

/// The retention buckets: the end of each, in milliseconds, and its number of ids.
pub(crate) type Periods = BTreeMap<u64, u64>;

/// The idempotency keys whose outcomes are kept, as far as this node knows.
#[derive(Debug)]
pub(crate) struct IdempotencyKeys {
    pub(crate) context: Arc<Context>,
    pub(crate) periods: Mutex<Periods>,
}

impl IdempotencyKeys {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Periods> {
        self.periods.lock()
    }

    /// Lists the buckets that earlier starts and other nodes have created.
    pub(crate) async fn list_periods(&self, node: &Node) -> Result<()> {
        let scan = Scan::partition(layout::PERIODS, PAGE_PERIODS);
        let (rows, _) = node.store.scan_all(scan).await?;
        let mut periods = Periods::new();
        for (sort, item) in rows {
            let end =
                layout::period_of(&sort).ok_or_else(|| Error::Corrupt("decode a period".into()))?;
            periods.insert(end, count_of(&item));
        }
        *self.lock() = periods;
        Ok(())
    }

    /// Keeps these rows for the windows of their ids.
    pub(crate) async fn keep_names(
        &self,
        node: &Node,
        names: Vec<(TransactionId, Attempt)>,
    ) -> Result<()> {
        let now = self.context.clock.now().0;
        let window = self.context.config.named_window;
        let (random, chosen): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|(id, _)| id.is_random());
        let end = end_of_period(now, window);
        self.keep_until(node, chosen, now, end).await?;
        let random_window = self.context.config.random_window.min(window);
        let age = window.saturating_sub(random_window).as_millis() as u64;
        let end = end_of_period(now, random_window).saturating_sub(age);
        self.keep_until(node, random, now, end).await
    }

    /// Keeps these rows until a window after `end`.
    pub(crate) async fn keep_until(
        &self,
        node: &Node,
        names: Vec<(TransactionId, Attempt)>,
        now: u64,
        end: u64,
    ) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let counted = vec![Action::Add(COUNT.into(), names.len() as i64)];
        let counted = Update::modify(layout::period(end), counted);
        if let (Outcome::Done(Some(item)), _) = node.store.finish(&counted).await? {
            self.lock().insert(end, count_of(&item));
        }
        let all = stream::iter(names.into_iter().map(Ok));
        all.try_for_each_concurrent(NAMES_AT_ONCE, |(id, attempt)| async move {
            let actions = vec![Action::set(ATTEMPT, attempt.to_bytes().to_vec())];
            let kept = Update::modify(layout::kept_name(end, now, &id), actions);
            node.store.finish(&kept).await.map(drop)
        })
        .await
    }

    /// The bucket to walk, and the most ids to take from it.
    pub(crate) fn due(&self) -> Option<(u64, usize)> {
        let window_ms = self.context.config.named_window.as_millis() as u64;
        let periods = self.lock();
        let (first, _) = periods.first_key_value()?;
        if self.context.clock.now().0 >= first + window_ms {
            return Some((*first, usize::MAX));
        }
        let beyond = periods
            .values()
            .sum::<u64>()
            .saturating_sub(self.context.config.names_max);
        let (end, _) = periods
            .iter()
            .find(|(_, count)| **count > 0)
            .filter(|_| beyond > 0)?;
        Some((*end, beyond as usize))
    }

    /// The time until there may be ids to walk, if nothing happens meanwhile.
    pub(crate) fn names_due(&self) -> Option<Duration> {
        let window_ms = self.context.config.named_window.as_millis() as u64;
        let periods = self.lock();
        let (end, _) = periods.first_key_value()?;
        let left =
            Duration::from_millis((end + window_ms).saturating_sub(self.context.clock.now().0));
        Some(left.min(LOOK))
    }

    /// How often the walking node lists the buckets, among several: ids of commits from before one
    /// listing are noted before the next.
    pub(crate) fn names_listing(&self) -> Duration {
        let window = self.context.config.named_window / PERIODS;
        LOOK.min(window)
            .min(self.context.config.random_window)
            .max(2 * self.context.config.retry_window)
    }
}

pub(crate) fn attempt_of(item: &Item) -> Option<Attempt> {
    item.bytes(ATTEMPT)
        .and_then(|bytes| Attempt::from_bytes(bytes))
}

/// The end, in milliseconds, of the bucket that contains `now`, for a window of [`PERIODS`]
/// buckets.
pub(crate) fn end_of_period(now: u64, window: Duration) -> u64 {
    let period_ms = (window / PERIODS).as_millis().max(1) as u64;
    (now / period_ms + 1) * period_ms
}
