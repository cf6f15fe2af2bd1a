//! Which workflows have rows, and in which stores.

use std::sync::Arc;

use bytes::Bytes;
use functions::manifest::workflow::place_of;
use ports::{Condition, Item, Update, key_value::Value};

use super::Store;
use crate::{Result, storage::layout};

/// The attribute with the address of a far store.
const ADDRESS: &str = "address";

impl Store {
    pub(crate) async fn list(&self, workflow: &str) -> Result<()> {
        let put = Update::put(layout::listed(workflow), Vec::new()).when(Condition::Absent);
        Ok(self.rows.update(put).await.map(drop)?)
    }

    /// Lists, near, that a workflow has rows in the far store at `address`.
    pub(crate) async fn list_far_store(&self, workflow: &str, address: &str) -> Result<()> {
        let key = layout::far_store(workflow, &place_of(address));
        let address = Value::Bytes(Bytes::from(address.to_owned()));
        let put = Update::put(key, vec![(ADDRESS.into(), address)]);
        Ok(self.rows.update(put).await.map(drop)?)
    }

    /// The workflows that have rows in far stores, with the latest address of each.
    pub(crate) async fn listed_far_stores(&self) -> Result<Vec<(String, String)>> {
        let (rows, _) = self.rows_of(layout::all_far_stores()).await?;
        let far_store = |(sort, item): &(Bytes, Arc<Item>)| {
            let address = String::from_utf8(item.bytes(ADDRESS)?.to_vec()).ok()?;
            Some((layout::workflow_of(sort)?, address))
        };
        Ok(rows.iter().filter_map(far_store).collect())
    }

    /// The addresses of the far stores in which this workflow has rows.
    pub(crate) async fn far_stores_of(&self, workflow: &str) -> Result<Vec<String>> {
        let (rows, _) = self.rows_of(layout::far_stores_of(workflow)).await?;
        let address = |item: &Item| String::from_utf8(item.bytes(ADDRESS)?.to_vec()).ok();
        Ok(rows.iter().filter_map(|(_, item)| address(item)).collect())
    }

    pub(crate) async fn is_listed(&self, workflow: &str) -> Result<bool> {
        let read = self.rows.get(&layout::listed(workflow)).await?;
        Ok(read.value.is_some())
    }

    pub(crate) async fn listed(&self) -> Result<Vec<String>> {
        let (rows, _) = self.rows_of(layout::all_listed()).await?;
        let name = |(sort, _): &(Bytes, _)| String::from_utf8(sort.to_vec()).ok();
        Ok(rows.iter().filter_map(name).collect())
    }
}
