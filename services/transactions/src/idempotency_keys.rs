//! Names whose rows are kept for days: a function may be retried under its name long after its first run. Names that clients
//! have drawn at random, which nobody else asks for, are kept for minutes.
//!
//! A name whose slot is trimmed is noted under a period, with the time. Once a period is as old as the window, its names are
//! walked: each row goes, or is released for as long as it has versions. A chosen name's period is the one in which it was
//! noted. A random name's is an earlier one, as old already as the windows differ: so one order says which names go next,
//! and beyond a number of names, where those of the oldest period go early, random ones go before chosen ones.
//!
//! Invariants
//! - A period's row is there before its first name, so that whoever lists the periods knows every name.
//! - A name is noted before its slot is trimmed, and its row goes before its note. Of a random one it was said before how far
//!   its node's attempts may be dropped: whoever repeats a commit of one that is gone hears `Expired`.
//! - A period's row stays for as long as names may be noted under it, also where the first of them go early.
//!
//! Every node keeps names; one of them walks them all, so among several it lists the periods again and again. Counts are
//! estimates where an answer was lost: a period that is walked to its end has none left, whatever was counted.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{TryStreamExt, stream};
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

/// How many names a period has, as far as is known.
fn count_of(item: &Item) -> u64 {
    item.integer(COUNT)
        .and_then(|count| u64::try_from(count).ok())
        .unwrap_or(0)
}

const ATTEMPT: &str = "attempt";
pub(crate) const COUNT: &str = "names";

/// Periods in a window.
const PERIODS: u32 = 7;
/// Names walked at a time.
pub(crate) const NAMES_AT_ONCE: usize = 64;
/// Periods read in one page.
const PAGE_PERIODS: usize = 100;
/// The longest wait between two looks at the wall clock, which may be set.
const LOOK: Duration = Duration::from_hours(1);

/// The names kept: when each period ends, in milliseconds, and how many there are.
pub(crate) type Periods = BTreeMap<u64, u64>;

/// The idempotency keys whose outcomes are kept, as far as this node knows.
#[derive(Debug)]
pub(crate) struct IdempotencyKeys {
    context: Arc<Context>,
    periods: Mutex<Periods>,
}

impl IdempotencyKeys {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            periods: Mutex::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Periods> {
        self.periods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IdempotencyKeys {
    /// Finds the periods that earlier starts and other nodes have made.
    pub(crate) async fn list_periods(&self, node: &Node) -> Result<()> {
        let mut periods = Periods::new();
        let mut scan = Scan::partition(layout::PERIODS, PAGE_PERIODS);
        loop {
            let page = node.store.scan(&scan).await?.value;
            for (sort, item) in page.items {
                let end = layout::period_of(&sort)
                    .ok_or_else(|| Error::Corrupt("decode a period".into()))?;
                periods.insert(end, count_of(&item));
            }
            let Some(next) = page.next else {
                *self.lock() = periods;
                return Ok(());
            };
            scan.from = next;
        }
    }

    /// Keeps these rows for the windows of their names.
    pub(crate) async fn keep_names(
        &self,
        node: &Node,
        names: Vec<(TransactionId, Attempt)>,
    ) -> Result<()> {
        let now = self.context.clock.now().0;
        let window = self.context.config.named_window;
        let (random, chosen): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|(id, _)| id.is_random());
        let random_window = self.context.config.random_window.min(window);
        let age = window.saturating_sub(random_window).as_millis() as u64;
        self.keep_until(node, chosen, now, end_of_period(now, window))
            .await?;
        self.keep_until(
            node,
            random,
            now,
            end_of_period(now, random_window).saturating_sub(age),
        )
        .await
    }

    /// Keeps these rows until a window of names after `end`.
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
        let counted = Update::modify(
            layout::period(end),
            vec![Action::Add(COUNT.into(), names.len() as i64)],
        );
        if let (Outcome::Done(Some(item)), _) = node.store.finish(&counted).await? {
            self.lock().insert(end, count_of(&item));
        }
        let all = stream::iter(names.into_iter().map(Ok));
        all.try_for_each_concurrent(NAMES_AT_ONCE, |(id, attempt)| async move {
            let actions = vec![Action::set(ATTEMPT, attempt.to_bytes().to_vec())];
            node.store
                .finish(&Update::modify(layout::kept_name(end, now, &id), actions))
                .await
                .map(drop)
        })
        .await
    }

    /// Whether there are names to walk.
    pub(crate) fn has_names_due(&self) -> bool {
        self.due().is_some()
    }

    /// The period to walk, and how many of its names at most.
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

    /// When there may be names to walk, if nothing happens meanwhile.
    pub(crate) fn names_due(&self) -> Option<Duration> {
        let window_ms = self.context.config.named_window.as_millis() as u64;
        let periods = self.lock();
        let (end, _) = periods.first_key_value()?;
        let left =
            Duration::from_millis((end + window_ms).saturating_sub(self.context.clock.now().0));
        Some(left.min(LOOK))
    }

    /// How often the periods are listed by who walks them, among others: what was committed before one listing has its names
    /// kept before the next.
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

/// When the period is over, in milliseconds, in which `now` is, of a window that has [`PERIODS`] of them.
pub(crate) fn end_of_period(now: u64, window: Duration) -> u64 {
    let period_ms = (window / PERIODS).as_millis().max(1) as u64;
    (now / period_ms + 1) * period_ms
}
