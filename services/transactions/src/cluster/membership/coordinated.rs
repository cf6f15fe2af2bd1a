//! Membership by ephemeral znodes of Landfast's own coordination service.
//!
//! A node joins in this order: it opens a session ([`coordination::member`]), creates a znode under
//! its id, and creates a candidate in each election. It is a member once all of them exist and were
//! read. From then on one task renews the session and follows the znodes. The lease is that of the
//! session. It ends by this process's own clock alone, without any message.
//!
//! A crash may happen between any two of these steps: the session is not renewed, and ends with all
//! its znodes. A broken connection is reopened while the lease lasts. A session that has expired,
//! or whose znode a client has deleted, is over, and its node with it.
//!
//! Invariants
//! - The lease decides whether the node may answer, and [`Membership::leads`] too, regardless of
//!   the last znodes read.
//! - A session serves one node. A process that joins again opens another session, and the others
//!   see the old one expire.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use coordination::{
    ConnectError, Ended, Gateway, Member,
    model::{Output, Request, Response},
};
use parking_lot::Mutex;
use ports::{Clock, Monotonic};
use primitives::Mutant;
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
};

use crate::{Error, Result, broken::Broken, model::NodeId};

use super::{
    Address, Election, Members, Membership,
    roster::{self, Present, Roster},
};

/// The interval between two attempts to reconnect.
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The longest wait for the answer to closing a session: otherwise it expires.
const LEAVE_MAX: Duration = Duration::from_secs(1);
/// The tag of requests while joining; the roster counts from one.
const JOINING: i32 = 0;

/// A member by a session of the coordination service.
#[derive(Debug)]
pub struct Coordinated {
    gateway: Gateway,
    clock: Arc<dyn Clock>,
    address: Address,
    known: Arc<Known>,
    /// The task that follows the znodes for the present node.
    following: Mutex<Option<Following>>,
}

/// The process's knowledge, shared with the task that updates it.
#[derive(Debug)]
struct Known {
    view: watch::Sender<Present>,
    /// The end of the lease.
    until: Mutex<Monotonic>,
    mutant: Mutant<Broken>,
}

#[derive(Debug)]
struct Following {
    task: JoinHandle<()>,
    leave: Option<oneshot::Sender<()>>,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Coordinated {
    /// A process that others reach at `address`, and that has not joined yet.
    pub fn new(gateway: Gateway, clock: Arc<dyn Clock>, address: Address) -> Self {
        Self::with(gateway, clock, address, Mutant::NONE)
    }

    /// The same with one rule broken, only for tests.
    #[doc(hidden)]
    pub fn with(
        gateway: Gateway,
        clock: Arc<dyn Clock>,
        address: Address,
        mutant: Mutant<Broken>,
    ) -> Self {
        let known = Arc::new(Known {
            view: watch::Sender::new(Present::default()),
            until: Mutex::default(),
            mutant,
        });
        Self {
            gateway,
            clock,
            address,
            known,
            following: Mutex::default(),
        }
    }

    /// Ends the rest of a membership without informing the others.
    async fn stop(&self) {
        let following = self.following.lock().take();
        if let Some(mut following) = following {
            following.task.abort();
            // It may be in the middle of a step, and still update the state.
            if !following.task.is_finished() {
                let _ = (&mut following.task).await;
            }
        }
        self.known.gone();
    }
}

#[async_trait]
impl Membership for Coordinated {
    async fn join(&self, node: NodeId) -> Result<()> {
        self.stop().await;
        let joined = Follower::join(self, node).await;
        let follower =
            joined.map_err(|why| Error::unavailable(&format!("join the members: {why}")))?;
        self.known.renewed(follower.member.lease_until());
        let (leave, told) = oneshot::channel();
        *self.following.lock() = Some(Following {
            task: tokio::spawn(follower.follow(told)),
            leave: Some(leave),
        });
        Ok(())
    }

    async fn leave(&self) {
        let following = self.following.lock().take();
        if let Some(mut following) = following {
            // Sending fails where the membership is over already.
            let _ = following.leave.take().map(|leave| leave.send(()));
            tokio::select! {
                biased;
                _ = &mut following.task => {}
                () = self.clock.sleep(LEAVE_MAX) => {}
            }
            *self.following.lock() = Some(following);
        }
        self.stop().await;
    }

    fn members(&self) -> Members {
        self.known.view.borrow().members.clone()
    }

    async fn changed(&self, view: u64) -> Members {
        let mut views = self.known.view.subscribe();
        let changed = views.wait_for(|now| now.members.view > view).await;
        let changed = changed.expect("the sender lives as long as `self`");
        changed.members.clone()
    }

    fn may_answer_until(&self) -> Option<Monotonic> {
        if self.known.mutant.breaks(Broken::AnswersWithoutLease) {
            return None;
        }
        Some(*self.known.until.lock())
    }

    fn leads(&self, election: Election) -> bool {
        let may_answer = self
            .may_answer_until()
            .is_none_or(|until| self.clock.monotonic() < until);
        may_answer && self.known.view.borrow().leads.contains(&election)
    }
}

impl Known {
    /// The lease lasts until then.
    fn renewed(&self, until: Monotonic) {
        *self.until.lock() = until;
    }

    /// It is no longer a member: this stops all answers before anything else happens.
    fn gone(&self) {
        *self.until.lock() = Monotonic::default();
        self.publish(&Present::default());
    }

    fn publish(&self, present: &Present) {
        self.view.send_if_modified(|known| {
            let is_new = known.members.nodes != present.members.nodes
                || known.members.sequencer != present.members.sequencer
                || known.leads != present.leads;
            if is_new {
                let view = known.members.view + 1;
                known.clone_from(present);
                known.members.view = view;
            }
            is_new
        });
    }
}

/// Why a process did not become a member.
#[derive(Debug, thiserror::Error)]
enum NotJoined {
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{0}")]
    Ended(#[from] Ended),
    #[error("{0}")]
    Refused(#[from] coordination::Error),
    #[error("a client deleted a znode of the node")]
    Gone,
}

/// Renews the session of one node and follows the znodes.
#[derive(Debug)]
struct Follower {
    node: NodeId,
    member: Member,
    roster: Roster,
    gateway: Gateway,
    clock: Arc<dyn Clock>,
    known: Arc<Known>,
}

impl Follower {
    async fn join(parts: &Coordinated, node: NodeId) -> Result<Self, NotJoined> {
        let member = parts.gateway.connect_member(None).await?;
        let mut follower = Self {
            node,
            member,
            roster: Roster::new(BTreeMap::new()),
            gateway: parts.gateway.clone(),
            clock: Arc::clone(&parts.clock),
            known: Arc::clone(&parts.known),
        };
        let elections = [Election::Collector, Election::Sequencer];
        let candidates = elections.map(|election| roster::candidate(node, election));
        let wanted = [roster::member(node, &parts.address)]
            .into_iter()
            .chain(candidates)
            .collect();
        let made = follower.make(wanted).await?;
        follower.roster = Roster::new(
            elections
                .into_iter()
                .zip(made.into_iter().skip(1))
                .collect(),
        );
        follower.read_all();
        while !follower.pump().await? {
            follower.member.wait().await;
        }
        Ok(follower)
    }

    /// Creates znodes and their parents; returns their paths.
    async fn make(&mut self, wanted: Vec<Request>) -> Result<Vec<String>, NotJoined> {
        let mut answers = self.ask(wanted.clone()).await?;
        let is_orphan = |answer: &Result<Response, coordination::Error>| {
            matches!(answer, Err(coordination::Error::NoNode))
        };
        if answers.iter().any(is_orphan) {
            // Others make them too.
            self.ask(roster::parents()).await?;
            for (answer, request) in answers
                .iter_mut()
                .zip(wanted)
                .filter(|(answer, _)| is_orphan(answer))
            {
                *answer = self.ask(vec![request]).await?.swap_remove(0);
            }
        }
        let path = |answer| match answer {
            Ok(Response::Created { path, .. }) => Ok(path),
            Ok(other) => unreachable!("{other:?} answers no create"),
            Err(error) => Err(NotJoined::Refused(error)),
        };
        answers.into_iter().map(path).collect()
    }

    /// The answers to `requests`, in order.
    async fn ask(
        &mut self,
        requests: Vec<Request>,
    ) -> Result<Vec<Result<Response, coordination::Error>>, NotJoined> {
        let count = requests.len();
        for request in requests {
            self.member.submit(JOINING, request);
        }
        let mut answers = Vec::with_capacity(count);
        loop {
            let mut outputs = Vec::new();
            self.member.pump(&mut outputs).await?;
            answers.extend(outputs.into_iter().filter_map(|output| match output {
                Output::Reply { result, .. } => Some(result),
                Output::Event { .. } => None,
            }));
            if answers.len() == count {
                return Ok(answers);
            }
            self.member.wait().await;
        }
    }

    fn read_all(&mut self) {
        for (tag, request) in self.roster.read_all() {
            self.member.submit(tag, request);
        }
    }

    /// Renews the session if that is due, and reads changes. Returns true once all of them are
    /// read.
    async fn pump(&mut self) -> Result<bool, NotJoined> {
        loop {
            let mut outputs = Vec::new();
            self.member.pump(&mut outputs).await?;
            let requests: Vec<_> = outputs
                .into_iter()
                .flat_map(|output| self.roster.take(output))
                .collect();
            if requests.is_empty() {
                break;
            }
            for (tag, request) in requests {
                self.member.submit(tag, request);
            }
        }
        let Some(present) = self.roster.whole() else {
            return Ok(false);
        };
        if !self.roster.has_all_of(self.node) {
            return Err(NotJoined::Gone);
        }
        self.known.publish(present);
        Ok(true)
    }

    async fn follow(mut self, mut leave: oneshot::Receiver<()>) {
        loop {
            tokio::select! {
                biased;
                _ = &mut leave => return self.close().await,
                () = self.member.wait() => {}
            }
            let pumped = self.pump().await;
            if let Err(why) = pumped
                && !self.come_back(&why).await
            {
                tracing::warn!(node = self.node.0, %why, "no longer a member");
                return self.known.gone();
            }
            self.known.renewed(self.member.lease_until());
        }
    }

    /// Whether the session continues on another connection.
    async fn come_back(&mut self, why: &NotJoined) -> bool {
        if !matches!(why, NotJoined::Ended(Ended::Store(_))) {
            return false;
        }
        while self.clock.monotonic() < self.member.lease_until() {
            match self
                .gateway
                .connect_member(Some(self.member.resume()))
                .await
            {
                Ok(member) => {
                    self.member = member;
                    self.read_all();
                    return true;
                }
                Err(ConnectError::Expired) => return false,
                Err(_) => self.clock.sleep(CONNECT_AGAIN_AFTER).await,
            }
        }
        false
    }

    /// Closes the session, and the znodes with it. Its outcome does not matter here.
    async fn close(mut self) {
        self.known.gone();
        self.member.submit(JOINING, Request::Close);
        while self.member.pump(&mut Vec::new()).await.is_ok() {
            self.member.wait().await;
        }
    }
}
