//! A server over volumes in memory, and its clients.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use in_process::SystemEntropy;
use tempfile::TempDir;
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use transactions::{
    Error, Result,
    serializable::{
        ModelVolumes, VolumeStore, Volumes,
        model::{
            At, BlockBytes, Granted, Key, Lock, LockBytes, LockFamily, LockMode, Owner, Proposal,
            ProposalId, SessionId, Slot, Wait, Write, Writes,
        },
        volumes::{VolumeInfo, VolumeName, VolumeSettings},
    },
};
use volumes_frontend::{
    RemoteVolumes, bind,
    remote::{self, Connected},
    server,
};

/// The longest wait of a test for anything.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// The grace of sessions in tests.
pub(crate) const GRACE: Duration = Duration::from_millis(400);

pub(crate) struct World {
    directory: TempDir,
    pub(crate) volumes: Arc<dyn Volumes>,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl World {
    /// A server that runs, with the volume `demo`.
    pub(crate) async fn new() -> Self {
        Self::around(Arc::new(ModelVolumes::default())).await
    }

    pub(crate) async fn around(volumes: Arc<dyn Volumes>) -> Self {
        volumes.create(demo(), settings()).await.expect("created");
        let mut world = Self {
            directory: tempfile::tempdir().expect("a directory"),
            volumes,
            running: None,
        };
        world.start();
        world
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("volumes.sock")
    }

    pub(crate) fn config(&self) -> server::Config {
        server::Config {
            session_grace: GRACE,
            reclaim_grace: GRACE,
            ..server::Config::new(self.path())
        }
    }

    pub(crate) fn start(&mut self) {
        let volumes = Arc::clone(&self.volumes);
        let server = bind(self.config(), volumes, &SystemEntropy::default()).expect("it listens");
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        self.running = Some((stop, running));
    }

    /// Stops the server in order.
    pub(crate) async fn stop(&mut self) {
        let (stop, running) = self.running.take().expect("it runs");
        drop(stop);
        soon(running).await.expect("it ends");
    }

    /// Ends the server at once, as a kill does: connections break in the middle, and its socket
    /// stays.
    pub(crate) async fn kill(&mut self) {
        let (stop, running) = self.running.take().expect("it runs");
        running.abort();
        let _ = soon(running).await;
        drop(stop);
        assert!(self.path().exists());
    }

    pub(crate) async fn client(&self) -> RemoteVolumes {
        self.client_that_waits(WAIT_MAX).await
    }

    pub(crate) async fn client_that_waits(&self, wait_max: Duration) -> RemoteVolumes {
        let config = remote::Config {
            wait_max,
            ..remote::Config::new(self.path())
        };
        let connected = RemoteVolumes::connect(config, &SystemEntropy::default()).await;
        connected.expect("a server")
    }
}

/// The result, unless it takes too long.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(WAIT_MAX, future).await.expect("it hangs")
}

/// Returns once the condition holds.
pub(crate) async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < WAIT_MAX, "it never holds");
        sleep(Duration::from_millis(2)).await;
    }
}

/// The state of the connection, once it is as wanted.
pub(crate) async fn connected(
    client: &RemoteVolumes,
    is_wanted: impl FnMut(&Connected) -> bool,
) -> Connected {
    let mut changes = client.connected();
    *soon(changes.wait_for(is_wanted)).await.expect("a client")
}

pub(crate) fn demo() -> VolumeName {
    VolumeName::new("demo").expect("a name")
}

pub(crate) fn settings() -> VolumeSettings {
    VolumeSettings {
        block_bytes: BlockBytes::new(4096).expect("a power of two"),
        quota_bytes: None,
    }
}

pub(crate) async fn open(volumes: &RemoteVolumes) -> Arc<dyn VolumeStore> {
    volumes.open(&demo()).await.expect("the volume")
}

pub(crate) fn key(name: &str) -> Key {
    Key::new("d", name.to_owned()).expect("short")
}

/// A proposal of one value.
pub(crate) fn put(number: u64, name: &str, value: &[u8]) -> Proposal {
    Proposal {
        at: Slot(0),
        id: ProposalId::new(number.to_be_bytes().to_vec(), 0).expect("short"),
        reads: Vec::new(),
        predicates: Vec::new(),
        writes: Writes::Inline(vec![Write::Put {
            key: key(name),
            value: value.to_vec().into(),
        }]),
    }
}

pub(crate) async fn value(volume: &dyn VolumeStore, name: &str) -> Option<Vec<u8>> {
    let found = volume.get_many(At::Tail, &[key(name)]).await;
    let value = found.expect("a read").value.found.remove(0);
    value.map(|value| value.to_vec())
}

/// Owner `id` of the session that every client calls its first.
pub(crate) fn owner(id: u64) -> Owner {
    Owner {
        session: SessionId(1),
        id,
    }
}

pub(crate) fn lock(name: &str, mode: LockMode, wait: Wait) -> Lock {
    Lock {
        key: key(name),
        family: LockFamily::Posix,
        bytes: LockBytes::ALL,
        mode,
        pid: 7,
        wait,
    }
}

/// Whether the lock is granted at once.
pub(crate) async fn takes(volume: &dyn VolumeStore, id: u64, lock: Lock) -> bool {
    let granted = soon(volume.lock(owner(id), lock)).await;
    granted.expect("an answer") == Granted::Yes
}

/// One volume, of the test's own.
#[derive(Debug)]
pub(crate) struct One(pub(crate) Arc<dyn VolumeStore>);

impl Volumes for One {
    fn create(&self, _: VolumeName, _: VolumeSettings) -> BoxFuture<'_, Result<()>> {
        ready(Ok(())).boxed()
    }

    fn open<'a>(&'a self, name: &'a VolumeName) -> BoxFuture<'a, Result<Arc<dyn VolumeStore>>> {
        let found = (*name == demo()).then(|| Arc::clone(&self.0));
        ready(found.ok_or(Error::NoSuchVolume)).boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<VolumeInfo>>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn set_quota<'a>(&'a self, _: &'a VolumeName, _: Option<u64>) -> BoxFuture<'a, Result<()>> {
        ready(Ok(())).boxed()
    }

    fn clone_volume<'a>(
        &'a self,
        _: &'a VolumeName,
        _: Option<Slot>,
        _: VolumeName,
    ) -> BoxFuture<'a, Result<()>> {
        ready(Ok(())).boxed()
    }

    fn delete<'a>(&'a self, _: &'a VolumeName) -> BoxFuture<'a, Result<()>> {
        ready(Ok(())).boxed()
    }
}
