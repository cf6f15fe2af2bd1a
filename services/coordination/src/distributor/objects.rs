//! Removes objects: those that a slot has replaced, and those that were put too late.
//!
//! A distributor puts an object, named after its update, before it logs the slot that names the
//! object. Meanwhile its successor may have applied the update, and perhaps a later update that
//! removed the object. Then the late object has no name. A distributor that may have been overtaken
//! therefore checks its objects. Once an update is applied, a znode that does not name its object
//! will never name it. If the distributor dies before this check, the next instance that receives
//! its messages does the check. The object is left only if another instance also received these
//! messages and already acknowledged them.
//!
//! The check covers only requests that are certainly decided: in this incarnation of the store, or
//! according to their row. The decision of an older message may be lost, and another update may
//! have its id and object name. So if the distributor that put an object died and the store has
//! restarted since, the object is left too.

use bytes::Bytes;
use ports::Result;

use super::{Distributor, WarmState};
use crate::{dependency::TrackedStore, records::Decided, storage::session};

impl Distributor {
    /// Removes unnamed objects once everything applied so far is durable. Until then a distributor
    /// that applies it again reads them (rule P5, for a delete in another store).
    pub(super) async fn collect_garbage(
        &self,
        garbage: &[Bytes],
        items: &mut TrackedStore,
    ) -> Result<()> {
        if garbage.is_empty() {
            return Ok(());
        }
        items.externalize().await?;
        self.region.collect_garbage(items, garbage).await
    }

    /// Removes the objects of applied requests in `decided` whose znodes do not name them.
    pub(super) async fn remove_late_objects(
        &self,
        decided: &[Decided],
        warm: &mut WarmState,
    ) -> Result<()> {
        let late = self.late_objects(decided, warm).await?;
        self.collect_garbage(&late, &mut warm.items).await
    }

    /// The objects of applied requests in `decided` whose znodes do not name them.
    pub(super) async fn late_objects(
        &self,
        decided: &[Decided],
        warm: &mut WarmState,
    ) -> Result<Vec<Bytes>> {
        let mut late = Vec::new();
        for decided in decided {
            let written = decided.written();
            let written: Vec<_> = written
                .filter(|written| self.region.belongs_in_object(written.data))
                .collect();
            if written.is_empty() {
                continue;
            }
            let row = session::get(&mut warm.system, decided.id.session).await?;
            if row.is_some_and(|row| row.applied < decided.id.sequence) {
                continue;
            }
            for written in written {
                let items = &mut warm.items;
                late.extend(
                    self.region
                        .unreferenced_object(items, decided.id, written)
                        .await?,
                );
            }
        }
        Ok(late)
    }
}
