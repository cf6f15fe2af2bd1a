//! The znodes that have a quota. A warm instance remembers them, so trees without quotas cost
//! nothing.

use std::collections::BTreeMap;

use bytes::Bytes;
use ports::Result;

use crate::{
    path,
    quota::{self, Amounts, Compared},
    records::Payload,
    storage::user_store::UserStore,
};

/// The shortest time between two warnings about one quota, in milliseconds.
const WARN_AGAIN_AFTER_MS: i64 = 60_000;

/// The most znodes below the quotas' root that are read. Clients can create any number there.
const LOADED_MAX: usize = 100_000;

/// The znodes that have a quota, with their limits. Malformed limits limit nothing.
#[derive(Debug, Default)]
pub(super) struct Quotas(BTreeMap<String, Limits>);

#[derive(Debug, Default)]
struct Limits {
    amounts: Amounts,
    warned_ms: i64,
}

impl Quotas {
    /// Reads the quotas of all znodes.
    pub(super) async fn load(region: &UserStore) -> Result<Self> {
        let mut quotas = Self::default();
        let mut waiting = vec![quota::ROOT.to_owned()];
        while let Some(parent) = waiting.pop() {
            for name in region.children(&parent).await? {
                let path = path::join(&parent, &name);
                if quota::top_of_limits(&path).is_some() {
                    let node = region.get(&path).await?;
                    let data = node.map_or(Payload::Null, |node| node.data);
                    quotas.set(&path, region.load(&data).await?.flatten().as_ref());
                }
                waiting.push(path);
            }
            if waiting.len() + quotas.0.len() > LOADED_MAX {
                tracing::error!(
                    most = LOADED_MAX,
                    "too many znodes below /zookeeper/quota; some quotas have no effect"
                );
                break;
            }
        }
        Ok(quotas)
    }

    /// Notes new data of `path`, if it holds limits.
    pub(super) fn set(&mut self, path: &str, data: Option<&Bytes>) {
        let Some(top) = quota::top_of_limits(path) else {
            return;
        };
        let amounts = Amounts::parse(data.map(Bytes::as_ref)).unwrap_or_else(|| {
            tracing::warn!(
                path,
                "the text of this quota is malformed, so it limits nothing"
            );
            Amounts::default()
        });
        let warned_ms = 0;
        self.0.insert(top.to_owned(), Limits { amounts, warned_ms });
    }

    /// Notes the deletion of `path`.
    pub(super) fn remove(&mut self, path: &str) {
        if let Some(top) = quota::top_of_limits(path) {
            self.0.remove(top);
        }
    }

    /// The deepest znode with a quota that contains `path`.
    pub(super) fn top(&self, path: &str) -> Option<String> {
        let mut level = (!self.0.is_empty()).then_some(path);
        while let Some(at) = level {
            if self.0.contains_key(at) {
                return Some(at.to_owned());
            }
            level = path::split(at).map(|(parent, _)| parent);
        }
        None
    }

    /// Logs that a subtree is above its limits, at most once a minute.
    pub(super) fn warn(&mut self, top: &str, statistics: &Amounts, time_ms: i64) {
        let both = Compared {
            count: true,
            bytes: true,
        };
        if let Some(limits) = self.0.get_mut(top)
            && let Some(exceeded) = limits.amounts.exceeded_by(statistics, both)
            && time_ms - limits.warned_ms >= WARN_AGAIN_AFTER_MS
        {
            limits.warned_ms = time_ms;
            let (limit, now) = (exceeded.limit, exceeded.now);
            tracing::warn!(path = top, limit, now, "a quota is exceeded");
        }
    }
}
