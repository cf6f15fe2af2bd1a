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

mod statistics;

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;
use ports::{Error, Result};

use super::quotas::Quotas;
use crate::{
    model::{EventKind, Stat, Zxid},
    path,
    records::{
        Change, Decided, Effect, LogEntry, NodeState, Part, Payload, Slot, Touched, UpdateAnswer,
    },
    storage::{
        recent::Recent,
        user_store::{Growth, Node, NodeChange, UserStore},
    },
};

/// The most data that one slot applies, in bytes. While the slot is applied, all of it is in memory
/// and in one request to a store.
const SLOT_DATA_BYTES_MAX: usize = 32 << 20;

/// The most bytes that an answer takes beside its path: a Stat, and the ids of its request.
const ANSWER_BYTES: usize = 128;

/// After so many requests other tasks of the process get a turn.
const ENTRIES_WITHOUT_YIELD: usize = 64;

#[derive(Debug)]
pub(super) struct Numbered<'decided> {
    pub(super) slot: Slot,
    pub(super) changes: Vec<NodeChange<'decided>>,
    /// Objects that no znode names once the slot is applied. Valid only if nothing of the slot was
    /// applied before.
    pub(super) garbage: Vec<Bytes>,
    /// Valid under the same condition.
    pub(super) growth: Growth,
}

/// How many of `ordered` go into the next slot. At least one, because each fits alone.
pub(super) fn slot_len(ordered: &[Decided], path_bytes_max: usize) -> usize {
    let (mut path_bytes, mut data_bytes) = (0, 0);
    let fits = |decided: &&Decided| {
        path_bytes += decided.path_bytes();
        data_bytes += decided
            .written()
            .map(|written| written.data.bytes_len() as usize)
            .sum::<usize>();
        path_bytes <= path_bytes_max && data_bytes <= SLOT_DATA_BYTES_MAX
    };
    ordered.iter().take_while(fits).count().max(1)
}

/// An estimate of the encoded length of an entry.
fn entry_len(entry: &LogEntry) -> usize {
    let events = entry.events.iter();
    let answers = match &entry.answer {
        Ok(UpdateAnswer::Multi(answers)) => answers.len(),
        _ => 1,
    };
    let created = |answer: &UpdateAnswer| match answer {
        UpdateAnswer::Created { path, .. } => path.len(),
        _ => 0,
    };
    let paths: usize = match &entry.answer {
        Ok(UpdateAnswer::Multi(answers)) => answers.iter().map(created).sum(),
        Ok(answer) => created(answer),
        Err(_) => 0,
    };
    let events: usize = events
        .map(|change| 8 + change.path.len() + change.acl.len())
        .sum();
    events + paths + answers * ANSWER_BYTES
}

/// Where the statistics of quotas come from.
#[derive(Debug)]
pub(super) enum Sums<'slot> {
    /// They are computed for these quotas.
    Computed(&'slot mut Quotas),
    /// They are in the log.
    Logged(&'slot [(String, Bytes)]),
}

/// Numbers the requests in `ordered`, beginning with `first`, until the slot has `bytes_max`. The
/// slot then exceeds that by one entry at most. Without recent znodes, the slot is computed again,
/// and a part of it may be applied.
pub(super) async fn number<'decided>(
    (region, recent): (&UserStore, Option<&Recent<String, Node>>),
    first: Zxid,
    ordered: &'decided [Decided],
    sums: Sums<'_>,
    bytes_max: usize,
) -> Result<Numbered<'decided>> {
    let mut entries = Vec::with_capacity(ordered.len());
    let (quotas, logged) = match sums {
        Sums::Computed(quotas) => (Some(quotas), &[][..]),
        Sums::Logged(logged) => (None, logged),
    };
    let mut working = Working {
        region,
        recent,
        nodes: BTreeMap::new(),
        garbage: Vec::new(),
        quotas,
        statistics: BTreeMap::new(),
        growth: Growth::default(),
    };
    let mut bytes = 0;
    for (decided, zxid) in ordered.iter().zip(first.0..) {
        let entry = working.apply(Zxid(zxid), decided).await?;
        bytes += entry_len(&entry);
        entries.push(entry);
        let temporaries = decided.temporaries.iter();
        working
            .garbage
            .extend(temporaries.map(|name| Bytes::copy_from_slice(name.as_bytes())));
        if bytes + working.statistics_len() >= bytes_max {
            break;
        }
        if entries.len() % ENTRIES_WITHOUT_YIELD == 0 {
            tokio::task::yield_now().await;
        }
    }
    for (path, text) in logged {
        let last = Zxid(first.0 + ordered.len() as i64 - 1);
        let path = path.clone().into();
        working.write_statistics(last, path, text.clone()).await?;
    }
    working.garbage.sort_unstable();
    working.garbage.dedup();
    Ok(Numbered {
        slot: Slot {
            first,
            entries,
            statistics: working.last_statistics(),
        },
        changes: working.nodes.into_iter().collect(),
        garbage: working.garbage,
        growth: working.growth,
    })
}

struct Working<'warm, 'decided> {
    region: &'warm UserStore,
    /// Znodes as they were before the slot.
    recent: Option<&'warm Recent<String, Node>>,
    nodes: BTreeMap<Cow<'decided, str>, Option<Node>>,
    garbage: Vec<Bytes>,
    /// None if the statistics of quotas are in the log.
    quotas: Option<&'warm mut Quotas>,
    /// The statistics that the batch has written, by their paths.
    statistics: BTreeMap<String, Bytes>,
    growth: Growth,
}

/// A request or a part of one, with its zxid, and the events that it causes.
struct Numbering<'decided> {
    zxid: Zxid,
    decided: &'decided Decided,
    part: u32,
    touched: &'decided [Touched],
    events: Vec<Change>,
}

impl Numbering<'_> {
    fn state_of(&self, path: &str) -> Option<&NodeState> {
        let touched = self.touched.iter().find(|touched| touched.path == path)?;
        touched.becomes.as_ref()
    }

    fn event(&mut self, kind: EventKind, path: &str, acl: Bytes) {
        let path = path.to_owned();
        self.events.push(Change { kind, path, acl });
    }
}

impl<'decided> Working<'_, 'decided> {
    async fn apply(&mut self, zxid: Zxid, decided: &'decided Decided) -> Result<LogEntry> {
        let mut request = Numbering {
            zxid,
            decided,
            part: 0,
            touched: &decided.touched,
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
        request: &mut Numbering<'decided>,
        effect: &'decided Effect,
    ) -> Result<UpdateAnswer> {
        match effect {
            Effect::Create { path, data, acl } => self.create(request, path, data, acl).await,
            Effect::SetData { path, data } => self.set_data(request, path, data).await,
            Effect::SetAcl { path, acl } => self.set_acl(request, path, acl).await,
            Effect::Delete { paths } => {
                self.delete(request, paths).await?;
                Ok(UpdateAnswer::Deleted)
            }
            Effect::Check => Ok(UpdateAnswer::Checked),
            Effect::Multi(parts) => self.multi(request, parts).await,
            Effect::MultiFailed {
                failed,
                parts,
                error,
            } => Ok(UpdateAnswer::MultiFailed {
                failed: *failed,
                parts: *parts,
                error: *error,
            }),
            Effect::Attach => Ok(UpdateAnswer::Attached),
            Effect::Close { paths } => {
                self.delete(request, paths).await?;
                Ok(UpdateAnswer::Closed)
            }
        }
    }

    async fn multi(
        &mut self,
        request: &mut Numbering<'decided>,
        parts: &'decided [Part],
    ) -> Result<UpdateAnswer> {
        let mut answers = Vec::with_capacity(parts.len());
        for (number, part) in parts.iter().enumerate() {
            let mut numbering = Numbering {
                part: number as u32,
                touched: &part.touched,
                events: std::mem::take(&mut request.events),
                ..*request
            };
            // A part is no multi, so this ends after one level.
            answers.push(Box::pin(self.effect(&mut numbering, &part.effect)).await?);
            request.events = numbering.events;
        }
        Ok(UpdateAnswer::Multi(answers))
    }

    async fn create(
        &mut self,
        request: &mut Numbering<'decided>,
        path: &'decided str,
        data: &Payload,
        acl: &Bytes,
    ) -> Result<UpdateAnswer> {
        let owner = request
            .state_of(path)
            .and_then(NodeState::owner)
            .map_or(0, |owner| owner.session.0);
        let data = self.place_data(request, data).await?;
        let time_ms = request.decided.time_ms;
        let node = Node::created(request.zxid, time_ms, owner, data, acl.clone());
        let stat = node.stat;
        let before = self.node(path).await?;
        self.replace(path.into(), before.as_ref(), Some(node));
        self.limits_changed(path).await?;
        self.begin_statistics(request.zxid, path).await?;
        let size = (1, i64::from(stat.data_length));
        self.account(request.zxid, request.decided, path, size)
            .await?;
        request.event(EventKind::NodeCreated, path, acl.clone());
        self.touch_parent(request, path).await?;
        let path = path.to_owned();
        Ok(UpdateAnswer::Created { path, stat })
    }

    async fn set_data(
        &mut self,
        request: &mut Numbering<'decided>,
        path: &'decided str,
        data: &Payload,
    ) -> Result<UpdateAnswer> {
        let data = self.place_data(request, data).await?;
        let Some(before) = self.node(path).await? else {
            // Only when a partly applied slot is computed again: a later request of the same slot
            // deletes the znode.
            return Ok(UpdateAnswer::Deleted);
        };
        let version = request
            .state_of(path)
            .map_or(before.stat.version, |state| state.version);
        let stat = Stat {
            mzxid: request.zxid,
            mtime: request.decided.time_ms,
            version,
            data_length: data.bytes_len() as i32,
            ..before.stat
        };
        let acl = before.acl.clone();
        let after = Node {
            stat,
            data,
            acl: acl.clone(),
            acl_zxid: before.acl_zxid,
        };
        self.replace(path.into(), Some(&before), Some(after));
        self.limits_changed(path).await?;
        let more = i64::from(stat.data_length) - i64::from(before.stat.data_length);
        self.account(request.zxid, request.decided, path, (0, more))
            .await?;
        request.event(EventKind::NodeDataChanged, path, acl);
        Ok(UpdateAnswer::Set(stat))
    }

    async fn set_acl(
        &mut self,
        request: &Numbering<'decided>,
        path: &'decided str,
        acl: &Bytes,
    ) -> Result<UpdateAnswer> {
        let Some(mut node) = self.node(path).await? else {
            // As in `set_data`.
            return Ok(UpdateAnswer::Deleted);
        };
        if let Some(state) = request.state_of(path) {
            node.stat.aversion = state.aversion;
        }
        (node.acl, node.acl_zxid) = (acl.clone(), request.zxid);
        let stat = node.stat;
        self.nodes.insert(path.into(), Some(node));
        Ok(UpdateAnswer::Set(stat))
    }

    async fn delete(
        &mut self,
        request: &mut Numbering<'decided>,
        paths: &'decided [String],
    ) -> Result<()> {
        for path in paths {
            let before = self.node(path).await?;
            let acl = before.as_ref().map(|node| node.acl.clone());
            self.replace(path.into(), before.as_ref(), None);
            self.limits_changed(path).await?;
            if let Some(before) = &before {
                let size = (-1, -i64::from(before.stat.data_length));
                self.account(request.zxid, request.decided, path, size)
                    .await?;
            }
            request.event(EventKind::NodeDeleted, path, acl.unwrap_or_default());
            self.touch_parent(request, path).await?;
        }
        Ok(())
    }

    async fn touch_parent(
        &mut self,
        request: &mut Numbering<'decided>,
        path: &'decided str,
    ) -> Result<()> {
        let Some((parent, _)) = path::split(path) else {
            return Ok(());
        };
        let node = self.node(parent).await?;
        let acl = node.as_ref().map(|node| node.acl.clone());
        if let Some(state) = request.state_of(parent)
            && let Some(mut node) = node
        {
            node.stat.pzxid = request.zxid;
            node.stat.num_children = state.children;
            node.stat.cversion = state.cversion();
            self.nodes.insert(parent.into(), Some(node));
        }
        request.event(
            EventKind::NodeChildrenChanged,
            parent,
            acl.unwrap_or_default(),
        );
        Ok(())
    }

    /// The znode as the batch has changed it so far.
    async fn node(&self, path: &str) -> Result<Option<Node>> {
        match self.nodes.get(path) {
            Some(node) => Ok(node.clone()),
            None => match self.recent.and_then(|recent| recent.get(path)) {
                Some(node) => Ok(Some(node)),
                None => self.region.get(path).await,
            },
        }
    }

    /// Replaces `before` with `after`. An object that only `before` named becomes garbage.
    fn replace(&mut self, path: Cow<'decided, str>, before: Option<&Node>, after: Option<Node>) {
        let object = |node: Option<&Node>| {
            let name = node.and_then(|node| node.data.object());
            name.map(|name| Bytes::copy_from_slice(name.as_bytes()))
        };
        let (old, new) = (object(before), object(after.as_ref()));
        if old != new {
            self.garbage.extend(old);
        }
        for (node, sign) in [(before, -1), (after.as_ref(), 1)] {
            if let Some(node) = node {
                self.growth.add(&path, node, sign);
            }
        }
        self.nodes.insert(path, after);
    }

    /// Loads data from its temporary object if it has one, and puts it where the znode's data
    /// belongs.
    async fn place_data(&self, request: &Numbering<'_>, data: &Payload) -> Result<Payload> {
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
        let update = request.decided.id;
        self.region.place_data(update, request.part, data).await
    }
}
