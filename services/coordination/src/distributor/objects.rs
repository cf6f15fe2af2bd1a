//! What becomes of objects: those that a slot has left without a name, and those that came too late.
//!
//! An object is put before the slot that names it is logged, under the name of its update, and by whoever numbers that. So one
//! may put it that has been overtaken since, when its successor has applied the update, and perhaps another one after it and
//! removed the object. Whoever may have been overtaken therefore looks: once an update is applied, no znode will name its
//! object that does not name it now. If it dies before it has looked, whoever gets its messages next looks; only where another
//! had got them too, and has taken them off the queue, the object is left.
//!
//! Only what is surely decided is looked at: what was decided in this start of the store, or was found in its row. Of a message
//! of an earlier start the decision may be lost, and its name and its object's be another's by now. So where whoever put an object
//! has died and the store has restarted since, that is left as well.

use bytes::Bytes;
use futures_util::future::try_join_all;
use ports::Result;

use super::{Distributor, Grounds};
use crate::records::{Decided, Effect};

impl Distributor {
    /// Removes objects, per region, that nothing names once everything applied so far is durable in every region: until
    /// then whoever applies it again reads them (rule P5, for a delete in another store).
    pub(super) async fn collect(
        &self,
        garbage: &[Vec<Bytes>],
        grounds: &mut Grounds,
    ) -> Result<()> {
        if garbage.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let regions = self.regions.iter().zip(&mut grounds.regions);
        try_join_all(regions.map(|(region, basis)| region.items().externalize(basis.point())))
            .await?;
        let regions = self.regions.iter().zip(garbage).zip(&mut grounds.regions);
        let collecting = regions.map(async |((region, garbage), basis)| {
            if garbage.is_empty() {
                Ok(())
            } else {
                region.collect(garbage, basis).await
            }
        });
        try_join_all(collecting).await?;
        Ok(())
    }

    /// Removes the objects of those of `decided` that are applied, and whose znodes name others.
    pub(super) async fn remove_what_came_late(
        &self,
        decided: &[Decided],
        grounds: &mut Grounds,
    ) -> Result<()> {
        let mut late = Vec::new();
        self.add_what_came_late(decided, &mut late, grounds).await?;
        self.collect(&late, grounds).await
    }

    /// Adds to the garbage the objects of those of `decided` that are applied, and whose znodes name others.
    pub(super) async fn add_what_came_late(
        &self,
        decided: &[Decided],
        garbage: &mut Vec<Vec<Bytes>>,
        grounds: &mut Grounds,
    ) -> Result<()> {
        garbage.resize(self.regions.len(), Vec::new());
        for decided in decided {
            let Ok(Effect::Create { path, data, .. } | Effect::SetData { path, data }) =
                &decided.outcome
            else {
                continue;
            };
            if !self
                .regions
                .iter()
                .any(|region| region.belongs_in_object(data))
            {
                continue;
            }
            let row = self
                .sessions
                .get(decided.id.session, &mut grounds.system)
                .await?;
            if row.is_some_and(|row| row.applied < decided.id.sequence) {
                continue;
            }
            let regions = self
                .regions
                .iter()
                .zip(&mut *garbage)
                .zip(&mut grounds.regions);
            for ((region, garbage), basis) in
                regions.filter(|((region, _), _)| region.belongs_in_object(data))
            {
                garbage.extend(region.nameless(decided.id, path, basis).await?);
            }
        }
        Ok(())
    }
}
