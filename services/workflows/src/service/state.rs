//! The state of workflows.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use transactions::list::{Listing, Page};

use super::{Service, response::AwaitedStore};
use crate::{Result, storage::Store};

impl Service {
    /// The latest committed value of a key of the workflow's state, once it is durable.
    pub fn state<'a>(
        &'a self,
        name: &'a str,
        key: &'a Bytes,
    ) -> BoxFuture<'a, Result<Option<Bytes>>> {
        Box::pin(async move {
            let awaited = AwaitedStore::default();
            let durable = async {
                let store = self.current_store(name, &awaited).await?;
                store.check_key(key.len())?;
                let (value, point) = store.get(key).await?;
                store.externalize(point).await?;
                Ok(value)
            };
            self.in_time(&awaited, durable).await
        })
    }

    /// A page of the keys of the workflow's state, once they are durable.
    pub fn list_state<'a>(
        &'a self,
        name: &'a str,
        listing: &'a Listing,
    ) -> BoxFuture<'a, Result<Page>> {
        Box::pin(async move {
            let awaited = AwaitedStore::default();
            let durable = async {
                let store = self.current_store(name, &awaited).await?;
                let (page, point) = store.list_keys(listing).await?;
                store.externalize(point).await?;
                Ok(page)
            };
            self.in_time(&awaited, durable).await
        })
    }

    /// The store of the deployed definition; of a workflow that is no longer deployed, the store of
    /// an earlier one.
    pub(super) async fn current_store(&self, name: &str, awaited: &AwaitedStore) -> Result<Store> {
        let locations = match self.executor.placement.known(name) {
            Err(_) => self.executor.placement.all(name).await?,
            known => known?,
        };
        // There is one at least.
        awaited.set(&locations[0]);
        self.executor.placement.store(&locations[0]).await
    }
}
