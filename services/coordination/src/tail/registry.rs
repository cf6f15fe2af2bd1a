//! Who is connected to one process, what they watch, and what was handed out to them last.

use std::{collections::BTreeMap, sync::Arc};

use ports::DurabilityPoint;

use super::{Change, Connection};
use crate::{
    backlog::Backlog,
    model::{EventKind, SessionId, Zxid},
    tail::{
        event_queue::{Letter, Mailbox},
        watches::Watches,
    },
};

/// How many of the last changes are kept for readers that were overtaken by them.
const RECENT_CHANGES_MAX: usize = 1024;

/// Fewer, where their paths together are longer.
const RECENT_BYTES_MAX: usize = 4 << 20;

/// Who is connected here, and what they watch.
#[derive(Debug, Default)]
pub(super) struct Registry {
    /// How many places there were: behind each everything was handed out until it was lost.
    pub(super) places: u64,
    pub(super) clients: BTreeMap<SessionId, Registered>,
    pub(super) watches: Watches,
    /// The last changes handed out, oldest first.
    pub(super) recent: Backlog<Change>,
    /// Changes up to here may be missing from `recent`.
    pub(super) forgotten: Zxid,
    /// What was handed out and is not known to be durable: up to this zxid, at this point.
    pub(super) unconfirmed: Option<(Zxid, DurabilityPoint)>,
    /// Whom to wake once that is durable.
    pub(super) waiting: BTreeMap<SessionId, Arc<Mailbox>>,
}

#[derive(Debug)]
pub(super) struct Registered {
    pub(super) attach: u64,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Registry {
    /// The sessions of clients, without that of the process itself.
    pub(super) fn clients(&self) -> impl Iterator<Item = &SessionId> {
        self.clients.keys().filter(|session| !session.is_members())
    }

    pub(super) fn is_registered(&self, client: Connection) -> bool {
        self.clients
            .get(&client.session)
            .is_some_and(|registered| registered.attach == client.attach)
    }

    /// An update of a later connection was applied, which may be at another process: the one here speaks no longer.
    pub(super) fn replaced_by(
        &mut self,
        later: Connection,
        eager: &mut BTreeMap<SessionId, Arc<Mailbox>>,
    ) {
        let session = later.session;
        if self
            .clients
            .get(&session)
            .is_none_or(|client| client.attach >= later.attach)
        {
            return;
        }
        let Some(Registered { mailbox, .. }) = self.clients.remove(&session) else {
            return;
        };
        self.watches.disarm_all(session);
        self.waiting.remove(&session);
        mailbox.put(Letter::Moved);
        eager.insert(session, mailbox);
    }

    /// The changes after `since`, in order; none: some of them are forgotten.
    pub(super) fn changes_after(&self, since: Zxid) -> Option<impl Iterator<Item = &Change>> {
        let after = self
            .recent
            .iter()
            .rev()
            .take_while(|change| change.zxid > since)
            .count();
        (self.forgotten <= since).then(|| self.recent.iter().skip(self.recent.len() - after))
    }

    pub(super) fn remember(&mut self, zxid: Zxid, kind: EventKind, path: &str) {
        self.recent.push_back(
            path.len(),
            Change {
                zxid,
                kind,
                path: path.to_owned(),
            },
        );
        while self.recent.len() > RECENT_CHANGES_MAX || self.recent.bytes() > RECENT_BYTES_MAX {
            let Some(forgotten) = self.recent.pop_front() else {
                return;
            };
            self.forgotten = forgotten.zxid;
        }
    }

    /// Puts a letter into a client's mailbox. Most clients can do nothing with it before it is durable and are
    /// woken then; those that go on with their next request at once are eager.
    pub(super) fn put(
        &mut self,
        session: SessionId,
        letter: Letter,
        eager: &mut BTreeMap<SessionId, Arc<Mailbox>>,
    ) {
        let Some(client) = self.clients.get(&session) else {
            return;
        };
        client.mailbox.put(letter);
        if client.mailbox.is_eager() {
            eager
                .entry(session)
                .or_insert_with(|| client.mailbox.clone());
        } else {
            self.waiting
                .entry(session)
                .or_insert_with(|| client.mailbox.clone());
        }
    }
}
