//! A provider whose objects are found before they are kept (D1, O2).

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use object_store::PutResult;

use super::{Crashed, Twisting};
use crate::{
    contract::{
        broken::objects::{Result, Twist, Twisted},
        durability::Subject,
        pause,
    },
    key_value::SharedKeyValue,
    objects::{ObjectError, ObjectPath, ObjectStore, PutOptions, PutPayload},
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
        Some(Arc::new(Twisted(FindsWhatIsNotKept {
            honest,
            named: Arc::clone(&self.named),
        })))
    }
    async fn crash_and_reopen(self) -> Self {
        Self {
            honest: self.honest.crash_and_reopen().await,
            named: Arc::default(),
        }
    }
}

/// Names an object first and writes it then; a name that it finds is taken, whatever has become of its writer.
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

#[async_trait]
impl Twist for FindsWhatIsNotKept {
    fn honest(&self) -> &Arc<dyn ObjectStore> {
        &self.honest
    }
    async fn put(
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
