//! Temporary objects: data too large for a message, on its way from a client to the distributor
//! (`faaskeeper.txt`, section 4.7).
//!
//! An object is named after the request that it travels with. The distributor removes the objects
//! of decided requests. The other objects belong to requests that are never decided: their
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

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures_util::StreamExt as _;
use ports::{
    Error, ErrorKind, KeyValue, Result,
    objects::{ObjectError, ObjectPath, ObjectStore, ObjectStoreExt as _},
};
use primitives::Mutant;

use crate::{
    broken::Broken,
    dependency::Dependency,
    model::SessionId,
    records::Payload,
    storage::{session::Sessions, user_store::put_object},
};

/// The common prefix of their names.
const PREFIX: &str = "temporary";

/// The most objects that one sweep removes; the next sweep continues. The sweep checks every
/// object, at one read per session, so objects still in use do not block it.
const SWEEP_OBJECTS_MAX: usize = 10_000;

/// Stores `bytes` as the temporary object of a request and returns the reference.
pub(crate) async fn put(
    objects: &dyn ObjectStore,
    session: SessionId,
    attach: u64,
    request: u64,
    bytes: Bytes,
) -> Result<Payload> {
    let name = format!("{PREFIX}/{:016x}-{attach:x}-{request:x}", session.0);
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

/// The temporary objects of one service.
#[derive(Debug, Clone)]
pub struct Temporaries {
    objects: Arc<dyn ObjectStore>,
    sessions: Sessions,
    /// The stores to which decided requests are applied, and the store of the session rows.
    stores: Vec<Arc<dyn KeyValue>>,
    mutant: Mutant<Broken>,
}

impl Temporaries {
    /// The temporary objects in `objects`, of requests of `sessions`. `stores` must contain all
    /// user stores and the store of the session rows.
    pub fn new(
        objects: Arc<dyn ObjectStore>,
        sessions: Sessions,
        stores: Vec<Arc<dyn KeyValue>>,
        mutant: Mutant<Broken>,
    ) -> Self {
        Self {
            objects,
            sessions,
            stores,
            mutant,
        }
    }

    /// Removes all objects that no request can need, and returns their number.
    pub async fn sweep(&self) -> Result<usize> {
        let observed = |store: &Arc<dyn KeyValue>| Dependency::now(&**store);
        let mut observed: Vec<Dependency> = self.stores.iter().map(observed).collect();
        let garbage = self.garbage().await?;
        if garbage.is_empty() {
            return Ok(0);
        }
        for (store, observed) in self.stores.iter().zip(&mut observed) {
            if self.mutant.breaks(Broken::SweepsByLostRows) {
                *observed = Dependency::now(&**store);
            }
            observed.observe_store(&**store)?;
            store.externalize(observed.point()).await?;
        }
        for object in &garbage {
            match self.objects.delete(object).await {
                Ok(()) | Err(ObjectError::NotFound { .. }) => {}
                Err(cause) => {
                    return Err(
                        Error::unavailable(format!("delete object {object}")).caused_by(cause)
                    );
                }
            }
        }
        Ok(garbage.len())
    }

    async fn garbage(&self) -> Result<Vec<ObjectPath>> {
        let prefix = ObjectPath::from(PREFIX);
        let mut listed = self.objects.list(Some(&prefix));
        let mut settled_until: BTreeMap<SessionId, u64> = BTreeMap::new();
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
            // The row is read after the list, so every listed object had its row before. A row read
            // for an earlier object stays valid: connections made since then have higher attach
            // numbers, and it does not settle their objects.
            let until = match settled_until.get(&session) {
                Some(until) => *until,
                None => *settled_until
                    .entry(session)
                    .or_insert(self.settled_until(session).await?),
            };
            if attach < until {
                garbage.push(object);
            }
        }
        Ok(garbage)
    }

    /// The attach number of the first connection of `session` whose requests may still be decided
    /// or applied.
    async fn settled_until(&self, session: SessionId) -> Result<u64> {
        let is_hasty = self.mutant.breaks(Broken::SweepsUnappliedObjects);
        match self.sessions.get(session, &mut Dependency::default()).await {
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
        assert_eq!(named("temporary/notes.txt"), None);
        assert_eq!(named("temporary/0b7e34c2bf79cfbb"), None);
    }
}
