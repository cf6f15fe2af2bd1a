//! Counts the calls of an object store.

use std::{fmt, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    PutMultipartOptions, PutResult,
};

use super::{Carried, Count, Meter, Operation};
use crate::objects::{ObjectError, ObjectPath, ObjectStore, PutOptions, PutPayload};

type Result<T> = std::result::Result<T, ObjectError>;

/// How many objects one request lists.
const LISTED_PER_REQUEST: u64 = 1_000;

/// Counts calls, objects, bytes and requests of the object store it wraps.
#[derive(Debug, Clone)]
pub struct MeteredObjects {
    inner: Arc<dyn ObjectStore>,
    meter: Arc<Meter>,
}

impl MeteredObjects {
    /// Counts the calls of `inner` into `meter`.
    pub fn new(inner: Arc<dyn ObjectStore>, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }

    fn ended<T>(&self, operation: Operation, result: &Result<T>, bytes: u64) {
        self.meter.ended(operation, result, |_| Carried {
            items: 1,
            bytes,
            units: 1,
        });
    }
}

impl fmt::Display for MeteredObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "metered {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for MeteredObjects {
    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.meter.call(Operation::ObjectPut);
        let bytes = payload.content_length() as u64;
        let result = self.inner.put_opts(path, payload, options).await;
        self.ended(Operation::ObjectPut, &result, bytes);
        result
    }

    /// Counts the request that starts the upload. Landfast writes its objects with one put each.
    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.meter.call(Operation::ObjectPut);
        let result = self.inner.put_multipart_opts(path, options).await;
        self.ended(Operation::ObjectPut, &result, 0);
        result
    }

    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        self.meter.call(Operation::ObjectGet);
        let is_head = options.head;
        let result = self.inner.get_opts(path, options).await;
        let read = |found: &GetResult| {
            if is_head {
                0
            } else {
                found.range.end - found.range.start
            }
        };
        let bytes = result.as_ref().map_or(0, read);
        self.ended(Operation::ObjectGet, &result, bytes);
        result
    }

    async fn get_ranges(&self, path: &ObjectPath, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.meter.call(Operation::ObjectGet);
        let result = self.inner.get_ranges(path, ranges).await;
        let bytes = ranges.iter().map(|range| range.end - range.start).sum();
        self.ended(Operation::ObjectGet, &result, bytes);
        result
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        let meter = Arc::clone(&self.meter);
        let count = move |result: &Result<ObjectPath>| {
            meter.call(Operation::ObjectDelete);
            meter.ended(Operation::ObjectDelete, result, |_| Carried {
                items: 1,
                bytes: 0,
                units: 1,
            });
        };
        self.inner.delete_stream(paths).inspect(count).boxed()
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.meter.count(
            Operation::ObjectList,
            Count {
                calls: 1,
                units: 1,
                ..Count::default()
            },
        );
        let meter = Arc::clone(&self.meter);
        let mut listed = 0;
        let count = move |result: &Result<ObjectMeta>| {
            listed += 1;
            let units = u64::from(listed % LISTED_PER_REQUEST == 0);
            meter.ended(Operation::ObjectList, result, |_| Carried {
                items: 1,
                bytes: 0,
                units,
            });
        };
        self.inner.list(prefix).inspect(count).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        self.meter.call(Operation::ObjectList);
        let result = self.inner.list_with_delimiter(prefix).await;
        self.meter.ended(Operation::ObjectList, &result, |listed| {
            let items = (listed.objects.len() + listed.common_prefixes.len()) as u64;
            Carried {
                items,
                bytes: 0,
                units: 1 + items / LISTED_PER_REQUEST,
            }
        });
        result
    }

    async fn copy_opts(
        &self,
        from: &ObjectPath,
        to: &ObjectPath,
        options: CopyOptions,
    ) -> Result<()> {
        self.meter.call(Operation::ObjectCopy);
        let result = self.inner.copy_opts(from, to, options).await;
        self.ended(Operation::ObjectCopy, &result, 0);
        result
    }
}
