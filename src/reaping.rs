//! Deletes the unlinked files of each volume that is in use.
//!
//! All users of volumes in this process go through [`ReapedVolumes`]. It sees which commits may
//! leave a file without a name, and which sessions let go of files. So the task of a volume sleeps
//! until there is something to delete, and costs nothing while the volume is idle.

#[cfg(test)]
mod tests;
mod volume;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use files::{
    FileSystem,
    model::Access,
    reaper::{has_candidates, reap},
};
use futures_util::future::BoxFuture;
use in_process::{SystemClock, SystemEntropy};
use ports::{DurabilityPoint, Entropy as _, Incarnation};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use transactions::{
    Error, Result,
    serializable::{
        VolumeStore, Volumes,
        model::{SessionId, Slot},
        volumes::{VolumeInfo, VolumeName, VolumeSettings},
    },
};

use self::volume::{ReapedVolume, Wake};

/// The pause after a run that failed.
const RUN_AGAIN: Duration = Duration::from_secs(30);
/// How long one call may wait for the volume.
const CALL_MAX: Duration = Duration::from_mins(10);

/// The waits of a reaper.
#[derive(Debug, Clone, Copy)]
struct Waits {
    /// After a take-over sessions come back first, and repeat their holds.
    take_over: Duration,
    /// Unlinked files gather for one run.
    gather: Duration,
}

const WAITS: Waits = Waits {
    take_over: Duration::from_secs(30),
    gather: Duration::from_secs(1),
};

/// The volumes of a store, whose unlinked files are deleted.
pub(crate) struct ReapedVolumes {
    inner: Arc<dyn Volumes>,
    waits: Waits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    wakes: BTreeMap<VolumeName, Arc<Wake>>,
    /// A task for each of them.
    tasks: JoinSet<()>,
}

impl ReapedVolumes {
    /// Around the volumes of an engine.
    pub(crate) fn new(inner: Arc<dyn Volumes>) -> Arc<Self> {
        Self::waiting(inner, WAITS)
    }

    fn waiting(inner: Arc<dyn Volumes>, waits: Waits) -> Arc<Self> {
        Arc::new(Self {
            inner,
            waits,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("nothing panics while it holds this lock")
    }

    /// The handle that wakes the task of the volume. The first use starts the task.
    fn wake_of(&self, name: &VolumeName, store: &Arc<dyn VolumeStore>) -> Arc<Wake> {
        let state = &mut *self.state();
        while state.tasks.try_join_next().is_some() {}
        let known = state.wakes.get(name).filter(|wake| !wake.is_ended());
        if let Some(wake) = known {
            return Arc::clone(wake);
        }
        let wake = Arc::<Wake>::default();
        state.wakes.insert(name.clone(), Arc::clone(&wake));
        let task = Reaping {
            name: name.clone(),
            store: Arc::clone(store),
            wake: Arc::clone(&wake),
            waits: self.waits,
        };
        state.tasks.spawn(task.run());
        wake
    }
}

impl fmt::Debug for ReapedVolumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReapedVolumes").field(&self.inner).finish()
    }
}

impl Volumes for ReapedVolumes {
    fn create(&self, name: VolumeName, settings: VolumeSettings) -> BoxFuture<'_, Result<()>> {
        self.inner.create(name, settings)
    }

    fn open<'a>(&'a self, name: &'a VolumeName) -> BoxFuture<'a, Result<Arc<dyn VolumeStore>>> {
        Box::pin(async move {
            let inner = self.inner.open(name).await?;
            let wake = self.wake_of(name, &inner);
            Ok(Arc::new(ReapedVolume { inner, wake }) as Arc<_>)
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<VolumeInfo>>> {
        self.inner.list()
    }

    fn set_quota<'a>(
        &'a self,
        name: &'a VolumeName,
        quota_bytes: Option<u64>,
    ) -> BoxFuture<'a, Result<()>> {
        self.inner.set_quota(name, quota_bytes)
    }

    fn clone_volume<'a>(
        &'a self,
        from: &'a VolumeName,
        at: Option<Slot>,
        to: VolumeName,
    ) -> BoxFuture<'a, Result<()>> {
        self.inner.clone_volume(from, at, to)
    }

    fn delete<'a>(&'a self, name: &'a VolumeName) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.inner.delete(name).await?;
            if let Some(wake) = self.state().wakes.remove(name) {
                wake.end();
            }
            Ok(())
        })
    }
}

/// The task of one volume.
struct Reaping {
    name: VolumeName,
    store: Arc<dyn VolumeStore>,
    wake: Arc<Wake>,
    waits: Waits,
}

impl Reaping {
    /// Ends with the volume.
    async fn run(self) {
        let mut seen: Option<Incarnation> = None;
        while !self.wake.is_ended() {
            let pause = match self.incarnation().await {
                Err(Error::NoSuchVolume) => break,
                Err(error) => self.later(&error.to_string()),
                Ok(now) if seen != Some(now) => {
                    seen = Some(now);
                    self.waits.take_over
                }
                Ok(_) => match self.once().await {
                    Ok(()) => {
                        self.wake.woken().await;
                        self.waits.gather
                    }
                    Err(error) => self.later(&error),
                },
            };
            sleep(pause).await;
        }
        self.wake.end();
    }

    fn later(&self, error: &str) -> Duration {
        tracing::debug!(volume = %self.name, error, "unlinked files are deleted later");
        RUN_AGAIN.max(self.waits.take_over)
    }

    /// Tells whether the log of the volume was taken over since the last call.
    async fn incarnation(&self) -> Result<Incarnation> {
        let DurabilityPoint { incarnation, .. } = self.store.snapshot().await?.point;
        Ok(incarnation)
    }

    /// Deletes files that are unlinked and not held. Files that are held stay for the next run.
    async fn once(&self) -> Result<(), String> {
        // From here on, the end of a hold wakes the task.
        self.wake.expect_releases(true);
        let has_any = || async {
            let found = has_candidates(&*self.store).await;
            found.map_err(|error| error.to_string())
        };
        if has_any().await? {
            let reaped = timeout(CALL_MAX, self.reap()).await;
            let reaped = reaped.map_err(|_| format!("it takes longer than {CALL_MAX:?}"))??;
            tracing::debug!(volume = %self.name, reaped, "unlinked files are deleted");
        }
        if !has_any().await? {
            self.wake.expect_releases(false);
        }
        Ok(())
    }

    async fn reap(&self) -> Result<usize, String> {
        let entropy = SystemEntropy::default();
        let session = SessionId(entropy.next_u64());
        // Volumes with unlinked files have a root.
        let root = Access {
            mode: 0o755,
            uid: 0,
            gid: 0,
        };
        let (store, entropy) = (Arc::clone(&self.store), Arc::new(entropy));
        let opened = FileSystem::open(store, Arc::new(SystemClock), entropy, session, root);
        let files = opened.await.map_err(|errno| format!("{errno:?}"))?;
        reap(&files).await.map_err(|errno| format!("{errno:?}"))
    }
}
