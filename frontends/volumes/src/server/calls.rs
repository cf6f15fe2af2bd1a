//! Performs one request.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, sleep_until};
use transactions::{
    Error, Result,
    serializable::{
        VolumeStore,
        model::{Granted, Groups, Lock, LockMode, Owner, SessionId, Wait},
        volumes::VolumeName,
    },
};

use super::Shared;
use crate::wire::{Answer, Call, List, Request, SessionKey};

/// The pause before a lock is reclaimed once more.
const RECLAIM_AGAIN: Duration = Duration::from_millis(200);

/// A volume that a connection has opened.
#[derive(Debug, Clone)]
pub(super) struct Opened {
    pub(super) name: VolumeName,
    pub(super) volume: Arc<dyn VolumeStore>,
}

/// The sender of a request.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    pub(super) shared: Arc<Shared>,
    pub(super) session: SessionKey,
}

/// A request of all volumes.
pub(super) async fn of_all(sender: Sender, request: Request) -> Answer {
    let Sender { shared, session } = sender;
    let volumes = &shared.volumes;
    match request {
        Request::Create(name, settings) => Answer::done(volumes.create(name, settings).await),
        Request::List => Answer::of(volumes.list().await, |found| Answer::Listed(List(found))),
        Request::SetQuota(name, bytes) => Answer::done(volumes.set_quota(&name, bytes).await),
        Request::Clone { from, at, to } => Answer::done(volumes.clone_volume(&from, at, to).await),
        Request::Delete(name) => Answer::done(volumes.delete(&name).await),
        Request::Goodbye => {
            shared.sessions.end_now(session).await;
            Answer::Done
        }
        Request::On(..) | Request::Open(..) | Request::Close(_) | Request::Cancel(_) => {
            Answer::failed(&Error::Invalid("the request belongs to a connection"))
        }
    }
}

/// A call of one volume.
pub(super) async fn of_one(sender: Sender, opened: Opened, call: Call) -> Answer {
    let volume = &*opened.volume;
    match call {
        Call::Snapshot => Answer::read(volume.snapshot().await, Answer::Snapshot),
        Call::GetMany(at, keys) => Answer::read(volume.get_many(at, &keys.0).await, Answer::Values),
        Call::Scan(at, range, limits) => {
            Answer::read(volume.scan(at, &range, limits).await, Answer::Page)
        }
        Call::ChangedSince(slot, groups) => {
            let groups = groups.map_or(Groups::All, |groups| Groups::Of(groups.0));
            Answer::read(volume.changed_since(slot, &groups).await, Answer::Changed)
        }
        Call::Stage(stage, part, writes) => {
            Answer::of(volume.stage(stage, part, writes).await, Answer::Point)
        }
        Call::Commit(proposal) => {
            Answer::read(volume.commit(proposal.into()).await, Answer::Verdict)
        }
        Call::Externalize(point) => Answer::done(volume.externalize(point).await),
        Call::Pin(name, slot) => Answer::done(volume.pin(name, slot).await),
        Call::Unpin(name) => Answer::done(volume.unpin(&name).await),
        Call::Pins => Answer::of(volume.pins().await, |pins| Answer::Pins(List(pins))),
        Call::IsHeld(key) => Answer::of(volume.is_held(&key).await, Answer::IsHeld),
        Call::ReserveNumbers => Answer::of(volume.reserve_numbers().await, Answer::Numbers),
        Call::Usage => Answer::of(volume.usage().await, Answer::Usage),
        Call::GetLeased(..)
        | Call::Recalled(..)
        | Call::CommitLeased(..)
        | Call::Lock(..)
        | Call::Reclaim(..)
        | Call::Hold(..)
        | Call::Release(..)
        | Call::EndSession(_) => of_session(sender, opened, call).await,
    }
}

/// A call whose effect ends with the session.
async fn of_session(sender: Sender, opened: Opened, call: Call) -> Answer {
    let (volume, of) = (&*opened.volume, |session| scoped(sender.session, session));
    let note = |session| {
        let place = (&opened.name, &opened.volume);
        sender
            .shared
            .sessions
            .note_use(sender.session, place, session)
    };
    let owner = |owner: Owner| Owner {
        session: of(owner.session),
        id: owner.id,
    };
    match call {
        Call::Hold(session, key) => {
            if let Err(error) = note(of(session)) {
                return Answer::failed(&error);
            }
            Answer::done(volume.hold(of(session), key).await)
        }
        Call::Release(session, key) => Answer::done(volume.release(of(session), &key).await),
        Call::GetLeased(session, keys) => {
            if let Err(error) = note(of(session)) {
                return Answer::failed(&error);
            }
            let read = volume.get_leased(of(session), &keys.0).await;
            Answer::read(read, Answer::Leased)
        }
        Call::Recalled(session, number) => {
            let recall = volume.recalled(of(session), number).await;
            Answer::read(recall, Answer::Recalled)
        }
        Call::CommitLeased(session, proposal) => {
            let verdict = volume.commit_leased(of(session), proposal.into()).await;
            Answer::read(verdict, Answer::Verdict)
        }
        Call::EndSession(session) => {
            // A client takes a new session for its leases when it gives all of them up.
            let place = (opened.name.clone(), of(session));
            sender.shared.sessions.forget_use(sender.session, &place);
            Answer::done(volume.end_session(of(session)).await)
        }
        Call::Lock(from, lock) | Call::Reclaim(from, lock)
            if lock.mode == LockMode::Unlocked || lock.wait == Wait::Test =>
        {
            Answer::of(volume.lock(owner(from), lock).await, Answer::Granted)
        }
        Call::Lock(from, lock) => lock_after_grace(&sender, &opened, owner(from), lock).await,
        Call::Reclaim(from, lock) => reclaim(&sender, &opened, owner(from), lock).await,
        _ => Answer::failed(&Error::Invalid("the call has no session")),
    }
}

/// Takes a lock, once the locks of the former server are reclaimed.
async fn lock_after_grace(sender: &Sender, opened: &Opened, owner: Owner, lock: Lock) -> Answer {
    let (shared, volume) = (&sender.shared, &*opened.volume);
    if let Some(until) = shared.reclaim_until() {
        sleep_until(until).await;
    }
    let place = (&opened.name, &opened.volume);
    let noted = shared
        .sessions
        .note_use(sender.session, place, owner.session);
    let answer = Answer::of(take(noted, volume, owner, lock).await, |it| it);
    // The answer has no point of its own. This is in memory.
    if let Ok(snapshot) = volume.snapshot().await {
        shared.saw(snapshot.point);
    }
    answer
}

/// Takes a lock that the client had when the former server ended.
async fn reclaim(sender: &Sender, opened: &Opened, owner: Owner, lock: Lock) -> Answer {
    let (shared, volume) = (&sender.shared, &*opened.volume);
    let place = (&opened.name, &opened.volume);
    let noted = match shared.reclaim_until() {
        Some(_) => shared
            .sessions
            .note_use(sender.session, place, owner.session),
        None => Err(Error::Invalid("the time to reclaim locks is over")),
    };
    let wait = Wait::Never;
    let lock = Lock { wait, ..lock };
    loop {
        let taken = take(noted.clone(), volume, owner, lock.clone()).await;
        let is_refused = matches!(taken, Ok(Answer::Granted(Granted::No { .. })));
        // The server that serves this one's volumes may still have the lock as one of the server
        // that ended here.
        if !is_refused || shared.reclaim_until().is_none() {
            return Answer::of(taken, |it| it);
        }
        sleep(RECLAIM_AGAIN).await;
    }
}

async fn take(
    noted: Result<()>,
    volume: &dyn VolumeStore,
    owner: Owner,
    lock: Lock,
) -> Result<Answer> {
    noted?;
    volume.lock(owner, lock).await.map(Answer::Granted)
}

/// The session as the volume knows it. Each client numbers its own, and two may use one number.
fn scoped(key: SessionKey, session: SessionId) -> SessionId {
    SessionId(session.0 ^ key.0 as u64)
}
