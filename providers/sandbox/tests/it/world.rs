//! A sandbox with functions that obey commands.

// Why: not every test binary uses all of it.
#![allow(dead_code)]

use std::{
    collections::BTreeMap,
    fmt::Debug,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use ports::{
    Runtime as _, VolumeMount, VolumeMounts,
    runtime::{Function, Invocation, Language, Ran},
    volume_mounts::{VolumeAt, VolumeCommit},
};
use sandbox::{
    Config, Sandbox,
    fuzzing::Nothing,
    process::{Enforcement, Launcher},
};
use tar::{Builder, Header};

/// The code of functions, which obeys the command in its payload.
pub(crate) const CODE: &str = include_str!("commands.py");
/// Code that reports its isolation.
pub(crate) const LOOK: &str = include_str!("look.py");
/// A client that says that it is bundled.
pub(crate) const BUNDLED: &[(&str, &str)] = &[("landfast/__init__.py", "WHOSE = 'bundled'\n")];
/// An interpreter that every user of the machine can run.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// Volumes that are folders of the host. Their transactions always commit.
#[derive(Debug)]
pub(crate) struct Folders(PathBuf);

#[derive(Debug)]
struct Folder(PathBuf);

#[async_trait]
impl VolumeMounts for Folders {
    async fn mount(&self, volume: &VolumeAt) -> Result<Arc<dyn VolumeMount>, String> {
        let folder = self.0.join(&volume.volume);
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        // Each function has a user of its own.
        let all = fs::Permissions::from_mode(0o777);
        fs::set_permissions(&folder, all).map_err(|error| error.to_string())?;
        Ok(Arc::new(Folder(folder)))
    }
}

#[async_trait]
impl VolumeMount for Folder {
    fn path(&self) -> &Path {
        &self.0
    }

    async fn begin(&self) -> Result<(), String> {
        fs::write(self.0.join("begun"), "").map_err(|error| error.to_string())
    }

    async fn commit(&self) -> Result<VolumeCommit, String> {
        fs::rename(self.0.join("begun"), self.0.join("committed"))
            .map(|()| VolumeCommit::Committed)
            .map_err(|error| error.to_string())
    }

    async fn cause(&self) -> String {
        unreachable!("it never conflicts")
    }

    async fn abort(&self) {}
}

pub(crate) struct World {
    /// Dropped with it.
    _home: Option<Box<dyn Debug>>,
    /// The program of its processes, which no other world runs.
    pub(crate) program: PathBuf,
    pub(crate) sandbox: Arc<Sandbox>,
}

/// Copies a program to be started. Another process does it: a child that this process forks
/// meanwhile would hold the copy open for writing, and the kernel would refuse to execute it.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp")
        .arg(from)
        .arg(to)
        .status()
        .expect("it runs");
    assert!(
        copied.success(),
        "{} is not copied to {}",
        from.display(),
        to.display()
    );
}

impl World {
    /// A world in a folder that goes with it. `program` is a copy that no other world runs.
    pub(crate) fn within(
        home: impl Debug + 'static,
        folder: &Path,
        program: &Path,
        enforcement: impl FnOnce(&Path) -> Enforcement,
    ) -> Self {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("set");
        let copy = folder.join("program");
        copy_program(program, &copy);
        let world = Self::beside(folder, &copy, enforcement);
        Self {
            _home: Some(Box::new(home)),
            ..world
        }
    }

    pub(crate) fn beside(
        folder: &Path,
        program: &Path,
        enforcement: impl FnOnce(&Path) -> Enforcement,
    ) -> Self {
        Self::beside_for(
            folder,
            program,
            enforcement,
            Duration::from_mins(10),
            BUNDLED,
        )
    }

    /// A world with this idle time of instances and this client.
    pub(crate) fn beside_for(
        folder: &Path,
        program: &Path,
        enforcement: impl FnOnce(&Path) -> Enforcement,
        idle_max: Duration,
        bundled: &'static [(&'static str, &'static str)],
    ) -> Self {
        let launcher = Launcher::new(program.to_owned(), enforcement(program)).expect("a launcher");
        let config = Config {
            directory: folder.join("functions"),
            launcher,
            api: Arc::new(Nothing),
            bundled,
            idle_max,
            volumes: Arc::new(Folders(folder.join("volumes"))),
        };
        let sandbox = Arc::new(Sandbox::open(config).expect("opened"));
        Self {
            _home: None,
            program: program.to_owned(),
            sandbox,
        }
    }

    pub(crate) async fn function(
        &self,
        name: &str,
        code: &str,
        change: impl FnOnce(&mut Function),
    ) -> Arc<Function> {
        self.function_of(name, &[("app.py", code)], change).await
    }

    pub(crate) async fn function_of(
        &self,
        name: &str,
        files: &[(&str, &str)],
        change: impl FnOnce(&mut Function),
    ) -> Arc<Function> {
        let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (path, text) in files {
            let mut header = Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            builder
                .append_data(&mut header, format!("code/{path}"), text.as_bytes())
                .expect("appended");
        }
        let content = builder
            .into_inner()
            .and_then(GzEncoder::finish)
            .expect("finished");
        self.sandbox
            .code_store()
            .install(name, Bytes::from(content))
            .await
            .expect("installed");
        let mut function = Function {
            name: name.to_owned(),
            revision: "1".to_owned(),
            language: Language::Python(Some(PYTHON.into())),
            runtime_version: None,
            handler: "app.handler".to_owned(),
            archive: name.to_owned(),
            folder: "code".to_owned(),
            memory_bytes: 128 << 20,
            timeout: Duration::from_secs(30),
            concurrency: 4,
            processes_max: 64,
            scratch_bytes: 16 << 20,
            environment: BTreeMap::new(),
            network: false,
            buckets: Vec::new(),
            volume: None,
            incarnation: 0,
        };
        change(&mut function);
        Arc::new(function)
    }

    pub(crate) async fn call(&self, function: &Arc<Function>, payload: &str) -> Ran {
        let payload = Bytes::copy_from_slice(payload.as_bytes());
        let invocation = Invocation::new("an-id".to_owned(), payload, true);
        self.sandbox
            .run(function, invocation)
            .await
            .expect("it is run")
    }

    /// The answer as text, or the failure.
    pub(crate) async fn said(&self, function: &Arc<Function>, payload: &str) -> String {
        let result = self.call(function, payload).await.result;
        let bytes = result.unwrap_or_else(|error| error.payload);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until a spare is ready.
    pub(crate) async fn spare(&self) {
        let ready = async {
            while self.sandbox.figures().spares == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_mins(2), ready)
            .await
            .expect("no spare became ready");
    }

    pub(crate) async fn close(&self) {
        self.sandbox.close().await;
    }
}
