//! Temporary objects: data too large for a message, on its way from a client to the distributor
//! (`faaskeeper.txt`, section 4.7).
//!
//! An object is named after the request that it travels with, and after the timeline of a restored
//! store: objects of requests after the backup may still be there. The distributor removes the
//! objects of decided requests. The other objects belong to requests that are never decided: their
//! connection was replaced, their session ended, a crash lost their message, or their client died
//! before sending it. A writer that refuses a request cannot remove its object at once, because the
//! message may be a second delivery of a request that is decided and not applied. So the heartbeat
//! sweeps the objects, periodically and when the last session has ended.
//!
//! Invariants
//! - The sweep removes an object only if no request can need it. Either its session has no row, so
//!   everything decided in it is applied. Or its connection was replaced, so nothing more is
//!   decided under it (rule C-6), and the session's outbox is empty, so everything decided under it
//!   is applied.
//! - These facts and the applied slots are durable before an object is removed. A store that lost
//!   them would apply the slots again, from the objects (rule P5).

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::StreamExt as _;
use ports::{
    Error, ErrorKind, Result,
    objects::{ObjectPath, ObjectStore},
};
use primitives::Mutant;

use crate::{
    broken::Broken,
    dependency::TrackedStore,
    environment::Parts,
    model::{Connection, SessionId, Timeline},
    records::Payload,
    storage::{
        session,
        user_store::{put_object, remove_object},
    },
};

const PREFIX: &str = "temporary";

/// The most objects that one sweep removes; the next sweep continues. The sweep checks every
/// object, at one read per session, so objects still in use do not block it.
const SWEEP_OBJECTS_MAX: usize = 10_000;

/// Stores `bytes` as the temporary object of a part of a request and returns the reference.
pub(crate) async fn put(
    (objects, timeline): (&dyn ObjectStore, Option<Timeline>),
    Connection { session, attach }: Connection,
    (request, part): (u64, usize),
    bytes: Bytes,
) -> Result<Payload> {
    let timeline = timeline.map(|timeline| format!("-{:016x}", timeline.0));
    let name = format!(
        "{PREFIX}/{:016x}-{attach:x}-{request:x}-{part:x}{}",
        session.0,
        timeline.unwrap_or_default()
    );
    let bytes_len = bytes.len() as u64;
    put_object(objects, &name, bytes).await?;
    Ok(Payload::Object { name, bytes_len })
}

/// The session of an object's request, and the attach number of its connection.
fn owner(object: &ObjectPath) -> Option<(SessionId, u64)> {
    let mut parts = object.filename()?.split('-');
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    Some((SessionId(number()? as i64), number()?))
}

/// Removes all objects that no request can need, and returns their number.
pub async fn sweep(parts: &Parts, mutant: Mutant<Broken>) -> Result<usize> {
    let Parts {
        system,
        items,
        objects,
        ..
    } = parts;
    let stores = [system, items];
    let mut observed = stores.map(|store| TrackedStore::now(store.clone()));
    let garbage = garbage(parts, mutant).await?;
    if garbage.is_empty() {
        return Ok(0);
    }
    for (store, observed) in stores.into_iter().zip(&mut observed) {
        if mutant.breaks(Broken::SweepsByLostRows) {
            *observed = TrackedStore::now(store.clone());
        }
        observed.observe_now()?;
        observed.externalize().await?;
    }
    for object in &garbage {
        remove_object(&**objects, object).await?;
    }
    Ok(garbage.len())
}

async fn garbage(parts: &Parts, mutant: Mutant<Broken>) -> Result<Vec<ObjectPath>> {
    let prefix = ObjectPath::from(PREFIX);
    let mut listed = parts.objects.list(Some(&prefix));
    let mut settled: BTreeMap<SessionId, u64> = BTreeMap::new();
    let mut garbage = Vec::new();
    while let Some(object) = listed.next().await
        && garbage.len() < SWEEP_OBJECTS_MAX
    {
        let object = object
            .map_err(|cause| Error::unavailable("list objects").caused_by(cause))?
            .location;
        let Some((session, attach)) = owner(&object) else {
            continue;
        };
        // The row is read after the list, so every listed object had its row before. A row read for
        // an earlier object stays valid: connections made since then have higher attach numbers,
        // and it does not settle their objects.
        let until = match settled.get(&session) {
            Some(until) => *until,
            None => *settled
                .entry(session)
                .or_insert(settled_until(parts, mutant, session).await?),
        };
        if attach < until {
            garbage.push(object);
        }
    }
    Ok(garbage)
}

/// The attach number of the first connection of `session` whose requests may still be decided or
/// applied.
async fn settled_until(parts: &Parts, mutant: Mutant<Broken>, session: SessionId) -> Result<u64> {
    let is_hasty = mutant.breaks(Broken::SweepsUnappliedObjects);
    let mut system = TrackedStore::new(parts.system.clone());
    match session::get(&mut system, session).await {
        Ok(None) => Ok(u64::MAX),
        Ok(Some(row)) if row.outbox().is_empty() || is_hasty => Ok(row.attach),
        Ok(Some(_)) => Ok(0),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            tracing::error!(?session, %error, "cannot read the session's row; keeping its temporary objects");
            Ok(0)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_name_contains_its_owner() {
        let named = |name: &str| owner(&ObjectPath::from(name));
        assert_eq!(
            named("temporary/0b7e34c2bf79cfbb-a-1f"),
            Some((SessionId(0x0b7e_34c2_bf79_cfbb), 10))
        );
        assert_eq!(
            named("temporary/0b7e34c2bf79cfbb-a-1f-0-00112233445566ff"),
            named("temporary/0b7e34c2bf79cfbb-a-1f")
        );
        assert_eq!(named("temporary/notes.txt"), None);
        assert_eq!(named("temporary/0b7e34c2bf79cfbb"), None);
    }
}
