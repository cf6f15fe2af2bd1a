//! The transaction of one attempt: a snapshot, its private mount or preload server, one proposal.

use std::{
    fs::File,
    path::{Path, PathBuf},
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use async_trait::async_trait;
use files::{Errno, FileSystem, Transaction, model::Access};
use fuse_frontend::{
    files::FileHandler,
    handler::Handler,
    mount::{Mount, Options, Readers, Unmounted, mount},
    wire::init::Wishes,
};
use in_process::{SystemClock, SystemEntropy};
use nix::unistd::{getegid, geteuid, syncfs};
use ports::Entropy as _;
use preload_frontend::Server;
use tokio::{
    runtime,
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};
use transactions::serializable::{
    VolumeStore,
    model::{At, Key, PinName, SessionId, Slot},
};

use super::{
    attempts::{Decision, Volume},
    program::Variables,
};

/// How often a snapshot is read, so that it stays readable: a third of the time for which it does.
const READ_PERIOD: Duration = Duration::from_secs(20);
/// The longest life of a snapshot without a pin.
const UNPINNED_MAX: Duration = Duration::from_mins(15);
/// The time for which a commit is repeated while the volume does not answer.
const COMMIT_MAX: Duration = Duration::from_secs(30);
/// The time to end an aborted transaction while the volume does not answer.
const ABORT_MAX: Duration = Duration::from_secs(5);
/// The permissions of the root directory of a volume that has none yet.
const ROOT_MODE: u32 = 0o755;

/// How the command sees the volume.
#[derive(Debug)]
pub(super) enum Way {
    /// By a mount on this point.
    Mount(PathBuf),
    /// By a library that is preloaded into programs.
    Preload(preload_frontend::Options),
}

/// The attempts of one `exec`.
#[derive(Debug)]
pub(super) struct Attempts {
    store: Arc<dyn VolumeStore>,
    entropy: Arc<SystemEntropy>,
    way: Way,
    options: Options,
    /// The pin of each attempt's snapshot, if an attempt may outlive a snapshot without one.
    pin: Option<PinName>,
    open: Option<Open>,
}

/// A transaction that the command sees.
#[derive(Debug)]
struct Open {
    shown: Shown,
    _keeps: Keeps,
}

#[derive(Debug)]
enum Shown {
    Mounted {
        mount: Mount,
        handler: Arc<FileHandler>,
    },
    Preloaded(Server),
}

impl Shown {
    fn variables(&self) -> Variables {
        match self {
            Self::Mounted { .. } => Variables::new(),
            Self::Preloaded(server) => server.environment().to_vec(),
        }
    }

    /// Ends the view of the command, which has ended, within about `patience`. Returns the
    /// transaction, without anything that could still change it.
    async fn hide(self, patience: Duration) -> anyhow::Result<Transaction> {
        let gone = || anyhow!("the transaction is gone");
        match self {
            Self::Mounted { mount, handler } => {
                let unmounted = spawn_blocking(|| mount.unmount()).await?;
                let transaction = handler.take().await.ok_or_else(gone)?;
                match unmounted.context("the volume cannot be unmounted")? {
                    Unmounted::Now => Ok(transaction),
                    Unmounted::WhenUnused => {
                        bail!("a process outside of the command uses the mount")
                    }
                }
            }
            Self::Preloaded(server) => server.finish(patience).await?.ok_or_else(gone),
        }
    }
}

/// Reads a snapshot from time to time, until it is dropped.
#[derive(Debug)]
struct Keeps(JoinHandle<()>);

impl Drop for Keeps {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Attempts {
    /// Attempts on the volume `name`, of at most `time_max` each.
    pub(super) fn new(
        name: &str,
        store: Arc<dyn VolumeStore>,
        way: Way,
        is_read_only: bool,
        time_max: Duration,
    ) -> anyhow::Result<Self> {
        let entropy = Arc::new(SystemEntropy::default());
        // With room for the commit.
        let needs_pin = time_max + COMMIT_MAX * 2 > UNPINNED_MAX;
        let pin_name = || PinName::new(format!("exec-{:016x}", entropy.next_u64()));
        let pin = needs_pin.then(pin_name).transpose()?;
        Ok(Self {
            store,
            entropy,
            way,
            options: Options {
                source: format!("landfast:{name}"),
                readers: Readers::Task(runtime::Handle::current()),
                wishes: Wishes::default(),
                is_read_only,
                allow_other: true,
                checks_permissions: true,
            },
            pin,
            open: None,
        })
    }

    /// The files of the volume, for a session of their own.
    async fn files(&self) -> anyhow::Result<Arc<FileSystem>> {
        let root = Access {
            mode: ROOT_MODE,
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
        };
        let session = SessionId(self.entropy.next_u64());
        let (store, clock) = (Arc::clone(&self.store), Arc::new(SystemClock));
        let opened = FileSystem::open(store, clock, self.entropy.clone(), session, root).await;
        Ok(Arc::new(opened.context("the volume cannot be opened")?))
    }

    async fn begun(&self) -> anyhow::Result<Open> {
        let files = self.files().await?;
        let slot = self.store.snapshot().await?.value.slot;
        if let Some(name) = &self.pin {
            self.store.pin(name.clone(), slot).await?;
        }
        let transaction = files.begin_at(slot);
        Ok(Open {
            shown: self.shown(files, transaction).await?,
            _keeps: Keeps(tokio::spawn(keep(Arc::clone(&self.store), slot))),
        })
    }

    async fn shown(
        &self,
        files: Arc<FileSystem>,
        transaction: Transaction,
    ) -> anyhow::Result<Shown> {
        let runtime = runtime::Handle::current();
        match &self.way {
            Way::Mount(point) => {
                let handler = FileHandler::part_of(files, transaction, runtime);
                let (point, mut options) = (point.clone(), self.options.clone());
                options.wishes = handler.wishes();
                let served: Arc<dyn Handler> = handler.clone();
                let mounted = spawn_blocking(move || mount(&point, &options, &served)).await?;
                let mount = mounted?;
                Ok(Shown::Mounted { mount, handler })
            }
            Way::Preload(options) => {
                let server = Server::start(transaction, options, runtime)?;
                Ok(Shown::Preloaded(server))
            }
        }
    }

    /// Hides the volume, and proposes the changes.
    async fn proposed(&mut self, open: Open) -> anyhow::Result<Result<files::Outcome, Errno>> {
        if let Way::Mount(point) = &self.way {
            // Writes to mapped memory may still be in the kernel.
            let point = point.clone();
            spawn_blocking(move || synced(&point)).await??;
        }
        let transaction = open.shown.hide(COMMIT_MAX).await?;
        let late = Instant::now() + COMMIT_MAX;
        Ok(transaction
            .commit(None, move || Instant::now() >= late)
            .await)
    }

    /// Lets versions of the last snapshot go. If that fails, they stay until the pin is removed.
    async fn unpin(&self) {
        let Some(name) = &self.pin else { return };
        if let Err(error) = self.store.unpin(name).await {
            let name = name.as_str();
            tracing::warn!(name, %error, "the pin of a snapshot stays; remove it by its name");
        }
    }
}

#[async_trait]
impl Volume for Attempts {
    async fn begin(&mut self) -> anyhow::Result<Variables> {
        let begun = self.begun().await;
        if begun.is_err() {
            self.unpin().await;
        }
        let open = self.open.insert(begun?);
        Ok(open.shown.variables())
    }

    async fn commit(&mut self) -> anyhow::Result<Decision> {
        let open = self.open.take().context("no transaction is open")?;
        let outcome = self.proposed(open).await;
        self.unpin().await;
        match outcome? {
            Ok(files::Outcome::Committed { point }) => {
                let externalized = self.store.externalize(point).await;
                Ok(externalized.map_or(Decision::Unknown, |()| Decision::Committed))
            }
            Ok(files::Outcome::Conflict { key }) => Ok(Decision::Conflict(key)),
            Err(Errno::EIO) => Ok(Decision::Unknown),
            Err(refusal) => Err(refusal).context("the volume refuses the changes"),
        }
    }

    async fn abort(&mut self) -> anyhow::Result<()> {
        let open = self.open.take().context("no transaction is open")?;
        let ended = async {
            if let Ok(transaction) = open.shown.hide(ABORT_MAX / 2).await {
                // The failure of the command is told either way.
                let _ = self.store.externalize(transaction.point()).await;
            }
            self.unpin().await;
        };
        if timeout(ABORT_MAX, ended).await.is_err() {
            tracing::warn!("the volume does not answer; its server ends the transaction by itself");
        }
        Ok(())
    }

    async fn cause(&self, key: Option<Key>) -> String {
        let Some(key) = key else {
            return "its snapshot became too old, or the volume did not answer a call".to_owned();
        };
        match self.files().await {
            Ok(files) => files.cause_of(&key).await,
            Err(_) => "another transaction changed what it read".to_owned(),
        }
    }
}

fn synced(point: &Path) -> anyhow::Result<()> {
    let root = File::open(point).with_context(|| point.display().to_string())?;
    syncfs(&root).context("the changes of mapped memory cannot be written")
}

/// Reads the snapshot at `slot` again and again.
async fn keep(store: Arc<dyn VolumeStore>, slot: Slot) {
    let key = Key::new("x", "").expect("a short name");
    loop {
        sleep(READ_PERIOD).await;
        // If this fails, the next call of the command finds out.
        let _ = store.get_many(At::Slot(slot), slice::from_ref(&key)).await;
    }
}
