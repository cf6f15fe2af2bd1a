//! The tail: one process's place in the distributor's log, and what it hands to its clients from there.
//!
//! Slots are taken in order and handed out as soon as they are applied: answers and events, in the order of
//! their zxids, into the clients' mailboxes. [`Tail::applied`] is the view that this gives: every event up to
//! it stands in its client's mailbox. A read that would show something newer waits for the view (rule C-5).
//! This is what FaaSKeeper's clients do with MRD and epoch (section 4.5).
//!
//! Nothing of it leaves before it is durable (rule P5): clients hold back what they have computed until
//! [`Tail::durable`] has reached it. So a session's next request need not wait for the disk to be *executed*,
//! only to be *answered*; whoever waits shares one fsync.
//!
//! Where several processes distribute, a slot is told in one of them alone; the others look for it ([`poll_schedule`]).
//!
//! What was handed out last is kept for readers: while they looked at the store, it changed, and what they saw is made
//! whole by what happened meanwhile ([`crate::client::read`]).
//!
//! Invariants
//! - While the tail has no place in the log nobody is registered: whatever is applied then is handed to nobody.
//!   So a client that is registered is handed every answer to what it sends afterwards, or is disconnected.
//! - A place is of one start of the store. When the store has restarted, what was handed out from there may be lost:
//!   everybody is disconnected, and the next place is looked for. What is durable from there on says nothing of what was
//!   handed out before, so a client lets nothing go by it ([`Tail::durable_from`]).
//! - A watch is armed for the connection that asked for it, in the same moment in which what was looked at for it is known
//!   not to have changed since; if it has, the event is put where it would have been.

pub(crate) mod event_queue;
mod poll_schedule;
mod registry;
pub mod watches;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use ports::{Clock, DurabilityPoint, Incarnation, Result, key_value::Read};
use primitives::{Cursor, Epoch, FencedLog, SlotIndex};
use tokio::sync::{Notify, watch};

use self::{
    poll_schedule::Looks,
    registry::{Registered, Registry},
};
use crate::{
    backlog::Backlog,
    broken::Broken,
    config::Config,
    model::{EventKind, SessionId, Zxid},
    records::{Answer, Entry, Slot, Wake, decode},
    storage::user_store::UserStore,
    tail::{
        event_queue::{Letter, Mailbox},
        watches::Aspect,
    },
};

/// The number of no place: what is said to be handed out from it is not.
const NO_PLACE: u64 = 0;

/// How many slots are read at a time where they were not told.
const LOG_PAGE_SLOTS: usize = 64;

/// How long the tail waits after a store failed before it reads on.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// One process's place in the log.
#[derive(Debug)]
pub struct Tail {
    region: UserStore,
    log: FencedLog,
    clock: Arc<dyn Clock>,
    broken: Option<Broken>,
    look_period: Option<Duration>,
    /// Somebody waits for something that another process may distribute.
    is_expecting: AtomicBool,
    inbox: Mutex<BTreeMap<u64, Wake>>,
    offered: Notify,
    registry: Mutex<Registry>,
    applied: watch::Sender<Zxid>,
    durable: AtomicI64,
    /// The number of its place among those of this process; zero while it has none.
    place: AtomicU64,
    handed_out: Notify,
    /// The place that was found before anybody follows the log from it.
    found: Mutex<Option<Place>>,
}

/// What was handed out.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) zxid: Zxid,
    pub(crate) kind: EventKind,
    pub(crate) path: String,
}

/// One connection to one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) session: SessionId,
    pub(crate) attach: u64,
}

/// What a request looked at, and the watch that it asks for there.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) path: String,
    pub(crate) watch: Option<Aspect>,
}

/// A slot that is applied, as it was told or read.
#[derive(Debug)]
struct Told {
    index: u64,
    epoch: u64,
    slot: Slot,
    point: DurabilityPoint,
}

/// The slot that was handed out last.
#[derive(Debug, Clone, Copy)]
struct Place {
    index: u64,
    epoch: u64,
    /// The start of the store in which it was found.
    incarnation: Incarnation,
}

impl Tail {
    /// A tail of `log` for readers of `region`.
    pub fn new(region: UserStore, log: FencedLog, clock: Arc<dyn Clock>, config: &Config) -> Self {
        Self {
            region,
            log,
            clock,
            broken: config.broken,
            look_period: config.log_look_period,
            is_expecting: AtomicBool::new(false),
            inbox: Mutex::default(),
            offered: Notify::new(),
            registry: Mutex::default(),
            applied: watch::Sender::new(Zxid(0)),
            durable: AtomicI64::new(0),
            place: AtomicU64::new(0),
            handed_out: Notify::new(),
            found: Mutex::default(),
        }
    }

    /// The view of this process: the answers and events up to this zxid are handed out.
    pub fn applied(&self) -> Zxid {
        *self.applied.borrow()
    }

    /// Everything up to this zxid is durable, of what was handed out since the tail has found its place.
    pub fn durable(&self) -> Zxid {
        Zxid(self.durable.load(Ordering::Acquire))
    }

    /// Up to where everything may leave that was handed out from `place`; none once that is lost: zxids that were not durable
    /// then are another's by now.
    pub(crate) fn durable_from(&self, place: u64) -> Option<Zxid> {
        // In this order: a place is lost before the next one says what is durable.
        let durable = self.durable();
        let is_lost = place == NO_PLACE || self.place.load(Ordering::Acquire) != place;
        let is_blind = self.broken == Some(Broken::ConfirmsWhatAnotherPlaceLost);
        (!is_lost || is_blind).then_some(durable)
    }

    /// Has `mailbox` woken once `zxid` is durable; false if it is already. Who was replaced has been woken to hear so.
    pub(crate) fn wake_when_durable(
        &self,
        client: Connection,
        zxid: Zxid,
        mailbox: &Arc<Mailbox>,
    ) -> bool {
        let mut registry = self.registry();
        if self.durable() >= zxid {
            return false;
        }
        if registry.is_registered(client) {
            registry.waiting.insert(client.session, mailbox.clone());
        }
        true
    }

    /// How many clients are connected here, and how many watches are armed.
    pub fn counts(&self) -> (usize, usize) {
        let registry = self.registry();
        (registry.clients().count(), registry.watches.count())
    }

    /// Somebody waits for something: if another process may distribute it, the log is looked at soon.
    pub(crate) fn expect(&self) {
        if self.look_period.is_some() {
            self.is_expecting.store(true, Ordering::Release);
            self.offered.notify_one();
        }
    }

    /// Returns once the view has reached `zxid`.
    pub async fn reached(&self, zxid: Zxid) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self
            .applied
            .subscribe()
            .wait_for(|applied| *applied >= zxid)
            .await;
    }

    /// Takes what the distributor has told. Slots known already are dropped, early ones wait for theirs.
    pub fn offer(&self, wake: Wake) {
        self.inbox
            .lock()
            .expect("no panic while the inbox is held")
            .insert(wake.index, wake);
        self.offered.notify_one();
    }

    /// Registers the one client that speaks for `session` here; one of an earlier attach is told that it no longer does,
    /// whichever of the two comes first.
    /// Without a place in the log the client is disconnected at once: what it asks for might be applied before
    /// there is one, and be handed to nobody. Answers which place it is handed everything from.
    pub(crate) fn register(
        &self,
        Connection { session, attach }: Connection,
        mailbox: Arc<Mailbox>,
    ) -> u64 {
        let mut registry = self.registry();
        let place = self.place.load(Ordering::Relaxed);
        if place == NO_PLACE {
            mailbox.put(Letter::LostPlace);
            mailbox.wake();
            return place;
        }
        let replaced = match registry.clients.get(&session) {
            Some(latest)
                if latest.attach > attach
                    && self.broken != Some(Broken::LetsTheLastToRegisterSpeak) =>
            {
                Some(mailbox)
            }
            _ => {
                // What the one before waits for is not what this one waits for.
                registry.watches.disarm_all(session);
                registry.waiting.remove(&session);
                let earlier = registry
                    .clients
                    .insert(session, Registered { attach, mailbox });
                earlier.map(|earlier| earlier.mailbox)
            }
        };
        if let Some(replaced) = replaced {
            replaced.put(Letter::Moved);
            replaced.wake();
        }
        place
    }

    /// Forgets a client that has gone, unless another has taken its place.
    pub(crate) fn unregister(&self, client: Connection) {
        let mut registry = self.registry();
        if registry.is_registered(client) {
            registry.clients.remove(&client.session);
            registry.waiting.remove(&client.session);
            registry.watches.disarm_all(client.session);
        }
    }

    /// What `pick` takes of the changes after `since`, up to `until`, in order; none: more was handed out than is kept. The
    /// view has reached `until`.
    pub(crate) fn changes<T>(
        &self,
        since: Zxid,
        until: Zxid,
        pick: impl FnMut(&Change) -> Option<T>,
    ) -> Option<Vec<T>> {
        if until <= since {
            return Some(Vec::new());
        }
        let registry = self.registry();
        let after = registry.changes_after(since)?;
        Some(
            after
                .take_while(|change| change.zxid <= until)
                .filter_map(pick)
                .collect(),
        )
    }

    /// Leaves the watch that `look` asks for, as of `at`: what has happened since fires it at once. False if more was handed
    /// out since than is kept, and nobody knows. The view has reached `at`.
    pub(crate) fn watch(&self, look: &Look, at: Zxid, client: Connection) -> bool {
        let Some(aspect) = look.watch else {
            return true;
        };
        let mut registry = self.registry();
        let fires = |change: &&Change| {
            Aspect::changed_by(change.kind).contains(&aspect) && change.path == look.path
        };
        let is_blind = self.broken == Some(Broken::WatchesFromNowOn);
        let missed = match registry.changes_after(at) {
            Some(mut after) => after.find(fires).filter(|_| !is_blind),
            None => return false,
        };
        let missed = missed.map(|change| (change.zxid, change.kind));
        match (registry.clients.get(&client.session), missed) {
            // A connection that was replaced or ended meanwhile leaves nothing behind for the one after it.
            _ if !registry.is_registered(client) => {}
            (Some(registered), Some((zxid, kind))) => {
                registered.mailbox.put_late(zxid, kind, &look.path);
            }
            (_, _) => registry.watches.arm(client.session, aspect, &look.path),
        }
        true
    }

    /// Reads on for ever: the task that the program runs beside its front ends.
    pub async fn run(&self) {
        loop {
            let found = self.found.lock().expect("no panic while it is held").take();
            let started = match found {
                Some(place) => Ok(place),
                None => self.start().await,
            };
            let failure = match started {
                Ok(place) => tokio::select! {
                    biased;
                    failure = self.follow(place) => failure,
                    failure = self.confirm() => failure,
                },
                Err(failure) => failure,
            };
            tracing::warn!(error = %failure, "lost the place in the log; every client here reconnects");
            self.disconnect_all();
            self.clock.sleep(RETRY_AFTER).await;
        }
    }

    /// Finds its place at the cursor: clients may connect from here on, and [`Tail::run`] follows from there.
    pub async fn start_at_cursor(&self) -> Result<()> {
        let place = self.start().await?;
        *self.found.lock().expect("no panic while it is held") = Some(place);
        Ok(())
    }

    async fn start(&self) -> Result<Place> {
        let Read {
            value: (cursor, _),
            point,
        } = self.region.cursor().await?;
        self.region.items().externalize(point).await?;
        let mut registry = self.registry();
        let place = self.place.load(Ordering::Relaxed);
        assert_eq!(
            place, NO_PLACE,
            "a place is looked for only where there is none"
        );
        self.applied.send_replace(cursor.zxid);
        self.durable.store(cursor.zxid.0, Ordering::Release);
        registry.recent = Backlog::default();
        registry.forgotten = cursor.zxid;
        registry.unconfirmed = None;
        registry.places += 1;
        self.place.store(registry.places, Ordering::Release);
        Ok(Place {
            index: cursor.slot,
            epoch: cursor.epoch,
            incarnation: point.incarnation,
        })
    }

    async fn follow(&self, mut place: Place) -> ports::Error {
        let mut looks = self.look_period.map(Looks::new);
        // The last slot that is known to be applied although nobody has told of it.
        let mut found = None;
        loop {
            let slots = match self.next_slots(place, found).await {
                Ok(slots) => slots,
                Err(error) => return error,
            };
            if slots.is_empty() {
                found = match self.more_may_be_there(place, looks.as_mut()).await {
                    Ok(found) => found,
                    Err(error) => return error,
                };
                continue;
            }
            for told in slots {
                if let Err(error) = self.check_start(place, told.point) {
                    return error;
                }
                self.hand_out(&told);
                place = Place {
                    index: told.index,
                    epoch: told.epoch,
                    ..place
                };
            }
            self.handed_out.notify_one();
        }
    }

    /// Makes what was handed out durable, all of it at once, and says so.
    async fn confirm(&self) -> ports::Error {
        let items = self.region.items();
        loop {
            let unconfirmed = self.registry().unconfirmed.take();
            let Some((zxid, point)) = unconfirmed else {
                self.handed_out.notified().await;
                continue;
            };
            if !items.is_durable(point)
                && let Err(error) = items.externalize(point).await
            {
                return error;
            }
            let waiting = {
                let mut registry = self.registry();
                self.durable.store(zxid.0, Ordering::Release);
                std::mem::take(&mut registry.waiting)
            };
            for mailbox in waiting.into_values() {
                mailbox.wake();
            }
        }
    }

    /// What was handed out before may be lost in a store that has restarted since, and its zxids given to others.
    fn check_start(&self, place: Place, point: DurabilityPoint) -> Result<()> {
        if point.incarnation == place.incarnation || self.broken == Some(Broken::FollowsALostLog) {
            return Ok(());
        }
        Err(ports::Error::unavailable(
            "follow the log in a store that has restarted",
        ))
    }

    /// Returns once there may be more: what was told, or what the cursor shows to be applied.
    async fn more_may_be_there(
        &self,
        place: Place,
        looks: Option<&mut Looks>,
    ) -> Result<Option<(u64, DurabilityPoint)>> {
        let Some(looks) = looks else {
            self.offered.notified().await;
            return Ok(None);
        };
        if self.is_expecting.swap(false, Ordering::AcqRel) {
            looks.expect(self.clock.monotonic());
        }
        let due = looks.due();
        let is_due = async {
            match due {
                Some(due) => self.clock.sleep(due.since(self.clock.monotonic())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = is_due => {}
            () = self.offered.notified() => return Ok(None),
        }
        let cursor = self.region.cursor().await;
        let is_in_use = self.registry().clients().next().is_some();
        looks.looked(self.clock.monotonic(), is_in_use);
        // A store that does not answer has nothing to show; clients notice by themselves.
        let Ok(Read {
            value: (cursor, _),
            point,
        }) = cursor
        else {
            return Ok(None);
        };
        self.check_start(place, point)?;
        Ok(Some((cursor.slot, point)))
    }

    /// The applied slots behind `place`: those that were told, or, where one is missing or more were `found` to be
    /// applied, those of the log.
    async fn next_slots(
        &self,
        place: Place,
        found: Option<(u64, DurabilityPoint)>,
    ) -> Result<Vec<Told>> {
        let (told, behind_a_gap) = {
            let mut inbox = self.inbox.lock().expect("no panic while the inbox is held");
            *inbox = inbox.split_off(&(place.index + 1));
            let mut told = Vec::new();
            let mut last = place.index;
            while let Some(next) = inbox
                .first_entry()
                .filter(|next| next.get().previous == last)
            {
                let wake = next.remove();
                last = wake.index;
                told.push(wake);
            }
            (
                told,
                inbox.values().next().map(|wake| (wake.index, wake.point)),
            )
        };
        let found = found.filter(|(until, _)| *until > place.index);
        if told.is_empty()
            && let Some((until, point)) = behind_a_gap.or(found)
        {
            return self.read_log(place, until, point).await;
        }
        let decoded = |Wake {
                           index,
                           epoch,
                           slot,
                           point,
                           ..
                       }| {
            Ok(Told {
                index,
                epoch,
                slot: decode(&slot, "a slot of the log")?,
                point,
            })
        };
        told.into_iter().map(decoded).collect()
    }

    /// The slots up to `until` that nobody told, from the log: they are applied, since that one is.
    async fn read_log(
        &self,
        place: Place,
        until: u64,
        point: DurabilityPoint,
    ) -> Result<Vec<Told>> {
        let from = match place.index {
            0 => Cursor::START,
            index => Cursor {
                next: SlotIndex(index + 1),
                epoch: Epoch(place.epoch),
            },
        };
        let read = self.log.read(from, LOG_PAGE_SLOTS).await?.slots;
        let decoded = |logged: primitives::Slot| {
            let (index, epoch) = (logged.index.0, logged.epoch.0);
            Ok(Told {
                index,
                epoch,
                slot: decode(&logged.payload, "a slot of the log")?,
                point,
            })
        };
        let told: Vec<Told> = read
            .into_iter()
            .filter(|logged| logged.index.0 <= until)
            .map(decoded)
            .collect::<Result<_>>()?;
        if told.is_empty() {
            return Err(ports::Error::unavailable(format!(
                "find the slots up to {until} in the log"
            )));
        }
        Ok(told)
    }

    fn hand_out(&self, told: &Told) {
        let slot = &told.slot;
        let mut eager = BTreeMap::new();
        {
            let mut registry = self.registry();
            for (zxid, entry) in slot.numbered() {
                for (kind, path) in &entry.events {
                    registry.remember(zxid, *kind, path);
                    for session in registry.watches.fire(*kind, path) {
                        registry.put(
                            session,
                            Letter::Event {
                                zxid,
                                kind: *kind,
                                path: path.clone(),
                            },
                            &mut eager,
                        );
                    }
                }
                let session = entry.id.session;
                registry.replaced_by(
                    Connection {
                        session,
                        attach: entry.attach,
                    },
                    &mut eager,
                );
                if registry.is_registered(Connection {
                    session,
                    attach: entry.attach,
                }) && let Some(letter) = answer(zxid, entry)
                {
                    registry.put(session, letter, &mut eager);
                }
            }
            let point = registry
                .unconfirmed
                .map_or(told.point, |(_, point)| point.max(told.point));
            registry.unconfirmed = Some((slot.last(), point));
        }
        self.applied.send_replace(slot.last());
        for mailbox in eager.into_values() {
            mailbox.wake();
        }
    }

    fn disconnect_all(&self) {
        let mut registry = self.registry();
        self.place.store(NO_PLACE, Ordering::Release);
        for (session, client) in std::mem::take(&mut registry.clients) {
            registry.watches.disarm_all(session);
            client.mailbox.put(Letter::LostPlace);
            client.mailbox.wake();
        }
        registry.waiting.clear();
        self.inbox
            .lock()
            .expect("no panic while the inbox is held")
            .clear();
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry
            .lock()
            .expect("no panic while the registry is held")
    }
}

/// What the client of a session hears of one of its updates. What nobody there has asked for is answered to nobody: a
/// part of an end that takes several; the end itself tells that the session is over.
fn answer(zxid: Zxid, entry: &Entry) -> Option<Letter> {
    match (entry.request, &entry.answer) {
        (0, Ok(Answer::Closed)) => Some(Letter::Expired),
        (0, _) => None,
        (request, answer) => Some(Letter::Answer {
            zxid,
            request,
            answer: answer.clone(),
        }),
    }
}

#[cfg(test)]
mod tests;
