//! Counts the calls of an object store.

use std::{ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use object_store::{
    GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions, PutResult,
    UploadPart,
};

use super::{Meter, MeteredObjects, Operation};
use crate::{
    decorate::ObjectsDecorator,
    objects::{ObjectPath, ObjectStore, PutOptions, PutPayload, Result},
};

impl MeteredObjects {
    /// Counts the calls of `inner` into `meter`.
    pub fn around(inner: Arc<dyn ObjectStore>, meter: Arc<Meter>) -> Arc<dyn ObjectStore> {
        Self::new(inner, meter).into_objects()
    }
}

impl ObjectsDecorator for MeteredObjects {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.inner
    }

    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let bytes = payload.content_length();
        let call = self.inner.put_opts(path, payload, options);
        self.meter
            .measure(Operation::ObjectPut, call, |_| (1, bytes))
            .await
    }

    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        let is_head = options.head;
        let carried = |found: &GetResult| {
            let read = found.range.end - found.range.start;
            (1, if is_head { 0 } else { read as usize })
        };
        let call = self.inner.get_opts(path, options);
        self.meter
            .measure(Operation::ObjectGet, call, carried)
            .await
    }

    async fn get_ranges(&self, path: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        // A store without ranges of its own makes a request for each.
        for _ in 1..ranges.len() {
            self.meter.begun(Operation::ObjectGet);
        }
        let carried = |read: &Vec<Bytes>| (read.len(), read.iter().map(Bytes::len).sum());
        let call = self.inner.get_ranges(path, ranges);
        self.meter
            .measure(Operation::ObjectGet, call, carried)
            .await
    }

    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let call = self.inner.put_multipart_opts(path, options);
        let inner = self.meter.count(Operation::ObjectPut, call).await?;
        let meter = Arc::clone(&self.meter);
        Ok(Box::new(MeteredUpload { inner, meter }))
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        let call = self.inner.list_with_delimiter(prefix);
        let carried = |found: &ListResult| (found.objects.len(), 0);
        self.meter
            .measure(Operation::ObjectList, call, carried)
            .await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        let meter = Arc::clone(&self.meter);
        let count = move |result: &Result<ObjectPath>| {
            meter.begun(Operation::ObjectDelete);
            meter.ended(Operation::ObjectDelete, result, |_| (1, 0));
        };
        self.inner.delete_stream(paths).inspect(count).boxed()
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        let meter = Arc::clone(&self.meter);
        meter.begun(Operation::ObjectList);
        let count = move |result: &Result<ObjectMeta>| {
            meter.ended(Operation::ObjectList, result, |_| (1, 0));
        };
        self.inner.list(prefix).inspect(count).boxed()
    }
}

/// An upload in parts: its begin, each part and its end are puts.
#[derive(Debug)]
struct MeteredUpload {
    inner: Box<dyn MultipartUpload>,
    meter: Arc<Meter>,
}

#[async_trait]
impl MultipartUpload for MeteredUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (bytes, meter) = (data.content_length(), Arc::clone(&self.meter));
        let part = self.inner.put_part(data);
        Box::pin(async move {
            meter
                .measure(Operation::ObjectPut, part, |()| (0, bytes))
                .await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let call = self.inner.complete();
        self.meter
            .measure(Operation::ObjectPut, call, |_| (1, 0))
            .await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}
