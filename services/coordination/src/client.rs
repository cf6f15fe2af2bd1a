//! The client library: one session's requests, replies and watch events, in ZooKeeper's order.
//!
//! Requests are taken in order and answered in order. Updates go to the session's queue at once, numbered;
//! their answers come back through the tail. A read runs when everything before it is answered, and shows
//! nothing newer than this process's view (`crate::read`). So a read that follows a write sees it, and an
//! event comes before any reply that reflects a later change: what FaaSKeeper's client library does with
//! its sorted receive queue (section 4.5), without threads.
//!
//! A client speaks for its session only under a lease (rule C-6): it renews the session's row while its
//! peer is active, counts the lease from before each renewal was sent, and falls silent when it runs out.

use std::{collections::VecDeque, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use ports::{Monotonic, queue::Message};

use crate::{
    Error,
    broken::Broken,
    error::{ConnectError, Ended},
    gateway::Shared,
    mailbox::{Letter, Mailbox},
    model::{Output, Password, Request, Response, SessionId, Zxid},
    names, read,
    records::{Answer, Operation, Payload, Submitted, encode_sized},
    session::Moved,
    user_store::put_object,
};

/// How many requests may wait for their answers before the front end stops reading from its peer.
const PENDING_MAX: usize = 1000;

/// Renewals per timeout while the peer is active.
const RENEWALS_PER_TIMEOUT: u32 = 4;

/// One connection to one session. Dropping it without [`Request::Close`] leaves the session to its timeout.
///
/// A front end loops: [`Client::pump`], write the outputs, then wait for whichever comes first: bytes of
/// the peer, which become [`Client::submit`] calls, or [`Client::wait`].
pub struct Client {
    shared: Arc<Shared>,
    session: SessionId,
    password: Password,
    attach: u64,
    timeout: Duration,
    mailbox: Arc<Mailbox>,
    /// Unanswered requests, oldest first.
    pending: VecDeque<Pending>,
    /// Answers of updates that wait for an earlier read.
    answers: VecDeque<(Zxid, u64, Result<Answer, Error>)>,
    /// Updates not yet sent.
    unsent: Vec<(u64, Operation)>,
    last_request: u64,
    /// The head of `pending` is a read that must not run before the view is here.
    blocked_until: Option<Zxid>,
    /// The highest zxid given to the peer: a reply that was overtaken by an event shows no lower one.
    last_shown: Zxid,
    lease: Lease,
}

enum Pending {
    Update { tag: i32, request: u64 },
    Read { tag: i32, request: Request },
}

struct Lease {
    renewed_at: Monotonic,
    is_peer_active: bool,
    /// Fires when the next renewal may be due; made when needed and kept over calls of `wait`.
    timer: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Client {
    pub(crate) fn new(
        shared: Arc<Shared>,
        session: SessionId,
        password: Password,
        attach: u64,
        timeout: Duration,
        asked_at: Monotonic,
    ) -> Self {
        let mailbox = Arc::new(Mailbox::default());
        shared.tail.register(session, attach, mailbox.clone());
        Self {
            shared,
            session,
            password,
            attach,
            timeout,
            mailbox,
            pending: VecDeque::new(),
            answers: VecDeque::new(),
            unsent: Vec::new(),
            last_request: 0,
            blocked_until: None,
            last_shown: Zxid(0),
            lease: Lease { renewed_at: asked_at, is_peer_active: false, timer: None },
        }
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Its password.
    pub fn password(&self) -> Password {
        self.password
    }

    /// The timeout granted.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether another request may be submitted now; if not, stop reading from the peer (back-pressure).
    pub fn has_room(&self) -> bool {
        self.pending.len() < PENDING_MAX
    }

    /// Takes the next request; `tag` comes back with its reply. Does no I/O.
    pub fn submit(&mut self, tag: i32, request: Request) {
        self.lease.is_peer_active = true;
        let operation = match request {
            Request::Create { path, data, acl, lifetime, naming } => {
                Operation::Create { path, data: payload(data), acl, lifetime, naming }
            }
            Request::Delete { path, version } => Operation::Delete { path, version },
            Request::SetData { path, data, version } => {
                Operation::SetData { path, data: payload(data), version }
            }
            Request::Close => Operation::Close,
            read => {
                self.pending.push_back(Pending::Read { tag, request: read });
                return;
            }
        };
        self.last_request += 1;
        self.pending.push_back(Pending::Update { tag, request: self.last_request });
        self.unsent.push((self.last_request, operation));
    }

    /// Sends what was submitted, runs the reads that may run, and appends every output that is ready, in
    /// order. Does not wait for anything but stores. Not cancellation safe: run it to its end.
    pub async fn pump(&mut self, outputs: &mut Vec<Output>) -> Result<(), Ended> {
        self.keep_lease().await?;
        self.send().await?;
        self.open_mailbox(outputs)?;
        while let Some(pending) = self.pending.front() {
            match pending {
                Pending::Update { tag, request } => {
                    let Some((zxid, _, answer)) =
                        self.answers.pop_front_if(|(_, answered, _)| answered == request)
                    else {
                        break;
                    };
                    let zxid = zxid.max(self.last_shown);
                    self.last_shown = zxid;
                    let result = answer.map(response);
                    let is_end = result == Ok(Response::Closed);
                    outputs.push(Output::Reply { tag: *tag, zxid, result });
                    self.pending.pop_front();
                    if is_end {
                        return Err(Ended::Closed);
                    }
                }
                Pending::Read { .. } => {
                    if !self.run_read(outputs).await? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns once [`Client::pump`] has something to do. Cancellation safe.
    pub async fn wait(&mut self) {
        if self.lease.timer.is_none() && self.lease.is_peer_active {
            let due = self.lease.renewed_at + self.renewal_period();
            let clock = self.shared.clock.clone();
            self.lease.timer = Some(Box::pin(async move { clock.sleep(due.since(clock.monotonic())).await }));
        }
        let Self { shared, mailbox, blocked_until, lease, .. } = self;
        let view = async {
            match blocked_until {
                Some(zxid) => shared.tail.reached(*zxid).await,
                None => std::future::pending().await,
            }
        };
        let timer = async {
            match &mut lease.timer {
                Some(timer) => timer.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = mailbox.arrived() => {}
            () = view => {}
            () = timer => self.lease.timer = None,
        }
    }

    /// Submits the attach and waits for its answer; whatever else arrives belongs to an end.
    pub(crate) async fn first_request(&mut self) -> Result<(), ConnectError> {
        self.last_request = 1;
        self.unsent.push((1, Operation::Attach));
        self.send().await?;
        loop {
            self.mailbox.arrived().await;
            while let Some(letter) = self.mailbox.take() {
                match letter {
                    Letter::Answer { answer: Ok(Answer::Attached), request, .. } => {
                        assert_eq!(request, 1, "an attach is the first request");
                        return Ok(());
                    }
                    Letter::Event { .. } => {}
                    Letter::LostPlace | Letter::Overflow => {
                        return Err(ports::Error::unavailable("follow the distributor's log").into());
                    }
                    Letter::Expired | Letter::Moved => return Err(ConnectError::Expired),
                    Letter::Answer { request, .. } => {
                        panic!(
                            "request {request} of an earlier connection was decided after the attach (rule C-6)"
                        )
                    }
                }
            }
        }
    }

    /// Renews the lease if that is due, and falls silent if it has run out.
    async fn keep_lease(&mut self) -> Result<(), Ended> {
        let now = self.shared.clock.monotonic();
        let age = now.since(self.lease.renewed_at);
        if age >= self.timeout {
            return Err(Ended::LeaseLost);
        }
        if !self.lease.is_peer_active || age < self.renewal_period() {
            return Ok(());
        }
        match self.shared.sessions.renew(self.session, self.attach).await? {
            Moved::Done(_) => {
                self.lease = Lease { renewed_at: now, is_peer_active: false, timer: None };
                Ok(())
            }
            Moved::Refused(Some(row)) if row.attach != self.attach => Err(Ended::Moved),
            Moved::Refused(_) => Err(Ended::Expired),
        }
    }

    fn renewal_period(&self) -> Duration {
        self.timeout / RENEWALS_PER_TIMEOUT
    }

    async fn send(&mut self) -> Result<(), ports::Error> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        let mut messages = Vec::with_capacity(self.unsent.len());
        for (request, mut operation) in self.unsent.drain(..) {
            detach_payload(&self.shared, self.session, self.attach, request, &mut operation).await?;
            let submitted = Submitted { session: self.session, attach: self.attach, request, operation };
            let group = names::request_group(self.session);
            let body = encode_sized(&submitted, 48 + submitted.operation.bytes_len());
            messages.push(Message { group, deduplication: None, body });
        }
        let batch = self.shared.queue.limits().batch_messages_max;
        while !messages.is_empty() {
            let rest = messages.split_off(messages.len().min(batch));
            self.shared.queue.send(names::REQUEST_QUEUE, std::mem::replace(&mut messages, rest)).await?;
        }
        Ok(())
    }

    fn open_mailbox(&mut self, outputs: &mut Vec<Output>) -> Result<(), Ended> {
        while let Some(letter) = self.mailbox.take() {
            match letter {
                Letter::Answer { zxid, request, answer } => self.answers.push_back((zxid, request, answer)),
                Letter::Event { zxid, kind, path } => {
                    self.at_least(zxid);
                    outputs.push(Output::Event { zxid: Some(zxid), kind, path });
                }
                Letter::Expired => return Err(Ended::Expired),
                Letter::Moved => return Err(Ended::Moved),
                Letter::LostPlace => {
                    return Err(Ended::Store(ports::Error::unavailable("follow the distributor's log")));
                }
                Letter::Overflow => {
                    return Err(Ended::Store(ports::Error::unavailable(
                        "hold more events for a client that reads none",
                    )));
                }
            }
        }
        Ok(())
    }

    /// `zxid`, or the highest that the peer has seen if that is above it; the peer sees it now.
    fn at_least(&mut self, zxid: Zxid) -> Zxid {
        self.last_shown = self.last_shown.max(zxid);
        self.last_shown
    }

    /// Runs the read at the head; false if it has to wait for the view.
    async fn run_read(&mut self, outputs: &mut Vec<Output>) -> Result<bool, Ended> {
        if self.blocked_until.is_some_and(|zxid| zxid > self.shared.tail.applied()) {
            return Ok(false);
        }
        self.blocked_until = None;
        let Some(Pending::Read { tag, request }) = self.pending.pop_front() else {
            unreachable!("the head was seen to be a read")
        };
        for _ in 0..read::ATTEMPTS_MAX {
            let since = self.shared.tail.applied();
            let found = read::look(&self.shared, &request).await?;
            let may_wait = self.shared.config.broken != Some(Broken::ReadsAheadOfTheView);
            if may_wait && found.zxid > self.shared.tail.applied() {
                self.blocked_until = Some(found.zxid);
                self.pending.push_front(Pending::Read { tag, request });
                return Ok(false);
            }
            self.open_mailbox(outputs)?;
            if !found.is_overtaken(&self.shared.tail, self.session, since) {
                let zxid = self.at_least(self.shared.tail.applied());
                found.output(tag, zxid, outputs);
                return Ok(true);
            }
        }
        // Overtaken again and again: give the rest of the process a turn.
        self.blocked_until = Some(Zxid(self.shared.tail.applied().0));
        self.pending.push_front(Pending::Read { tag, request });
        Ok(false)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.tail.unregister(self.session, self.attach);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("session", &self.session)
            .field("attach", &self.attach)
            .finish_non_exhaustive()
    }
}

fn payload(data: Option<bytes::Bytes>) -> Payload {
    data.map_or(Payload::Null, Payload::Inline)
}

/// Data that does not fit into a message travels as a temporary object (`faaskeeper.txt`, section 4.7).
async fn detach_payload(
    shared: &Shared,
    session: SessionId,
    attach: u64,
    request: u64,
    operation: &mut Operation,
) -> Result<(), ports::Error> {
    let (Operation::Create { data, .. } | Operation::SetData { data, .. }) = operation else { return Ok(()) };
    let Payload::Inline(bytes) = data else { return Ok(()) };
    if bytes.len() <= shared.config.message_payload_bytes_max {
        return Ok(());
    }
    let name = format!("temporary/{:016x}/{attach:x}-{request:x}", session.0);
    put_object(&*shared.temporary, &name, bytes.clone()).await?;
    *data = Payload::Object { name, bytes_len: bytes.len() as u64 };
    Ok(())
}

fn response(answer: Answer) -> Response {
    match answer {
        Answer::Created { path, stat } => Response::Created { path, stat },
        Answer::Deleted => Response::Deleted,
        Answer::Set(stat) => Response::Stat(stat),
        Answer::Closed => Response::Closed,
        Answer::Attached => unreachable!("an attach is answered before the first request"),
    }
}
