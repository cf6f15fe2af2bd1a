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
use futures_util::future::try_join_all;
use ports::Result;

use super::{Dependencies, Distributor};
use crate::records::{Decided, Effect};

impl Distributor {
    /// Removes the unnamed objects of each region, once everything applied so far is durable in
    /// every region. Until then a distributor that applies it again reads them (rule P5, for a
    /// delete in another store).
    pub(super) async fn collect_garbage(
        &self,
        garbage: &[Vec<Bytes>],
        dependencies: &mut Dependencies,
    ) -> Result<()> {
        if garbage.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let regions = self.regions.iter().zip(&mut dependencies.regions);
        try_join_all(
            regions.map(|(region, dependency)| region.items().externalize(dependency.point())),
        )
        .await?;
        let regions = self
            .regions
            .iter()
            .zip(garbage)
            .zip(&mut dependencies.regions);
        let collecting = regions.map(async |((region, garbage), dependency)| {
            if garbage.is_empty() {
                Ok(())
            } else {
                region.collect_garbage(garbage, dependency).await
            }
        });
        try_join_all(collecting).await?;
        Ok(())
    }

    /// Removes the objects of applied requests in `decided` whose znodes do not name them.
    pub(super) async fn remove_late_objects(
        &self,
        decided: &[Decided],
        dependencies: &mut Dependencies,
    ) -> Result<()> {
        let mut late = Vec::new();
        self.add_late_objects(decided, &mut late, dependencies)
            .await?;
        self.collect_garbage(&late, dependencies).await
    }

    /// Adds to `garbage` the objects of applied requests in `decided` whose znodes do not name
    /// them.
    pub(super) async fn add_late_objects(
        &self,
        decided: &[Decided],
        garbage: &mut Vec<Vec<Bytes>>,
        dependencies: &mut Dependencies,
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
                .get(decided.id.session, &mut dependencies.system)
                .await?;
            if row.is_some_and(|row| row.applied < decided.id.sequence) {
                continue;
            }
            let regions = self
                .regions
                .iter()
                .zip(&mut *garbage)
                .zip(&mut dependencies.regions);
            for ((region, garbage), dependency) in
                regions.filter(|((region, _), _)| region.belongs_in_object(data))
            {
                garbage.extend(
                    region
                        .unreferenced_object(decided.id, path, dependency)
                        .await?,
                );
            }
        }
        Ok(())
    }
}
