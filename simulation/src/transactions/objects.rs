//! The objects as one crashable process reaches them; its puts are observed.

use std::{fmt, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    FutureExt, StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    PutMultipartOptions, PutResult, Result,
};
use ports::objects::{ObjectError, ObjectPath, ObjectStore, PutOptions, PutPayload};

use super::{crashable::Life, observer::Observer};

/// An object store during a life.
#[derive(Debug)]
pub struct CrashableObjects {
    inner: Arc<dyn ObjectStore>,
    life: Life,
    observer: Observer,
}

impl CrashableObjects {
    /// Passes calls to `inner` during `life`, and reports puts to the observer.
    pub fn new(inner: Arc<dyn ObjectStore>, life: Life, observer: Observer) -> Self {
        Self {
            inner,
            life,
            observer,
        }
    }
}

impl fmt::Display for CrashableObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crashable {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for CrashableObjects {
    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let put = self
            .life
            .live_through(self.inner.put_opts(path, payload, options))
            .await;
        if matches!(put, Ok(_) | Err(ObjectError::AlreadyExists { .. })) {
            self.observer.confirm_object(path);
        }
        put
    }

    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.life
            .live_through(self.inner.put_multipart_opts(path, options))
            .await
    }

    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        self.life
            .live_through(self.inner.get_opts(path, options))
            .await
    }

    async fn get_ranges(&self, path: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.life
            .live_through(self.inner.get_ranges(path, ranges))
            .await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        let (inner, life) = (Arc::clone(&self.inner), self.life.clone());
        let delete = move |path: ObjectPath| {
            let (inner, life) = (Arc::clone(&inner), life.clone());
            async move {
                let one = stream::iter([Ok(path.clone())]).boxed();
                life.live_through(inner.delete_stream(one).try_collect::<Vec<_>>())
                    .await?;
                Ok(path)
            }
        };
        paths.and_then(delete).boxed()
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (listed, life) = (self.inner.list(prefix), self.life.clone());
        let all = async move { life.live_through(listed.collect::<Vec<_>>()).await };
        all.into_stream().flat_map(stream::iter).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        self.life
            .live_through(self.inner.list_with_delimiter(prefix))
            .await
    }

    async fn copy_opts(
        &self,
        from: &ObjectPath,
        to: &ObjectPath,
        options: CopyOptions,
    ) -> Result<()> {
        self.life
            .live_through(self.inner.copy_opts(from, to, options))
            .await
    }
}
