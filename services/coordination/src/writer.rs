//! The writer: validates a session's requests one after the other, and decides each in its session's row.
//!
//! An event function, triggered by the session's group of the request queue, so that one runs per session
//! while many run side by side. Per request (`faaskeeper.txt`, algorithm 1, made crash-proof by C-1 to C-3):
//!
//! 1. lock the znodes that the request touches, in path order;
//! 2. validate ([`crate::tree`]);
//! 3. decide: one conditional write to the session's row, which now carries the outcome and the new states;
//! 4. install the new states and unlock;
//! 5. push the outcome, failures too, to the distributor. The writer itself answers nobody.
//!
//! A writer may die between any two of these. Before step 3 it has left locks that name a request which
//! its successor, or whoever meets the lock, shuts out; from step 3 on the outbox in the row says what is
//! left to do, and [`Turn::recover`] does it again. Pushing twice is harmless, since the distributor knows
//! what it has applied. Installing comes before pushing, so that the outbox entry of an applied update is
//! never needed again and the distributor may drop it.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    Clock, Event, Handler, KeyValue, Queue, Result,
    functions::Failure,
    queue::{Delivery, Message},
};

use crate::{
    Error,
    broken::Broken,
    config::Config,
    ephemerals::Ephemerals,
    model::{Acl, Lifetime, Naming, SessionId},
    names,
    node::{Holder, Nodes},
    path,
    records::{
        Decided, Effect, NodeState, Operation, Payload, Submitted, Touched, UpdateId, decode, encode_sized,
    },
    session::{Moved, Row, Sessions, State},
    tree::{self, Locked},
};

/// The most decided requests that wait for one push.
const PUSH_MESSAGES_MAX: usize = 64;

/// The paths of the ephemerals that vanish in one decision may together take this part of the largest item; what
/// else is written of each takes a few times as much.
const CLOSE_PATHS_PART: usize = 10;

/// The writer function.
#[derive(Debug)]
pub struct Writer {
    queue: Arc<dyn Queue>,
    clock: Arc<dyn Clock>,
    sessions: Sessions,
    nodes: Nodes,
    ephemerals: Ephemerals,
    close_path_bytes_max: usize,
    broken: Option<Broken>,
}

impl Writer {
    /// A writer on `system`, pushing to `queue`.
    pub fn new(
        system: Arc<dyn KeyValue>,
        queue: Arc<dyn Queue>,
        clock: Arc<dyn Clock>,
        nodes: Nodes,
        config: &Config,
    ) -> Self {
        let sessions = Sessions::new(system.clone());
        let close_path_bytes_max = system.limits().item_bytes_max / CLOSE_PATHS_PART;
        Self {
            queue,
            clock,
            sessions,
            nodes,
            ephemerals: Ephemerals::new(system),
            close_path_bytes_max,
            broken: config.broken,
        }
    }

    async fn handle_messages(&self, deliveries: &[Delivery]) -> Result<(), Failure> {
        let Some(first) = deliveries.first() else { return Ok(()) };
        let session = decode::<Submitted>(&first.body, "a request")?.session;
        let row = match self.sessions.take_up(session).await? {
            Moved::Done(row) => row,
            // The session has ended and all it asked for is applied; nobody waits for these.
            Moved::Refused(_) => return Ok(()),
        };
        let redelivered = deliveries.iter().any(|delivery| delivery.handle.attempt > 1);
        let mut turn = Turn { writer: self, session, row, unpushed: Vec::new() };
        if redelivered {
            turn.recover().await?;
        }
        let mut pushed = 0;
        for (index, delivery) in deliveries.iter().enumerate() {
            let submitted = decode::<Submitted>(&delivery.body, "a request")?;
            assert_eq!(submitted.session, session, "a group holds the requests of one session");
            if let Err(error) = turn.process(submitted).await {
                // What was decided before must not wait for this one's next attempt.
                turn.push().await.map_err(|error| Failure::after(pushed, error.to_string()))?;
                return Err(Failure::after(index, error.to_string()));
            }
            if turn.unpushed.len() >= PUSH_MESSAGES_MAX {
                turn.push().await.map_err(|error| Failure::after(pushed, error.to_string()))?;
                pushed = index + 1;
            }
        }
        turn.push().await.map_err(|error| Failure::after(pushed, error.to_string()))
    }
}

#[async_trait]
impl Handler for Writer {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        match event {
            Event::Messages(deliveries) => self.handle_messages(&deliveries).await.map(|()| Bytes::new()),
            _ => Err(Failure::new("the writer takes messages only")),
        }
    }
}

/// What an operation comes to: its effect and the znodes it touches, or why not. The locks are held.
type Plan = Result<(Effect, Vec<Touched>), Error>;

/// One invocation's work on one session, under one fencing number.
struct Turn<'writer> {
    writer: &'writer Writer,
    session: SessionId,
    row: Row,
    unpushed: Vec<Bytes>,
}

impl Turn<'_> {
    /// Does again what an earlier writer may have left undone: installs and pushes all of the outbox.
    async fn recover(&mut self) -> Result<()> {
        for encoded in self.row.outbox().to_vec() {
            let decided: Decided = decode(&encoded, "a decided request")?;
            install(&self.writer.nodes, &decided).await?;
            self.unpushed.push(encoded);
        }
        self.push().await
    }

    async fn process(&mut self, submitted: Submitted) -> Result<()> {
        let is_numbered = submitted.request > 0;
        let broken = self.writer.broken;
        let is_of_old_attach =
            submitted.attach != self.row.attach && broken != Some(Broken::AcceptsOldAttaches);
        let is_decided =
            submitted.request <= self.row.request && broken != Some(Broken::ForgetsRequestNumbers);
        if is_numbered && (is_of_old_attach || is_decided) {
            // Of an older connection, which nobody listens to, or decided before and pushed by `recover`.
            return Ok(());
        }
        let expected = match submitted.operation {
            Operation::Expire => State::Closing,
            _ => State::Open,
        };
        if self.row.state != expected {
            return Ok(());
        }
        if is_numbered && submitted.request > self.row.request + 1 && broken.is_none() {
            return Err(ports::Error::corrupt(format!(
                "request {} of session {:?} came after {}",
                submitted.request, self.session, self.row.request
            )));
        }
        let holder = Holder {
            request: UpdateId { session: self.session, sequence: self.row.sequence + 1 },
            fence: self.row.fence,
        };
        if matches!(submitted.operation, Operation::Close | Operation::Expire)
            && self.end_a_part(expected).await?
        {
            return Box::pin(self.process(submitted)).await;
        }
        let mut locks = Locks { nodes: &self.writer.nodes, holder, held: Vec::new() };
        let plan = match self.plan(&submitted.operation, &mut locks).await {
            Ok(Ok(plan)) => Ok(plan),
            Ok(Err(refusal)) => {
                locks.release().await?;
                Err(refusal)
            }
            Err(error) => {
                // Whoever meets these locks breaks them; giving them back only saves the wait.
                let _ = locks.release().await;
                return Err(error);
            }
        };
        let held = locks.held;
        self.decide(submitted, holder, plan, &held, expected).await
    }

    /// Decides, installs, and leaves the outcome to be pushed.
    async fn decide(
        &mut self,
        submitted: Submitted,
        holder: Holder,
        plan: Plan,
        held: &[(String, Option<NodeState>)],
        expected: State,
    ) -> Result<()> {
        let temporary = match submitted.operation.payload() {
            Some(Payload::Object { name, .. }) => Some(name.clone()),
            _ => None,
        };
        let (outcome, touched) = match plan {
            Ok((effect, touched)) => (Ok(effect), touched),
            Err(error) => (Err(error), Vec::new()),
        };
        let decided = Decided {
            id: holder.request,
            fence: holder.fence,
            attach: self.row.attach,
            request: submitted.request,
            time_ms: self.writer.clock.now().0 as i64,
            outcome,
            touched,
            temporary,
        };
        let touched_len: usize = decided.touched.iter().map(|touched| 48 + touched.path.len()).sum();
        let encoded = encode_sized(&decided, 96 + submitted.operation.bytes_len() + touched_len);
        match self.writer.sessions.decide(&decided, encoded.clone(), expected).await? {
            Moved::Done(row) => self.row = row,
            Moved::Refused(None) => return Ok(()),
            Moved::Refused(Some(row)) => return self.refused(&decided, row).await,
        }
        self.forget_ephemerals(&decided, held).await?;
        install(&self.writer.nodes, &decided).await?;
        self.unpushed.push(encoded);
        Ok(())
    }

    /// The decision did not go through: another connection, another writer or the heartbeat was faster.
    async fn refused(&mut self, decided: &Decided, row: Row) -> Result<()> {
        let overtaken = row.fence != decided.fence;
        for touched in &decided.touched {
            let holder = Holder { request: decided.id, fence: decided.fence };
            self.writer.nodes.discard(&touched.path, holder).await?;
        }
        self.row = row;
        if overtaken {
            let session = self.session;
            return Err(ports::Error::unavailable(format!(
                "write for session {session:?}, which another writer took up"
            )));
        }
        Ok(())
    }

    async fn plan(&self, operation: &Operation, locks: &mut Locks<'_>) -> Result<Plan> {
        match operation {
            Operation::Create { path, data, acl, lifetime, naming } => {
                self.plan_create(path, data, acl, *lifetime, *naming, locks).await
            }
            Operation::Delete { path, version } => {
                let parent = match tree::check_delete(path) {
                    Ok(parent) => parent,
                    Err(error) => return Ok(Err(error)),
                };
                let parent = Locked { path: parent, state: locks.lock(parent).await? };
                let node = Locked { path, state: locks.lock(path).await? };
                let touched = tree::delete(locks.holder.request, parent, node, *version);
                Ok(touched.map(|touched| (Effect::Delete { paths: vec![path.clone()] }, touched)))
            }
            Operation::SetData { path, data, version } => {
                if let Err(error) = tree::check_set_data(path) {
                    return Ok(Err(error));
                }
                let node = Locked { path, state: locks.lock(path).await? };
                let touched = tree::set_data(locks.holder.request, node, *version);
                let effect = Effect::SetData { path: path.clone(), data: data.clone() };
                Ok(touched.map(|touched| (effect, touched)))
            }
            Operation::Refuse(error) => Ok(Err(*error)),
            Operation::Attach => Ok(Ok((Effect::Attach, Vec::new()))),
            Operation::Close | Operation::Expire => self.plan_close(locks).await.map(Ok),
        }
    }

    async fn plan_create(
        &self,
        path: &str,
        data: &Payload,
        acl: &[Acl],
        lifetime: Lifetime,
        naming: Naming,
        locks: &mut Locks<'_>,
    ) -> Result<Plan> {
        let (parent_path, name) = match tree::check_create(path, acl, naming) {
            Ok(split) => split,
            Err(error) => return Ok(Err(error)),
        };
        let parent = Locked { path: parent_path, state: locks.lock(parent_path).await? };
        let Some(parent_state) = parent.state else { return Ok(Err(Error::NoNode)) };
        let whole = match tree::name(parent_path, name, naming, parent_state) {
            Ok(whole) => whole,
            Err(error) => return Ok(Err(error)),
        };
        let child = Locked { path: &whole, state: locks.lock(&whole).await? };
        let touched = match tree::create(locks.holder.request, parent, child, lifetime) {
            Ok(touched) => touched,
            Err(error) => return Ok(Err(error)),
        };
        if lifetime == Lifetime::Ephemeral {
            // Before the decision: an entry too many is seen through at the end, one too few is not.
            self.writer.ephemerals.add(locks.holder.request, &whole).await?;
        }
        Ok(Ok((Effect::Create { path: whole, data: data.clone(), acl: acl.to_vec() }, touched)))
    }

    /// A session whose ephemerals do not fit into one decision loses some of them before it ends: true if it did.
    async fn end_a_part(&mut self, expected: State) -> Result<bool> {
        let all = self.writer.ephemerals.all(self.session).await?;
        let mut bytes = 0;
        let fits = |path: &&String| {
            bytes += path.len();
            bytes <= self.writer.close_path_bytes_max
        };
        let part: Vec<String> = all.iter().take_while(fits).cloned().collect();
        if part.len() == all.len() {
            return Ok(false);
        }
        let request = UpdateId { session: self.session, sequence: self.row.sequence + 1 };
        let holder = Holder { request, fence: self.row.fence };
        let mut locks = Locks { nodes: &self.writer.nodes, holder, held: Vec::new() };
        let plan = self.plan_end(part.clone(), &mut locks).await?;
        let plan = Ok((Effect::Delete { paths: plan.0 }, plan.1));
        let held = locks.held;
        let submitted = Submitted {
            session: self.session,
            attach: self.row.attach,
            request: 0,
            operation: Operation::Expire,
        };
        let sequence = self.row.sequence;
        self.decide(submitted, holder, plan, &held, expected).await?;
        if self.row.sequence == sequence {
            return Ok(false); // somebody else was faster; what is left is judged by the row as it is now
        }
        for path in &part {
            // Entries that turned out to name nothing of this session's.
            self.writer.ephemerals.discard(self.session, path).await?;
        }
        Ok(true)
    }

    async fn plan_close(&self, locks: &mut Locks<'_>) -> Result<(Effect, Vec<Touched>)> {
        let paths = self.writer.ephemerals.all(self.session).await?;
        let (vanishing, touched) = self.plan_end(paths, locks).await?;
        Ok((Effect::Close { paths: vanishing }, touched))
    }

    /// What vanishes of `ephemerals`, and what that touches.
    async fn plan_end(
        &self,
        ephemerals: Vec<String>,
        locks: &mut Locks<'_>,
    ) -> Result<(Vec<String>, Vec<Touched>)> {
        let mut paths = Vec::with_capacity(2 * ephemerals.len());
        for path in ephemerals {
            paths.extend(path::split(&path).map(|(parent, _)| parent.to_owned()));
            paths.push(path);
        }
        paths.sort_unstable();
        paths.dedup();
        let mut locked = Vec::with_capacity(paths.len());
        for path in &paths {
            locked.push(Locked { path, state: locks.lock(path).await? });
        }
        let (touched, vanishing) = tree::close(locks.holder.request, self.session, &locked);
        let is_touched: BTreeSet<&str> = touched.iter().map(|touched| touched.path.as_str()).collect();
        for path in paths.iter().filter(|path| !is_touched.contains(path.as_str())) {
            locks.release_one(path).await?;
        }
        Ok((vanishing, touched))
    }

    /// Removes the index entries of ephemerals that are being deleted, while their znodes are still locked: the
    /// owner may make them again right after. A crash before this leaves entries that the end of the owner's
    /// session sees through, and removes.
    async fn forget_ephemerals(&self, decided: &Decided, held: &[(String, Option<NodeState>)]) -> Result<()> {
        let Ok(Effect::Delete { paths }) = &decided.outcome else { return Ok(()) };
        for (path, state) in held.iter().filter(|(path, _)| paths.contains(path)) {
            if let Some(owner) = state.and_then(|state| state.owner) {
                self.writer.ephemerals.remove(owner, path).await?;
            }
        }
        Ok(())
    }

    async fn push(&mut self) -> Result<()> {
        if self.unpushed.is_empty() {
            return Ok(());
        }
        let message = |body| Message { group: names::distributor_group(), deduplication: None, body };
        let messages = self.unpushed.drain(..).map(message).collect();
        self.writer.queue.send(names::DISTRIBUTOR_QUEUE, messages).await.map(|_| ())
    }
}

/// Installs what a decided request makes of every znode it touches; what is installed already stays.
pub(crate) async fn install(nodes: &Nodes, decided: &Decided) -> Result<()> {
    for touched in &decided.touched {
        nodes.install(decided, touched).await?;
    }
    Ok(())
}

/// The locks held for one request, in the order they were taken.
struct Locks<'nodes> {
    nodes: &'nodes Nodes,
    holder: Holder,
    held: Vec<(String, Option<NodeState>)>,
}

impl Locks<'_> {
    async fn lock(&mut self, path: &str) -> Result<Option<NodeState>> {
        let state = self.nodes.lock(path, self.holder).await?;
        self.held.push((path.to_owned(), state));
        Ok(state)
    }

    async fn release(&mut self) -> Result<()> {
        for (path, state) in self.held.drain(..) {
            self.nodes.unlock(&path, self.holder, state).await?;
        }
        Ok(())
    }

    async fn release_one(&mut self, path: &str) -> Result<()> {
        let index = self.held.iter().position(|(held, _)| held == path);
        if let Some(index) = index {
            let (path, state) = self.held.swap_remove(index);
            self.nodes.unlock(&path, self.holder, state).await?;
        }
        Ok(())
    }
}
