//! Serving a store alone that others could serve too.
//!
//! Packs are made for one node. A store that was given objects is therefore served by one of its processes at a time, as the lock
//! of an embedded store would have it. The others stand in line and take over.
//!
//! ```text
//!  what says so is in the store ──▶ a member, at the end of the line ──▶ first in it ──▶ a start like that of a lone node
//! ```
//!
//! **Why nobody else serves then.** Whoever shares the work looks for what says so once it stands in line and has a row, before it
//! serves. So it stood there before that was written, or it does not serve. Whoever is to be alone takes its place in line
//! after it was written: behind all who share. The first in line is a member whose predecessors are none any more, and a lease
//! ends before a membership does. Two who are to be alone are never first at a time.
//!
//! Dies anywhere: what says so stays, and the next first in line serves.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    Error, Result, broken::Broken, engine::Core, membership::Office, model::NodeId, node::Node, pack,
    registry, store::Store,
};

/// How often the place in line is looked at, beside each change of the members.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// After so long in line somebody is taken to serve: one that is gone would be missed by then.
const IN_LINE_MAX: Duration = Duration::from_secs(5);
/// How often the lease of a lone node is looked at.
const MIND_EVERY: Duration = Duration::from_millis(500);

/// How a start ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// This process serves.
    Serves,
    /// Another serves, alone; this one takes its turn, while it runs ([`Service::run`](crate::Service::run)).
    StandsBy,
}

impl Core {
    /// Whether no other node shares the work.
    pub(crate) fn is_alone(&self) -> bool {
        !self.shares.load(Ordering::Acquire)
    }

    /// Whether `store` is served by one node at a time, as far as is known before this one stands in line.
    pub(crate) async fn must_be_alone(&self, store: &Store) -> Result<bool> {
        let home = pack::find_home(self, store).await?;
        let had_objects = home.is_some();
        if let Some(home) = home {
            // The same at each start.
            self.home.get_or_init(|| home);
        }
        Ok(self.peers.is_none() || had_objects)
    }

    /// A new node that serves alone: where others could, once it is its turn.
    pub(crate) async fn become_only_one(&self, store: &Store) -> Result<NodeId> {
        let id = registry::take_id(store).await?;
        if self.peers.is_some() {
            self.membership.join(id).await?;
            if !self.config.is_broken(Broken::ServesBesideOthers) {
                self.stand_in_line().await?;
            }
        }
        registry::put_row(store, id, self.clock.now()).await?;
        Ok(id)
    }

    async fn stand_in_line(&self) -> Result<()> {
        let since = self.clock.monotonic();
        while !self.membership.leads(Office::Sequencer) {
            let (now, until) = (self.clock.monotonic(), self.membership.may_answer_until());
            if until.is_some_and(|until| until <= now) {
                return Err(Error::unavailable("the membership ended before its turn came"));
            }
            if now.since(since) >= IN_LINE_MAX {
                self.stands_by.send_replace(true);
            }
            let view = self.membership.members().view;
            tokio::select! {
                biased;
                _ = self.membership.changed(view) => {}
                () = self.clock.sleep(LOOK_EVERY) => {}
            }
        }
        self.stands_by.send_replace(false);
        Ok(())
    }

    /// Returns once this process waits for its turn.
    pub(crate) async fn standing_by(&self) {
        let mut stands_by = self.stands_by.subscribe();
        // The core holds the sender.
        let _ = stands_by.wait_for(|stands_by| *stands_by).await;
    }

    /// Notices when the lease of a node that serves alone has run out.
    pub(crate) fn mind_lease(self: &Arc<Self>, node: &Arc<Node>) {
        if self.peers.is_none() {
            return;
        }
        let (core, node) = (Arc::clone(self), Arc::clone(node));
        self.spawn(async move {
            while core.may_answer(&node).is_ok() {
                core.clock.sleep(MIND_EVERY).await;
            }
        });
    }
}
