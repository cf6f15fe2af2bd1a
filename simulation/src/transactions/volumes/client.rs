//! A client of a volume: random transactions, whose answers may be lost or come twice.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use futures_util::future::join;
use ports::{DurabilityPoint, Read};
use transactions::{
    Error,
    serializable::{
        VolumeStore,
        contract::{self, some_key, some_number, some_range, some_write},
        model::{
            At, Is, Key, KeyRange, PageLimits, PinName, Predicate, Proposal, ProposalId, SessionId,
            Slot, Verdict, Write, Writes, number_in,
        },
        volumes::VolumeName,
    },
};

use super::{
    history::{History, Look, Saw, Sent, TooOld, Transaction},
    leased::Memory,
};
use crate::transactions::{
    cluster::{Cluster, Connection, Failure},
    history::Span,
};

/// How long a client waits for an answer that does not come.
const PATIENCE: Duration = Duration::from_secs(20);
/// The most attempts of a transaction that conflicts.
const ATTEMPTS: u64 = 3;
/// How long a pin is kept before it is read: snapshots without a pin are gone then.
const PINNED_FOR: Duration = Duration::from_mins(3);
/// How often a read is repeated that was not answered.
const READS_MAX: usize = 20;

/// The behaviour of clients. A rate of zero is never.
#[derive(Debug, Clone, Copy)]
pub struct Habits {
    /// The number of clients.
    pub clients: usize,
    /// The transactions of each.
    pub transactions: u64,
    /// One answer in so many is not waited for.
    pub one_loss_in: u32,
    /// One proposal in so many is sent twice.
    pub one_double_in: u32,
    /// One pause in so many lasts for up to two minutes: slots are collected meanwhile.
    pub one_long_pause_in: u32,
    /// One transaction in so many reads at the snapshot of the one before.
    pub one_old_in: u32,
    /// Whether each client pins a snapshot, and reads it in the end.
    pub pins: bool,
    /// Whether each client reads under leases between its transactions.
    pub leases: bool,
}

/// The answer to a call.
enum Told<T> {
    Answer(T, DurabilityPoint),
    TooOld,
    Unknown,
}

/// One client.
pub struct Client {
    cluster: Cluster,
    name: VolumeName,
    number: usize,
    habits: Habits,
    rng: Rng,
    history: Rc<RefCell<History>>,
    memory: Rc<RefCell<Memory>>,
    /// The node that was reached last, by its start.
    connected: Option<(u64, Connection, Arc<dyn VolumeStore>)>,
}

/// A transaction in the making.
struct Draft {
    at: Slot,
    reads: Vec<Key>,
    predicates: Vec<Predicate>,
    writes: Vec<Write>,
    saw: Vec<Saw>,
}

impl Client {
    /// Client `number`.
    pub fn new(
        cluster: Cluster,
        name: VolumeName,
        number: usize,
        habits: Habits,
        rng: Rng,
        history: Rc<RefCell<History>>,
    ) -> Self {
        Self {
            cluster,
            name,
            number,
            habits,
            rng,
            history,
            memory: Rc::default(),
            connected: None,
        }
    }

    /// Runs its transactions.
    pub async fn work(mut self) {
        if !self.habits.leases {
            return self.transact().await;
        }
        let poller = Self {
            cluster: self.cluster.clone(),
            name: self.name.clone(),
            number: self.number,
            habits: self.habits,
            rng: self.rng.fork(),
            history: Rc::clone(&self.history),
            memory: Rc::clone(&self.memory),
            connected: None,
        };
        tokio::select! {
            biased;
            () = self.transact() => {}
            () = poller.poll() => {}
        }
    }

    async fn transact(&mut self) {
        let mut last = None;
        let pinned = if self.habits.pins {
            self.pause().await;
            self.pin().await
        } else {
            None
        };
        for number in 0..self.habits.transactions {
            self.pause().await;
            self.read_leased().await;
            let id = self.id(number);
            for attempt in 0..ATTEMPTS {
                let old = last.filter(|_| attempt == 0 && self.happens(self.habits.one_old_in));
                let Some(at) = self.begin(old).await else {
                    break;
                };
                last = Some(at);
                let Some(draft) = self.draft(at).await else {
                    break;
                };
                let id = ProposalId::new(id.clone(), attempt).expect("short");
                if !matches!(self.commit(id, draft).await, Some(Verdict::Conflict { .. })) {
                    break;
                }
            }
        }
        if let Some(slot) = pinned {
            tokio::time::sleep(PINNED_FOR).await;
            self.read_at(slot).await;
        }
    }

    /// Reads all keys at the tail, and returns the slot.
    pub async fn read_all(&mut self) -> Option<Slot> {
        let slot = self.begin(None).await?;
        self.read_at(slot).await
    }

    async fn read_at(&mut self, slot: Slot) -> Option<Slot> {
        for group in ["b", "d", "i"] {
            let range = KeyRange::all(group).expect("short");
            self.scan(At::Slot(slot), range).await?;
        }
        Some(slot)
    }

    /// Sends `proposal` until it is answered.
    pub async fn verdict(&mut self, proposal: &Proposal) -> Option<Verdict> {
        for _ in 0..READS_MAX {
            let proposal = proposal.clone();
            let call = |volume: Arc<dyn VolumeStore>| async move { volume.commit(proposal).await };
            if let Told::Answer(verdict, _) = self.ask(call).await {
                return Some(verdict);
            }
        }
        None
    }

    /// Pins the state at the tail.
    async fn pin(&mut self) -> Option<Slot> {
        let slot = self.begin(None).await?;
        for _ in 0..READS_MAX {
            let name = PinName::new(format!("of {}", self.number)).expect("short");
            let call = |volume: Arc<dyn VolumeStore>| async move {
                volume.pin(name, slot).await?;
                volume.snapshot().await
            };
            if let Told::Answer(..) = self.ask(call).await {
                self.history.borrow_mut().pinned.push(slot);
                return Some(slot);
            }
        }
        None
    }

    /// A client's id, or one that looks random, whose outcome is known for 15 minutes.
    fn id(&mut self, number: u64) -> Bytes {
        let id = format!("{}/{number}", self.number);
        if self.habits.one_long_pause_in > 0 || self.rng.bool() {
            return id.into();
        }
        format!("{id:0>16}").into()
    }

    fn happens(&mut self, one_in: u32) -> bool {
        one_in > 0 && self.rng.u32(..one_in) == 0
    }

    async fn pause(&mut self) {
        let ms = match self.rng.u8(..10) {
            _ if self.happens(self.habits.one_long_pause_in) => self.rng.u64(30_000..120_000),
            0 => self.rng.u64(250..800),
            _ => self.rng.u64(..40),
        };
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// The slot of a snapshot.
    async fn begin(&mut self, old: Option<Slot>) -> Option<Slot> {
        if old.is_some() {
            return old;
        }
        for _ in 0..READS_MAX {
            let asked = self.cluster.moment();
            let call = |volume: Arc<dyn VolumeStore>| async move { volume.snapshot().await };
            if let Told::Answer(snapshot, point) = self.ask(call).await {
                self.looked(asked, true, snapshot.slot, Vec::new(), point);
                return Some(snapshot.slot);
            }
        }
        None
    }

    /// Reads, scans, comparisons and writes.
    async fn draft(&mut self, at: Slot) -> Option<Draft> {
        let mut draft = Draft {
            at,
            reads: Vec::new(),
            predicates: Vec::new(),
            writes: Vec::new(),
            saw: Vec::new(),
        };
        let steps = self.rng.usize(1..5);
        for _ in 0..steps {
            match self.rng.u8(..8) {
                0 | 1 => {
                    let key = some_key(&mut self.rng);
                    let found = self.get(At::Slot(at), key.clone()).await?;
                    draft.reads.push(key.clone());
                    draft.saw.push(Saw::Value(key, found));
                }
                2 => {
                    let range = some_range(&mut self.rng);
                    let found = self.scan(At::Slot(at), range.clone()).await?;
                    draft.predicates.push(Predicate::Untouched(range.clone()));
                    draft.saw.push(Saw::Names(range, found));
                }
                3 => {
                    let predicate = self.comparison(at).await?;
                    draft.predicates.push(predicate);
                }
                4 => {
                    let key = some_key(&mut self.rng);
                    self.get(At::Tail, key).await?;
                }
                _ => {
                    let write = self.write();
                    draft.writes.push(write);
                }
            }
        }
        Some(draft)
    }

    fn write(&mut self) -> Write {
        if self.rng.u8(..3) > 0 {
            return some_write(&mut self.rng);
        }
        let name = ["a", "b", "c", "d"][self.rng.usize(..4)];
        // Told apart from all other values.
        let value = format!("{}-{}", self.number, self.rng.u32(..));
        contract::put(&contract::key("d", name), value)
    }

    /// A comparison that holds at the snapshot.
    async fn comparison(&mut self, at: Slot) -> Option<Predicate> {
        let key = some_number(&mut self.rng);
        let found = self.get(At::Slot(at), key.clone()).await?;
        let number = number_in(found.as_ref()).expect("only numbers are written there");
        let is = match self.rng.u8(..3) {
            0 => Is::AtLeast(number.saturating_sub(self.rng.u64(0..4))),
            1 => Is::AtMost(number + self.rng.u64(0..4)),
            _ => Is::Equals(number),
        };
        Some(Predicate::Number { key, is })
    }

    async fn get(&mut self, at: At, key: Key) -> Option<Option<Bytes>> {
        for _ in 0..READS_MAX {
            let asked = self.cluster.moment();
            let keys = [key.clone()];
            let call =
                |volume: Arc<dyn VolumeStore>| async move { volume.get_many(at, &keys).await };
            match self.ask(call).await {
                Told::Answer(values, point) => {
                    let found = values.found.into_iter().next().flatten();
                    let saw = vec![Saw::Value(key, found.clone())];
                    self.looked(asked, at == At::Tail, values.slot, saw, point);
                    return Some(found);
                }
                Told::TooOld => return self.is_too_old(asked, at),
                Told::Unknown => {}
            }
        }
        None
    }

    async fn scan(&mut self, at: At, range: KeyRange) -> Option<Vec<(Bytes, Bytes)>> {
        for _ in 0..READS_MAX {
            let asked = self.cluster.moment();
            let of_call = range.clone();
            let call = |volume: Arc<dyn VolumeStore>| async move {
                volume.scan(at, &of_call, PageLimits::default()).await
            };
            match self.ask(call).await {
                Told::Answer(page, point) => {
                    assert!(page.next.is_none(), "the range is small");
                    let entries = page.entries.into_iter();
                    let found: Vec<_> = entries.map(|entry| (entry.name, entry.value)).collect();
                    let saw = vec![Saw::Names(range, found.clone())];
                    self.looked(asked, at == At::Tail, page.slot, saw, point);
                    return Some(found);
                }
                Told::TooOld => return self.is_too_old(asked, at),
                Told::Unknown => {}
            }
        }
        None
    }

    /// Sends a proposal until it is answered, and externalizes some answers.
    async fn commit(&mut self, id: ProposalId, draft: Draft) -> Option<Verdict> {
        let proposal = Proposal {
            at: draft.at,
            id,
            reads: draft.reads,
            predicates: draft.predicates,
            writes: Writes::Inline(draft.writes.clone()),
        };
        let place = {
            let mut history = self.history.borrow_mut();
            history.transactions.push(Transaction {
                proposal: proposal.clone(),
                writes: draft.writes,
                saw: draft.saw,
                sent: Vec::new(),
            });
            history.transactions.len() - 1
        };
        if let Writes::Inline(writes) = &proposal.writes {
            self.memory.borrow_mut().begin(writes);
        }
        for _ in 0..READS_MAX {
            let Some((verdict, point)) = self.send(place, &proposal).await else {
                let pause = Duration::from_millis(self.rng.u64(..100));
                tokio::time::sleep(pause).await;
                continue;
            };
            if let Writes::Inline(writes) = &proposal.writes {
                let slot = match &verdict {
                    Verdict::Committed { slot, .. } => Some(*slot),
                    _ => None,
                };
                self.memory.borrow_mut().end(writes, slot);
            }
            if self.rng.bool() {
                self.externalize(point).await;
            }
            // Once more, when its slot may be installed.
            if self.happens(6) {
                self.pause().await;
                self.send(place, &proposal).await;
            }
            return Some(verdict);
        }
        None
    }

    /// One sending, or two at once.
    async fn send(
        &mut self,
        place: usize,
        proposal: &Proposal,
    ) -> Option<(Verdict, DurabilityPoint)> {
        let is_double = self.happens(self.habits.one_double_in);
        let later = Duration::from_millis(self.rng.u64(..300));
        let asked = self.cluster.moment();
        let cluster = self.cluster.clone();
        let twin = (proposal.clone(), self.name.clone());
        let session = self.session();
        let double = async {
            if !is_double {
                return None;
            }
            tokio::time::sleep(later).await;
            let (proposal, name) = twin;
            let asked = cluster.moment();
            let connection = cluster.connect().await;
            let call = async {
                let volume = connection.engine.volumes().open(&name).await?;
                commit(&*volume, session, proposal).await
            };
            let told = tokio::time::timeout(PATIENCE, connection.call(call)).await;
            let answer = told.ok().and_then(Result::ok);
            let answer = answer.map(|read| (cluster.moment(), read.value, read.point));
            Some(Sent { asked, answer })
        };
        let proposal = proposal.clone();
        let at = proposal.at;
        let call =
            |volume: Arc<dyn VolumeStore>| async move { commit(&*volume, session, proposal).await };
        let (told, double) = join(self.ask(call), double).await;
        let answered = match told {
            Told::Answer(verdict, point) => Some((verdict, point)),
            Told::TooOld | Told::Unknown => None,
        };
        let now = self.cluster.moment();
        let answer = answered.clone();
        let answer = answer.map(|(verdict, point)| (now, verdict, point));
        let mut history = self.history.borrow_mut();
        if matches!(answered, Some((Verdict::SnapshotTooOld, _))) {
            history.too_old.push(TooOld { asked, slot: at });
        }
        let sent = &mut history.transactions[place].sent;
        sent.push(Sent { asked, answer });
        sent.extend(double);
        answered
    }

    async fn externalize(&mut self, point: DurabilityPoint) {
        let call = |volume: Arc<dyn VolumeStore>| async move {
            volume.externalize(point).await?;
            Ok(Read { value: (), point })
        };
        if let Told::Answer((), point) = self.ask(call).await {
            self.history.borrow_mut().externalized.push(point);
        }
    }

    fn looked(
        &self,
        asked: Duration,
        is_tail: bool,
        slot: Slot,
        saw: Vec<Saw>,
        point: DurabilityPoint,
    ) {
        let answered = self.cluster.moment();
        self.history.borrow_mut().looks.push(Look {
            span: Span { asked, answered },
            is_tail,
            is_leased: false,
            slot,
            saw,
            point,
        });
    }

    /// The session of its leases, if it has any.
    fn session(&self) -> Option<SessionId> {
        self.habits
            .leases
            .then_some(SessionId(self.number as u64 + 1))
    }

    fn now(&self) -> Duration {
        self.cluster.world().clock().monotonic().0
    }

    /// Waits for recalls, as long as the client works.
    async fn poll(mut self) {
        let Some(session) = self.session() else {
            return;
        };
        loop {
            let (number, sent) = (self.memory.borrow().number, self.now());
            self.is_late().await;
            let call = |volume: Arc<dyn VolumeStore>| async move {
                volume.recalled(session, number).await
            };
            let told = self.ask(call).await;
            self.is_late().await;
            // A stopped process takes nothing.
            let stopped = self
                .memory
                .borrow()
                .stopped_until
                .saturating_sub(self.now());
            tokio::time::sleep(stopped).await;
            if let Told::Answer(recall, _) = told {
                let now = self.now();
                self.memory.borrow_mut().recall(&recall, sent, now);
            }
        }
    }

    /// Some messages take long.
    async fn is_late(&mut self) {
        let ms = match self.rng.u8(..16) {
            0 => self.rng.u64(..1_500),
            1..4 => self.rng.u64(..100),
            _ => 0,
        };
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// Reads some keys, from memory if it can.
    async fn read_leased(&mut self) {
        let Some(session) = self.session() else {
            return;
        };
        for _ in 0..self.rng.u8(..40) {
            let ms = match self.rng.u16(..200) {
                // The process is stopped.
                0 => self.rng.u64(1_000..5_000),
                _ => self.rng.u64(..120),
            };
            let stopped = Duration::from_millis(if ms >= 1_000 { ms } else { 0 });
            self.memory.borrow_mut().stopped_until = self.now() + stopped;
            tokio::time::sleep(Duration::from_millis(ms)).await;
            let key = some_key(&mut self.rng);
            let (asked, now) = (self.cluster.moment(), self.now());
            let known = self.memory.borrow_mut().get(&key, now);
            if let Some((found, slot, point)) = known {
                let answered = self.cluster.moment();
                self.history.borrow_mut().looks.push(Look {
                    span: Span { asked, answered },
                    is_tail: true,
                    is_leased: true,
                    slot,
                    saw: vec![Saw::Value(key, found)],
                    point,
                });
                continue;
            }
            let (sent, recalls) = (now, self.memory.borrow().sends());
            self.is_late().await;
            let keys = [key.clone()];
            let call = |volume: Arc<dyn VolumeStore>| async move {
                volume.get_leased(session, &keys).await
            };
            let told = self.ask(call).await;
            self.is_late().await;
            if let Told::Answer(leased, point) = told {
                let slot = leased.values.slot;
                let found = leased.values.found.into_iter().next().flatten();
                let saw = vec![Saw::Value(key.clone(), found.clone())];
                self.looked(asked, true, slot, saw, point);
                let now = self.now();
                let kept = (key, (found, slot, point));
                let mut memory = self.memory.borrow_mut();
                memory.take(kept, &leased.groups, (sent, recalls), now);
            }
        }
    }

    fn is_too_old<T>(&self, asked: Duration, at: At) -> Option<T> {
        let mut history = self.history.borrow_mut();
        match at {
            At::Slot(slot) => history.too_old.push(TooOld { asked, slot }),
            At::Tail => history.errors.push("the tail was too old".to_owned()),
        }
        None
    }

    /// Calls the volume on the node that serves now. The answer may be lost.
    async fn ask<T, F>(&mut self, call: impl FnOnce(Arc<dyn VolumeStore>) -> F) -> Told<T>
    where
        F: Future<Output = Result<Read<T>, Error>>,
    {
        let is_lost = self.happens(self.habits.one_loss_in);
        let patience = if is_lost {
            Duration::from_millis(self.rng.u64(..30))
        } else {
            PATIENCE
        };
        let asked = async {
            let (connection, volume) = self.connect().await?;
            connection.call(call(volume)).await
        };
        let told = tokio::time::timeout(patience, asked).await;
        match told {
            Ok(Ok(read)) => return Told::Answer(read.value, read.point),
            Ok(Err(Failure::Refused(Error::SnapshotTooOld))) => return Told::TooOld,
            Ok(Err(Failure::Refused(Error::Unavailable(_) | Error::OutcomeUnknown))) => {
                // A successor leads only after the lease of the node before.
                let pause = if self.cluster.places() == 1 { 20 } else { 250 };
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            Ok(Err(Failure::Refused(error))) => {
                let error = format!("{error:?}");
                self.history.borrow_mut().errors.push(error);
            }
            Ok(Err(Failure::Gone)) | Err(_) => {}
        }
        self.connected = None;
        Told::Unknown
    }

    async fn connect(&mut self) -> Result<(Connection, Arc<dyn VolumeStore>), Failure> {
        let connection = self.cluster.connect().await;
        let start = self.cluster.starts();
        if let Some((known, connection, volume)) = &self.connected
            && *known == start
        {
            return Ok((connection.clone(), Arc::clone(volume)));
        }
        let volumes = connection.engine.volumes();
        let volume = connection.call(volumes.open(&self.name)).await?;
        self.connected = Some((start, connection.clone(), Arc::clone(&volume)));
        Ok((connection, volume))
    }
}

/// A client with leases on what it writes does not recall them from itself.
async fn commit(
    volume: &dyn VolumeStore,
    session: Option<SessionId>,
    proposal: Proposal,
) -> Result<Read<Verdict>, Error> {
    match session {
        Some(session) => volume.commit_leased(session, proposal).await,
        None => volume.commit(proposal).await,
    }
}
