//! Session rows: every request of a session is decided here, and so is the connection that may act
//! for it.
//!
//! A session is one item. Its attributes are the commit point of all its requests (rule C-1), the
//! numbers that make them idempotent (C-2), the outbox that survives its writer (C-3), and the
//! lease (C-6). Every transition is one conditional update of that item, and only this module makes
//! them.
//!
//! Invariants
//! - `sequence` grows by one with each decided request. The outbox holds exactly the requests in
//!   (`applied`, `sequence`], in order. Their effects are installed before they are pushed.
//! - `fence` grows whenever a writer takes over the session, and whenever another writer fences it
//!   out. A writer with an older number can decide nothing.
//! - `attach` grows with each connection. Requests of older attaches are refused.
//! - `planning_attempts` belongs to the next request, and is reset when another request becomes the
//!   next.
//! - `state` only moves from open to closing to closed. A closed session decides nothing. A closing
//!   session decides only its end and accepts no connection.
//! - Every transition depends on the state that led to it ([`Dependency`]), because a store that
//!   rolled back assigns the same numbers again.
//!
//! From FaaSKeeper, section 4.1 (a session's item in system storage). The outbox, the numbers and
//! the fence are ours.

use std::{
    ops::{Range, RangeInclusive},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ports::{
    Condition, Error, ErrorKind, Item, Key, KeyValue, Result, Update,
    key_value::{Action, Name, Outcome, Scan, Test, Value},
};

use crate::{
    dependency::Dependency,
    model::{Password, SessionId},
    records::{Decided, Holder, UpdateId, decode},
};

const STATE: &str = "state";
const ATTACH: &str = "attach";
const REQUEST: &str = "request";
const SEQUENCE: &str = "sequence";
const APPLIED: &str = "applied";
const FENCE: &str = "fence";
const PLANNING_ATTEMPTS: &str = "plannings";
const RENEWALS: &str = "renewals";
const SILENT: &str = "silent";
const TIMEOUT: &str = "timeout_ms";
const PASSWORD: &str = "password";
const OUTBOX: &str = "outbox";

/// Number of partitions that hold the rows of client sessions. Several partitions spread the load
/// of the heartbeat's scan and of many sessions' writes.
const CLIENT_SHARD_COUNT: u8 = 4;

/// The partitions that the heartbeat scans.
pub const CLIENT_SHARDS: Range<u8> = 0..CLIENT_SHARD_COUNT;

/// The partition of the processes' own sessions. Processes watch each other's sessions
/// ([`crate::member`]).
pub const MEMBER_SHARD: u8 = CLIENT_SHARD_COUNT;

/// All partitions.
pub const ALL_SHARDS: RangeInclusive<u8> = 0..=MEMBER_SHARD;

/// Renewals per timeout while the peer is active.
pub const RENEWALS_PER_TIMEOUT: u32 = 4;

/// Rows per page of [`Rows`].
const PAGE_ITEMS: usize = 256;

/// The life cycle of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Requests are decided.
    Open,
    /// Only the session's end is decided. Either the failure detector found the session silent, or
    /// its client closed it and the end takes several parts.
    Closing,
    /// Its end is decided.
    Closed,
}

impl State {
    fn number(self) -> i64 {
        match self {
            Self::Open => 0,
            Self::Closing => 1,
            Self::Closed => 2,
        }
    }
}

/// A session's row as it was read.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its place in the life cycle.
    pub state: State,
    /// The attach number of the latest connection.
    pub attach: u64,
    /// The number of the last request decided under that attach.
    pub request: u64,
    /// The sequence of the last decided request, over all attaches.
    pub sequence: u64,
    /// The sequence of the last request applied to the user store.
    pub applied: u64,
    /// The fencing number of the writer that may decide.
    pub fence: u64,
    /// Noted planning attempts of the next request that did not succeed.
    pub planning_attempts: u64,
    /// Number of lease renewals.
    pub renewals: i64,
    /// Time between the client's last message and the last renewal, if the client is known to be
    /// silent since that renewal. If `None`, the client may have sent messages for up to one
    /// renewal period after it.
    pub silent_before: Option<Duration>,
    /// The granted timeout.
    pub timeout: Duration,
    item: Arc<Item>,
}

impl Row {
    fn read(item: &Arc<Item>) -> Result<Self> {
        let number = |name: &'static str| {
            item.integer(name)
                .ok_or_else(|| Error::corrupt(format!("read {name} of a session's row")))
        };
        let state = match number(STATE)? {
            0 => State::Open,
            1 => State::Closing,
            2 => State::Closed,
            other => {
                return Err(Error::corrupt(format!(
                    "read state {other} of a session's row"
                )));
            }
        };
        Ok(Self {
            state,
            attach: number(ATTACH)? as u64,
            request: number(REQUEST)? as u64,
            sequence: number(SEQUENCE)? as u64,
            applied: number(APPLIED)? as u64,
            fence: number(FENCE)? as u64,
            planning_attempts: item.integer(PLANNING_ATTEMPTS).unwrap_or_default() as u64,
            renewals: number(RENEWALS)?,
            silent_before: item
                .integer(SILENT)
                .map(|ms| Duration::from_millis(ms as u64)),
            timeout: Duration::from_millis(number(TIMEOUT)? as u64),
            item: item.clone(),
        })
    }

    /// The encoded requests that are decided and not applied yet, in order.
    pub fn outbox(&self) -> &[Bytes] {
        self.item.list(OUTBOX)
    }

    /// The outbox, decoded.
    pub fn outbox_decoded(&self) -> Result<Vec<Decided>> {
        self.outbox()
            .iter()
            .map(|encoded| decode(encoded, "a decided request"))
            .collect()
    }

    /// The requests in the outbox that were decided under the locks of `holder`.
    pub fn decided_under(&self, holder: Holder) -> Result<Vec<Decided>> {
        let mut decided = self.outbox_decoded()?;
        decided.retain(|decided| decided.holder() == holder);
        Ok(decided)
    }

    /// The decided request with `sequence`, if it is still in the outbox.
    pub fn decided(&self, sequence: u64) -> Result<Option<Decided>> {
        let place = sequence.checked_sub(self.applied + 1);
        match place.and_then(|place| self.outbox().get(place as usize)) {
            Some(encoded) => decode(encoded, "a decided request").map(Some),
            None => Ok(None),
        }
    }
}

/// Requests that are decided together.
#[derive(Debug)]
pub struct Decision {
    /// The id of the first request. The ids of the others follow without a gap.
    pub first: UpdateId,
    /// The fencing number that the row must have.
    pub fence: u64,
    /// The attach number that the row must have.
    pub attach: u64,
    /// The state that the row must have.
    pub expected: State,
    /// The number of the attach's last request in this decision.
    pub request: u64,
    /// Whether the decision closes the session.
    pub closes: bool,
    /// The encoded outcomes, in order.
    pub outcomes: Vec<Bytes>,
}

/// The result of a conditional transition of a row.
#[derive(Debug)]
pub enum Transition {
    /// The transition was made. The row after it.
    Done(Row),
    /// The condition did not hold. The row as it is, or `None` if the session does not exist.
    Refused(Option<Row>),
}

/// The session rows of one system store.
#[derive(Debug, Clone)]
pub struct Sessions {
    system: Arc<dyn KeyValue>,
}

impl Sessions {
    /// The rows in `system`.
    pub fn new(system: Arc<dyn KeyValue>) -> Self {
        Self { system }
    }

    /// The dependency of work on the rows that begins now.
    pub fn dependency(&self) -> Dependency {
        Dependency::now(&*self.system)
    }

    /// Whether the store that holds the rows takes additions.
    pub fn has_room(&self) -> bool {
        self.system.has_room()
    }

    /// The row of `session`.
    pub async fn get(
        &self,
        session: SessionId,
        dependency: &mut Dependency,
    ) -> Result<Option<Row>> {
        let item = dependency.get(&*self.system, &key(session)).await?;
        item.as_ref().map(Row::read).transpose()
    }

    /// Creates the row of a new session. Returns false if the id is taken.
    ///
    /// Errors: `NoRoom` once the store's reserve is used up.
    pub async fn create(
        &self,
        session: SessionId,
        password: Password,
        timeout: Duration,
        dependency: &mut Dependency,
    ) -> Result<bool> {
        let integer = |name: &'static str, value: i64| (Name::from(name), Value::Integer(value));
        let attributes = vec![
            integer(STATE, State::Open.number()),
            integer(ATTACH, 1),
            integer(REQUEST, 0),
            integer(SEQUENCE, 0),
            integer(APPLIED, 0),
            integer(FENCE, 0),
            integer(RENEWALS, 0),
            integer(TIMEOUT, timeout.as_millis() as i64),
            (
                PASSWORD.into(),
                Value::Bytes(Bytes::copy_from_slice(&password.0)),
            ),
        ];
        let update = Update::put(key(session), attributes).when(Condition::Absent);
        match self.transition(update, dependency).await? {
            Transition::Done(_) => Ok(true),
            Transition::Refused(_) => Ok(false),
        }
    }

    /// Hands an open session to a new connection: raises its attach number and renews its lease.
    ///
    /// Errors: `NoRoom` once the store's reserve is used up.
    pub async fn attach(
        &self,
        session: SessionId,
        password: Password,
        timeout: Duration,
        dependency: &mut Dependency,
    ) -> Result<Transition> {
        let actions = vec![
            Action::Add(ATTACH.into(), 1),
            Action::set_integer(REQUEST, 0),
            Action::unset(PLANNING_ATTEMPTS),
            Action::Add(RENEWALS.into(), 1),
            Action::unset(SILENT),
            Action::set_integer(TIMEOUT, timeout.as_millis() as i64),
        ];
        let condition = Condition::All(vec![
            is(STATE, State::Open.number()),
            Condition::attribute(PASSWORD, Test::is(Bytes::copy_from_slice(&password.0))),
        ]);
        self.transition(
            Update::modify(key(session), actions).when(condition),
            dependency,
        )
        .await
    }

    /// Renews the lease of an open session for the connection with this attach number.
    ///
    /// The write is transient. After a crash of the store all silence is counted from zero again,
    /// and a full disk must not prevent a session from staying alive.
    pub async fn renew(
        &self,
        session: SessionId,
        attach: u64,
        dependency: &mut Dependency,
    ) -> Result<Transition> {
        let condition = Condition::All(vec![
            is(STATE, State::Open.number()),
            is(ATTACH, attach as i64),
        ]);
        let actions = vec![Action::Add(RENEWALS.into(), 1), Action::unset(SILENT)];
        let update = Update::modify(key(session), actions).when(condition);
        self.transition(update.transient(), dependency).await
    }

    /// Records that the client of an open session has been silent since the renewal number
    /// `renewals`, and for `before` ahead of it. Only the connection with this attach number may
    /// record that. The write is transient, like renewals.
    pub async fn record_silence(
        &self,
        session: SessionId,
        attach: u64,
        renewals: i64,
        before: Duration,
        dependency: &mut Dependency,
    ) -> Result<Transition> {
        let condition = Condition::All(vec![
            is(STATE, State::Open.number()),
            is(ATTACH, attach as i64),
            is(RENEWALS, renewals),
        ]);
        let silent = Action::set_integer(SILENT, before.as_millis() as i64);
        let update = Update::modify(key(session), vec![silent]).when(condition);
        self.transition(update.transient(), dependency).await
    }

    /// Moves a silent session to closing, unless it was renewed since `renewals` was read (rule
    /// C-6).
    ///
    /// Errors: `NoRoom` once the store's reserve is used up.
    pub async fn expire(
        &self,
        session: SessionId,
        renewals: i64,
        dependency: &mut Dependency,
    ) -> Result<Transition> {
        let condition = Condition::All(vec![
            is(STATE, State::Open.number()),
            is(RENEWALS, renewals),
        ]);
        let actions = vec![Action::set_integer(STATE, State::Closing.number())];
        self.transition(
            Update::modify(key(session), actions).when(condition),
            dependency,
        )
        .await
    }

    /// Moves an open session to closing for the writer that took it over as `row`. Its client asked
    /// for the end, and the end takes more than one decision.
    pub async fn begin_closing(
        &self,
        session: SessionId,
        row: &Row,
        dependency: &mut Dependency,
    ) -> Result<Transition> {
        let actions = vec![Action::set_integer(STATE, State::Closing.number())];
        let condition = Condition::All(vec![
            is(STATE, State::Open.number()),
            is_unchanged_since(row),
        ]);
        self.transition(
            Update::modify(key(session), actions).when(condition),
            dependency,
        )
        .await
    }

    /// Notes that the writer that took over the session as `row` is about to plan the next request.
    ///
    /// The write is transient. A crash of the store that loses the note also loses the request, or
    /// restarts its delivery count at one.
    pub async fn begin_planning(
        &self,
        session: SessionId,
        row: &Row,
        dependency: &mut Dependency,
    ) -> Result<Transition> {
        let update = Update::modify(key(session), vec![Action::Add(PLANNING_ATTEMPTS.into(), 1)])
            .when(is_unchanged_since(row));
        self.transition(update.transient(), dependency).await
    }

    /// Removes these notes. The request has been planned, so a later failure is not caused by its
    /// planning.
    pub async fn end_planning(
        &self,
        session: SessionId,
        row: &Row,
        dependency: &mut Dependency,
    ) -> Result<Transition> {
        let update = Update::modify(key(session), vec![Action::unset(PLANNING_ATTEMPTS)])
            .when(is_unchanged_since(row));
        self.transition(update.transient(), dependency).await
    }

    /// Takes over a session for writing. The row then has a fencing number that shuts out earlier
    /// writers.
    pub async fn acquire(
        &self,
        session: SessionId,
        dependency: &mut Dependency,
    ) -> Result<Transition> {
        let update = Update::modify(key(session), vec![Action::Add(FENCE.into(), 1)])
            .when(Condition::Exists);
        self.transition(update, dependency).await
    }

    /// Prevents the writer with `fence` from deciding `sequence`, so that its locks may be broken.
    pub async fn fence_out(
        &self,
        session: SessionId,
        sequence: u64,
        fence: u64,
        dependency: &mut Dependency,
    ) -> Result<Transition> {
        let condition = Condition::All(vec![
            is(SEQUENCE, sequence as i64 - 1),
            is(FENCE, fence as i64),
        ]);
        let update =
            Update::modify(key(session), vec![Action::Add(FENCE.into(), 1)]).when(condition);
        self.transition(update, dependency).await
    }

    /// The commit point (rule C-1): advances the session's numbers and appends the outcomes to its
    /// outbox.
    pub async fn decide(
        &self,
        decision: Decision,
        dependency: &mut Dependency,
    ) -> Result<Transition> {
        let Decision {
            first,
            fence,
            attach,
            expected,
            request,
            closes,
            outcomes,
        } = decision;
        let last = first.sequence + outcomes.len() as u64 - 1;
        let mut actions = vec![
            Action::set_integer(SEQUENCE, last as i64),
            Action::set_integer(REQUEST, request as i64),
            Action::unset(PLANNING_ATTEMPTS),
            Action::Append(OUTBOX.into(), outcomes),
        ];
        if closes {
            actions.push(Action::set_integer(STATE, State::Closed.number()));
        }
        let condition = Condition::All(vec![
            is(STATE, expected.number()),
            is(ATTACH, attach as i64),
            is(SEQUENCE, first.sequence as i64 - 1),
            is(FENCE, fence as i64),
        ]);
        self.transition(
            Update::modify(key(first.session), actions).when(condition),
            dependency,
        )
        .await
    }

    /// Records that all requests up to `through` are applied, and removes them from the outbox.
    pub async fn applied(
        &self,
        session: SessionId,
        from: u64,
        through: u64,
        dependency: &mut Dependency,
    ) -> Result<()> {
        let actions = vec![
            Action::set_integer(APPLIED, through as i64),
            Action::RemoveFirst(OUTBOX.into(), (through - from) as usize),
        ];
        let update = Update::modify(key(session), actions).when(is(APPLIED, from as i64));
        dependency.update(&*self.system, update).await.map(|_| ())
    }

    /// Removes the row of a session whose end is applied.
    pub async fn remove(&self, session: SessionId, dependency: &mut Dependency) -> Result<()> {
        let update = Update::delete(key(session)).when(is(STATE, State::Closed.number()));
        dependency.update(&*self.system, update).await.map(|_| ())
    }

    /// The rows of a shard, page by page. A row that cannot be decoded is logged and skipped, so
    /// that it does not block work on the other sessions.
    pub fn rows(&self, shard: u8) -> Rows<'_> {
        Rows {
            sessions: self,
            partition: partition(shard),
            from: Some(Bytes::new()),
        }
    }

    /// Waits until everything that `dependency` has observed of the rows is durable.
    pub async fn externalize(&self, dependency: &Dependency) -> Result<()> {
        if self.system.is_durable(dependency.point()) {
            return Ok(());
        }
        self.system.externalize(dependency.point()).await
    }

    async fn transition(&self, update: Update, dependency: &mut Dependency) -> Result<Transition> {
        match dependency.update(&*self.system, update).await? {
            Outcome::Done(Some(item)) => Row::read(&item).map(Transition::Done),
            Outcome::Done(None) => Err(Error::new(
                ErrorKind::Corrupt,
                "change a session's row, which disappeared",
            )),
            Outcome::Conflict(item) => Ok(Transition::Refused(
                item.as_ref().map(Row::read).transpose()?,
            )),
        }
    }
}

/// The rows of a shard that have not been read yet.
#[derive(Debug)]
pub struct Rows<'sessions> {
    sessions: &'sessions Sessions,
    partition: String,
    from: Option<Bytes>,
}

impl Rows<'_> {
    /// The next page, or `None` at the end.
    pub async fn next_page(
        &mut self,
        dependency: &mut Dependency,
    ) -> Result<Option<Vec<(SessionId, Row)>>> {
        let Some(from) = self.from.take() else {
            return Ok(None);
        };
        let scan = Scan {
            from,
            ..Scan::partition(self.partition.clone(), PAGE_ITEMS)
        };
        let page = dependency.scan(&*self.sessions.system, &scan).await?;
        let mut rows = Vec::with_capacity(page.items.len());
        for (sort, item) in &page.items {
            let id = <[u8; 8]>::try_from(sort.as_ref())
                .map_err(|_| Error::corrupt("read the key of a session's row"));
            match id.and_then(|id| Ok((SessionId(i64::from_be_bytes(id)), Row::read(item)?))) {
                Ok(row) => rows.push(row),
                Err(error) => {
                    tracing::error!(%error, key = ?sort, "skipped a session row that does not decode");
                }
            }
        }
        self.from = page.next;
        Ok(Some(rows))
    }
}

fn is(name: &'static str, value: i64) -> Condition {
    Condition::attribute(name, Test::is_integer(value))
}

/// The condition that no other writer took over the session, and that nothing was decided in it,
/// since `row` was read.
fn is_unchanged_since(row: &Row) -> Condition {
    Condition::All(vec![
        is(ATTACH, row.attach as i64),
        is(SEQUENCE, row.sequence as i64),
        is(FENCE, row.fence as i64),
    ])
}

fn partition(shard: u8) -> String {
    format!("session/{shard:x}")
}

fn key(session: SessionId) -> Key {
    let of_client = (session.0 & i64::from(CLIENT_SHARD_COUNT - 1)) as u8;
    let shard = if session.is_members() {
        MEMBER_SHARD
    } else {
        of_client
    };
    Key::new(partition(shard), session.0.to_be_bytes())
}

#[cfg(test)]
mod tests;
