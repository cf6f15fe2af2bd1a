//! Temporary objects: data too large for a message, on its way from a client to the distributor
//! (`faaskeeper.txt`, section 4.7).
//!
//! An object is named by the request that it travels with. The distributor removes those of decided requests.
//! What is left belongs to requests that nobody decides: their connection was replaced, their session ended,
//! a crash took their message, or their client died before it sent one. Who refuses a request cannot remove
//! its object at once, because it may be a second delivery of a request that is decided and not applied. So
//! the heartbeat sweeps them, now and then and when the last session has ended.
//!
//! Invariants
//! - An object is swept only if nobody can need it again. Either its session has no row: everything decided in
//!   it is applied. Or its connection was replaced, so that nothing more is decided under it (rule C-6), and
//!   nothing waits in the session's outbox: what was decided under it is applied.
//! - What says so is durable before an object is removed, and the applied slots with it: a store that lost them
//!   would have them applied again, from the objects (rule P5).

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures_util::StreamExt as _;
use ports::{
    Error, ErrorKind, KeyValue, Result,
    objects::{ObjectError, ObjectPath, ObjectStore, ObjectStoreExt as _},
};

use crate::{
    broken::Broken,
    dependency::Basis,
    model::SessionId,
    records::Payload,
    storage::{session::Sessions, user_store::put_object},
};

/// All of them are below.
const PREFIX: &str = "temporary";

/// How many one sweep removes; the next one goes on with what is left then. All are looked at, which costs one read per
/// session: those that are needed stand in nobody's way.
const SWEEP_OBJECTS_MAX: usize = 10_000;

/// Makes `bytes` the temporary object of a request, and says where they are.
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

/// Whose request an object belongs to, and the number of its connection.
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
    /// What decided requests are applied to, and the store of the sessions' rows.
    stores: Vec<Arc<dyn KeyValue>>,
    broken: Option<Broken>,
}

impl Temporaries {
    /// Those in `objects`, of `sessions` whose requests are applied to `stores`, the sessions' own among them.
    pub fn new(
        objects: Arc<dyn ObjectStore>,
        sessions: Sessions,
        stores: Vec<Arc<dyn KeyValue>>,
        broken: Option<Broken>,
    ) -> Self {
        Self {
            objects,
            sessions,
            stores,
            broken,
        }
    }

    /// Removes those that nobody can need again, and says how many there were.
    pub async fn sweep(&self) -> Result<usize> {
        let seen = |store: &Arc<dyn KeyValue>| Basis::now(&**store);
        let mut seen: Vec<Basis> = self.stores.iter().map(seen).collect();
        let garbage = self.garbage().await?;
        if garbage.is_empty() {
            return Ok(0);
        }
        for (store, seen) in self.stores.iter().zip(&mut seen) {
            if self.broken == Some(Broken::SweepsByLostRows) {
                *seen = Basis::now(&**store);
            }
            seen.look(&**store)?;
            store.externalize(seen.point()).await?;
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
            // The row is read behind the list: what is there had its row before. If it was read for another object, a
            // connection made since then has none that it settles.
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

    /// The number of the first connection of `session` whose requests may still be decided or applied.
    async fn settled_until(&self, session: SessionId) -> Result<u64> {
        let is_hasty = self.broken == Some(Broken::SweepsWhatIsNotApplied);
        match self.sessions.get(session, &mut Basis::default()).await {
            Ok(None) => Ok(u64::MAX),
            Ok(Some(row)) if row.outbox().is_empty() || is_hasty => Ok(row.attach),
            Ok(Some(_)) => Ok(0),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                tracing::error!(?session, %error, "its temporary objects stay");
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
    fn an_object_says_whose_it_is() {
        let named = |name: &str| owner(&ObjectPath::from(name));
        assert_eq!(
            named("temporary/0b7e34c2bf79cfbb-a-1f"),
            Some((SessionId(0x0b7e_34c2_bf79_cfbb), 10))
        );
        assert_eq!(named("temporary/notes.txt"), None);
        assert_eq!(named("temporary/0b7e34c2bf79cfbb"), None);
    }
}
