//! Which workflows have rows, and in which stores.

use std::sync::Arc;

use bytes::Bytes;
use functions::manifest::workflow::place_of;
use ports::{
    Condition, Item, Update,
    key_value::{Name, Value},
};

use super::{PAGE_ROWS, Store};
use crate::{Result, storage::layout};

/// The attribute with the address of a far store.
const ADDRESS: &str = "address";

impl Store {
    /// Lists a workflow that has rows here.
    pub(crate) async fn list(&self, workflow: &str) -> Result<()> {
        let put = Update::put(layout::listed(workflow), Vec::<(Name, Value)>::new())
            .when(Condition::Absent);
        self.rows.update(put).await?;
        Ok(())
    }

    /// Lists, near, that a workflow has rows in the far store at `address`.
    pub(crate) async fn list_far_store(&self, workflow: &str, address: &str) -> Result<()> {
        let says = vec![(
            ADDRESS.into(),
            Value::Bytes(Bytes::from(address.to_owned())),
        )];
        self.rows
            .update(Update::put(
                layout::far_store(workflow, &place_of(address)),
                says,
            ))
            .await?;
        Ok(())
    }

    /// Removes such an entry.
    pub(crate) async fn unlist_far_store(&self, workflow: &str, place: &str) -> Result<()> {
        let row = layout::far_store(workflow, place);
        self.rows.update(Update::delete(row)).await?;
        Ok(())
    }

    /// The workflows that have rows in far stores, with the latest address of each.
    pub(crate) async fn listed_far_stores(&self) -> Result<Vec<(String, String)>> {
        let (rows, _) = self.rows_of(layout::all_far_stores(PAGE_ROWS)).await?;
        let far_store = |(sort, item): &(Bytes, Arc<Item>)| {
            let address = String::from_utf8(item.bytes(ADDRESS)?.to_vec()).ok()?;
            Some((layout::workflow_of(sort)?, address))
        };
        Ok(rows.iter().filter_map(far_store).collect())
    }

    /// The addresses of the far stores in which this workflow has rows.
    pub(crate) async fn far_stores_of(&self, workflow: &str) -> Result<Vec<String>> {
        let (rows, _) = self
            .rows_of(layout::far_stores_of(workflow, PAGE_ROWS))
            .await?;
        let address = |item: &Item| String::from_utf8(item.bytes(ADDRESS)?.to_vec()).ok();
        Ok(rows.iter().filter_map(|(_, item)| address(item)).collect())
    }

    /// Whether a workflow has rows here.
    pub(crate) async fn is_listed(&self, workflow: &str) -> Result<bool> {
        Ok(self
            .rows
            .get(&layout::listed(workflow))
            .await?
            .value
            .is_some())
    }

    /// The workflows that have rows here.
    pub(crate) async fn listed(&self) -> Result<Vec<String>> {
        let (rows, _) = self.rows_of(layout::all_listed(PAGE_ROWS)).await?;
        Ok(rows
            .iter()
            .filter_map(|(sort, _)| String::from_utf8(sort.to_vec()).ok())
            .collect())
    }
}
