//! The client library: one session's requests, replies and watch events, in ZooKeeper's order.
//!
//! Requests are executed in the order of submission. Updates go to the session's queue, numbered,
//! and come back through the tail. A read runs when every update before it has come back. Its
//! result is placed after the older events and before the newer ones ([`crate::client::read`]). An
//! update is not sent before the reads ahead of it have run, so these reads see the state between
//! the session's own updates, as in ZooKeeper, however much is pipelined.
//!
//! Executed requests are answered in order, once they are durable. Execution does not wait for the
//! disk, so a pipeline of reads and updates advances in microseconds while its replies share an
//! fsync.
//!
//! Every output has a zxid, and these never decrease. An update has its own zxid. A read has the
//! lowest zxid at which its result is true and which is neither below an earlier output nor below
//! the durable zxid, so that it rarely waits.
//!
//! A client acts for its session only under a lease (rule C-6, [`lease`]).
//!
//! This is FaaSKeeper's client library with its sorted receive queue (section 4.5), without
//! threads.

mod lease;
mod read;
mod update;

use std::{fmt, sync::Arc, time::Duration};

use ports::{ErrorKind, Incarnation, Monotonic};

use self::{
    lease::Lease,
    read::{Asker, Gathered, ReadResult},
};
use crate::{
    Error,
    backlog::Backlog,
    broken::Broken,
    dependency::TrackedStore,
    error::{ConnectError, Ended},
    model::{Connection, Identity, Output, Password, Request, SessionId, Zxid},
    queue_names::{self, Messages},
    records::{Identities, Operation, Submitted, UpdateAnswer, encode_at_end},
    tail::{
        Tail,
        event_queue::{ClientEvent, EventQueue},
    },
};

/// The most requests that may wait for answers. At the bound, the front end stops reading from its
/// peer.
const PENDING_MAX: usize = 1000;

/// The most bytes of requests that may wait for answers. At the bound, which one request may
/// exceed, the front end stops reading too.
const PENDING_BYTES_MAX: usize = 4 << 20;

/// At this many bytes of waiting outputs, which one answer may exceed, the client's reads wait.
/// Otherwise a peer that reads no answers could have a thousand of them computed.
const HELD_BYTES_MAX: usize = 1 << 20;

/// One connection to one session. If it is dropped without [`Request::Close`], the session ends at
/// its timeout.
///
/// A front end loops: it calls [`Client::pump`], writes the outputs, and waits until bytes of the
/// peer arrive or [`Client::wait`] returns. It passes the peer's requests to [`Client::submit`].
pub struct Client {
    tail: Arc<Tail>,
    attached: Attached,
    event_queue: Arc<EventQueue>,
    /// The number of the tail position from which everything in the queue was delivered.
    position: u64,
    /// Requests that are not executed yet, oldest first.
    pending: Backlog<Pending>,
    /// How many entries at the head of `pending` are updates that were sent.
    sent: usize,
    last_request: u64,
    /// The head of `pending` is a read that must wait until the view reaches this zxid.
    blocked_until: Option<Zxid>,
    /// The result of that read, and the least zxid at which it may be placed. Until it is placed,
    /// no newer event leaves the queue.
    kept: Option<Box<(ReadResult, Zxid)>>,
    /// Outputs whose zxid is not durable yet, in order.
    held: Backlog<(Zxid, Output)>,
    /// The head of `pending` is a read that could run if there were room for its answer.
    is_output_full: bool,
    /// The zxid of the last output or of the last armed watch. No later output has a lower one.
    last_zxid: Zxid,
    /// How the client ends once all outputs are delivered.
    end: Option<Ended>,
    /// The peer has asked to close the session.
    is_closing: bool,
    lease: Lease,
    /// What its connection has proved about its peer, and the peer's address.
    identities: Identities,
    /// The results of the parts of the multi read at the head of `pending` that have run.
    gathered: Gathered,
}

/// A session that was opened or resumed for one connection.
pub(crate) struct Attached {
    pub(crate) connection: Connection,
    pub(crate) password: Password,
    pub(crate) timeout: Duration,
    /// The time before the attach was requested.
    pub(crate) asked_at: Monotonic,
    /// The lease renewals counted in the row at that time.
    pub(crate) renewals: i64,
    /// The store of the session's row. A store that lost this attach assigns its number to another
    /// connection.
    pub(crate) store: TrackedStore,
    /// The incarnation of the queues' store before the attach was requested.
    pub(crate) incarnation: Incarnation,
}

enum Pending {
    Update {
        tag: i32,
        request: u64,
        operation: Option<Operation>,
    },
    Read {
        tag: i32,
        request: Request,
    },
}

impl Client {
    pub(crate) fn new(tail: Arc<Tail>, attached: Attached) -> Self {
        let event_queue = Arc::new(EventQueue::default());
        let position = tail.register(attached.connection, event_queue.clone());
        let asked_at = attached.asked_at;
        Self {
            lease: Lease::granted(asked_at, asked_at, attached.renewals),
            tail,
            attached,
            event_queue,
            position,
            pending: Backlog::default(),
            sent: 0,
            last_request: 0,
            blocked_until: None,
            kept: None,
            held: Backlog::default(),
            is_output_full: false,
            last_zxid: Zxid(0),
            end: None,
            is_closing: false,
            identities: Identities::NONE,
            gathered: Gathered::default(),
        }
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.attached.connection.session
    }

    /// The session's password.
    pub fn password(&self) -> Password {
        self.attached.password
    }

    /// Adds identities to those of the connection. The front end bounds their number and size,
    /// because they travel with every update.
    pub fn add_identities(&mut self, added: &[Identity]) {
        let mut all = self.identities.decode();
        for identity in added {
            if !all.contains(identity) {
                all.push(identity.clone());
            }
        }
        all.shrink_to_fit();
        self.identities = Identities::of(&all);
        self.tail.identify(self.attached.connection, all);
    }

    /// The granted timeout.
    pub fn timeout(&self) -> Duration {
        self.attached.timeout
    }

    /// Whether another request may be submitted now. If not, the front end stops reading from the
    /// peer (back-pressure).
    pub fn has_room(&self) -> bool {
        self.pending.len() + self.held.len() < PENDING_MAX
            && self.pending.bytes() < PENDING_BYTES_MAX
    }

    /// Whether any submitted request has not been sent yet.
    pub fn has_unsent(&self) -> bool {
        self.pending.len() > self.sent
    }

    /// Takes the next request. Its reply carries the same `tag`. It makes no call to a store,
    /// except to read the store's room.
    pub fn submit(&mut self, tag: i32, request: Request) {
        self.lease.has_activity = true;
        let bytes = request.bytes_len();
        let operation = match update::operation(request) {
            Ok(operation) => operation,
            Err(mut read) => {
                read::reverse(&mut read);
                self.pending
                    .push_back(bytes, Pending::Read { tag, request: read });
                return;
            }
        };
        self.is_closing |= operation == Operation::Close;
        if operation.needs_room() && !self.attached.store.store().has_room() {
            // Answered in order by this process alone, because a refused request must not use up
            // room.
            let refusal = if let Operation::Refuse(error) = operation {
                error
            } else {
                Error::NoRoom
            };
            self.pending.push_back(
                0,
                Pending::Read {
                    tag,
                    request: Request::Refuse(refusal),
                },
            );
            return;
        }
        self.submit_update(tag, bytes, operation);
    }

    fn submit_update(&mut self, tag: i32, bytes: usize, operation: Operation) {
        self.last_request += 1;
        let update = Pending::Update {
            tag,
            request: self.last_request,
            operation: Some(operation),
        };
        self.pending.push_back(bytes, update);
    }

    /// Executes all requests that can run, and appends every output that may be sent, in order. It
    /// waits only for stores. Not cancellation safe: run it to its end. It appends at most a
    /// mebibyte and one output, so the caller calls it again once these are taken.
    pub async fn pump(&mut self, outputs: &mut Vec<Output>) -> Result<(), Ended> {
        self.keep_lease().await?;
        loop {
            self.send().await?;
            self.process_events(self.due())?;
            let is_read = matches!(self.pending.front(), Some(Pending::Read { .. }));
            self.is_output_full = is_read && self.holds_enough();
            if !is_read || self.is_output_full || !self.run_read().await? {
                break;
            }
        }
        self.release(outputs)?;
        // A waiting read needs the answer before it is durable.
        let is_eager = self.pending.len() > self.sent;
        self.event_queue.set_eager(is_eager);
        if is_eager && self.kept.is_none() && !self.event_queue.is_empty() {
            // An event arrived while the client was not eager, so run again at once.
            self.event_queue.wake();
        }
        self.end
            .take_if(|_| self.held.is_empty())
            .map_or(Ok(()), Err)
    }

    fn holds_enough(&self) -> bool {
        self.held.bytes() >= HELD_BYTES_MAX
            && !self.tail.env.breaks(Broken::QueuesOutputsWithoutBound)
    }

    /// Returns once [`Client::pump`] has something to do. Cancellation safe.
    pub async fn wait(&mut self) {
        if self.is_output_full && !self.holds_enough() {
            return;
        }
        if self.pending.is_empty() && self.held.is_empty() {
            self.pending.release_unused();
            self.held.release_unused();
            self.event_queue.release_unused();
        }
        self.set_lease_timer();
        let Self {
            tail,
            event_queue,
            blocked_until,
            lease,
            ..
        } = self;
        let view = async {
            match blocked_until {
                // On the heap, because few clients wait for the view.
                Some(zxid) => Box::pin(tail.reached(*zxid)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = event_queue.arrived() => {}
            () = view => {}
            () = lease.timer_fires() => {}
        }
    }

    /// Submits the attach and waits until its answer is durable. Meanwhile it renews the lease,
    /// because the peer is connected and waits too. Any other event means that the connection
    /// ended.
    pub(crate) async fn first_request(&mut self) -> Result<(), ConnectError> {
        self.submit_update(0, 0, Operation::Attach);
        self.send().await?;
        loop {
            self.lease.has_activity = true;
            self.wait().await;
            self.keep_lease().await?;
            self.process_events(self.due())?;
            let mut outputs = Vec::new();
            self.release(&mut outputs)?;
            if outputs
                .iter()
                .any(|output| matches!(output, Output::Reply { .. }))
            {
                // The answer is durable, and the attach precedes it. If the attach itself was lost,
                // another connection has its number.
                if !self.tail.env.breaks(Broken::AcceptsLostAttaches) {
                    self.attached.store.externalize().await?;
                }
                return Ok(());
            }
        }
    }

    /// Sends the updates that have no read ahead of them.
    async fn send(&mut self) -> Result<(), ports::Error> {
        if self.unsent().next().is_none() {
            return Ok(());
        }
        let env = Arc::clone(&self.tail.env);
        let queue = &*env.parts.queue;
        // The data of longer ones goes into objects, and a message keeps its whole buffer.
        let lengths = self.unsent().map(Operation::bytes_len);
        let inline = lengths.filter(|length| *length <= env.config.message_payload_bytes_max);
        let bytes = inline.map(|length| 64 + length).sum();
        let mut messages = Messages::of(queue, bytes);
        while let Some(Pending::Update {
            request, operation, ..
        }) = self.pending.get_mut(self.sent)
        {
            let mut operation = operation.take().expect("sent requests are counted");
            let (client, request) = (self.attached.connection, *request);
            self.sent += 1;
            match update::detach_payload(&env, client, request, &mut operation).await {
                Err(error) if error.kind() == ErrorKind::NoRoom => {
                    operation = Operation::Refuse(Error::NoRoom);
                }
                detached => detached?,
            }
            let submitted = Submitted {
                session: client.session,
                attach: client.attach,
                request,
                identities: self.identities.clone(),
                operation,
            };
            messages.add(|buffer| encode_at_end(buffer, &submitted));
        }
        self.tail.poll_soon();
        let group = queue_names::request_group(self.session());
        queue_names::send_messages(queue, queue_names::REQUEST_QUEUE, group, messages).await
    }

    /// The updates that have no read ahead of them.
    fn unsent(&self) -> impl Iterator<Item = &Operation> {
        let unsent = self.pending.iter().skip(self.sent);
        unsent.map_while(|pending| match pending {
            Pending::Update { operation, .. } => operation.as_ref(),
            Pending::Read { .. } => None,
        })
    }

    /// Processes the queued events up to `until`.
    fn process_events(&mut self, until: Zxid) -> Result<(), Ended> {
        let unavailable =
            |attempted: &'static str| Err(Ended::Store(ports::Error::unavailable(attempted)));
        while let Some(event) = self.event_queue.take(until) {
            match event {
                ClientEvent::Answer {
                    zxid,
                    request,
                    answer,
                } => self.handle_answer(zxid, request, answer),
                ClientEvent::Event { zxid, kind, path } => {
                    self.push_output(
                        zxid,
                        Output::Event {
                            zxid: Some(zxid),
                            kind,
                            path,
                        },
                    );
                }
                ClientEvent::Expired => return Err(Ended::Expired),
                ClientEvent::Moved => return Err(Ended::Moved),
                ClientEvent::PositionLost => return unavailable("follow the distributor's log"),
                ClientEvent::Overflow => {
                    return unavailable("queue more events for a client that does not read them");
                }
            }
        }
        Ok(())
    }

    /// Handles the answer of an update. Answers come in the order of the updates, and no read is
    /// ahead of a sent update.
    fn handle_answer(
        &mut self,
        zxid: Zxid,
        answered: u64,
        answer: Result<UpdateAnswer, crate::Error>,
    ) {
        let Some(Pending::Update { tag, request, .. }) = self.pending.pop_front() else {
            panic!(
                "request {answered}: only this attach's updates are answered, in order, and none waits"
            )
        };
        assert_eq!(
            request, answered,
            "only this attach's updates are answered, in order"
        );
        self.sent -= 1;
        if answer == Ok(UpdateAnswer::Closed) {
            self.end = Some(Ended::Closed);
        }
        self.push_output(
            zxid,
            Output::Reply {
                tag,
                zxid,
                result: answer.map(update::response),
            },
        );
    }

    /// Queues an output that may be sent once `zxid` is durable.
    fn push_output(&mut self, zxid: Zxid, output: Output) {
        assert!(
            zxid >= self.last_zxid,
            "output {zxid:?} would follow {:?}",
            self.last_zxid
        );
        self.last_zxid = zxid;
        self.held.push_back(output.bytes_len(), (zxid, output));
    }

    /// Moves durable outputs to `outputs`, and schedules a wake-up for the first one that is not
    /// durable. The lease may have run out by now even if it was renewed recently, because the work
    /// before may have taken long.
    fn release(&mut self, outputs: &mut Vec<Output>) -> Result<(), Ended> {
        if !self.held.is_empty() && self.lease_has_run_out() {
            return Err(Ended::LeaseLost);
        }
        loop {
            let Some(durable) = self.tail.durable_from(self.position) else {
                return Ok(());
            };
            while let Some((_, output)) = self.held.pop_front_if(|(zxid, _)| *zxid <= durable) {
                outputs.push(output);
            }
            let Some((zxid, _)) = self.held.front() else {
                return Ok(());
            };
            if self
                .tail
                .wake_when_durable(self.attached.connection, *zxid, &self.event_queue)
            {
                return Ok(());
            }
        }
    }

    /// Runs the read at the head. Returns false if it must wait for the view.
    async fn run_read(&mut self) -> Result<bool, Ended> {
        if self
            .blocked_until
            .is_some_and(|zxid| zxid > self.tail.applied())
        {
            return Ok(false);
        }
        self.blocked_until = None;
        let Some(Pending::Read { tag, mut request }) = self.pending.pop_front() else {
            unreachable!("the caller checked that the head is a read")
        };
        let whole = self.forgetful_copy(&request);
        if let Request::Authenticate(identities) = &request {
            // In its place: the requests before it have the identities of before.
            self.add_identities(identities);
        }
        let mut attempts = 0;
        while attempts < read::ATTEMPTS_MAX {
            let (mut found, floor) = match self.kept.take() {
                Some(kept) => *kept,
                None => self.read(&request).await?,
            };
            let may_wait = !self.tail.env.breaks(Broken::ReadsAheadOfTheView);
            if may_wait && found.zxid > self.tail.applied() {
                let zxid = found.zxid;
                self.kept = Some(Box::new((found, floor)));
                return Ok(self.block(tag, request, zxid));
            }
            let Some(zxid) = found.settle(&self.tail, floor) else {
                attempts += 1;
                request = whole.clone().unwrap_or(request);
                continue;
            };
            self.process_events(zxid)?;
            if !found.arm_watch(&self.tail, self.attached.connection, zxid) {
                attempts += 1;
                continue;
            }
            let is_whole = found.is_whole();
            match found.output(tag, zxid, &mut self.gathered) {
                Some(output) => self.push_output(zxid, output),
                // A watch was armed, or a part was read, without output. Later outputs must not
                // have a lower zxid.
                None => self.last_zxid = zxid,
            }
            if is_whole {
                return Ok(true);
            }
            read::remove_last(&mut request);
            if self.holds_enough() {
                self.put_back(tag, request);
                return Ok(true);
            }
            attempts = 0;
        }
        // More changes were delivered than are kept, several times in a row. The rest of the
        // process gets a turn.
        let zxid = self.tail.applied();
        Ok(self.block(tag, request, zxid))
    }

    /// The whole request, in the mutant that starts it again from its beginning.
    fn forgetful_copy(&self, request: &Request) -> Option<Request> {
        let is_forgetful = self.tail.env.breaks(Broken::ForgetsRestoredWatches);
        is_forgetful.then(|| request.clone())
    }

    /// The result of a read, and the least zxid at which it may be placed.
    async fn read(&mut self, request: &Request) -> Result<(ReadResult, Zxid), Ended> {
        let floor = self.last_zxid.max(self.tail.durable());
        let asker = Asker {
            connection: self.attached.connection,
            identities: &self.identities,
        };
        let found = read::run(&self.tail, asker, request, &mut self.gathered).await?;
        Ok((found, floor))
    }

    /// Returns an unfinished read to the head until the view reaches `zxid`.
    fn block(&mut self, tag: i32, request: Request, zxid: Zxid) -> bool {
        self.blocked_until = Some(zxid);
        self.put_back(tag, request);
        false
    }

    /// The zxid up to which events may be processed now. The result of a waiting read may have to
    /// be placed before the rest.
    fn due(&self) -> Zxid {
        self.kept.as_ref().map_or(Zxid(i64::MAX), |kept| kept.1)
    }

    fn put_back(&mut self, tag: i32, request: Request) {
        self.pending
            .push_front(request.bytes_len(), Pending::Read { tag, request });
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.tail.unregister(self.attached.connection);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("connection", &self.attached.connection)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
