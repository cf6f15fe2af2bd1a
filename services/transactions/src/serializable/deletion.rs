//! Deleting the data of a deleted volume.
//!
//! The volume's row was moved before, so no node takes its log over any more. The moved row goes
//! last: until then, any start of the node begins again.

use bytes::Bytes;
use ports::{Update, key_value::Scan};

use crate::{
    Result,
    context::SharedObjects,
    serializable::{
        model::StageId,
        objects,
        registry::{self, VolumeRow},
        rows,
    },
    storage::{layout, store::Store},
};

/// Items in one page that is deleted.
const PAGE_ITEMS: usize = 100;

/// Deletes all data of the volume with this keyspace, and the pin that kept the snapshot it
/// was cloned from.
pub(crate) async fn delete_data(
    store: &Store,
    objects: Option<&SharedObjects>,
    row: &VolumeRow,
) -> Result<()> {
    let keyspace = row.keyspace;
    if let Some(objects) = objects {
        for id in objects::list(store, objects, keyspace).await? {
            objects::delete(store, objects, keyspace, id).await?;
        }
    }
    if let Some((parent, _)) = row.parents.first() {
        let pin = rows::pin(*parent, &rows::pin_of_clone(keyspace));
        if store.get(&pin).await?.value.is_some() {
            let rescan = registry::put(rows::rescan(*parent), Bytes::new());
            store.finish(&rescan).await?;
            store.finish(&Update::delete(pin)).await?;
        }
    }
    let stages = Scan::partition(rows::stages(keyspace), PAGE_ITEMS);
    for (sort, _) in store.scan_all(stages).await?.0 {
        if let Ok(stage) = <[u8; 16]>::try_from(&sort[..]) {
            delete_partition(store, rows::stage(keyspace, StageId(stage))).await?;
        }
    }
    delete_partition(store, rows::stages(keyspace)).await?;
    for partition in rows::partitions(keyspace) {
        delete_partition(store, partition).await?;
    }
    delete_partition(store, layout::sequencer_log(keyspace)).await?;
    for key in [rows::numbers(keyspace), registry::deleted(keyspace)] {
        store.finish(&Update::delete(key)).await?;
    }
    Ok(())
}

/// Deletes all items of a partition.
pub(crate) async fn delete_partition(store: &Store, partition: Bytes) -> Result<()> {
    loop {
        let scan = Scan::partition(partition.clone(), PAGE_ITEMS);
        let page = store.scan(&scan).await?.value;
        for (sort, _) in &page.items {
            let key = ports::Key::new(&partition, sort);
            store.finish(&Update::delete(key)).await?;
        }
        if page.next.is_none() {
            return Ok(());
        }
    }
}
