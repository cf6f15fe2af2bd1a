//! Mounts of volumes in memory, for the tests of the file service behind a mount.

use std::{
    fs,
    io::ErrorKind,
    path::Path,
    process::{Command, Output},
    sync::Arc,
};

use files::{FileSystem, Outcome, broken::Broken, model::Access};
use fuse_frontend::{
    FileHandler, Handler, Mount, MountError, mount,
    mount::{Options, Readers},
};
use in_process::{SystemClock, SystemEntropy};
use primitives::Mutant;
use tokio::runtime::Runtime;
use transactions::serializable::{
    ModelVolume,
    model::{BlockBytes, SessionId},
};

/// A mount of a volume; it is unmounted at the end.
pub(crate) struct Mounted {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) files: Arc<FileSystem>,
    pub(crate) handler: Arc<FileHandler>,
    pub(crate) runtime: Runtime,
    mount: Option<Mount>,
}

/// How calls become transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    Each,
    Together,
}

pub(crate) fn volume() -> Arc<ModelVolume> {
    let block_bytes = BlockBytes::new(16 << 10).expect("a power of two");
    Arc::new(ModelVolume::new(block_bytes))
}

/// Mounts a volume for `test`, which is skipped if this user may not mount.
pub(crate) fn mounted(
    volume: &Arc<ModelVolume>,
    session: u64,
    calls: Calls,
    test: &str,
) -> Option<Mounted> {
    mounted_with(Mutant::NONE, volume, session, calls, test)
}

/// As [`mounted`], with a rule of the file service dropped.
pub(crate) fn mounted_with(
    mutant: Mutant<Broken>,
    volume: &Arc<ModelVolume>,
    session: u64,
    calls: Calls,
    test: &str,
) -> Option<Mounted> {
    let directory = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let root = Access {
        mode: 0o755,
        uid: nix::unistd::getuid().as_raw(),
        gid: nix::unistd::getgid().as_raw(),
    };
    let (clock, entropy) = (Arc::new(SystemClock), Arc::<SystemEntropy>::default());
    let session = SessionId(session);
    let volume = Arc::clone(volume) as _;
    let files = FileSystem::broken(volume, clock, entropy, session, root, mutant);
    let files = Arc::new(runtime.block_on(files).expect("it opens"));
    let make = match calls {
        Calls::Each => FileHandler::each,
        Calls::Together => FileHandler::transaction,
    };
    let handler = make(Arc::clone(&files), runtime.handle().clone());
    let options = Options {
        source: "test".to_owned(),
        readers: Readers::Task(runtime.handle().clone()),
        wishes: handler.wishes(),
        is_read_only: false,
        allow_other: true,
        checks_permissions: true,
    };
    let shared: Arc<dyn Handler> = Arc::<FileHandler>::clone(&handler);
    match mount(directory.path(), &options, &shared) {
        Ok(mount) => {
            // Two transactions that did so would conflict.
            if calls == Calls::Each {
                let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
                fs::set_permissions(directory.path(), mode).expect("the root is ours");
            }
            Some(Mounted {
                directory,
                files,
                handler,
                runtime,
                mount: Some(mount),
            })
        }
        Err(error) if may_not_mount(&error) => {
            eprintln!("skipped: {test}: this machine does not let the test mount: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn may_not_mount(error: &MountError) -> bool {
    match error {
        MountError::Device(_) => true,
        MountError::Point(_, error) => error.kind() == ErrorKind::PermissionDenied,
        _ => false,
    }
}

impl Mounted {
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Runs a script that must succeed, and returns what it prints.
    pub(crate) fn text(&self, script: &str) -> String {
        text(self.path(), "sh", &["-euc", script])
    }

    /// Unmounts, and commits the one transaction of the mount.
    pub(crate) fn commit(&mut self) -> Outcome {
        self.unmount();
        let transaction = self.runtime.block_on(self.handler.take());
        let transaction = transaction.expect("it is not taken");
        let outcome = self.runtime.block_on(transaction.commit(None, || true));
        outcome.expect("a verdict")
    }

    pub(crate) fn unmount(&mut self) {
        if let Some(mount) = self.mount.take() {
            mount.unmount().expect("it unmounts");
        }
    }
}

impl Drop for Mounted {
    /// Also after a failed assertion: a directory that is a mount cannot be removed.
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take()
            && let Err(error) = mount.unmount()
        {
            eprintln!("cannot unmount: {error}");
        }
    }
}

/// A program in a directory. It is killed after two minutes, so that a fault cannot hang the test.
pub(crate) fn program(directory: &Path, name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "120", name]).args(arguments);
    command.current_dir(directory);
    command.env("HOME", "/nonexistent");
    command
}

/// Runs a program that must succeed, and returns what it prints.
pub(crate) fn text(directory: &Path, name: &str, arguments: &[&str]) -> String {
    let output: Output = program(directory, name, arguments)
        .output()
        .expect("it runs");
    let printed = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{name} {arguments:?}: {}\n{}\n{}",
        output.status,
        printed(&output.stdout),
        printed(&output.stderr)
    );
    printed(&output.stdout)
}
