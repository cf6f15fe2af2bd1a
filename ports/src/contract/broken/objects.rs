//! Object stores that break O1 to O6.

mod parts;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream, stream::BoxStream};
use object_store::{GetOptions, GetResult, GetResultPayload, ObjectMeta, PutResult};

use super::Broken;
use crate::{
    contract::objects::Subject,
    decorate::ObjectsDecorator,
    objects::{ObjectPath, ObjectStore, PutMode, PutOptions, PutPayload, Result},
};

/// Every broken object store, at least one per promise.
pub const BROKEN: &[Broken<Subject>] = &[
    Broken::new("O1", "DropsLargePuts", |subject| {
        altered(subject, DropsLargePuts)
    }),
    Broken::new("O2", "OverwritesOnCreate", |subject| {
        altered(subject, OverwritesOnCreate)
    }),
    Broken::new("O3", "CutsObjectsShort", |subject| {
        altered(subject, CutsObjectsShort)
    }),
    Broken::new("O4", "ForgetsToList", |subject| {
        altered(subject, ForgetsToList)
    }),
    Broken::new("O4", "ListsTwice", |subject| altered(subject, ListsTwice)),
    Broken::new("O5", "ShowsUploads", |subject| {
        altered(subject, parts::ShowsUploads)
    }),
    Broken::new("O5", "ReversesParts", |subject| {
        altered(subject, parts::ReversesParts)
    }),
    Broken::new("O5", "KeepsAborted", |subject| {
        altered(subject, parts::KeepsAborted)
    }),
    Broken::new("O6", "ReadsWholeObjects", |subject| {
        altered(subject, ReadsWholeObjects)
    }),
];

fn altered<D: ObjectsDecorator>(
    subject: Subject,
    around: fn(Arc<dyn ObjectStore>) -> D,
) -> Subject {
    Subject {
        objects: around(subject.objects).into_objects(),
        ..subject
    }
}

/// Accepts large objects and forgets them (O1).
#[derive(Debug)]
struct DropsLargePuts(Arc<dyn ObjectStore>);

impl ObjectsDecorator for DropsLargePuts {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.0
    }
    async fn put_opts(
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

impl ObjectsDecorator for OverwritesOnCreate {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.0
    }
    async fn put_opts(
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

/// Returns only the first half of the requested bytes (O3).
#[derive(Debug)]
struct CutsObjectsShort(Arc<dyn ObjectStore>);

impl ObjectsDecorator for CutsObjectsShort {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.0
    }
    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        let found = self.0.get_opts(path, options).await?;
        in_one_piece(found, |bytes| bytes.slice(..bytes.len() / 2)).await
    }
}

/// Reads an object whole before it gives any of it (O6).
#[derive(Debug)]
struct ReadsWholeObjects(Arc<dyn ObjectStore>);

impl ObjectsDecorator for ReadsWholeObjects {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.0
    }
    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        in_one_piece(self.0.get_opts(path, options).await?, |bytes| bytes).await
    }
}

/// `found` with `change` of its content, read at once.
async fn in_one_piece(found: GetResult, change: fn(Bytes) -> Bytes) -> Result<GetResult> {
    let (meta, range) = (found.meta.clone(), found.range.clone());
    let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
    let content = change(found.bytes().await?);
    Ok(GetResult {
        payload: GetResultPayload::Stream(stream::iter([Ok(content)]).boxed()),
        meta,
        range,
        attributes,
        extensions,
    })
}

/// Leaves the first object out of every list (O4).
#[derive(Debug)]
struct ForgetsToList(Arc<dyn ObjectStore>);

impl ObjectsDecorator for ForgetsToList {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.0
    }
    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix).skip(1).boxed()
    }
}

/// Lists every object twice (O4).
#[derive(Debug)]
struct ListsTwice(Arc<dyn ObjectStore>);

impl ObjectsDecorator for ListsTwice {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.0
    }
    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix).chain(self.0.list(prefix)).boxed()
    }
}
