//! A volume that grants read leases, behind a connection with random delays and losses.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use futures_util::future::{BoxFuture, FutureExt as _};
use parking_lot::Mutex;
use ports::{Clock, Monotonic, Read};
use transactions::{
    Error,
    serializable::{
        VolumeStore,
        model::{
            At, Key, KeyRange, LEASE, LEASE_POLL, Leased, Page, PageLimits, Proposal, Recall, Slot,
            Snapshot, Values, Verdict, Write, Writes,
        },
    },
};

use super::*;

const TICK: Duration = Duration::from_millis(1);

/// The connection of one client.
#[derive(Debug, Clone)]
pub(crate) struct Granting {
    server: Arc<Server>,
    inner: Arc<ModelVolume>,
    faults: Option<Arc<Mutex<fastrand::Rng>>>,
    /// Calls other than those for recalls.
    pub(crate) calls: Arc<AtomicUsize>,
    /// Calls for recalls.
    pub(crate) polls: Arc<AtomicUsize>,
    /// How long the next commit is under way, in milliseconds.
    pub(crate) late_ms: Arc<AtomicU64>,
}

/// The server of all clients.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) volume: Arc<ModelVolume>,
    clock: Arc<dyn Clock>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    sessions: BTreeMap<SessionId, Session>,
    number: u64,
    writing: BTreeMap<Bytes, usize>,
}

#[derive(Debug)]
struct Session {
    until: Monotonic,
    begun: u64,
    acknowledged: u64,
    leased: BTreeSet<Bytes>,
    recalled: BTreeMap<Bytes, u64>,
}

impl Server {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            volume: volume(),
            clock,
            table: Mutex::default(),
        })
    }

    /// A connection that works; or one with delays and losses from a seed.
    pub(crate) fn connect(self: &Arc<Self>, seed: Option<u64>) -> Granting {
        let random = |seed| Arc::new(Mutex::new(fastrand::Rng::with_seed(seed)));
        Granting {
            server: Arc::clone(self),
            inner: Arc::clone(&self.volume),
            faults: seed.map(random),
            calls: Arc::default(),
            polls: Arc::default(),
            late_ms: Arc::default(),
        }
    }

    /// It starts again on a store that has lost what was not durable.
    pub(crate) fn crash(&self) {
        self.volume.crash();
        self.table.lock().sessions.clear();
    }

    pub(crate) fn has_leases(&self) -> bool {
        let table = self.table.lock();
        let now = self.clock.monotonic();
        let sessions = &mut table.sessions.values();
        sessions.any(|session| session.until > now && !session.leased.is_empty())
    }

    async fn recall(&self, session: SessionId, acknowledged: u64) -> Recall {
        let arrived = self.clock.monotonic();
        self.table.lock().renew(session, acknowledged, arrived);
        loop {
            let visible = self.volume.snapshot().await.expect("a snapshot").value.slot;
            let recall = self.table.lock().recall(session, visible);
            let waited = self.clock.monotonic().since(arrived);
            if recall.has_lapsed || !recall.groups.is_empty() || waited >= LEASE_POLL {
                return recall;
            }
            self.clock.sleep(TICK).await;
        }
    }

    async fn commit(
        &self,
        own: Option<SessionId>,
        proposal: Proposal,
    ) -> transactions::Result<Read<Verdict>> {
        let groups = match &proposal.writes {
            Writes::Inline(writes) => groups(writes),
            Writes::Staged { .. } => {
                let table = self.table.lock();
                let sessions = table.sessions.values();
                sessions
                    .flat_map(|session| session.leased.clone())
                    .collect()
            }
        };
        for group in &groups {
            *self.table.lock().writing.entry(group.clone()).or_default() += 1;
        }
        while self
            .table
            .lock()
            .holds_up(&groups, own, self.clock.monotonic())
        {
            self.clock.sleep(TICK).await;
        }
        let verdict = self.volume.commit(proposal).await;
        for group in &groups {
            *self.table.lock().writing.get_mut(group).expect("counted") -= 1;
        }
        verdict
    }
}

fn groups(writes: &[Write]) -> BTreeSet<Bytes> {
    let of = |write: &Write| match write {
        Write::Append { length, blocks, .. } => {
            vec![length.group().clone(), blocks.group().clone()]
        }
        Write::Put { key, .. }
        | Write::Delete { key }
        | Write::Patch { key, .. }
        | Write::Add { key, .. }
        | Write::Max { key, .. } => vec![key.group().clone()],
    };
    writes.iter().flat_map(of).collect()
}

impl Table {
    fn end_if_over(&mut self, session: SessionId, now: Monotonic) {
        let known = self.sessions.get(&session);
        if known.is_some_and(|known| known.until <= now) {
            self.sessions.remove(&session);
        }
    }

    fn renew(&mut self, session: SessionId, acknowledged: u64, now: Monotonic) {
        self.end_if_over(session, now);
        if !self.sessions.contains_key(&session) {
            self.number += 1;
        }
        let begun = self.number;
        let known = self.sessions.entry(session).or_insert_with(|| Session {
            until: now,
            begun,
            acknowledged: 0,
            leased: BTreeSet::new(),
            recalled: BTreeMap::new(),
        });
        known.until = now + LEASE;
        known.acknowledged = known.acknowledged.max(acknowledged);
        known.recalled.retain(|_, number| *number > acknowledged);
    }

    fn recall(&self, session: SessionId, visible: Slot) -> Recall {
        let Some(known) = self.sessions.get(&session) else {
            return Recall {
                number: 0,
                groups: Vec::new(),
                has_lapsed: true,
                visible,
            };
        };
        let numbers = known.recalled.values().copied();
        Recall {
            number: numbers.fold(known.begun.max(known.acknowledged), u64::max),
            groups: known.recalled.keys().cloned().collect(),
            has_lapsed: known.acknowledged < known.begun,
            visible,
        }
    }

    fn grant(&mut self, session: SessionId, keys: &[Key], now: Monotonic) -> Vec<Bytes> {
        self.end_if_over(session, now);
        let Some(known) = self.sessions.get_mut(&session) else {
            return Vec::new();
        };
        if known.acknowledged < known.begun || !known.recalled.is_empty() {
            return Vec::new();
        }
        known.until = now + LEASE;
        let is_free = |group: &&Bytes| self.writing.get(*group).is_none_or(|count| *count == 0);
        let groups = keys.iter().map(Key::group).filter(is_free);
        let groups: BTreeSet<Bytes> = groups.cloned().collect();
        known.leased.extend(groups.iter().cloned());
        groups.into_iter().collect()
    }

    /// Whether leases on `groups` are in the way; those are recalled.
    fn holds_up(
        &mut self,
        groups: &BTreeSet<Bytes>,
        own: Option<SessionId>,
        now: Monotonic,
    ) -> bool {
        let mut holds_up = false;
        for (session, known) in &mut self.sessions {
            if Some(*session) == own || known.until <= now {
                continue;
            }
            for group in groups {
                if known.leased.remove(group) {
                    self.number += 1;
                    known.recalled.insert(group.clone(), self.number);
                }
                holds_up |= known.recalled.contains_key(group);
            }
        }
        holds_up
    }
}

impl Granting {
    /// The way of a message. Now and then it takes long, as if a process was stopped.
    async fn travel(&self) {
        let Some(random) = &self.faults else {
            return;
        };
        let ms = {
            let random = &mut *random.lock();
            match random.u32(..200) {
                0 => random.u64(..4_000),
                _ => random.u64(..4),
            }
        };
        self.server.clock.sleep(Duration::from_millis(ms)).await;
    }

    fn loses(&self) -> bool {
        let random = self.faults.as_ref();
        random.is_some_and(|random| random.lock().u32(..40) == 0)
    }

    /// Runs a call on the server, also if its client drops it.
    async fn call<T: Send + 'static>(
        &self,
        is_counted: bool,
        call: impl Future<Output = transactions::Result<T>> + Send + 'static,
    ) -> transactions::Result<T> {
        let counter = if is_counted { &self.calls } else { &self.polls };
        counter.fetch_add(1, Ordering::Relaxed);
        let this = self.clone();
        let answer = tokio::spawn(async move {
            this.travel().await;
            let answer = call.await;
            this.travel().await;
            answer
        });
        if self.loses() {
            self.travel().await;
            return Err(Error::Unavailable("the answer is lost".into()));
        }
        answer.await.expect("no panic")
    }

    fn commit_as(
        &self,
        own: Option<SessionId>,
        proposal: Proposal,
    ) -> BoxFuture<'_, transactions::Result<Read<Verdict>>> {
        let server = Arc::clone(&self.server);
        let late = Duration::from_millis(self.late_ms.swap(0, Ordering::Relaxed));
        let call = async move {
            server.clock.sleep(late).await;
            server.commit(own, proposal).await
        };
        self.call(true, call).boxed()
    }
}

impl VolumeStore for Granting {
    fn snapshot(&self) -> BoxFuture<'_, transactions::Result<Read<Snapshot>>> {
        let volume = Arc::clone(&self.server.volume);
        self.call(true, async move { volume.snapshot().await })
            .boxed()
    }

    fn get_many<'a>(
        &'a self,
        at: At,
        keys: &'a [Key],
    ) -> BoxFuture<'a, transactions::Result<Read<Values>>> {
        let (volume, keys) = (Arc::clone(&self.server.volume), keys.to_vec());
        self.call(true, async move { volume.get_many(at, &keys).await })
            .boxed()
    }

    fn get_leased<'a>(
        &'a self,
        session: SessionId,
        keys: &'a [Key],
    ) -> BoxFuture<'a, transactions::Result<Read<Leased>>> {
        let (server, keys) = (Arc::clone(&self.server), keys.to_vec());
        let call = async move {
            let now = server.clock.monotonic();
            let groups = server.table.lock().grant(session, &keys, now);
            let Read { value, point } = server.volume.get_many(At::Tail, &keys).await?;
            let values = value;
            let value = Leased { values, groups };
            Ok(Read { value, point })
        };
        self.call(true, call).boxed()
    }

    fn recalled(
        &self,
        session: SessionId,
        acknowledged: u64,
    ) -> BoxFuture<'_, transactions::Result<Read<Recall>>> {
        let server = Arc::clone(&self.server);
        let call = async move {
            let recall = server.recall(session, acknowledged).await;
            let point = server.volume.snapshot().await?.point;
            let value = recall;
            Ok(Read { value, point })
        };
        self.call(false, call).boxed()
    }

    fn commit(&self, proposal: Proposal) -> BoxFuture<'_, transactions::Result<Read<Verdict>>> {
        self.commit_as(None, proposal)
    }

    fn commit_leased(
        &self,
        session: SessionId,
        proposal: Proposal,
    ) -> BoxFuture<'_, transactions::Result<Read<Verdict>>> {
        self.commit_as(Some(session), proposal)
    }

    fn scan<'a>(
        &'a self,
        at: At,
        range: &'a KeyRange,
        limits: PageLimits,
    ) -> BoxFuture<'a, transactions::Result<Read<Page>>> {
        let (volume, range) = (Arc::clone(&self.server.volume), range.clone());
        self.call(true, async move { volume.scan(at, &range, limits).await })
            .boxed()
    }

    fn end_session(&self, session: SessionId) -> BoxFuture<'_, transactions::Result<()>> {
        self.server.table.lock().sessions.remove(&session);
        self.inner.end_session(session)
    }

    transactions::forward_volume_calls! {
        block_bytes, changed_since, stage, externalize, pin, unpin, lock, hold, release, is_held,
        reserve_numbers, usage
    }
}
