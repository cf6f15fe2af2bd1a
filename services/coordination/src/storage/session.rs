//! Session rows: every request of a session is decided here, and so is the connection that may act
//! for it.
//!
//! A session is one item. Its attributes are the commit point of all its requests (rule C-1), the
//! numbers that make them idempotent (C-2), the outbox that survives its writer (C-3), and the
//! lease (C-6). Every transition is one conditional update of that item, made alone or in a
//! transaction with updates of other items. Only this module composes these updates.
//!
//! Invariants
//! - `sequence` grows by one with each decided request. The outbox holds exactly the requests in
//!   (`applied`, `sequence`], in order. Their effects are installed before they are pushed.
//!   Requests that are applied with their decision never enter it: both numbers grow together.
//! - `fence` grows whenever a writer takes over a session whose row its process did not write last,
//!   and whenever another writer fences it out. A writer with an older number can decide nothing.
//! - `attach` grows with each connection. Requests of older attaches are refused.
//! - `planning_attempts` belongs to the next request, and is reset when another request becomes the
//!   next.
//! - `state` only moves from open to closing to closed. A closed session decides nothing. A closing
//!   session decides only its end and accepts no connection.
//! - Every transition depends on the state that led to it ([`TrackedStore`]), because a store that
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
    Condition, Error, Item, Key, Result, Update,
    key_value::{Action, Name, Outcome, Scan, Test, Transacted, Value},
};

use crate::{
    dependency::TrackedStore,
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

/// The partition of [`SessionId::SYSTEM`], whose session no detector checks.
const SYSTEM_SHARD: u8 = MEMBER_SHARD + 1;

pub const ALL_SHARDS: RangeInclusive<u8> = 0..=SYSTEM_SHARD;

/// Renewals per timeout while the peer is active.
pub const RENEWALS_PER_TIMEOUT: u32 = 4;

const PAGE_ITEMS: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Open = 0,
    /// Only the session's end is decided. Either the failure detector found the session silent, or
    /// its client closed it and the end takes several parts.
    Closing = 1,
    Closed = 2,
}

/// A session's row as it was read.
#[derive(Debug, Clone)]
pub struct Row {
    pub session: SessionId,
    pub state: State,
    pub attach: u64,
    /// The number of the last request decided under that attach.
    pub request: u64,
    /// The sequence of the last decided request, over all attaches.
    pub sequence: u64,
    /// The sequence of the last request applied to the user store.
    pub applied: u64,
    pub fence: u64,
    /// Noted planning attempts of the next request that did not succeed.
    pub planning_attempts: u64,
    pub renewals: i64,
    /// Time between the client's last message and the last renewal, if the client is known to be
    /// silent since that renewal. If `None`, the client may have sent messages for up to one
    /// renewal period after it.
    pub silent_before: Option<Duration>,
    pub timeout: Duration,
    item: Arc<Item>,
}

impl Row {
    fn read(session: SessionId, item: &Arc<Item>) -> Result<Self> {
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
            session,
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

    /// The row after its next `count` requests were decided and applied together. The last one has
    /// the number `request`.
    pub fn after_applied(&self, count: usize, request: u64) -> Self {
        let sequence = self.sequence + count as u64;
        Self {
            request,
            sequence,
            applied: sequence,
            planning_attempts: 0,
            ..self.clone()
        }
    }

    /// The encoded requests that are decided and not applied yet, in order.
    pub fn outbox(&self) -> &[Bytes] {
        self.item.list(OUTBOX)
    }

    pub fn outbox_decoded(&self) -> Result<Vec<Decided>> {
        self.outbox()
            .iter()
            .map(|encoded| decode(encoded, "a decided request"))
            .collect()
    }

    /// Whether the writer of `holder` may still decide the request that its locks name. Once false,
    /// this stays false: both numbers only grow, and every decision depends on them.
    pub fn may_decide(&self, holder: Holder) -> bool {
        self.fence == holder.fence && self.sequence < holder.request.sequence
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

/// The requests that are decided together. Their ids follow those of the row without a gap.
#[derive(Debug, Clone, Default)]
pub struct Decision {
    /// The number of the attach's last request, decided before or in this decision.
    pub request: u64,
    pub closes: bool,
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

pub async fn get(store: &mut TrackedStore, session: SessionId) -> Result<Option<Row>> {
    let item = store.get(&key(session)).await?;
    row(session, item.as_ref())
}

/// Creates the row of a new session. Returns false if the id is taken.
///
/// Errors: `NoRoom` once the store's reserve is used up.
pub async fn create(
    store: &mut TrackedStore,
    session: SessionId,
    password: Password,
    timeout: Duration,
) -> Result<bool> {
    let mut attributes = vec![(
        Name::from(PASSWORD),
        Value::Bytes(Bytes::copy_from_slice(&password.0)),
    )];
    for (name, value) in [
        (STATE, State::Open as i64),
        (ATTACH, 1),
        (REQUEST, 0),
        (SEQUENCE, 0),
        (APPLIED, 0),
        (FENCE, 0),
        (RENEWALS, 0),
        (TIMEOUT, timeout.as_millis() as i64),
    ] {
        attributes.push((name.into(), Value::Integer(value)));
    }
    let update = Update::put(key(session), attributes).when(Condition::Absent);
    let created = transition(store, session, update).await?;
    Ok(matches!(created, Transition::Done(_)))
}

/// Hands an open session to a new connection: raises its attach number and renews its lease.
///
/// Errors: `NoRoom` once the store's reserve is used up.
pub async fn attach(
    store: &mut TrackedStore,
    session: SessionId,
    password: Password,
    timeout: Duration,
) -> Result<Transition> {
    let actions = vec![
        Action::Add(ATTACH.into(), 1),
        Action::set_integer(REQUEST, 0),
        Action::unset(PLANNING_ATTEMPTS),
        Action::Add(RENEWALS.into(), 1),
        Action::unset(SILENT),
        Action::set_integer(TIMEOUT, timeout.as_millis() as i64),
    ];
    let is_owner = Condition::attribute(PASSWORD, Test::is(Bytes::copy_from_slice(&password.0)));
    let update = modify(session, actions, vec![is_open(), is_owner]);
    transition(store, session, update).await
}

/// Renews the lease of an open session for the connection with this attach number.
///
/// The write is transient. After a crash of the store all silence is counted from zero again, and a
/// full disk must not prevent a session from staying alive.
pub async fn renew(
    store: &mut TrackedStore,
    session: SessionId,
    attach: u64,
) -> Result<Transition> {
    let conditions = vec![is_open(), is(ATTACH, attach as i64)];
    let actions = vec![Action::Add(RENEWALS.into(), 1), Action::unset(SILENT)];
    let update = modify(session, actions, conditions).transient();
    transition(store, session, update).await
}

/// Records that the client of an open session has been silent since the renewal number `renewals`,
/// and for `before` ahead of it. Only the connection with this attach number may record that. The
/// write is transient, like renewals.
pub async fn record_silence(
    store: &mut TrackedStore,
    session: SessionId,
    attach: u64,
    renewals: i64,
    before: Duration,
) -> Result<Transition> {
    let is_latest = is(RENEWALS, renewals);
    let conditions = vec![is_open(), is(ATTACH, attach as i64), is_latest];
    let silent = vec![Action::set_integer(SILENT, before.as_millis() as i64)];
    let update = modify(session, silent, conditions).transient();
    transition(store, session, update).await
}

/// Moves a silent session to closing, unless it was renewed since `renewals` was read (rule C-6).
///
/// Errors: `NoRoom` once the store's reserve is used up.
pub async fn expire(
    store: &mut TrackedStore,
    session: SessionId,
    renewals: i64,
) -> Result<Transition> {
    let conditions = vec![is_open(), is(RENEWALS, renewals)];
    let closing = vec![Action::set_integer(STATE, State::Closing as i64)];
    transition(store, session, modify(session, closing, conditions)).await
}

/// Moves an open session to closing for the writer that took it over as `row`. Its client asked for
/// the end, and the end takes more than one decision.
pub async fn begin_closing(store: &mut TrackedStore, row: &Row) -> Result<Transition> {
    let closing = vec![Action::set_integer(STATE, State::Closing as i64)];
    let conditions = vec![is_open(), is_unchanged_since(row)];
    let update = modify(row.session, closing, conditions);
    transition(store, row.session, update).await
}

/// Notes that the writer that took over the session as `row` is about to plan the next request.
///
/// The write is transient. A crash of the store that loses the note also loses the request, or
/// restarts its delivery count at one.
pub async fn begin_planning(store: &mut TrackedStore, row: &Row) -> Result<Transition> {
    note_planning(store, row, Action::Add(PLANNING_ATTEMPTS.into(), 1)).await
}

/// Removes these notes. The request has been planned, so a later failure is not caused by its
/// planning.
pub async fn end_planning(store: &mut TrackedStore, row: &Row) -> Result<Transition> {
    note_planning(store, row, Action::unset(PLANNING_ATTEMPTS)).await
}

/// Refused if the session's state changed: otherwise the writer would go on with the state of the
/// refreshed row, and decide in a session that meanwhile began to end.
async fn note_planning(store: &mut TrackedStore, row: &Row, note: Action) -> Result<Transition> {
    let conditions = vec![is(STATE, row.state as i64), is_unchanged_since(row)];
    let update = modify(row.session, vec![note], conditions);
    transition(store, row.session, update.transient()).await
}

/// Takes over a session for writing. The row then has a fencing number that shuts out earlier
/// writers.
pub async fn acquire(store: &mut TrackedStore, session: SessionId) -> Result<Transition> {
    let fence = vec![Action::Add(FENCE.into(), 1)];
    let update = modify(session, fence, vec![Condition::Exists]);
    transition(store, session, update).await
}

/// Prevents the writer of `holder` from deciding under its locks, so that these may be broken.
pub async fn fence_out(store: &mut TrackedStore, holder: Holder) -> Result<Transition> {
    let UpdateId { session, sequence } = holder.request;
    let is_undecided = is(SEQUENCE, sequence as i64 - 1);
    let conditions = vec![is_undecided, is(FENCE, holder.fence as i64)];
    let fence = vec![Action::Add(FENCE.into(), 1)];
    transition(store, session, modify(session, fence, conditions)).await
}

/// The commit point (rule C-1): advances the numbers of the session that a writer took over as
/// `row`, and appends the outcomes to its outbox.
pub async fn decide(store: &mut TrackedStore, row: &Row, decision: Decision) -> Result<Transition> {
    transition(store, row.session, decided(row, decision)).await
}

/// The update that decides as [`decide`] does, for requests that are applied in the same
/// transaction. Refused if the session has requests that are not applied.
pub fn decision_applied(row: &Row, through: &Row) -> Update {
    let actions = vec![
        Action::set_integer(SEQUENCE, through.sequence as i64),
        Action::set_integer(APPLIED, through.applied as i64),
        Action::set_integer(REQUEST, through.request as i64),
        Action::unset(PLANNING_ATTEMPTS),
    ];
    let is_applied = is(APPLIED, row.sequence as i64);
    let conditions = vec![
        is(STATE, row.state as i64),
        is_unchanged_since(row),
        is_applied,
    ];
    modify(row.session, actions, conditions)
}

/// The result of [`decide_with`].
#[derive(Debug)]
pub enum Together {
    /// As [`Transition`]. If the row refused, nothing else was changed either.
    Row(Transition),
    /// One of the other conditions did not hold, so nothing was changed.
    Conflict,
}

/// As [`decide`], together with `others` in one transaction.
pub async fn decide_with(
    store: &mut TrackedStore,
    row: &Row,
    decision: Decision,
    others: Vec<Update>,
) -> Result<Together> {
    let mut updates = Vec::with_capacity(1 + others.len());
    updates.push(decided(row, decision));
    updates.extend(others);
    let transition = match store.transact(updates).await? {
        Transacted::Done { items, .. } => match items.first() {
            Some(Some(item)) => Transition::Done(Row::read(row.session, item)?),
            _ => return Err(Error::corrupt("change a session's row, which disappeared")),
        },
        Transacted::Conflict { index: 0, item, .. } => {
            Transition::Refused(self::row(row.session, item.as_ref())?)
        }
        Transacted::Conflict { .. } => return Ok(Together::Conflict),
    };
    Ok(Together::Row(transition))
}

fn decided(row: &Row, decision: Decision) -> Update {
    let last = row.sequence + decision.outcomes.len() as u64;
    let mut actions = vec![
        Action::set_integer(SEQUENCE, last as i64),
        Action::set_integer(REQUEST, decision.request as i64),
        Action::unset(PLANNING_ATTEMPTS),
        Action::Append(OUTBOX.into(), decision.outcomes),
    ];
    if decision.closes {
        actions.push(Action::set_integer(STATE, State::Closed as i64));
    }
    let conditions = vec![is(STATE, row.state as i64), is_unchanged_since(row)];
    modify(row.session, actions, conditions)
}

/// Records that all requests in (`from`, `through`] are applied, and removes them from the outbox.
pub async fn applied(
    store: &mut TrackedStore,
    session: SessionId,
    from: u64,
    through: u64,
) -> Result<()> {
    let actions = vec![
        Action::set_integer(APPLIED, through as i64),
        Action::RemoveFirst(OUTBOX.into(), (through - from) as usize),
    ];
    let update = modify(session, actions, vec![is(APPLIED, from as i64)]);
    store.update(update).await.map(|_| ())
}

/// Removes the row of a session whose end is applied.
pub async fn remove(store: &mut TrackedStore, session: SessionId) -> Result<()> {
    let update = Update::delete(key(session)).when(is(STATE, State::Closed as i64));
    store.update(update).await.map(|_| ())
}

fn modify(session: SessionId, actions: Vec<Action>, conditions: Vec<Condition>) -> Update {
    Update::modify(key(session), actions).when(Condition::All(conditions))
}

async fn transition(
    store: &mut TrackedStore,
    session: SessionId,
    update: Update,
) -> Result<Transition> {
    match store.update(update).await? {
        Outcome::Done(Some(item)) => Row::read(session, &item).map(Transition::Done),
        Outcome::Done(None) => Err(Error::corrupt("change a session's row, which disappeared")),
        Outcome::Conflict(item) => row(session, item.as_ref()).map(Transition::Refused),
    }
}

fn row(session: SessionId, item: Option<&Arc<Item>>) -> Result<Option<Row>> {
    item.map(|item| Row::read(session, item)).transpose()
}

/// The rows of a shard, read page by page. A row that cannot be decoded is logged and skipped, so
/// that it does not block work on the other sessions.
#[derive(Debug)]
pub struct Rows {
    partition: String,
    from: Option<Bytes>,
}

impl Rows {
    pub fn of(shard: u8) -> Self {
        Self {
            partition: partition(shard),
            from: Some(Bytes::new()),
        }
    }

    /// The next page, or `None` at the end.
    pub async fn next_page(&mut self, store: &mut TrackedStore) -> Result<Option<Vec<Row>>> {
        let Some(from) = self.from.take() else {
            return Ok(None);
        };
        let scan = Scan {
            from,
            ..Scan::partition(self.partition.clone(), PAGE_ITEMS)
        };
        let page = store.scan(&scan).await?;
        self.from = page.next;
        let decoded = page.items.iter().filter_map(|(sort, item)| {
            let id = <[u8; 8]>::try_from(sort.as_ref())
                .map_err(|_| Error::corrupt("read the key of a session's row"));
            id.and_then(|id| Row::read(SessionId(i64::from_be_bytes(id)), item))
                .inspect_err(|error| {
                    tracing::error!(%error, key = ?sort, "skipped a session row that does not decode");
                })
                .ok()
        });
        Ok(Some(decoded.collect()))
    }
}

fn is_open() -> Condition {
    is(STATE, State::Open as i64)
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
    let shard = if session == SessionId::SYSTEM {
        SYSTEM_SHARD
    } else if session.is_members() {
        MEMBER_SHARD
    } else {
        of_client
    };
    Key::new(partition(shard), session.0.to_be_bytes())
}

#[cfg(test)]
mod tests;
