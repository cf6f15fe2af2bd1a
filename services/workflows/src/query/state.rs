//! The state of workflows.

use bytes::Bytes;
use transactions::list::{Listing, Page};

use super::{AwaitedStore, Query};
use crate::{Error, Result, storage::Store};

impl Query {
    /// The value of a key.
    pub(crate) async fn state(&self, name: &str, key: &Bytes) -> Result<Option<Bytes>> {
        let awaited = AwaitedStore::default();
        let durable = async {
            let store = self.current_store(name, &awaited).await?;
            store.check_key(key.len())?;
            let (value, point) = store.get(key).await?;
            store.externalize(point).await?;
            Ok(value)
        };
        let late = self.responses.late(&awaited);
        self.responses.in_time(late, durable).await
    }

    /// A page of the keys.
    pub(crate) async fn list_state(&self, name: &str, listing: &Listing) -> Result<Page> {
        let awaited = AwaitedStore::default();
        let durable = async {
            let store = self.current_store(name, &awaited).await?;
            let (page, point) = store.list_keys(listing).await?;
            store.externalize(point).await?;
            Ok(page)
        };
        let late = self.responses.late(&awaited);
        self.responses.in_time(late, durable).await
    }

    /// The store of the deployed definition; of a workflow that is no longer deployed, the store of
    /// an earlier one.
    pub(super) async fn current_store(&self, name: &str, awaited: &AwaitedStore) -> Result<Store> {
        let locations = match self.placement.known(name) {
            Err(_) => self.placement.all(name).await?,
            known => known?,
        };
        let location = locations.into_iter().next();
        let location = location.ok_or_else(|| Error::NoSuchWorkflow(name.to_owned()))?;
        awaited.set(&location);
        self.placement.store(&location).await
    }
}
