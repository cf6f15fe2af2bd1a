//! Real programs on a volume, with the library loaded.

#![allow(clippy::disallowed_methods)] // The figures are times.

use std::{
    path::PathBuf,
    process::{Command, Output},
    sync::Arc,
    time::Duration,
};

use files::{
    FileSystem, Outcome,
    file_system::lock_key,
    model::{Access, Ino},
};
use in_process::{SystemClock, SystemEntropy};
use preload_frontend::{Options, Server, permissions::User, shared::Buffers};
use transactions::serializable::{
    ModelVolume,
    model::{BlockBytes, Granted, Lock, LockBytes, LockFamily, LockMode, SessionId, Wait},
};

mod programs;
mod semantics;

/// Where programs see the volume. The path does not exist.
const AT: &str = "/landfast-test/demo";

/// A volume, and a file system on it.
struct World {
    runtime: tokio::runtime::Runtime,
    volume: Arc<ModelVolume>,
    files: Arc<FileSystem>,
}

impl World {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let block_bytes = BlockBytes::new(16 << 10).expect("a power of two");
        let volume = Arc::new(ModelVolume::new(block_bytes));
        let files = runtime.block_on(opened(&volume, SessionId(1)));
        Self {
            runtime,
            volume,
            files,
        }
    }

    /// Locks a file in the root, as another client.
    fn lock_outside(&self, name: &'static str) {
        self.runtime.block_on(async {
            let name = bytes::Bytes::from_static(name.as_bytes());
            let found = self.files.lookup(Ino::ROOT, &name).await.expect("a file");
            let other = opened(&self.volume, SessionId(2)).await;
            let lock = Lock {
                key: lock_key(found.ino),
                family: LockFamily::Flock,
                bytes: LockBytes {
                    first: 0,
                    last: u64::MAX,
                },
                mode: LockMode::Exclusive,
                pid: 1,
                wait: Wait::Never,
            };
            assert_eq!(other.lock(1, lock).await, Ok(Granted::Yes));
        });
    }

    /// A server whose calls are one transaction.
    fn transaction(&self) -> Server {
        self.transaction_of(None)
    }

    /// The same, with the permissions of a user.
    fn transaction_of(&self, user: Option<User>) -> Server {
        let options = Options {
            at: AT.into(),
            buffers: Buffers::default(),
            library: Some(library()),
            is_read_only: false,
            user,
        };
        let runtime = self.runtime.handle().clone();
        Server::start(self.files.begin(), &options, runtime).expect("started")
    }

    /// Runs a script as a transaction of its own.
    #[track_caller]
    fn run(&self, script: &str) {
        let server = self.transaction();
        output(&server, script);
        assert!(self.commit(server));
    }

    /// Commits what the programs of a server have done. Returns whether there was no conflict.
    fn commit(&self, server: Server) -> bool {
        let finished = self.runtime.block_on(server.finish(Duration::MAX));
        let transaction = finished.expect("no lost write");
        let transaction = transaction.expect("a transaction");
        let committed = self.runtime.block_on(transaction.commit(None, || true));
        matches!(committed, Ok(Outcome::Committed { .. }))
    }

    /// The contents of a file in the root.
    fn read(&self, name: &str) -> Option<String> {
        self.runtime.block_on(async {
            let name = bytes::Bytes::copy_from_slice(name.as_bytes());
            let found = self.files.lookup(Ino::ROOT, &name).await.ok()?;
            let read = self.files.read(found.ino, 0, 1 << 20).await.ok()?;
            Some(String::from_utf8_lossy(&read).into_owned())
        })
    }
}

async fn opened(volume: &Arc<ModelVolume>, session: SessionId) -> Arc<FileSystem> {
    let root = Access {
        mode: 0o755,
        uid: 0,
        gid: 0,
    };
    let clock = Arc::new(SystemClock);
    let entropy = Arc::new(SystemEntropy::default());
    let opened = FileSystem::open(volume.clone(), clock, entropy, session, root);
    Arc::new(opened.await.expect("opened"))
}

/// The library that cargo has built for this test, which is beside it.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let folder = test.parent().expect("a folder");
    let places = [folder, folder.parent().expect("a folder")];
    let mut places = places
        .map(|folder| folder.join("liblandfast_preload.so"))
        .into_iter();
    let found = places.find(|path| path.is_file());
    found.expect("cargo builds the library before its tests")
}

/// A command with the library.
fn command(server: &Server, program: &str) -> Command {
    // `timeout` ends a program that hangs, and the processes that it started.
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60", program]);
    command.envs(server.environment().iter().cloned());
    command.env("AT", AT).env("LC_ALL", "C");
    command
}

/// Runs a shell script in which `$AT` is the volume.
fn sh(server: &Server, script: &str) -> Output {
    let output = command(server, "sh").args(["-ec", script]).output();
    output.expect("the shell starts")
}

/// The output of a script that succeeds.
#[track_caller]
fn output(server: &Server, script: &str) -> String {
    let output = sh(server, script);
    assert!(
        output.status.success(),
        "{}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
