//! The clients connected to one process, their watches, and the most recent deliveries.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use ports::DurabilityPoint;

use super::DeliveredChange;
use crate::{
    access::{self, Rules},
    backlog::Backlog,
    model::{Connection, Identity, SessionId, Zxid},
    tail::event_queue::{ClientEvent, EventQueue},
    watches::Watches,
};

/// Recent changes kept for readers that these changes have overtaken.
const RECENT_CHANGES_MAX: usize = 1024;

/// The most bytes of paths and ACLs in the kept changes; longer ones mean fewer changes.
const RECENT_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Default)]
pub(super) struct Registry {
    /// Number of positions so far. From each position everything was delivered until it was lost.
    pub(super) positions: u64,
    pub(super) clients: BTreeMap<SessionId, Registered>,
    pub(super) watches: Watches,
    /// The most recent delivered changes, oldest first.
    pub(super) recent: Backlog<DeliveredChange>,
    /// Changes up to this zxid may be missing from `recent`.
    pub(super) dropped: Zxid,
    /// The zxid up to which every change has fired its watches.
    pub(super) delivered: Zxid,
    /// The zxid and the durability point of the deliveries that are not known to be durable.
    pub(super) unconfirmed: Option<(Zxid, DurabilityPoint)>,
    /// The clients to wake once that point is durable.
    pub(super) waiting: BTreeMap<SessionId, Arc<EventQueue>>,
}

#[derive(Debug)]
pub(super) struct Registered {
    pub(super) attach: u64,
    pub(super) event_queue: Arc<EventQueue>,
    pub(super) identities: Vec<Identity>,
}

impl Registry {
    /// The sessions of clients, without the session of the process itself.
    pub(super) fn clients(&self) -> impl Iterator<Item = &SessionId> {
        self.clients.keys().filter(|session| !session.is_members())
    }

    pub(super) fn is_registered(&self, client: Connection) -> bool {
        self.clients
            .get(&client.session)
            .is_some_and(|registered| registered.attach == client.attach)
    }

    /// Ends the connection of an earlier attach, because an update of a later attach was applied,
    /// perhaps through another process.
    pub(super) fn replaced_by(
        &mut self,
        later: Connection,
        eager: &mut BTreeMap<SessionId, Arc<EventQueue>>,
    ) {
        let session = later.session;
        let Entry::Occupied(client) = self.clients.entry(session) else {
            return;
        };
        if client.get().attach >= later.attach {
            return;
        }
        let event_queue = client.remove().event_queue;
        self.watches.disarm_all(session);
        self.waiting.remove(&session);
        event_queue.put(ClientEvent::Moved);
        eager.insert(session, event_queue);
    }

    /// The changes after `since`, in order. `None` if some of them are no longer kept.
    pub(super) fn changes_after(
        &self,
        since: Zxid,
    ) -> Option<impl Iterator<Item = &DeliveredChange>> {
        let after = self
            .recent
            .iter()
            .rev()
            .take_while(|change| change.zxid > since)
            .count();
        (self.dropped <= since).then(|| self.recent.iter().skip(self.recent.len() - after))
    }

    /// Those of `sessions` whose clients may read a znode with this ACL.
    pub(super) fn readers(
        &self,
        mut sessions: BTreeSet<SessionId>,
        acl: &[u8],
    ) -> BTreeSet<SessionId> {
        if !acl.is_empty() && !sessions.is_empty() {
            let rules = Rules::of(acl);
            sessions.retain(|session| {
                let client = self.clients.get(session);
                client.is_some_and(|client| rules.allow(&client.identities, access::READ))
            });
        }
        sessions
    }

    pub(super) fn keep_change(&mut self, change: DeliveredChange) {
        self.recent
            .push_back(change.path.len() + change.acl.len(), change);
        while self.recent.len() > RECENT_CHANGES_MAX || self.recent.bytes() > RECENT_BYTES_MAX {
            let Some(forgotten) = self.recent.pop_front() else {
                return;
            };
            self.dropped = forgotten.zxid;
        }
    }

    /// Appends an event to a client's queue. Most clients cannot use it before it is durable and
    /// are woken then. Clients with a waiting read are eager and are woken at once.
    pub(super) fn put(
        &mut self,
        session: SessionId,
        event: ClientEvent,
        eager: &mut BTreeMap<SessionId, Arc<EventQueue>>,
    ) {
        let Some(client) = self.clients.get(&session) else {
            return;
        };
        client.event_queue.put(event);
        let woken = if client.event_queue.is_eager() {
            eager
        } else {
            &mut self.waiting
        };
        woken
            .entry(session)
            .or_insert_with(|| client.event_queue.clone());
    }
}
