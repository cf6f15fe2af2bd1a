//! The volumes of the store, and the file systems that requests have opened on them.

use std::{collections::BTreeMap, sync::Arc};

use files::{
    FileSystem, Result,
    check::{self, Counts, Options, Report},
    model::Access,
};
use parking_lot::Mutex;
use ports::{Clock, Entropy};
use tokio::sync::Semaphore;
use transactions::{
    Error,
    serializable::{VolumeStore, Volumes, model::SessionId, volumes::VolumeName},
};

use crate::problem::{Kind, Problem};

/// The most file systems that stay open between requests. Beyond it one is closed, and the next
/// request for its volume opens it again, which costs a read.
const OPEN_MAX: usize = 64;
/// The root directory of a volume, unless its creator gives it another owner.
pub(crate) const ROOT: Access = Access {
    mode: 0o755,
    uid: 0,
    gid: 0,
};
/// The session of requests. They hold no file and take no lock, so one is enough for all.
const SESSION: SessionId = SessionId(0);

/// The volumes of the store.
#[derive(Debug)]
pub(crate) struct OpenVolumes {
    pub(crate) all: Arc<dyn Volumes>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    open: Mutex<BTreeMap<VolumeName, Arc<OpenVolume>>>,
    /// One check at a time, as checks of one volume would share the pin of their snapshot.
    checks: Semaphore,
}

/// A volume with its file system.
#[derive(Debug)]
pub(crate) struct OpenVolume {
    pub(crate) store: Arc<dyn VolumeStore>,
    pub(crate) files: FileSystem,
}

impl OpenVolumes {
    pub(crate) fn new(
        all: Arc<dyn Volumes>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self {
            all,
            clock,
            entropy,
            open: Mutex::default(),
            checks: Semaphore::new(1),
        }
    }

    /// The volume `name`. Its root directory is made if it is missing.
    pub(crate) async fn open(&self, name: &VolumeName) -> Result<Arc<OpenVolume>, Problem> {
        self.open_with(name, ROOT).await
    }

    /// The same with the access of a root directory that is missing.
    pub(crate) async fn open_with(
        &self,
        name: &VolumeName,
        root: Access,
    ) -> Result<Arc<OpenVolume>, Problem> {
        let found = self.open.lock().get(name).cloned();
        if let Some(found) = found {
            match found.store.usage().await {
                Ok(_) => return Ok(found),
                // It was deleted, and perhaps made anew.
                Err(Error::NoSuchVolume) => self.forget(name),
                Err(error) => return Err(error.into()),
            }
        }
        let store = self.all.open(name).await?;
        let (clock, entropy) = (self.clock.clone(), self.entropy.clone());
        let files = FileSystem::open(store.clone(), clock, entropy, SESSION, root).await?;
        let opened = Arc::new(OpenVolume { store, files });
        let open = &mut *self.open.lock();
        if open.len() >= OPEN_MAX {
            open.pop_first();
        }
        open.insert(name.clone(), opened.clone());
        Ok(opened)
    }

    /// Checks a volume. Errors: `Unavailable` while another check runs.
    pub(crate) async fn check(
        &self,
        name: &VolumeName,
        options: Options,
    ) -> Result<Report, Problem> {
        let Ok(_permit) = self.checks.try_acquire() else {
            let why = "another check is running on this server";
            return Err(Problem::new(Kind::Unavailable, why));
        };
        let store = self.all.open(name).await?;
        let (clock, entropy) = (self.clock.clone(), self.entropy.clone());
        let mut ignored = |_: &Counts| ();
        let run = check::run(store, clock, entropy, options, &mut ignored);
        Ok(run.await?)
    }

    /// Deletes a volume.
    pub(crate) async fn delete(&self, name: &VolumeName) -> transactions::Result<()> {
        let deleted = self.all.delete(name).await;
        self.forget(name);
        deleted
    }

    fn forget(&self, name: &VolumeName) {
        self.open.lock().remove(name);
    }
}
