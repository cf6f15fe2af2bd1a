//! Expires idempotency keys whose window is over: each row is dropped, or released while it has
//! versions.
//!
//! Random ids are noted as dropped before their rows go, so that a repeat is answered `Expired`.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use ports::{
    Condition, Item, Update,
    key_value::{Action, Scan},
};

use crate::{
    Error, Result,
    collection::Collection,
    idempotency_keys::{COUNT, NAMES_AT_ONCE, attempt_of, end_of_period},
    model::Attempt,
    node::Node,
    storage::{layout, node_registry, store::State},
};

/// Rows read at a time.
const ROWS_AT_ONCE: usize = 16;

impl Collection {
    /// Expires the next keys that are due. Returns false if none is.
    pub(crate) async fn walk_names(self: &Arc<Self>, node: &Arc<Node>) -> Result<bool> {
        let Some((end, names_max)) = self.idempotency_keys.due() else {
            return Ok(false);
        };
        let scan = Scan::partition(layout::kept_names(end), NAMES_AT_ONCE.min(names_max));
        let page = node.store.scan(&scan).await?.value;
        let is_last = page.next.is_none();
        let walked = page.items.len() as u64;
        self.note_random(node, &page.items).await?;
        let walks = stream::iter(page.items).map(|(sort, item)| {
            let attempt = attempt_of(&item);
            self.walk_name(node, end, sort, attempt)
        });
        walks.buffered(ROWS_AT_ONCE).try_collect::<()>().await?;
        let window_ms = self.context.config.named_window.as_millis() as u64;
        if is_last && self.context.clock.now().0 >= end + window_ms {
            node.store
                .finish(&Update::delete(layout::period(end)))
                .await?;
            self.idempotency_keys.lock().remove(&end);
            return Ok(true);
        }
        let counted = vec![Action::Add(COUNT.into(), -(walked as i64))];
        let counted = Update::modify(layout::period(end), counted).when(Condition::Exists);
        node.store.finish(&counted).await?;
        if let Some(count) = self.idempotency_keys.lock().get_mut(&end) {
            *count = count.saturating_sub(if is_last { *count } else { walked });
        }
        Ok(true)
    }

    /// Notes that random ids are about to be dropped.
    async fn note_random(&self, node: &Node, names: &[(Bytes, Arc<Item>)]) -> Result<()> {
        let mut last = BTreeMap::<_, u64>::new();
        for (sort, item) in names {
            if let (Some(id), Some(attempt)) = (layout::kept_name_of(sort), attempt_of(item))
                && id.is_random()
            {
                let last = last.entry(attempt.node).or_default();
                *last = attempt.sequence.max(*last);
            }
        }
        for (of, sequence) in last {
            node_registry::note_dropped(&node.store, of, sequence).await?;
        }
        Ok(())
    }

    async fn walk_name(
        self: &Arc<Self>,
        node: &Arc<Node>,
        end: u64,
        sort: Bytes,
        attempt: Option<Attempt>,
    ) -> Result<()> {
        let id = layout::kept_name_of(&sort)
            .ok_or_else(|| Error::Corrupt("decode a kept name".into()))?;
        let (decision, point) = node.store.decision(&id).await?;
        // If the id was begun again since, it is kept in another bucket.
        let decision = decision.filter(|decision| Some(decision.attempt) == attempt);
        match decision.map(|decision| (decision.attempt, decision.state)) {
            Some((attempt, State::Committed(stored))) => {
                if self.is_sent(node, attempt, stored.effects).await? {
                    let record = node.store.record(&id, attempt, &stored, point).await?;
                    self.drop_or_release(node, &record).await?;
                } else {
                    // Kept for another window: from its row a successor learns that its effects
                    // take effect. The window of a random id is too short to keep it again and
                    // again while there are too many keys.
                    let now = self.context.clock.now().0;
                    let later = end_of_period(now, self.context.config.named_window);
                    let (keys, kept) = (&self.idempotency_keys, vec![(id, attempt)]);
                    keys.keep_until(node, kept, now, later).await?;
                }
            }
            Some((attempt, State::Aborted)) => node.store.drop_aborted(&id, attempt).await?,
            Some((_, State::Undecided | State::Prepared)) | None => {}
        }
        node.store
            .finish(&Update::delete(layout::kept_name_at(end, sort)))
            .await
            .map(drop)
    }
}
