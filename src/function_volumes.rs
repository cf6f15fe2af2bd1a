//! Volumes of functions: each instance has a mount of its own, and each of its invocations is a
//! transaction on it.

use std::{
    any::Any,
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use async_trait::async_trait;
use files::{
    FileSystem, Outcome, Transaction,
    cache::{CachedVolume, Policy},
    model::Access,
};
use fuse_frontend::{
    Handler, Mount, Notifier,
    files::FileHandler,
    mount,
    mount::{Options, Readers},
};
use http_frontend::OfInvocation;
use in_process::{SystemClock, SystemEntropy};
use nix::mount::{MntFlags, umount2};
use parking_lot::Mutex;
use ports::{
    Entropy as _, VolumeMount, VolumeMounts,
    volume_mounts::{VolumeAt, VolumeCommit},
};
use tokio::{runtime::Handle, sync::OwnedMutexGuard, task::spawn_blocking, time::timeout};
use transactions::serializable::{
    VolumeStore, Volumes,
    model::{Key, SessionId},
    volumes::VolumeName,
};

/// Threads that read the requests of one mount.
const THREADS: usize = 2;
/// The cache of one volume, which all instances share, in bytes.
const CACHE_BYTES_MAX: usize = 64 << 20;
/// How long an attempt waits for its turn after a conflict. Then it runs beside the others.
const TURN_WAIT: Duration = Duration::from_millis(200);
/// The access of the root directory, if a function is the first to use a volume.
const ROOT: Access = Access {
    mode: 0o777,
    uid: 0,
    gid: 0,
};

/// Mounts the volumes of this server for functions.
#[derive(Debug)]
pub(crate) struct FunctionVolumes {
    /// Has a mount point for each instance.
    directory: PathBuf,
    volumes: OnceLock<Arc<dyn Volumes>>,
    open: Mutex<BTreeMap<VolumeName, Weak<OpenVolume>>>,
    policy: Policy,
    mounted: AtomicU64,
}

/// A volume that instances share.
#[derive(Debug)]
struct OpenVolume {
    store: Arc<CachedVolume>,
    /// The turn to run again after a conflict. Attempts that repeat at once would meet each other.
    repeats: Arc<tokio::sync::Mutex<()>>,
}

/// The mount of one instance.
#[derive(Debug)]
struct InstanceMount {
    path: PathBuf,
    volume: Arc<OpenVolume>,
    files: Arc<FileSystem>,
    /// The conflict of the last attempt.
    conflict: Mutex<Option<Met>>,
    /// The turn of an attempt that repeats, until its invocation ends.
    repeat: Mutex<Option<OwnedMutexGuard<()>>>,
    shared: Arc<SharedMount>,
    /// The root of the mount, for syncfs(2).
    root: Arc<File>,
    mount: Option<Mount>,
}

/// A conflict, on a key if it is known.
#[derive(Debug)]
struct Met(Option<Key>);

/// The part of a mount that calls on keys have, too.
#[derive(Debug)]
struct SharedMount {
    at: VolumeAt,
    handler: Arc<FileHandler>,
    notifier: Notifier,
}

/// The volume of the instance that a request comes from.
pub(crate) fn of_invocation(mount: &dyn VolumeMount) -> Option<Arc<dyn OfInvocation>> {
    let mount = (mount as &dyn Any).downcast_ref::<InstanceMount>()?;
    Some(Arc::<SharedMount>::clone(&mount.shared))
}

impl FunctionVolumes {
    /// Mounts that a killed server left in `directory` are detached.
    pub(crate) fn new(directory: PathBuf, policy: Policy) -> anyhow::Result<Self> {
        let about = || format!("{}: the mounts of functions", directory.display());
        fs::create_dir_all(&directory).with_context(about)?;
        for left in fs::read_dir(&directory).with_context(about)? {
            let left = left.with_context(about)?.path();
            // It is a plain folder if its server unmounted it.
            let _ = umount2(&left, MntFlags::MNT_DETACH);
            fs::remove_dir(&left).with_context(about)?;
        }
        Ok(Self {
            directory,
            volumes: OnceLock::new(),
            open: Mutex::default(),
            policy,
            mounted: AtomicU64::new(0),
        })
    }

    /// From now on volumes can be mounted.
    pub(crate) fn provide(&self, volumes: Arc<dyn Volumes>) {
        // It is called once, when the server starts.
        let _ = self.volumes.set(volumes);
    }

    async fn open(&self, name: &str) -> Result<Arc<OpenVolume>, String> {
        let about = |error: transactions::Error| format!("the volume {name}: {error}");
        let volumes = self.volumes.get().ok_or("the server starts; try again")?;
        let name = VolumeName::new(name).map_err(about)?;
        let volume = volumes.open(&name).await.map_err(about)?;
        let open = &mut *self.open.lock();
        if let Some(known) = open.get(&name).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let new = Arc::new(OpenVolume {
            store: Arc::new(CachedVolume::new(volume, self.policy, CACHE_BYTES_MAX)),
            repeats: Arc::default(),
        });
        open.retain(|_, volume| volume.strong_count() > 0);
        open.insert(name, Arc::downgrade(&new));
        Ok(new)
    }
}

#[async_trait]
impl VolumeMounts for FunctionVolumes {
    async fn mount(&self, volume: &VolumeAt) -> Result<Arc<dyn VolumeMount>, String> {
        let shared = self.open(&volume.volume).await?;
        let (clock, entropy) = (SystemClock, SystemEntropy::default());
        let session = SessionId(entropy.next_u64());
        let (clock, entropy) = (Arc::new(clock), Arc::new(entropy));
        let store = Arc::<CachedVolume>::clone(&shared.store) as Arc<dyn VolumeStore>;
        let opened = FileSystem::open(store, clock, entropy, session, ROOT).await;
        let opened = opened.map_err(|errno| format!("the volume {}: {errno}", volume.volume))?;
        let files = Arc::new(opened);
        let handler = FileHandler::invocations(Arc::clone(&files), Handle::current());
        let number = self.mounted.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.join(number.to_string());
        let options = Options {
            source: volume.volume.clone(),
            readers: Readers::Threads(THREADS),
            wishes: handler.wishes(),
            is_read_only: volume.is_read_only,
            checks_permissions: false,
            allow_other: true,
        };
        let (at, answers) = (path.clone(), Arc::clone(&handler));
        let mounted = spawn_blocking(move || mount_at(&at, &options, answers)).await;
        let mounted = mounted.map_err(|error| error.to_string())?;
        let (mount, root) =
            mounted.map_err(|error| format!("the volume {}: {error:#}", volume.volume))?;
        Ok(Arc::new(InstanceMount {
            path,
            volume: shared,
            files,
            conflict: Mutex::default(),
            repeat: Mutex::default(),
            shared: Arc::new(SharedMount {
                at: volume.clone(),
                handler,
                notifier: mount.notifier(),
            }),
            root: Arc::new(root),
            mount: Some(mount),
        }))
    }
}

fn mount_at(
    path: &Path,
    options: &Options,
    handler: Arc<FileHandler>,
) -> anyhow::Result<(Mount, File)> {
    fs::create_dir(path).with_context(|| path.display().to_string())?;
    let mounted = mount::mount(path, options, &(handler as Arc<dyn Handler>))?;
    let root = File::open(path).with_context(|| path.display().to_string())?;
    Ok((mounted, root))
}

impl InstanceMount {
    /// The invocation has ended, so the next one does not repeat it.
    fn end(&self) {
        *self.conflict.lock() = None;
        *self.repeat.lock() = None;
    }

    /// Runs a call that waits for the kernel, which may wait for our own answers.
    async fn blocking<T: Send + 'static>(
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let done = spawn_blocking(work).await;
        let done = done.map_err(|error| error.to_string())?;
        done.map_err(|error| error.to_string())
    }
}

#[async_trait]
impl VolumeMount for InstanceMount {
    fn path(&self) -> &Path {
        &self.path
    }

    async fn begin(&self) -> Result<(), String> {
        if self.conflict.lock().is_some() && self.repeat.lock().is_none() {
            let turn = Arc::clone(&self.volume.repeats).lock_owned();
            *self.repeat.lock() = timeout(TURN_WAIT, turn).await.ok();
        }
        let handler = &self.shared.handler;
        // What the code did while it was loaded, if this is its first invocation.
        drop(handler.take().await);
        if handler.has_given() {
            let (stale, notifier) = (Arc::clone(handler), self.shared.notifier.clone());
            Self::blocking(move || stale.expire(&notifier)).await?;
        }
        handler.begin().await;
        Ok(())
    }

    async fn commit(&self) -> Result<VolumeCommit, String> {
        let root = Arc::clone(&self.root);
        // Mapped pages that were written are still in the kernel.
        Self::blocking(move || Ok(nix::unistd::syncfs(&*root)?)).await?;
        let Some(transaction) = self.shared.handler.take().await else {
            return Err("the transaction has ended already".to_owned());
        };
        if transaction.is_torn() {
            let why = "a landfast.transaction within the invocation had written, and was aborted or \
                not ended: let its error end the invocation";
            self.end();
            return Err(why.to_owned());
        }
        match transaction.commit_at(None, || false).await {
            Ok((Outcome::Committed { point }, slot)) => {
                self.shared.handler.committed(slot);
                self.end();
                let durable = self.volume.store.externalize(point).await;
                durable.map_err(|error| error.to_string())?;
                Ok(VolumeCommit::Committed)
            }
            Ok((Outcome::Conflict { key }, _)) => {
                *self.conflict.lock() = Some(Met(key));
                Ok(VolumeCommit::Conflict)
            }
            Err(errno) => {
                self.end();
                Err(errno.to_string())
            }
        }
    }

    async fn cause(&self) -> String {
        let key = self.conflict.lock().as_ref().and_then(|met| met.0.clone());
        self.end();
        match key {
            Some(key) => self.files.cause_of(&key).await,
            None => "its snapshot became too old".to_owned(),
        }
    }

    async fn abort(&self) {
        drop(self.shared.handler.take().await);
        self.end();
    }
}

#[async_trait]
impl OfInvocation for SharedMount {
    fn volume(&self) -> &str {
        &self.at.volume
    }

    fn is_read_only(&self) -> bool {
        self.at.is_read_only
    }

    fn transaction(&self) -> Option<&tokio::sync::Mutex<Option<Transaction>>> {
        self.handler.shared()
    }

    async fn show_changes(&self) -> Result<(), String> {
        self.handler.note_changes().await;
        let (handler, notifier) = (Arc::clone(&self.handler), self.notifier.clone());
        InstanceMount::blocking(move || handler.refresh(&notifier)).await
    }
}

impl Drop for InstanceMount {
    fn drop(&mut self) {
        drop(self.mount.take());
        if let Err(error) = fs::remove_dir(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the mount point of an instance stays");
        }
    }
}
