//! Counts the calls of an object store.

use std::sync::Arc;

use futures_util::{StreamExt, stream::BoxStream};
use object_store::{GetOptions, GetResult, ObjectMeta, PutResult};

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
