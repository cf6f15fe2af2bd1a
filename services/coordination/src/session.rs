//! Session rows: where every request of a session is decided, and who may speak for it.
//!
//! A session is one item. Its attributes are the commit point of all its requests (rule C-1), the numbers
//! that make them idempotent (C-2), the outbox that survives its writer (C-3), and the lease (C-6). Every
//! transition is one conditional update of that item, made here and nowhere else.
//!
//! Invariants
//! - `sequence` grows by one with each decided request; the outbox holds exactly those in
//!   (`applied`, `sequence`], in order, with their effects installed from the moment they are pushed.
//! - `fence` grows with each writer that takes the session up, and with each doom: a writer with an older
//!   number decides nothing any more.
//! - `attach` grows with each connection; requests of older attaches are refused.
//! - `plannings` speaks of the request that is next, and begins anew when another is.
//! - `state` only moves from open to closing to closed. Nothing is decided in a closed session, and nothing but its end
//!   in a closing one, which takes no connection any more.
//! - Every transition rests on what led to it ([`Basis`]): the numbers above are given out again by a store that has
//!   gone back.
//!
//! From FaaSKeeper, section 4.1 (a session's item in system storage); the outbox, the numbers and the fence
//! are ours.

use std::{
    ops::{Range, RangeInclusive},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ports::{
    Condition, Error, ErrorKind, Item, Key, KeyValue, Result, Update,
    key_value::{Action, Name, Outcome, Read, Room, Scan, Test, Value},
};

use crate::{
    basis::Basis,
    model::{Password, SessionId},
    node::Holder,
    records::{Decided, UpdateId, decode},
};

const STATE: &str = "state";
const ATTACH: &str = "attach";
const REQUEST: &str = "request";
const SEQUENCE: &str = "sequence";
const APPLIED: &str = "applied";
const FENCE: &str = "fence";
const PLANNINGS: &str = "plannings";
const RENEWALS: &str = "renewals";
const SILENT: &str = "silent";
const TIMEOUT: &str = "timeout_ms";
const PASSWORD: &str = "password";
const OUTBOX: &str = "outbox";

/// Rows of clients' sessions are spread over this many partitions, so that a scan for the living and the writes of many
/// sessions do not meet in one.
const CLIENT_SHARDS: u8 = 4;

/// The partitions that the heartbeat goes through.
pub const CLIENTS: Range<u8> = 0..CLIENT_SHARDS;

/// The one that processes have for their own sessions, which they judge among themselves ([`crate::member`]).
pub const MEMBERS: u8 = CLIENT_SHARDS;

/// All of them.
pub const ALL_SHARDS: RangeInclusive<u8> = 0..=MEMBERS;

/// How many rows one page of [`Rows`] holds.
const PAGE_ITEMS: usize = 256;

/// Where a session stands between its first and its last request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Requests are decided.
    Open,
    /// The heartbeat has judged it silent, or its client has closed it and it ends in parts; only its end is decided.
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

/// A session's row as read.
#[derive(Debug, Clone)]
pub struct Row {
    /// Where it stands.
    pub state: State,
    /// The number of the last attach.
    pub attach: u64,
    /// The last request decided under it.
    pub request: u64,
    /// The last request decided at all.
    pub sequence: u64,
    /// The last one applied to the user store.
    pub applied: u64,
    /// The number of the writer that may decide.
    pub fence: u64,
    /// How often the planning of the request that is next was begun and has come to no good end, as far as that was noted.
    pub plannings: u64,
    /// How often its lease was renewed.
    pub renewals: i64,
    /// How long its client had not been heard when its lease was renewed last, if it is known not to have been heard since. Else
    /// it may have been, for a renewal period.
    pub silent_before: Option<Duration>,
    /// The timeout granted.
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
            plannings: item.integer(PLANNINGS).unwrap_or_default() as u64,
            renewals: number(RENEWALS)?,
            silent_before: item
                .integer(SILENT)
                .map(|ms| Duration::from_millis(ms as u64)),
            timeout: Duration::from_millis(number(TIMEOUT)? as u64),
            item: item.clone(),
        })
    }

    /// The decided requests that are not applied yet, in order, as they are encoded.
    pub fn outbox(&self) -> &[Bytes] {
        self.item.list(OUTBOX)
    }

    /// The same, decoded.
    pub fn outbox_decoded(&self) -> Result<Vec<Decided>> {
        self.outbox()
            .iter()
            .map(|encoded| decode(encoded, "a decided request"))
            .collect()
    }

    /// The requests that were decided under the locks of `holder`, as far as they are in the outbox.
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

/// Requests to be decided together.
#[derive(Debug)]
pub struct Decision {
    /// The name of the first of them; the others follow without a gap.
    pub first: UpdateId,
    /// Under which fencing number,
    pub fence: u64,
    /// for which attach,
    pub attach: u64,
    /// and in which state the row must be.
    pub expected: State,
    /// The last request of the attach that is decided then.
    pub request: u64,
    /// Whether the session ends with them.
    pub closes: bool,
    /// What is decided, encoded, in order.
    pub outcomes: Vec<Bytes>,
}

/// How a conditional transition of a row ended.
#[derive(Debug)]
pub enum Moved {
    /// It was made; the row after it.
    Done(Row),
    /// It was not, because the row is like this; none: there is no such session.
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

    /// Of work on the rows that begins now.
    pub fn basis(&self) -> Basis {
        Basis::now(&*self.system)
    }

    /// What the store of the rows still takes.
    pub fn room(&self) -> Room {
        self.system.room()
    }

    /// The row of `session`.
    pub async fn get(&self, session: SessionId, basis: &mut Basis) -> Result<Option<Row>> {
        let Read { value: item, point } = self.system.get(&key(session)).await?;
        basis.seen(point)?;
        item.as_ref().map(Row::read).transpose()
    }

    /// Refuses with `NoRoom` what is done only while there is as much room as `least`.
    fn check_room(&self, least: Room, attempted: &'static str) -> Result<()> {
        if self.room() < least {
            Err(Error::new(ErrorKind::NoRoom, attempted))
        } else {
            Ok(())
        }
    }

    /// Makes the row of a new session; false if the id is taken. `NoRoom` once half of the reserve is used up: each
    /// session takes of it, and the rest is for those that are there.
    pub async fn create(
        &self,
        session: SessionId,
        password: Password,
        timeout: Duration,
        basis: &mut Basis,
    ) -> Result<bool> {
        self.check_room(Room::Scarce, "open a session")?;
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
        match self.transition(update, basis).await? {
            Moved::Done(_) => Ok(true),
            Moved::Refused(_) => Ok(false),
        }
    }

    /// Takes an open session over for a new connection: its attach number grows, and its lease is renewed. `NoRoom` at
    /// the very end of the reserve, which a client that connects again and again would else use up.
    pub async fn attach(
        &self,
        session: SessionId,
        password: Password,
        timeout: Duration,
        basis: &mut Basis,
    ) -> Result<Moved> {
        self.check_room(Room::Critical, "resume a session")?;
        let actions = vec![
            Action::Add(ATTACH.into(), 1),
            Action::set_integer(REQUEST, 0),
            Action::unset(PLANNINGS),
            Action::Add(RENEWALS.into(), 1),
            Action::unset(SILENT),
            Action::set_integer(TIMEOUT, timeout.as_millis() as i64),
        ];
        let condition = Condition::All(vec![
            is(STATE, State::Open.number()),
            Condition::attribute(PASSWORD, Test::is(Bytes::copy_from_slice(&password.0))),
        ]);
        self.transition(Update::modify(key(session), actions).when(condition), basis)
            .await
    }

    /// Renews the lease of an open session for the connection with this attach number. Transient: after a crash of the
    /// store every silence begins anew, and a full disk must not keep anybody's session from living.
    pub async fn renew(&self, session: SessionId, attach: u64, basis: &mut Basis) -> Result<Moved> {
        let condition = Condition::All(vec![
            is(STATE, State::Open.number()),
            is(ATTACH, attach as i64),
        ]);
        let actions = vec![Action::Add(RENEWALS.into(), 1), Action::unset(SILENT)];
        let update = Update::modify(key(session), actions).when(condition);
        self.transition(update.transient(), basis).await
    }

    /// Says of an open session that its client was not heard by the connection with this attach number since the last of
    /// so many renewals, nor for `before` that. Transient like those.
    pub async fn say_silent(
        &self,
        session: SessionId,
        attach: u64,
        renewals: i64,
        before: Duration,
        basis: &mut Basis,
    ) -> Result<Moved> {
        let condition = Condition::All(vec![
            is(STATE, State::Open.number()),
            is(ATTACH, attach as i64),
            is(RENEWALS, renewals),
        ]);
        let silent = Action::set_integer(SILENT, before.as_millis() as i64);
        let update = Update::modify(key(session), vec![silent]).when(condition);
        self.transition(update.transient(), basis).await
    }

    /// Judges a session silent: closing, if nobody has renewed it since `renewals` was read (rule C-6). `NoRoom` where
    /// its client could not have resumed it.
    pub async fn condemn(
        &self,
        session: SessionId,
        renewals: i64,
        basis: &mut Basis,
    ) -> Result<Moved> {
        self.check_room(Room::Critical, "condemn a session")?;
        let condition = Condition::All(vec![
            is(STATE, State::Open.number()),
            is(RENEWALS, renewals),
        ]);
        let actions = vec![Action::set_integer(STATE, State::Closing.number())];
        self.transition(Update::modify(key(session), actions).when(condition), basis)
            .await
    }

    /// Marks an open session as closing for the writer that has taken it up as `row`: its client has asked for the end,
    /// and that takes more than one decision.
    pub async fn begin_end(
        &self,
        session: SessionId,
        row: &Row,
        basis: &mut Basis,
    ) -> Result<Moved> {
        let actions = vec![Action::set_integer(STATE, State::Closing.number())];
        let condition = Condition::All(vec![is(STATE, State::Open.number()), is_still(row)]);
        self.transition(Update::modify(key(session), actions).when(condition), basis)
            .await
    }

    /// Notes that the request which is next is about to be planned, by the writer that has taken the session up as `row`.
    /// Transient: with the note a crash of the store takes the request, or its deliveries count from one again.
    pub async fn begin_planning(
        &self,
        session: SessionId,
        row: &Row,
        basis: &mut Basis,
    ) -> Result<Moved> {
        let update = Update::modify(key(session), vec![Action::Add(PLANNINGS.into(), 1)])
            .when(is_still(row));
        self.transition(update.transient(), basis).await
    }

    /// Takes all such notes back: it has been planned, and whatever becomes of it now was not for that.
    pub async fn end_planning(
        &self,
        session: SessionId,
        row: &Row,
        basis: &mut Basis,
    ) -> Result<Moved> {
        let update =
            Update::modify(key(session), vec![Action::unset(PLANNINGS)]).when(is_still(row));
        self.transition(update.transient(), basis).await
    }

    /// Takes a session up for writing: the row with a fencing number that shuts out earlier writers.
    pub async fn take_up(&self, session: SessionId, basis: &mut Basis) -> Result<Moved> {
        let update = Update::modify(key(session), vec![Action::Add(FENCE.into(), 1)])
            .when(Condition::Exists);
        self.transition(update, basis).await
    }

    /// Shuts out the writer with `fence` from deciding `sequence`, so that its locks may be taken.
    pub async fn doom(
        &self,
        session: SessionId,
        sequence: u64,
        fence: u64,
        basis: &mut Basis,
    ) -> Result<Moved> {
        let condition = Condition::All(vec![
            is(SEQUENCE, sequence as i64 - 1),
            is(FENCE, fence as i64),
        ]);
        let update =
            Update::modify(key(session), vec![Action::Add(FENCE.into(), 1)]).when(condition);
        self.transition(update, basis).await
    }

    /// The commit point (rule C-1): moves the session's numbers on and puts the outcomes into its outbox.
    pub async fn decide(&self, decision: Decision, basis: &mut Basis) -> Result<Moved> {
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
            Action::unset(PLANNINGS),
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
            basis,
        )
        .await
    }

    /// Records that everything up to `through` is applied, and drops it from the outbox.
    pub async fn applied(
        &self,
        session: SessionId,
        from: u64,
        through: u64,
        basis: &mut Basis,
    ) -> Result<()> {
        let actions = vec![
            Action::set_integer(APPLIED, through as i64),
            Action::RemoveFirst(OUTBOX.into(), (through - from) as usize),
        ];
        let update = Update::modify(key(session), actions).when(is(APPLIED, from as i64));
        basis.seen(
            self.system
                .update(update.depends_on(basis.point()))
                .await?
                .receipt
                .point,
        )
    }

    /// Removes the row of a session whose end is applied.
    pub async fn remove(&self, session: SessionId, basis: &mut Basis) -> Result<()> {
        let update = Update::delete(key(session)).when(is(STATE, State::Closed.number()));
        basis.seen(
            self.system
                .update(update.depends_on(basis.point()))
                .await?
                .receipt
                .point,
        )
    }

    /// The rows of a shard, a page at a time. One that cannot be read is left out, and said to be: whoever goes through all
    /// sessions has the others to see to.
    pub fn rows(&self, shard: u8) -> Rows<'_> {
        Rows {
            sessions: self,
            partition: partition(shard),
            from: Some(Bytes::new()),
        }
    }

    /// Makes sure that what `basis` has seen of the rows is durable.
    pub async fn externalize(&self, basis: &Basis) -> Result<()> {
        if self.system.is_durable(basis.point()) {
            return Ok(());
        }
        self.system.externalize(basis.point()).await
    }

    async fn transition(&self, update: Update, basis: &mut Basis) -> Result<Moved> {
        let updated = self.system.update(update.depends_on(basis.point())).await?;
        basis.seen(updated.receipt.point)?;
        match updated.outcome {
            Outcome::Done(Some(item)) => Row::read(&item).map(Moved::Done),
            Outcome::Done(None) => Err(Error::new(
                ErrorKind::Corrupt,
                "change a session's row, which vanished",
            )),
            Outcome::Conflict(item) => {
                Ok(Moved::Refused(item.as_ref().map(Row::read).transpose()?))
            }
        }
    }
}

/// The rows of a shard that were not read yet.
#[derive(Debug)]
pub struct Rows<'sessions> {
    sessions: &'sessions Sessions,
    partition: String,
    from: Option<Bytes>,
}

impl Rows<'_> {
    /// The next page; none: that was all.
    pub async fn next_page(&mut self, basis: &mut Basis) -> Result<Option<Vec<(SessionId, Row)>>> {
        let Some(from) = self.from.take() else {
            return Ok(None);
        };
        let scan = Scan {
            from,
            ..Scan::partition(self.partition.clone(), PAGE_ITEMS)
        };
        let Read { value: page, point } = self.sessions.system.scan(&scan).await?;
        basis.seen(point)?;
        let mut rows = Vec::with_capacity(page.items.len());
        for (sort, item) in &page.items {
            let id = <[u8; 8]>::try_from(sort.as_ref())
                .map_err(|_| Error::corrupt("read the key of a session's row"));
            match id.and_then(|id| Ok((SessionId(i64::from_be_bytes(id)), Row::read(item)?))) {
                Ok(row) => rows.push(row),
                Err(error) => tracing::error!(%error, key = ?sort, "a session stays as it is"),
            }
        }
        self.from = page.next;
        Ok(Some(rows))
    }
}

fn is(name: &'static str, value: i64) -> Condition {
    Condition::attribute(name, Test::is_integer(value))
}

/// That nobody else has taken the session up, nor anything was decided in it, since `row`.
fn is_still(row: &Row) -> Condition {
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
    let of_client = (session.0 & i64::from(CLIENT_SHARDS - 1)) as u8;
    let shard = if session.is_members() {
        MEMBERS
    } else {
        of_client
    };
    Key::new(partition(shard), session.0.to_be_bytes())
}

#[cfg(test)]
mod tests;
