//! The calls of the service.
#![allow(unused_variables, clippy::unused_async, clippy::todo, missing_docs)]

use std::collections::BTreeMap;

use crate::{
    Result,
    model::{
        Attributes, Body, Bucket, Conditions, Content, List, Listing, NamedPart, Object, Stored,
        Upload, UploadId, UploadedPart,
    },
};

/// The memory service. Clones share it.
#[derive(Debug, Clone)]
pub struct Service;

impl Service {
    pub async fn create_bucket(&self, bucket: &str) -> Result<()> {
        todo!()
    }
    pub async fn delete_bucket(&self, bucket: &str) -> Result<()> {
        todo!()
    }
    pub async fn bucket(&self, bucket: &str) -> Result<Bucket> {
        todo!()
    }
    pub async fn buckets(&self) -> Result<Vec<Bucket>> {
        todo!()
    }

    /// Stores a body of `bytes`, if its length is known; it is under no key yet.
    pub async fn store(&self, bucket: &str, body: Body, bytes: Option<u64>) -> Result<Stored> {
        todo!()
    }
    /// Makes `stored` the object under `key` (M1). The result is durable.
    pub async fn commit(
        &self,
        bucket: &str,
        key: &str,
        stored: Stored,
        attributes: Attributes,
        conditions: &Conditions,
    ) -> Result<Object> {
        todo!()
    }
    /// The present version.
    pub async fn head(&self, bucket: &str, key: &str) -> Result<Object> {
        todo!()
    }
    /// The present version, ready to be read.
    pub async fn open(&self, bucket: &str, key: &str) -> Result<Opened> {
        todo!()
    }
    /// Deletes the object. Nothing to delete is no error, unless `conditions` ask for an object.
    pub async fn delete(&self, bucket: &str, key: &str, conditions: &Conditions) -> Result<()> {
        todo!()
    }
    /// Replaces the attributes of the present version under a condition: tags, or a copy onto itself.
    pub async fn set_attributes(
        &self,
        bucket: &str,
        key: &str,
        attributes: Attributes,
        conditions: &Conditions,
    ) -> Result<Object> {
        todo!()
    }
    pub async fn list(&self, bucket: &str, list: &List) -> Result<Listing> {
        todo!()
    }

    pub async fn begin_upload(
        &self,
        bucket: &str,
        key: &str,
        attributes: Attributes,
    ) -> Result<UploadId> {
        todo!()
    }
    /// Makes `stored` part `number` of the upload; it replaces an earlier one.
    pub async fn commit_part(
        &self,
        bucket: &str,
        key: &str,
        upload: UploadId,
        number: u16,
        stored: Stored,
        checksums: BTreeMap<String, String>,
    ) -> Result<UploadedPart> {
        todo!()
    }
    /// The upload and its parts after `after`, in the order of their numbers, `items_max` at most.
    pub async fn parts(
        &self,
        bucket: &str,
        key: &str,
        upload: UploadId,
        after: u16,
        items_max: usize,
    ) -> Result<(Upload, Vec<UploadedPart>)> {
        todo!()
    }
    /// Makes the named parts one object (M1). `checksums` are those of the whole object.
    pub async fn complete_upload(
        &self,
        bucket: &str,
        key: &str,
        upload: UploadId,
        parts: &[NamedPart],
        checksums: BTreeMap<String, String>,
        conditions: &Conditions,
    ) -> Result<Object> {
        todo!()
    }
    pub async fn abort_upload(&self, bucket: &str, key: &str, upload: UploadId) -> Result<()> {
        todo!()
    }
    /// All uploads of the bucket whose keys begin with `prefix`, in the order of keys and ids, after
    /// `after`.
    pub async fn uploads(
        &self,
        bucket: &str,
        prefix: &str,
        after: Option<(String, UploadId)>,
        items_max: usize,
    ) -> Result<Vec<Upload>> {
        todo!()
    }
}

/// A version of an object that can be read whatever happens to its key (M6).
#[derive(Debug)]
pub struct Opened {
    object: Object,
}

impl Opened {
    /// The version.
    pub fn object(&self) -> &Object {
        &self.object
    }
    /// Its bytes in `range`, which lies inside of it.
    pub fn read(self, range: std::ops::Range<u64>) -> Content {
        todo!()
    }
}
