//! The tail: one process's position in the distributor's log, and delivery from there to its
//! clients.
//!
//! The tail takes slots in order. As soon as a slot is applied, it delivers the answers and events
//! to the clients' event queues, in the order of their zxids. [`Tail::applied`] is the resulting
//! view: every event up to it is in its client's queue. A read of newer state waits for the view
//! (rule C-5). FaaSKeeper's clients do this with MRD and epoch (section 4.5).
//!
//! Clients hold back their outputs until [`Tail::durable`] has reached them (rule P5). A session's
//! next request therefore waits for the disk only to be *answered*, not to be *executed*, and
//! waiting clients share one fsync.
//!
//! The tail is also the watch *function*: the distributor invokes it with each applied slot. If
//! such an announcement is lost, the log still has the slot. A distributor that applies decisions
//! at once is the only one, and hands its slots to the tail of its process. Where several processes
//! distribute, a slot is announced in only one of them. The others poll the log
//! ([`poll_schedule`]).
//!
//! Invariants
//! - While the tail has no position in the log, no client is registered, and applied slots are
//!   delivered to no client. A registered client therefore receives every answer to the requests
//!   that it sends from then on, or is disconnected.
//! - A position belongs to one incarnation of the store. After a restart of the store, the slots
//!   delivered from the position may be lost. So the tail disconnects all clients and looks for a
//!   new position. What is durable at the new position says nothing about earlier deliveries, so a
//!   client ignores it ([`Tail::durable_from`]).
//! - The last delivered slot only grows from one position to its loss. Its lock is taken before that
//!   of the registry.
//! - A watch is armed for its connection under the same lock that shows that the znode has not
//!   changed since it was read. If the znode has changed, the event is inserted at its position.

pub(crate) mod event_queue;
mod log_position;
mod poll_schedule;
mod registry;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{DurabilityPoint, Event, Handler, Result, functions::Failure, key_value::Read};
use primitives::FencedLog;
use tokio::sync::{Notify, watch};

use self::{
    log_position::LogPosition,
    poll_schedule::PollSchedule,
    registry::{Registered, Registry},
};
use crate::{
    access::{self, Rules},
    backlog::Backlog,
    broken::Broken,
    environment::Environment,
    model::{Connection, EventKind, Identity, SessionId, Zxid},
    queue_names::LOG_PARTITION,
    records::{Change, LogEntry, Slot, UpdateAnswer, Wake, decode},
    storage::user_store::UserStore,
    tail::event_queue::{ClientEvent, EventQueue},
    watches::{Aspect, Watches},
};

/// The epoch of no position. No delivery from it is ever durable.
const NO_POSITION: u64 = 0;

/// How long the tail waits after a store failed before it continues.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// One process's position in the log.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) env: Arc<Environment>,
    pub(crate) region: UserStore,
    log: FencedLog,
    /// A client waits for something that another process may distribute.
    poll_is_wanted: AtomicBool,
    inbox: Mutex<BTreeMap<u64, Wake>>,
    slot_announced: Notify,
    registry: Mutex<Registry>,
    applied: watch::Sender<Zxid>,
    durable: AtomicI64,
    /// The number of the current position among those of this process, or zero without one.
    position: AtomicU64,
    delivered: Notify,
    /// The last delivered slot, while there is a position.
    last: Mutex<Option<LogPosition>>,
}

#[derive(Debug)]
pub(crate) struct DeliveredChange {
    pub(crate) zxid: Zxid,
    pub(crate) kind: EventKind,
    pub(crate) path: String,
    /// As in [`Change::acl`].
    pub(crate) acl: Bytes,
}

/// The znode that a request read, and the watch that it asks for there.
#[derive(Debug)]
pub(crate) struct ReadTarget {
    pub(crate) path: String,
    pub(crate) watch: Option<Aspect>,
}

impl Tail {
    pub(crate) fn new(env: Arc<Environment>) -> Self {
        Self {
            region: UserStore::of(&env),
            log: FencedLog::new(env.parts.system.clone(), LOG_PARTITION),
            registry: Mutex::new(Registry {
                watches: Watches::new(env.config.mutant),
                ..Registry::default()
            }),
            env,
            poll_is_wanted: AtomicBool::new(false),
            inbox: Mutex::default(),
            slot_announced: Notify::new(),
            applied: watch::Sender::new(Zxid(0)),
            durable: AtomicI64::new(0),
            position: AtomicU64::new(0),
            delivered: Notify::new(),
            last: Mutex::default(),
        }
    }

    /// The view of this process: the answers and events up to this zxid are delivered.
    pub(crate) fn applied(&self) -> Zxid {
        *self.applied.borrow()
    }

    /// The zxid up to which all deliveries since the current position are durable.
    pub(crate) fn durable(&self) -> Zxid {
        Zxid(self.durable.load(Ordering::Acquire))
    }

    /// The zxid up to which deliveries from `position` may be sent. `None` once that position is
    /// lost, because zxids that were not durable then may have been assigned to other updates.
    pub(crate) fn durable_from(&self, position: u64) -> Option<Zxid> {
        // In this order: a position is lost before its successor reports durability.
        let durable = self.durable();
        let is_lost = position == NO_POSITION || self.position.load(Ordering::Acquire) != position;
        let is_blind = self.env.breaks(Broken::ConfirmsLostZxids);
        (!is_lost || is_blind).then_some(durable)
    }

    /// Schedules a wake-up of `event_queue` for when `zxid` is durable. Returns false if it is
    /// durable already. A replaced connection has been woken already to learn that.
    pub(crate) fn wake_when_durable(
        &self,
        client: Connection,
        zxid: Zxid,
        event_queue: &Arc<EventQueue>,
    ) -> bool {
        let mut registry = self.registry();
        if self.durable() >= zxid {
            return false;
        }
        if registry.is_registered(client) {
            registry.waiting.insert(client.session, event_queue.clone());
        }
        true
    }

    /// The numbers of connected clients and armed watches in this process.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let registry = self.registry();
        (registry.clients().count(), registry.watches.count())
    }

    /// The paths that each client watches, other than for children alone.
    pub(crate) fn watched_paths(&self) -> BTreeMap<SessionId, Vec<String>> {
        let registry = self.registry();
        let watched = registry.watches.by_session().into_iter();
        let owned = |paths: BTreeSet<&str>| paths.into_iter().map(str::to_owned).collect();
        watched
            .map(|(session, paths)| (session, owned(paths)))
            .collect()
    }

    /// Announces that a client waits for something. If another process may distribute it, the tail
    /// polls the log soon.
    pub(crate) fn poll_soon(&self) {
        if self.env.config.log_poll_period.is_some() {
            self.poll_is_wanted.store(true, Ordering::Release);
            self.slot_announced.notify_one();
        }
    }

    /// Returns once the view has reached `zxid`.
    pub(crate) async fn reached(&self, zxid: Zxid) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self
            .applied
            .subscribe()
            .wait_for(|applied| *applied >= zxid)
            .await;
    }

    /// Takes a slot that the distributor announces. The tail drops known slots and keeps early ones
    /// until their predecessors arrive.
    pub(crate) fn announce(&self, wake: Wake) {
        self.inbox().insert(wake.index, wake);
        self.slot_announced.notify_one();
    }

    /// Delivers a slot that this process has just applied, if it is the next one. Otherwise
    /// announces it. This saves its decoding and a wake-up of [`Tail::run`].
    pub(crate) fn deliver_now(&self, slot: Slot, wake: Wake) {
        {
            let mut last = self.last();
            let is_next = |last: &&mut LogPosition| {
                last.index == wake.previous && last.incarnation == wake.point.incarnation
            };
            let Some(last) = last.as_mut().filter(is_next) else {
                return self.announce(wake);
            };
            self.deliver(slot, wake.point);
            last.reached(wake.index, wake.epoch);
        }
        self.delivered.notify_one();
    }

    /// Registers the one client that acts for `session` here, and returns the number of the current
    /// position. If two attaches of a session register, the earlier attach is told that it was
    /// replaced, even if it registers last.
    ///
    /// Without a position in the log, the client is disconnected at once. Otherwise its requests
    /// might be applied before there is a position, and their answers would be lost.
    pub(crate) fn register(
        &self,
        Connection { session, attach }: Connection,
        event_queue: Arc<EventQueue>,
    ) -> u64 {
        let mut registry = self.registry();
        let position = self.position.load(Ordering::Relaxed);
        if position == NO_POSITION {
            event_queue.put(ClientEvent::PositionLost);
            event_queue.wake();
            return position;
        }
        let replaced = match registry.clients.get(&session) {
            Some(latest)
                if latest.attach > attach && !self.env.breaks(Broken::LastToRegisterWins) =>
            {
                Some(event_queue)
            }
            _ => {
                // The new client does not wait for the same things as the earlier one.
                registry.watches.disarm_all(session);
                registry.waiting.remove(&session);
                let earlier = registry.clients.insert(
                    session,
                    Registered {
                        attach,
                        event_queue,
                        identities: Vec::new(),
                    },
                );
                earlier.map(|earlier| earlier.event_queue)
            }
        };
        if let Some(replaced) = replaced {
            replaced.put(ClientEvent::Moved);
            replaced.wake();
        }
        position
    }

    /// Replaces the identities of a client. From now on they decide which events it receives.
    pub(crate) fn identify(&self, client: Connection, identities: Vec<Identity>) {
        let mut registry = self.registry();
        if registry.is_registered(client)
            && let Some(registered) = registry.clients.get_mut(&client.session)
        {
            registered.identities = identities;
        }
    }

    /// Removes a client that disconnected, unless another client has replaced it.
    pub(crate) fn unregister(&self, client: Connection) {
        let mut registry = self.registry();
        if registry.is_registered(client) {
            registry.clients.remove(&client.session);
            registry.waiting.remove(&client.session);
            registry.watches.disarm_all(client.session);
        }
    }

    /// The changes after `since` and up to `until` that `pick` selects, in order. `None` if more
    /// changes were delivered than are kept. The view must have reached `until`.
    pub(crate) fn changes<T>(
        &self,
        since: Zxid,
        until: Zxid,
        pick: impl FnMut(&DeliveredChange) -> Option<T>,
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

    /// Arms the watch that `target` asks for, as of `at`. A change since then fires it at once.
    /// Returns false if more changes were delivered since than are kept, so it is unknown whether
    /// the watch has fired. The view must have reached `at`.
    pub(crate) fn arm_watch(&self, target: &ReadTarget, at: Zxid, client: Connection) -> bool {
        let Some(aspect) = target.watch else {
            return true;
        };
        let mut registry = self.registry();
        let fires = |change: &&DeliveredChange| {
            Aspect::changed_by(change.kind).contains(&aspect) && change.path == target.path
        };
        let is_blind = self.env.breaks(Broken::ArmsWatchesTooLate);
        let missed = match registry.changes_after(at) {
            Some(mut after) => after.find(fires).filter(|_| !is_blind),
            None => return false,
        };
        let missed = missed.map(|change| (change.zxid, change.kind, Rules::of(&change.acl)));
        match (registry.clients.get(&client.session), missed) {
            // A connection that was replaced or ended meanwhile must not leave a watch for its
            // successor.
            _ if !registry.is_registered(client) => {}
            (Some(registered), Some((zxid, kind, rules))) => {
                // As in ZooKeeper, the watch is gone even if its client may not learn why.
                if rules.allow(&registered.identities, access::READ) {
                    registered.event_queue.put_late(zxid, kind, &target.path);
                }
            }
            (_, _) => registry.watches.arm(client.session, aspect, &target.path),
        }
        true
    }

    /// Reads or changes the watches of a connection. Returns the result, and the zxid up to which
    /// changes found the watches as they were before. A connection that was replaced or ended finds
    /// and changes none.
    pub(crate) fn with_watches<T: Default>(
        &self,
        client: Connection,
        work: impl FnOnce(&mut Watches, SessionId) -> T,
    ) -> (T, Zxid) {
        let mut registry = self.registry();
        let result = if registry.is_registered(client) {
            work(&mut registry.watches, client.session)
        } else {
            T::default()
        };
        (result, registry.delivered)
    }

    /// Follows the log forever, as a task of the program beside its front ends.
    pub(crate) async fn run(&self) {
        loop {
            let has_position = self.last().is_some();
            let started = if has_position {
                Ok(())
            } else {
                self.start().await
            };
            let failure = match started {
                Ok(()) => tokio::select! {
                    biased;
                    failure = self.follow() => failure,
                    failure = self.confirm() => failure,
                },
                Err(failure) => failure,
            };
            tracing::warn!(error = %failure, "lost the position in the log; disconnecting all clients");
            self.disconnect_all();
            self.env.parts.clock.sleep(RETRY_AFTER).await;
        }
    }

    /// Takes the position at the cursor. Clients may connect afterwards, and [`Tail::run`]
    /// continues from there.
    pub(crate) async fn start(&self) -> Result<()> {
        let Read {
            value: (cursor, _),
            point,
        } = self.region.cursor().await?;
        self.region.items.externalize(point).await?;
        let mut last = self.last();
        let mut registry = self.registry();
        let position = self.position.load(Ordering::Relaxed);
        assert_eq!(position, NO_POSITION, "a tail without a position starts");
        self.applied.send_replace(cursor.zxid);
        self.durable.store(cursor.zxid.0, Ordering::Release);
        registry.recent = Backlog::default();
        registry.dropped = cursor.zxid;
        registry.delivered = cursor.zxid;
        registry.unconfirmed = None;
        registry.positions += 1;
        self.position.store(registry.positions, Ordering::Release);
        *last = Some(LogPosition {
            index: cursor.slot,
            epoch: cursor.epoch,
            incarnation: point.incarnation,
        });
        Ok(())
    }

    async fn follow(&self) -> ports::Error {
        let mut schedule = self.env.config.log_poll_period.map(PollSchedule::new);
        // The last slot that is known to be applied without an announcement.
        let mut found = None;
        loop {
            let position = self
                .last()
                .expect("`run` drops a position only after `follow` has ended");
            let slots = match self.next_slots(position, found).await {
                Ok(slots) => slots,
                Err(error) => return error,
            };
            if slots.is_empty() {
                found = match self.wait_for_slots(position, schedule.as_mut()).await {
                    Ok(found) => found,
                    Err(error) => return error,
                };
                continue;
            }
            for announced in slots {
                if let Err(error) = self.check_incarnation(position, announced.point) {
                    return error;
                }
                let slot = match decode(&announced.slot, "a slot of the log") {
                    Ok(slot) => slot,
                    Err(error) => return error,
                };
                let mut last = self.last();
                let last = last
                    .as_mut()
                    .expect("`run` drops a position only after `follow` has ended");
                if last.index < announced.index {
                    self.deliver(slot, announced.point);
                    last.reached(announced.index, announced.epoch);
                }
            }
            self.delivered.notify_one();
        }
    }

    /// Makes all deliveries durable together, and wakes the waiting clients.
    async fn confirm(&self) -> ports::Error {
        let items = &self.region.items;
        loop {
            let unconfirmed = self.registry().unconfirmed.take();
            let Some((zxid, point)) = unconfirmed else {
                self.delivered.notified().await;
                continue;
            };
            if !self.env.breaks(Broken::AnswersBeforeDurable)
                && !items.is_durable(point)
                && let Err(error) = items.externalize(point).await
            {
                return error;
            }
            let waiting = {
                let mut registry = self.registry();
                self.durable.store(zxid.0, Ordering::Release);
                std::mem::take(&mut registry.waiting)
            };
            for event_queue in waiting.into_values() {
                event_queue.wake();
            }
        }
    }

    /// Fails if the store has restarted. Earlier deliveries may then be lost, and their zxids
    /// assigned to other updates.
    fn check_incarnation(&self, position: LogPosition, point: DurabilityPoint) -> Result<()> {
        if point.incarnation == position.incarnation || self.env.breaks(Broken::FollowsALostLog) {
            return Ok(());
        }
        Err(ports::Error::unavailable(
            "follow the log in a store that has restarted",
        ))
    }

    /// Returns once there may be more slots: announced ones, or ones that the cursor shows to be
    /// applied.
    async fn wait_for_slots(
        &self,
        position: LogPosition,
        schedule: Option<&mut PollSchedule>,
    ) -> Result<Option<(u64, DurabilityPoint)>> {
        let clock = &self.env.parts.clock;
        let Some(schedule) = schedule else {
            self.slot_announced.notified().await;
            return Ok(None);
        };
        if self.poll_is_wanted.swap(false, Ordering::AcqRel) {
            schedule.poll_soon(clock.monotonic());
        }
        let due = schedule.due();
        let is_due = async {
            match due {
                Some(due) => clock.sleep(due.since(clock.monotonic())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = is_due => {}
            () = self.slot_announced.notified() => return Ok(None),
        }
        let cursor = self.region.cursor().await;
        let is_in_use = self.registry().clients().next().is_some();
        schedule.polled(clock.monotonic(), is_in_use);
        // If the store fails, there is nothing to deliver. Clients notice the failure by
        // themselves.
        let Ok(Read {
            value: (cursor, _),
            point,
        }) = cursor
        else {
            return Ok(None);
        };
        self.check_incarnation(position, point)?;
        Ok(Some((cursor.slot, point)))
    }

    /// The applied slots after `position`. These are the announced ones. If one is missing, or the
    /// cursor in `found` is ahead, they come from the log.
    async fn next_slots(
        &self,
        position: LogPosition,
        found: Option<(u64, DurabilityPoint)>,
    ) -> Result<Vec<Wake>> {
        let mut announced = Vec::new();
        let behind_a_gap = {
            let mut inbox = self.inbox();
            *inbox = inbox.split_off(&(position.index + 1));
            let mut last = position.index;
            while let Some(next) = inbox
                .first_entry()
                .filter(|next| next.get().previous == last)
            {
                let wake = next.remove();
                last = wake.index;
                announced.push(wake);
            }
            inbox.values().next().map(|wake| (wake.index, wake.point))
        };
        let found = found.filter(|(until, _)| *until > position.index);
        if announced.is_empty()
            && let Some((until, point)) = behind_a_gap.or(found)
        {
            return position.read_on(&self.log, until, point).await;
        }
        Ok(announced)
    }

    /// Fires the watches of a slot's changes, and queues events and answers for their clients.
    fn deliver(&self, slot: Slot, point: DurabilityPoint) {
        let (mut eager, last) = (BTreeMap::new(), slot.last());
        {
            let mut registry = self.registry();
            for (zxid, mut entry) in slot.numbered() {
                for Change { kind, path, acl } in std::mem::take(&mut entry.events) {
                    let fired = registry.watches.fire(kind, &path);
                    let to_all = self.env.breaks(Broken::SendsEventsToAll);
                    let shown_to = if to_all { &[] } else { acl.as_ref() };
                    for session in registry.readers(fired, shown_to) {
                        let path = path.clone();
                        let event = ClientEvent::Event { zxid, kind, path };
                        registry.put(session, event, &mut eager);
                    }
                    registry.keep_change(DeliveredChange {
                        zxid,
                        kind,
                        path,
                        acl,
                    });
                }
                let client = Connection {
                    session: entry.id.session,
                    attach: entry.attach,
                };
                registry.replaced_by(client, &mut eager);
                if registry.is_registered(client)
                    && let Some(event) = answer(zxid, entry)
                {
                    registry.put(client.session, event, &mut eager);
                }
            }
            let point = registry
                .unconfirmed
                .map_or(point, |(_, unconfirmed)| point.max(unconfirmed));
            registry.unconfirmed = Some((last, point));
            registry.delivered = last;
        }
        self.applied.send_replace(last);
        for event_queue in eager.into_values() {
            event_queue.wake();
        }
    }

    fn disconnect_all(&self) {
        let mut last = self.last();
        *last = None;
        let mut registry = self.registry();
        self.position.store(NO_POSITION, Ordering::Release);
        for (session, client) in std::mem::take(&mut registry.clients) {
            registry.watches.disarm_all(session);
            client.event_queue.put(ClientEvent::PositionLost);
            client.event_queue.wake();
        }
        registry.waiting.clear();
        self.inbox().clear();
    }

    fn inbox(&self) -> MutexGuard<'_, BTreeMap<u64, Wake>> {
        self.inbox
            .lock()
            .expect("no panic while the inbox is locked")
    }

    fn last(&self) -> MutexGuard<'_, Option<LogPosition>> {
        self.last.lock().expect("no panic while it is locked")
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry
            .lock()
            .expect("no panic while the registry is locked")
    }
}

#[async_trait]
impl Handler for Tail {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let Event::Call { payload, .. } = event else {
            return Err(Failure::new("the watch function accepts only calls"));
        };
        self.announce(decode(&payload, "a wake-up")?);
        Ok(Bytes::new())
    }
}

/// The event that the client of a session receives for one of its updates. An update without a
/// request number has no recipient, for example one part of a session's end. The last part tells
/// the client that the session is over.
fn answer(zxid: Zxid, entry: LogEntry) -> Option<ClientEvent> {
    match (entry.request, entry.answer) {
        (0, Ok(UpdateAnswer::Closed)) => Some(ClientEvent::Expired),
        (0, _) => None,
        (request, answer) => Some(ClientEvent::Answer {
            zxid,
            request,
            answer,
        }),
    }
}

#[cfg(test)]
mod tests;
