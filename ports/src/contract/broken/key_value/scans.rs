//! K6, broken.

use async_trait::async_trait;

use super::Twist;
use crate::{
    Key, Result,
    contract::pause,
    key_value::{Page, Read, Scan, SharedKeyValue},
};

/// Returns the items of a page in the wrong order (K6).
#[derive(Debug)]
pub(super) struct UnorderedScan(SharedKeyValue);

impl UnorderedScan {
    pub(super) fn around(honest: SharedKeyValue) -> Self {
        Self(honest)
    }
}

#[async_trait]
impl Twist for UnorderedScan {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        let mut read = self.0.scan(scan).await?;
        read.value.items.reverse();
        Ok(read)
    }
}

/// Scans on to the end of the partition, whatever the bound (K6).
#[derive(Debug)]
pub(super) struct IgnoresBounds(SharedKeyValue);

impl IgnoresBounds {
    pub(super) fn around(honest: SharedKeyValue) -> Self {
        Self(honest)
    }
}

#[async_trait]
impl Twist for IgnoresBounds {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.0
            .scan(&Scan {
                until: None,
                ..scan.clone()
            })
            .await
    }
}

/// Reads the items of a page one after the other, so that transactions come between (K6).
#[derive(Debug)]
pub(super) struct TearsPages(SharedKeyValue);

impl TearsPages {
    pub(super) fn around(honest: SharedKeyValue) -> Self {
        Self(honest)
    }
}

#[async_trait]
impl Twist for TearsPages {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
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
