//! The runtime port: one pool of instances per function.

use std::{
    collections::HashMap,
    fs, io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use ports::{
    CodeStore, Instances, Runtime, VolumeMounts,
    functions::Permit,
    runtime::{Figures, Function, Invocation, Language, Ran, Refused},
};
use tokio::time::timeout;

use crate::{
    code_store::{Archives, Code},
    figures::Counters,
    function::{
        bundled_clients, command, instance::Shared, interpreters::Interpreters,
        prewarmed::Prewarmed, runtime_api::Api,
    },
    instances::{Regions, SandboxInstances},
    logs::Logs,
    machine::available_bytes,
    pool::{NotRun, Pool},
    process::Launcher,
};

/// How long the last lines may take to reach the disk.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// The sandbox's folder, its parts, and how long idle instances live.
#[derive(Debug)]
pub struct Config {
    /// The folder for archives, logs and the runtime clients.
    pub directory: PathBuf,
    /// Launches instances.
    pub launcher: Launcher,
    /// The API that functions reach beside the Runtime API.
    pub api: Arc<dyn Api>,
    /// Files for every function at `/var/runtime`, by their paths there.
    pub bundled: &'static [(&'static str, &'static str)],
    /// How long an idle instance lives.
    pub idle_max: Duration,
    /// Mounts the volumes of functions.
    pub volumes: Arc<dyn VolumeMounts>,
}

/// Runs functions as isolated processes of this machine.
#[derive(Debug)]
pub struct Sandbox {
    shared: Arc<Shared>,
    pools: Mutex<HashMap<String, Arc<Pool>>>,
    is_closed: AtomicBool,
    regions: Arc<Regions>,
}

/// The files behind shared regions.
#[derive(Debug, Clone)]
pub struct SharedFiles(Arc<Regions>);

impl SharedFiles {
    /// The file that `shared` bytes of a region lie in, and their offset in it. None: they lie in no such file.
    ///
    /// Bytes that the kernel sends from it arrive as they were when they were sent, even if they are discarded, and written anew
    /// after that, before the receiver takes them (X8).
    pub fn file_of(&self, shared: &[u8]) -> Option<(Arc<OwnedFd>, u64)> {
        self.0.file_of(shared)
    }
}

impl Sandbox {
    /// A sandbox in `config.directory`.
    pub fn open(config: Config) -> io::Result<Self> {
        fs::create_dir_all(&config.directory)?;
        // Mounts need the absolute path on the host.
        let directory = config.directory.canonicalize()?;
        let runtime = directory.join("runtime");
        bundled_clients::write(&runtime, config.bundled)?;
        let logs = Arc::new(Logs::open(directory.join("logs"))?);
        let launcher = Arc::new(config.launcher);
        let code = if launcher.enforcement.separates_users() {
            Code::StaysAsItIs
        } else {
            Code::MayChange
        };
        let archives = Arc::new(Archives::open(directory.join("archives"), code)?);
        let prewarmed = Arc::new(Prewarmed {
            launcher: Arc::clone(&launcher),
            code: directory.join("archives"),
            runtime: runtime.clone(),
            idle_max: config.idle_max,
            spares: Mutex::default(),
        });
        let interpreters = Interpreters {
            launcher: Arc::clone(&launcher),
            own: directory,
            runtime: runtime.clone(),
            found: Mutex::default(),
        };
        let shared = Shared {
            launcher,
            api: config.api,
            interpreters,
            runtime,
            archives,
            logs,
            prewarmed,
            counters: Counters::default(),
            idle_max: config.idle_max,
            volumes: config.volumes,
        };
        Ok(Self {
            shared: Arc::new(shared),
            pools: Mutex::default(),
            is_closed: AtomicBool::new(false),
            regions: Arc::new(Regions::new()),
        })
    }

    /// The archives with the code of functions.
    pub fn code_store(&self) -> Arc<dyn CodeStore> {
        Arc::clone(&self.shared.archives) as Arc<dyn CodeStore>
    }

    /// The lines that functions printed.
    pub fn logs(&self) -> Arc<dyn ports::Logs> {
        Arc::clone(&self.shared.logs) as Arc<dyn ports::Logs>
    }

    /// Starts any program as an isolated process, beside functions. [`close`](Runtime::close) ends
    /// these too.
    pub fn instances(&self) -> Arc<dyn Instances> {
        let launcher = Arc::clone(&self.shared.launcher);
        let folder = self.shared.runtime.clone();
        Arc::new(SandboxInstances::new(
            launcher,
            folder,
            Arc::clone(&self.regions),
        ))
    }

    /// The files behind the regions that [`Self::instances`] share, so that the kernel sends bytes of them without a copy.
    pub fn shared_files(&self) -> SharedFiles {
        SharedFiles(Arc::clone(&self.regions))
    }

    /// The pool of `function` at its current revision. A caller with an earlier revision looked it
    /// up before that.
    fn pool(&self, function: &Arc<Function>) -> Arc<Pool> {
        let mut pools = self.pools.lock();
        let pool = pools
            .entry(function.name.clone())
            .or_insert_with(|| self.new_pool(function));
        Arc::clone(pool)
    }

    fn new_pool(&self, function: &Arc<Function>) -> Arc<Pool> {
        let (function, shared) = (Arc::clone(function), Arc::clone(&self.shared));
        Arc::new(Pool::new(function, shared))
    }

    /// The pool that replaced `retired`; none: its function was removed.
    fn later(&self, retired: &Arc<Pool>) -> Option<Arc<Pool>> {
        let pool = self.pools.lock().get(&retired.function.name).cloned();
        pool.filter(|pool| !Arc::ptr_eq(pool, retired))
    }

    /// Errors: the sandbox was closed.
    fn check_open(&self) -> Result<(), Refused> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Refused::Unavailable("the server stops".to_owned()));
        }
        Ok(())
    }

    /// Frees memory for an instance of `function`, if it is short: spares end first, then idle
    /// instances.
    fn free_memory(&self, function: &Function) {
        while available_bytes().is_some_and(|available| available < function.memory_bytes) {
            let pools: Vec<_> = self.pools.lock().values().cloned().collect();
            if !self.shared.prewarmed.end_all() && !pools.iter().any(|pool| pool.end_coldest()) {
                return;
            }
        }
    }
}

#[async_trait]
impl Runtime for Sandbox {
    async fn check(&self, function: &Function) -> Result<(), String> {
        match function.language {
            Language::Executable => {
                let path = format!("{}/{}", function.folder, function.handler);
                let archives = &self.shared.archives;
                archives.check_executable(&function.archive, &path).await
            }
            Language::Python(_) | Language::Node(_) => {
                self.shared.archives.check_handler(function).await?;
                command::check_version(function, &self.shared.interpreters).await
            }
        }
    }

    async fn permit(&self, function: &Arc<Function>) -> Option<Permit> {
        self.pool(function).permit().await
    }

    async fn run(
        &self,
        function: &Arc<Function>,
        mut invocation: Invocation,
    ) -> Result<Ran, Refused> {
        self.check_open()?;
        let mut pool = self.pool(function);
        loop {
            match pool.run(invocation, &|| self.free_memory(function)).await {
                Ok(ran) => return Ok(ran),
                Err(NotRun::Refused(refused)) => return Err(refused),
                Err(NotRun::Retired(returned)) => invocation = *returned,
            }
            self.check_open()?;
            // A call that waited for an instance of one revision waits for one of the next.
            let later = self.later(&pool).ok_or(Refused::Throttled);
            pool = later
                .inspect_err(|_| self.shared.counters.count(|figures| figures.throttled += 1))?;
        }
    }

    fn renew(&self, function: &Arc<Function>) {
        let mut pools = self.pools.lock();
        if pools
            .get(&function.name)
            .is_some_and(|pool| pool.function.revision == function.revision)
        {
            return;
        }
        // Calls that the retired pool turns away find the new one.
        if let Some(earlier) = pools.insert(function.name.clone(), self.new_pool(function)) {
            earlier.retire();
        }
    }

    fn retire(&self, function: &str) {
        let retired = self.pools.lock().remove(function);
        if let Some(pool) = retired {
            pool.retire();
        }
    }

    async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.pools
            .lock()
            .drain()
            .for_each(|(_, pool)| pool.retire());
        self.shared.prewarmed.end_all();
        self.shared.launcher.end().await;
        if timeout(FLUSH_MAX, self.shared.logs.flush()).await.is_err() {
            tracing::warn!("the last lines of functions are lost: the disk did not answer in time");
        }
    }

    fn figures(&self) -> Figures {
        let pools: Vec<_> = self.pools.lock().values().cloned().collect();
        let mut figures = self.shared.counters.figures();
        figures.spares = self.shared.prewarmed.ready();
        for (warm, frozen) in pools.iter().map(|pool| pool.idle()) {
            figures.warm += warm;
            figures.frozen += frozen;
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fuzzing::Nothing, process::Enforcement};

    #[tokio::test]
    async fn printed_lines_are_in_the_files_after_the_close() {
        let directory = tempfile::tempdir().expect("a directory");
        let launcher =
            Launcher::new("nothing is launched".into(), Enforcement::nothing()).expect("a thread");
        let config = Config {
            directory: directory.path().into(),
            launcher,
            api: Arc::new(Nothing),
            bundled: &[],
            idle_max: Duration::from_secs(1),
            volumes: Arc::new(Nothing),
        };
        let sandbox = Sandbox::open(config).expect("opened");
        let logs = &sandbox.shared.logs;
        logs.keep(&logs.log("one"), &"a".into(), "the last words".to_owned());
        sandbox.close().await;
        let kept = fs::read_to_string(directory.path().join("logs/one.log")).expect("it is there");
        assert!(kept.contains("the last words"), "{kept}");
    }
}
