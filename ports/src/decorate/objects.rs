//! Forwards the calls of an object store, whose trait belongs to another crate.

use std::{
    fmt::{self, Debug},
    future::Future,
    ops::Range,
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    PutMultipartOptions, PutResult,
};

use crate::objects::{ObjectPath, ObjectStore, PutOptions, PutPayload, Result};

/// An object store around another one. Each call does what [`ObjectStore`] says of it.
#[expect(missing_docs, reason = "the port documents its calls")]
pub trait ObjectsDecorator: Debug + Send + Sync + Sized + 'static {
    /// The implementation that calls are forwarded to.
    fn inner(&self) -> &dyn ObjectStore;

    /// This decorator as an object store. No crate but `object_store` may implement its trait for
    /// every decorator, so a wrapper does.
    fn into_objects(self) -> Arc<dyn ObjectStore> {
        Arc::new(Decorated(self))
    }

    fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> impl Future<Output = Result<PutResult>> + Send {
        async move { self.inner().put_opts(path, payload, options).await }
    }

    fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> impl Future<Output = Result<Box<dyn MultipartUpload>>> + Send {
        async move { self.inner().put_multipart_opts(path, options).await }
    }

    fn get_opts(
        &self,
        path: &ObjectPath,
        options: GetOptions,
    ) -> impl Future<Output = Result<GetResult>> + Send {
        async move { self.inner().get_opts(path, options).await }
    }

    fn get_ranges(
        &self,
        path: &ObjectPath,
        ranges: &[Range<u64>],
    ) -> impl Future<Output = Result<Vec<Bytes>>> + Send {
        async move { self.inner().get_ranges(path, ranges).await }
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        self.inner().delete_stream(paths)
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner().list(prefix)
    }

    fn list_with_delimiter(
        &self,
        prefix: Option<&ObjectPath>,
    ) -> impl Future<Output = Result<ListResult>> + Send {
        async move { self.inner().list_with_delimiter(prefix).await }
    }

    fn copy_opts(
        &self,
        from: &ObjectPath,
        to: &ObjectPath,
        options: CopyOptions,
    ) -> impl Future<Output = Result<()>> + Send {
        async move { self.inner().copy_opts(from, to, options).await }
    }
}

#[derive(Debug)]
struct Decorated<D>(D);

impl<D: ObjectsDecorator> fmt::Display for Decorated<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "decorated {}", self.0.inner())
    }
}

#[async_trait]
impl<D: ObjectsDecorator> ObjectStore for Decorated<D> {
    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.0.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(path, options).await
    }

    async fn get_ranges(&self, path: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.0.get_ranges(path, ranges).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        self.0.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &ObjectPath,
        to: &ObjectPath,
        options: CopyOptions,
    ) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}
