//! K6, broken.

use crate::{
    Key, KeyValue, Result,
    contract::pause,
    decorate::KeyValueDecorator,
    decorates,
    key_value::{Page, Read, Scan, SharedKeyValue},
};

/// Returns the items of a page in the wrong order (K6).
#[derive(Debug)]
pub(super) struct UnorderedScan(pub(super) SharedKeyValue);

decorates!(UnorderedScan, dyn KeyValue, 0);

impl KeyValueDecorator for UnorderedScan {
    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        let mut read = self.0.scan(scan).await?;
        read.value.items.reverse();
        Ok(read)
    }
}

/// Scans to the end of the partition, beyond the bound (K6).
#[derive(Debug)]
pub(super) struct IgnoresBounds(pub(super) SharedKeyValue);

decorates!(IgnoresBounds, dyn KeyValue, 0);

impl KeyValueDecorator for IgnoresBounds {
    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.0
            .scan(&Scan {
                until: None,
                ..scan.clone()
            })
            .await
    }
}

/// Reads the items of a page one after the other, so that transactions interleave (K6).
#[derive(Debug)]
pub(super) struct TearsPages(pub(super) SharedKeyValue);

decorates!(TearsPages, dyn KeyValue, 0);

impl KeyValueDecorator for TearsPages {
    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        let mut read = self.0.scan(scan).await?;
        for (sort, item) in &mut read.value.items {
            pause().await;
            if let Some(present) = self.0.get(&Key::new(&scan.partition, sort)).await?.value {
                *item = present;
            }
        }
        Ok(read)
    }
}
