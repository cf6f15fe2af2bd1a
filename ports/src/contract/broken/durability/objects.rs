//! Providers whose objects are visible before they are durable (D1, O2, O5).

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use object_store::{MultipartUpload, PutMultipartOptions, PutResult};

use super::{Crashed, Twisting};
use crate::{
    contract::{durability::Subject, pause},
    decorate::ObjectsDecorator,
    key_value::SharedKeyValue,
    objects::{
        ObjectError, ObjectPath, ObjectStore, ObjectStoreExt, PutOptions, PutPayload, Result,
    },
};

pub(super) fn finding_what_is_not_kept(honest: Subject) -> Subject {
    Box::new(Crashed(WithObjects {
        honest,
        named: Arc::default(),
    }))
}

#[derive(Debug)]
struct WithObjects {
    honest: Subject,
    named: Arc<Mutex<BTreeSet<ObjectPath>>>,
}

#[async_trait]
impl Twisting for WithObjects {
    fn honest(&self) -> &Subject {
        &self.honest
    }
    fn key_value(&self) -> SharedKeyValue {
        self.honest.key_value()
    }
    fn objects(&self) -> Option<Arc<dyn ObjectStore>> {
        let honest = self.honest.objects()?;
        let found = FindsWhatIsNotKept {
            honest,
            named: Arc::clone(&self.named),
        };
        Some(found.into_objects())
    }
    async fn crash_and_reopen(self) -> Self {
        Self {
            honest: self.honest.crash_and_reopen().await,
            named: Arc::default(),
        }
    }
}

/// Names an object first and writes it then. Reports a named object as existing even if its writer
/// died.
#[derive(Debug)]
struct FindsWhatIsNotKept {
    honest: Arc<dyn ObjectStore>,
    named: Arc<Mutex<BTreeSet<ObjectPath>>>,
}

impl FindsWhatIsNotKept {
    fn named(&self) -> MutexGuard<'_, BTreeSet<ObjectPath>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObjectsDecorator for FindsWhatIsNotKept {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.honest
    }
    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if !self.named().insert(path.clone()) {
            return Err(ObjectError::AlreadyExists {
                path: path.to_string(),
                source: "it is named".into(),
            });
        }
        pause().await;
        self.honest.put_opts(path, payload, options).await
    }
}

pub(super) fn losing_uploads(honest: Subject) -> Subject {
    Box::new(Crashed(LosesUploads {
        honest,
        uploaded: Arc::default(),
    }))
}

/// Loses in a crash the objects that were put in parts.
#[derive(Debug)]
struct LosesUploads {
    honest: Subject,
    uploaded: Arc<Mutex<Vec<ObjectPath>>>,
}

#[async_trait]
impl Twisting for LosesUploads {
    fn honest(&self) -> &Subject {
        &self.honest
    }
    fn key_value(&self) -> SharedKeyValue {
        self.honest.key_value()
    }
    fn objects(&self) -> Option<Arc<dyn ObjectStore>> {
        let noting = NotesUploads {
            honest: self.honest.objects()?,
            uploaded: Arc::clone(&self.uploaded),
        };
        Some(noting.into_objects())
    }
    async fn crash_and_reopen(self) -> Self {
        let honest = self.honest.crash_and_reopen().await;
        let uploaded =
            std::mem::take(&mut *self.uploaded.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(objects) = honest.objects() {
            for path in uploaded {
                drop(objects.delete(&path).await);
            }
        }
        Self { honest, ..self }
    }
}

#[derive(Debug)]
struct NotesUploads {
    honest: Arc<dyn ObjectStore>,
    uploaded: Arc<Mutex<Vec<ObjectPath>>>,
}

impl ObjectsDecorator for NotesUploads {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.honest
    }
    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.uploaded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(path.clone());
        self.honest.put_multipart_opts(path, options).await
    }
}
