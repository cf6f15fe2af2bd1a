//! Membership by ephemeral znodes of Landfast's own coordination service.
//!
//! A node joins in this order: a session of a process ([`coordination::member`]), a znode under its id, one in the line for
//! each office. It is a member once all of them are there and read. From then on one task renews the session and follows
//! the znodes. The lease is that of the session, and it ends by this process's own clock alone: nothing has to be heard for it.
//!
//! Dies between any two of these: the session is not renewed, and goes with whatever it had made. A connection that breaks
//! is made again while the lease lasts; a session that has expired, or whose znode somebody has deleted, is over, and the
//! node with it.
//!
//! Invariants
//! - What may be answered is a matter of the lease: [`Membership::leads`] too, whatever the znodes said last.
//! - A session serves one node. Whoever joins again opens another, and the others miss the one before.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use coordination::{
    ConnectError, Ended, Gateway, Member,
    model::{Output, Request, Response},
};
use ports::{Clock, Monotonic};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
};

use crate::{Error, Result, broken::Broken, model::NodeId};

use super::{
    Address, Members, Membership, Office,
    roster::{self, Present, Roster},
};

/// Between two attempts to connect again.
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// How long the end of a session may take to be answered: the others miss it in any case.
const LEAVE_MAX: Duration = Duration::from_secs(1);
/// The tag of what is asked while joining; the roster counts from one.
const JOINING: i32 = 0;

/// A member by a session of the coordination service.
#[derive(Debug)]
pub struct Coordinated {
    gateway: Gateway,
    clock: Arc<dyn Clock>,
    address: Address,
    known: Arc<Known>,
    /// Who follows the znodes for the present node.
    following: Mutex<Option<Following>>,
}

/// What the process knows, shared with the task that finds it out.
#[derive(Debug)]
struct Known {
    view: watch::Sender<View>,
    /// Until when the lease lasts, in nanoseconds of the monotonic clock.
    until: AtomicU64,
    broken: Option<Broken>,
}

#[derive(Debug, Default)]
struct View {
    number: u64,
    present: Present,
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
        Self::with(gateway, clock, address, None)
    }

    /// The same without a rule, for tests alone.
    #[doc(hidden)]
    pub fn with(
        gateway: Gateway,
        clock: Arc<dyn Clock>,
        address: Address,
        broken: Option<Broken>,
    ) -> Self {
        let (view, until) = (watch::Sender::new(View::default()), AtomicU64::new(0));
        let known = Arc::new(Known {
            view,
            until,
            broken,
        });
        Self {
            gateway,
            clock,
            address,
            known,
            following: Mutex::default(),
        }
    }

    /// Ends what is left of a membership, without a word to the others.
    async fn stop(&self) {
        let following = self.following().take();
        if let Some(mut following) = following {
            following.task.abort();
            // It may be in the middle of a step, and say something still.
            if !following.task.is_finished() {
                let _ = (&mut following.task).await;
            }
        }
        self.known.gone();
    }

    fn following(&self) -> MutexGuard<'_, Option<Following>> {
        self.following
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
        *self.following() = Some(Following {
            task: tokio::spawn(follower.follow(told)),
            leave: Some(leave),
        });
        Ok(())
    }

    async fn leave(&self) {
        let following = self.following().take();
        if let Some(mut following) = following {
            // Nobody hears it where the membership is over already.
            let _ = following.leave.take().map(|leave| leave.send(()));
            tokio::select! {
                biased;
                _ = &mut following.task => {}
                () = self.clock.sleep(LEAVE_MAX) => {}
            }
            *self.following() = Some(following);
        }
        self.stop().await;
    }

    fn members(&self) -> Members {
        self.known.view.borrow().members()
    }

    async fn changed(&self, view: u64) -> Members {
        let mut views = self.known.view.subscribe();
        let changed = views.wait_for(|now| now.number > view).await;
        changed
            .expect("the sender lives as long as `self`")
            .members()
    }

    fn may_answer_until(&self) -> Option<Monotonic> {
        if self.known.broken == Some(Broken::AnswersWithoutLease) {
            return None;
        }
        Some(self.known.until())
    }

    fn leads(&self, office: Office) -> bool {
        let may_answer = self
            .may_answer_until()
            .is_none_or(|until| self.clock.monotonic() < until);
        may_answer && self.known.view.borrow().present.leads.contains(&office)
    }
}

impl Known {
    fn until(&self) -> Monotonic {
        Monotonic(Duration::from_nanos(self.until.load(Ordering::Acquire)))
    }

    /// The lease lasts until then.
    fn renewed(&self, until: Monotonic) {
        let nanoseconds = u64::try_from(until.0.as_nanos()).unwrap_or(u64::MAX);
        self.until.store(nanoseconds, Ordering::Release);
    }

    /// It is no member any more: nothing is answered before anything else is said.
    fn gone(&self) {
        self.until.store(0, Ordering::Release);
        self.publish(&Present::default());
    }

    fn publish(&self, present: &Present) {
        self.view.send_if_modified(|view| {
            let is_new = view.present != *present;
            if is_new {
                *view = View {
                    number: view.number + 1,
                    present: present.clone(),
                };
            }
            is_new
        });
    }
}

impl View {
    fn members(&self) -> Members {
        Members {
            view: self.number,
            nodes: self.present.nodes.clone(),
        }
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
    #[error("somebody has deleted a znode of the node's")]
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
        let offices = [Office::Collector, Office::Sequencer];
        let candidates = offices.map(|office| roster::candidate(node, office));
        let wanted = [roster::member(node, &parts.address)]
            .into_iter()
            .chain(candidates)
            .collect();
        let made = follower.make(wanted).await?;
        follower.roster = Roster::new(offices.into_iter().zip(made.into_iter().skip(1)).collect());
        follower.read_all();
        while !follower.pump().await? {
            follower.member.wait().await;
        }
        Ok(follower)
    }

    /// Makes znodes, and what they need above them; says what they are called.
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

    /// Renews the session if that is due, and reads what has changed. True once all of it is read.
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
                tracing::warn!(node = self.node.0, %why, "no member any more");
                return self.known.gone();
            }
            self.known.renewed(self.member.lease_until());
        }
    }

    /// Whether the session goes on with another connection.
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

    /// Ends the session, and the znodes with it. What comes of it is of interest to nobody here.
    async fn close(mut self) {
        self.known.gone();
        self.member.submit(JOINING, Request::Close);
        while self.member.pump(&mut Vec::new()).await.is_ok() {
            self.member.wait().await;
        }
    }
}
