//! Object stores that break O1 to O4.

use std::{fmt, fmt::Debug, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    PutMultipartOptions, PutResult,
};

use super::Broken;
use crate::{
    contract::objects::Subject,
    objects::{ObjectError, ObjectPath, ObjectStore, PutMode, PutOptions, PutPayload},
};

pub(super) type Result<T> = std::result::Result<T, ObjectError>;

/// Every broken object store, at least one per promise.
pub const BROKEN: &[Broken<Subject>] = &[
    Broken::new("O1", "DropsLargePuts", |subject| {
        twisted(subject, DropsLargePuts)
    }),
    Broken::new("O2", "OverwritesOnCreate", |subject| {
        twisted(subject, OverwritesOnCreate)
    }),
    Broken::new("O3", "CutsObjectsShort", |subject| {
        twisted(subject, CutsObjectsShort)
    }),
    Broken::new("O4", "ForgetsToList", |subject| {
        twisted(subject, ForgetsToList)
    }),
    Broken::new("O4", "ListsTwice", |subject| twisted(subject, ListsTwice)),
];

/// A store that differs from an honest one in what it overrides.
#[async_trait]
pub(super) trait Twist: Debug + Send + Sync + 'static {
    fn honest(&self) -> &Arc<dyn ObjectStore>;

    async fn put(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.honest().put_opts(path, payload, options).await
    }
    async fn get(&self, path: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        self.honest().get_opts(path, options).await
    }
    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.honest().list(prefix)
    }
}

/// Makes a [`Twist`] an object store.
#[derive(Debug)]
pub(super) struct Twisted<T>(pub(super) T);

impl<T: Twist> fmt::Display for Twisted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&self.0, f)
    }
}

#[async_trait]
impl<T: Twist> ObjectStore for Twisted<T> {
    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.0.put(path, payload, options).await
    }
    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.honest().put_multipart_opts(path, options).await
    }
    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        self.0.get(path, options).await
    }
    async fn get_ranges(&self, path: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.0.honest().get_ranges(path, ranges).await
    }
    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        self.0.honest().delete_stream(paths)
    }
    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        self.0.honest().list_with_delimiter(prefix).await
    }
    async fn copy_opts(
        &self,
        from: &ObjectPath,
        to: &ObjectPath,
        options: CopyOptions,
    ) -> Result<()> {
        self.0.honest().copy_opts(from, to, options).await
    }
}

fn twisted<T: Twist>(subject: Subject, around: fn(Arc<dyn ObjectStore>) -> T) -> Subject {
    Subject {
        objects: Arc::new(Twisted(around(subject.objects))),
        ..subject
    }
}

/// Accepts large objects and forgets them (O1).
#[derive(Debug)]
struct DropsLargePuts(Arc<dyn ObjectStore>);

#[async_trait]
impl Twist for DropsLargePuts {
    fn honest(&self) -> &Arc<dyn ObjectStore> {
        &self.0
    }
    async fn put(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if payload.content_length() > 100_000 {
            return Ok(PutResult {
                e_tag: None,
                version: None,
                extensions: options.extensions,
            });
        }
        self.0.put_opts(path, payload, options).await
    }
}

/// Takes a create for a replace (O2).
#[derive(Debug)]
struct OverwritesOnCreate(Arc<dyn ObjectStore>);

#[async_trait]
impl Twist for OverwritesOnCreate {
    fn honest(&self) -> &Arc<dyn ObjectStore> {
        &self.0
    }
    async fn put(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.0
            .put_opts(
                path,
                payload,
                PutOptions {
                    mode: PutMode::Overwrite,
                    ..options
                },
            )
            .await
    }
}

/// Gives only the first half of what was asked for (O3).
#[derive(Debug)]
struct CutsObjectsShort(Arc<dyn ObjectStore>);

#[async_trait]
impl Twist for CutsObjectsShort {
    fn honest(&self) -> &Arc<dyn ObjectStore> {
        &self.0
    }
    async fn get(&self, path: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        let found = self.0.get_opts(path, options).await?;
        let (meta, range) = (found.meta.clone(), found.range.clone());
        let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
        let bytes = found.bytes().await?;
        let half = bytes.slice(..bytes.len() / 2);
        let payload = GetResultPayload::Stream(stream::iter([Ok(half)]).boxed());
        Ok(GetResult {
            payload,
            meta,
            range,
            attributes,
            extensions,
        })
    }
}

/// Leaves the first object out of every list (O4).
#[derive(Debug)]
struct ForgetsToList(Arc<dyn ObjectStore>);

impl Twist for ForgetsToList {
    fn honest(&self) -> &Arc<dyn ObjectStore> {
        &self.0
    }
    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix).skip(1).boxed()
    }
}

/// Lists every object twice (O4).
#[derive(Debug)]
struct ListsTwice(Arc<dyn ObjectStore>);

impl Twist for ListsTwice {
    fn honest(&self) -> &Arc<dyn ObjectStore> {
        &self.0
    }
    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix).chain(self.0.list(prefix)).boxed()
    }
}
