//! Volumes in memory, for tests of users.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use parking_lot::Mutex;

use super::model_volume::ModelVolume;
use crate::{
    Error, Result,
    serializable::{
        VolumeStore,
        model::Slot,
        volumes::{VolumeInfo, VolumeName, VolumeSettings, Volumes},
    },
};

/// Volumes in memory.
#[derive(Debug, Default)]
pub struct ModelVolumes(Mutex<BTreeMap<VolumeName, Arc<ModelVolume>>>);

impl ModelVolumes {
    fn volume(&self, name: &VolumeName) -> Result<Arc<ModelVolume>> {
        let found = self.0.lock().get(name).cloned();
        found.ok_or(Error::NoSuchVolume)
    }
}

impl Volumes for ModelVolumes {
    fn create(&self, name: VolumeName, settings: VolumeSettings) -> BoxFuture<'_, Result<()>> {
        let mut volumes = self.0.lock();
        if volumes.contains_key(&name) {
            return ready(Err(Error::VolumeExists)).boxed();
        }
        let volume = ModelVolume::new(settings.block_bytes);
        volume.set_quota(settings.quota_bytes);
        volumes.insert(name, Arc::new(volume));
        ready(Ok(())).boxed()
    }

    fn open<'a>(&'a self, name: &'a VolumeName) -> BoxFuture<'a, Result<Arc<dyn VolumeStore>>> {
        let found = self.volume(name);
        ready(found.map(|volume| volume as Arc<dyn VolumeStore>)).boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<VolumeInfo>>> {
        let volumes = self.0.lock().clone();
        async move {
            let mut found = Vec::new();
            for (name, volume) in volumes {
                found.push(VolumeInfo {
                    name,
                    block_bytes: volume.block_bytes(),
                    created_ms: 0,
                    usage: volume.usage().await?,
                });
            }
            Ok(found)
        }
        .boxed()
    }

    fn set_quota<'a>(
        &'a self,
        name: &'a VolumeName,
        quota_bytes: Option<u64>,
    ) -> BoxFuture<'a, Result<()>> {
        let found = self.volume(name);
        ready(found.map(|volume| volume.set_quota(quota_bytes))).boxed()
    }

    fn clone_volume<'a>(
        &'a self,
        from: &'a VolumeName,
        at: Option<Slot>,
        to: VolumeName,
    ) -> BoxFuture<'a, Result<()>> {
        let cloned = self
            .volume(from)
            .and_then(|volume| volume.cloned_at(at))
            .and_then(|volume| {
                let mut volumes = self.0.lock();
                if volumes.contains_key(&to) {
                    return Err(Error::VolumeExists);
                }
                volumes.insert(to, Arc::new(volume));
                Ok(())
            });
        ready(cloned).boxed()
    }

    fn delete<'a>(&'a self, name: &'a VolumeName) -> BoxFuture<'a, Result<()>> {
        let deleted = self.0.lock().remove(name).map(drop);
        ready(deleted.ok_or(Error::NoSuchVolume)).boxed()
    }
}
