//! Step 2: the changes that a batch of decided requests makes to the tree, once each request has
//! its zxid.
//!
//! A znode that changes several times in one batch is written once, in its last state, because a
//! slot is applied completely or not at all.
//!
//! New states are absolute. They are computed from the decided request and the znode's earlier
//! state so that a successor gets the same result over a partly applied slot. The garbage is not
//! the same then: an object that the slot itself put already looks like one to replace. The list is
//! right only if nothing of the slot was applied before, and only then is it recorded
//! ([`UserStore::apply`]).

use std::collections::BTreeMap;

use bytes::Bytes;
use ports::{Error, Result};

use crate::{
    model::{EventKind, Stat, Zxid},
    path,
    records::{Decided, Effect, LogEntry, NodeState, Payload, Slot, UpdateAnswer},
    storage::user_store::{Node, NodeChange, UserStore, encode_acl},
};

/// The most data that one slot applies, in bytes. While the slot is applied, all of it is in memory
/// and in one request to a store.
const SLOT_DATA_BYTES_MAX: usize = 32 << 20;

#[derive(Debug)]
pub(super) struct Numbered {
    pub(super) slot: Slot,
    pub(super) changes: Vec<NodeChange>,
    /// Objects that no znode names once the slot is applied. Valid only if nothing of the slot was
    /// applied before.
    pub(super) garbage: Vec<Bytes>,
}

/// How many of `ordered` go into the next slot. At least one, because each fits alone.
pub(super) fn slot_len(ordered: &[Decided], path_bytes_max: usize) -> usize {
    let (mut path_bytes, mut data_bytes) = (0, 0);
    let fits = |decided: &&Decided| {
        path_bytes += decided.path_bytes();
        data_bytes += decided.data().map_or(0, Payload::bytes_len) as usize;
        path_bytes <= path_bytes_max && data_bytes <= SLOT_DATA_BYTES_MAX
    };
    ordered.iter().take_while(fits).count().max(1)
}

/// Numbers the requests in `ordered`, beginning with `first`.
pub(super) async fn number(
    region: &UserStore,
    first: Zxid,
    ordered: &[Decided],
) -> Result<Numbered> {
    let mut entries = Vec::with_capacity(ordered.len());
    let mut working = Working {
        region,
        nodes: BTreeMap::new(),
        garbage: Vec::new(),
    };
    for (decided, zxid) in ordered.iter().zip(first.0..) {
        entries.push(working.apply(Zxid(zxid), decided).await?);
        let temporary = decided.temporary.as_deref();
        let temporary = temporary.map(|name| Bytes::copy_from_slice(name.as_bytes()));
        working.garbage.extend(temporary);
    }
    working.garbage.sort_unstable();
    working.garbage.dedup();
    Ok(Numbered {
        slot: Slot { first, entries },
        changes: working.nodes.into_iter().collect(),
        garbage: working.garbage,
    })
}

struct Working<'region> {
    region: &'region UserStore,
    nodes: BTreeMap<String, Option<Node>>,
    garbage: Vec<Bytes>,
}

/// A request with its zxid, and the events that it causes.
struct Numbering<'request> {
    zxid: Zxid,
    decided: &'request Decided,
    events: Vec<(EventKind, String)>,
}

impl Working<'_> {
    async fn apply(&mut self, zxid: Zxid, decided: &Decided) -> Result<LogEntry> {
        let mut request = Numbering {
            zxid,
            decided,
            events: Vec::new(),
        };
        let answer = match &decided.outcome {
            Ok(effect) => Ok(self.effect(&mut request, effect).await?),
            Err(error) => Err(*error),
        };
        Ok(LogEntry {
            id: decided.id,
            attach: decided.attach,
            request: decided.request,
            answer,
            events: request.events,
        })
    }

    async fn effect(
        &mut self,
        request: &mut Numbering<'_>,
        effect: &Effect,
    ) -> Result<UpdateAnswer> {
        let decided = request.decided;
        match effect {
            Effect::Create { path, data, acl } => {
                let owner = state_of(decided, path)
                    .and_then(|state| state.owner)
                    .map_or(0, |owner| owner.session.0);
                let (time_ms, acl) = (decided.time_ms, encode_acl(acl));
                let data = self.place_data(decided, data).await?;
                let node = Node::created(request.zxid, time_ms, owner, data, acl);
                let stat = node.stat;
                let before = self.node(path).await?;
                self.replace(path, before.as_ref(), Some(node));
                let path = path.clone();
                request.events.push((EventKind::NodeCreated, path.clone()));
                self.touch_parent(request, &path).await?;
                Ok(UpdateAnswer::Created { path, stat })
            }
            Effect::SetData { path, data } => self.set_data(request, path, data).await,
            Effect::Delete { paths } => {
                self.delete(request, paths).await?;
                Ok(UpdateAnswer::Deleted)
            }
            Effect::Attach => Ok(UpdateAnswer::Attached),
            Effect::Close { paths } => {
                self.delete(request, paths).await?;
                Ok(UpdateAnswer::Closed)
            }
        }
    }

    async fn set_data(
        &mut self,
        request: &mut Numbering<'_>,
        path: &str,
        data: &Payload,
    ) -> Result<UpdateAnswer> {
        let decided = request.decided;
        let data = self.place_data(decided, data).await?;
        let Some(before) = self.node(path).await? else {
            // Only when a partly applied slot is computed again: a later request of the same slot
            // deletes the znode.
            return Ok(UpdateAnswer::Deleted);
        };
        let version = state_of(decided, path).map_or(before.stat.version, |state| state.version);
        let stat = Stat {
            mzxid: request.zxid,
            mtime: decided.time_ms,
            version,
            data_length: data.bytes_len() as i32,
            ..before.stat
        };
        let after = Node {
            stat,
            data,
            acl: before.acl.clone(),
        };
        self.replace(path, Some(&before), Some(after));
        let event = (EventKind::NodeDataChanged, path.to_owned());
        request.events.push(event);
        Ok(UpdateAnswer::Set(stat))
    }

    async fn delete(&mut self, request: &mut Numbering<'_>, paths: &[String]) -> Result<()> {
        for path in paths {
            let before = self.node(path).await?;
            self.replace(path, before.as_ref(), None);
            request.events.push((EventKind::NodeDeleted, path.clone()));
            self.touch_parent(request, path).await?;
        }
        Ok(())
    }

    async fn touch_parent(&mut self, request: &mut Numbering<'_>, path: &str) -> Result<()> {
        let Some((parent, _)) = path::split(path) else {
            return Ok(());
        };
        if let Some(state) = state_of(request.decided, parent)
            && let Some(mut node) = self.node(parent).await?
        {
            node.stat.pzxid = request.zxid;
            node.stat.num_children = state.children;
            node.stat.cversion = state.cversion();
            self.nodes.insert(parent.to_owned(), Some(node));
        }
        let event = (EventKind::NodeChildrenChanged, parent.to_owned());
        request.events.push(event);
        Ok(())
    }

    /// The znode as the batch has changed it so far.
    async fn node(&self, path: &str) -> Result<Option<Node>> {
        match self.nodes.get(path) {
            Some(node) => Ok(node.clone()),
            None => self.region.get(path).await,
        }
    }

    /// Replaces `before` with `after`. An object that only `before` named becomes garbage.
    fn replace(&mut self, path: &str, before: Option<&Node>, after: Option<Node>) {
        let object = |node: Option<&Node>| {
            let name = node.and_then(|node| node.data.object());
            name.map(|name| Bytes::copy_from_slice(name.as_bytes()))
        };
        let (old, new) = (object(before), object(after.as_ref()));
        if old != new {
            self.garbage.extend(old);
        }
        self.nodes.insert(path.to_owned(), after);
    }

    /// Loads data from its temporary object if it has one, and puts it where the znode's data belongs.
    async fn place_data(&self, decided: &Decided, data: &Payload) -> Result<Payload> {
        let data = match data {
            Payload::Object { name, .. } => {
                let loaded = self.region.load(data).await?.flatten();
                Payload::Inline(
                    loaded
                        .ok_or_else(|| Error::corrupt(format!("read temporary object {name}")))?,
                )
            }
            data => data.clone(),
        };
        self.region.place_data(decided.id, data).await
    }
}

fn state_of(decided: &Decided, path: &str) -> Option<NodeState> {
    decided
        .touched
        .iter()
        .find(|touched| touched.path == path)?
        .becomes
}
