//! Walks the idempotency keys whose window is over: each row goes, or is released for as long as it has versions.

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
    storage::{
        layout, node_registry,
        store::{Decision, State},
    },
};

/// Rows looked at, at a time.
const ROWS_AT_ONCE: usize = 16;

impl Collection {
    /// Walks the next names that are due. False: none is.
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
        let is_over =
            self.context.clock.now().0 >= end + self.context.config.named_window.as_millis() as u64;
        if is_last && is_over {
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
            *count = if is_last {
                0
            } else {
                count.saturating_sub(walked)
            };
        }
        Ok(true)
    }

    /// Says of random names that they are about to go.
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
        // Begun again since, it is kept under another period.
        match decision.filter(|decision| Some(decision.attempt) == attempt) {
            Some(Decision {
                attempt,
                state: State::Committed(stored),
                ..
            }) => {
                if !self.is_sent(node, attempt, stored.effects).await? {
                    // For another window: its row says that its effects count. A random one's is too short to be kept in again and
                    // again while there are too many names.
                    let now = self.context.clock.now().0;
                    let later = end_of_period(now, self.context.config.named_window);
                    self.idempotency_keys
                        .keep_until(node, vec![(id, attempt)], now, later)
                        .await?;
                    return node
                        .store
                        .finish(&Update::delete(layout::kept_name_at(end, sort)))
                        .await
                        .map(drop);
                }
                let record = node.store.record(&id, attempt, &stored, point).await?;
                self.drop_or_release(node, &record).await?;
            }
            Some(Decision {
                attempt,
                state: State::Aborted,
                ..
            }) => {
                node.store.drop_aborted(&id, attempt).await?;
            }
            Some(Decision {
                state: State::Undecided | State::Prepared,
                ..
            })
            | None => {}
        }
        node.store
            .finish(&Update::delete(layout::kept_name_at(end, sort)))
            .await
            .map(drop)
    }
}
