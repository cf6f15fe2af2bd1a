//! O5, broken.

use std::{mem, sync::Arc};

use async_trait::async_trait;
use futures_util::FutureExt;
use object_store::{MultipartUpload, PutMultipartOptions, PutResult, UploadPart};

use crate::{
    decorate::ObjectsDecorator,
    objects::{ObjectPath, ObjectStore, ObjectStoreExt, PutPayload, Result},
};

/// Shows each part under the object's name at once (O5).
#[derive(Debug)]
pub(super) struct ShowsUploads(pub(super) Arc<dyn ObjectStore>);

impl ObjectsDecorator for ShowsUploads {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.0
    }
    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(Shown {
            honest: self.0.put_multipart_opts(path, options).await?,
            objects: Arc::clone(&self.0),
            path: path.clone(),
        }))
    }
}

#[derive(Debug)]
struct Shown {
    honest: Box<dyn MultipartUpload>,
    objects: Arc<dyn ObjectStore>,
    path: ObjectPath,
}

#[async_trait]
impl MultipartUpload for Shown {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        let (objects, path) = (Arc::clone(&self.objects), self.path.clone());
        let put = self.honest.put_part(part.clone());
        async move {
            objects.put(&path, part).await?;
            put.await
        }
        .boxed()
    }
    async fn complete(&mut self) -> Result<PutResult> {
        self.honest.complete().await
    }
    async fn abort(&mut self) -> Result<()> {
        self.honest.abort().await
    }
}

/// Puts the last part first (O5).
#[derive(Debug)]
pub(super) struct ReversesParts(pub(super) Arc<dyn ObjectStore>);

impl ObjectsDecorator for ReversesParts {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.0
    }
    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(Reversed {
            honest: self.0.put_multipart_opts(path, options).await?,
            parts: Vec::new(),
        }))
    }
}

#[derive(Debug)]
struct Reversed {
    honest: Box<dyn MultipartUpload>,
    parts: Vec<PutPayload>,
}

#[async_trait]
impl MultipartUpload for Reversed {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        self.parts.push(part);
        async { Ok(()) }.boxed()
    }
    async fn complete(&mut self) -> Result<PutResult> {
        for part in mem::take(&mut self.parts).into_iter().rev() {
            self.honest.put_part(part).await?;
        }
        self.honest.complete().await
    }
    async fn abort(&mut self) -> Result<()> {
        self.honest.abort().await
    }
}

/// Completes the uploads that are aborted (O5).
#[derive(Debug)]
pub(super) struct KeepsAborted(pub(super) Arc<dyn ObjectStore>);

impl ObjectsDecorator for KeepsAborted {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.0
    }
    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(Kept(
            self.0.put_multipart_opts(path, options).await?,
        )))
    }
}

#[derive(Debug)]
struct Kept(Box<dyn MultipartUpload>);

#[async_trait]
impl MultipartUpload for Kept {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        self.0.put_part(part)
    }
    async fn complete(&mut self) -> Result<PutResult> {
        self.0.complete().await
    }
    async fn abort(&mut self) -> Result<()> {
        self.0.complete().await.map(drop)
    }
}
