//! The port: a pool for each function.

use std::{
    collections::HashMap,
    fs, io,
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
    CodeStore, Runtime,
    functions::Room,
    runtime::{Figures, Function, Invocation, Language, Ran, Refused},
};
use tokio::time::timeout;

use crate::{
    archives::Archives,
    command::{self, Interpreters},
    logs::Logs,
    pool::{NotRun, Pool, Shared},
    process::Launcher,
    processes::available_bytes,
    runtime_api::Api,
    spares::Spares,
    tally::Tally,
};

/// How long the last lines may take on their way to the disk.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Where things are, and how long what is idle is kept.
#[derive(Debug)]
pub struct Config {
    /// Logs and the runtime clients go here.
    pub directory: PathBuf,
    /// How instances are launched.
    pub launcher: Launcher,
    /// What functions reach beside the Runtime API.
    pub api: Arc<dyn Api>,
    /// Files that every function finds at `/var/runtime`, by their paths there.
    pub carried: &'static [(&'static str, &'static str)],
    /// How long an instance may be idle before it is ended.
    pub idle_max: Duration,
}

/// Functions as processes of this machine.
#[derive(Debug)]
pub struct Sandbox {
    shared: Arc<Shared>,
    pools: Mutex<HashMap<String, Arc<Pool>>>,
    is_closed: AtomicBool,
}

impl Sandbox {
    /// A sandbox that keeps what it needs in `config.directory`.
    pub fn open(config: Config) -> io::Result<Self> {
        let Config {
            directory,
            launcher,
            api,
            carried,
            idle_max,
        } = config;
        fs::create_dir_all(&directory)?;
        // Seen from inside a mount, whose path is the host's.
        let directory = directory.canonicalize()?;
        let runtime = directory.join("runtime");
        command::put_clients(&runtime, carried)?;
        let logs = Arc::new(Logs::open(directory.join("logs"))?);
        let archives = Archives::open(directory.join("archives"), launcher.code())?;
        let archives = Arc::new(archives);
        let launcher = Arc::new(launcher);
        let spares = Spares::new(
            Arc::clone(&launcher),
            archives.all().to_owned(),
            runtime.clone(),
            idle_max,
        );
        let spares = Arc::new(spares);
        let interpreters = Interpreters::new(Arc::clone(&launcher), directory, runtime.clone());
        let tally = Tally::default();
        let shared = Shared {
            launcher,
            api,
            interpreters,
            runtime,
            archives,
            logs,
            idle_max,
            tally,
            spares,
        };
        let shared = Arc::new(shared);
        Ok(Self {
            shared,
            pools: Mutex::default(),
            is_closed: AtomicBool::new(false),
        })
    }

    /// The archives with the code of functions.
    pub fn code_store(&self) -> Arc<dyn CodeStore> {
        Arc::clone(&self.shared.archives) as Arc<dyn CodeStore>
    }

    /// What functions printed.
    pub fn logs(&self) -> Arc<dyn ports::Logs> {
        Arc::clone(&self.shared.logs) as Arc<dyn ports::Logs>
    }

    /// The pool of `function`, at the revision that was put in place last: who asks for another looked it up before that.
    fn pool(&self, function: &Arc<Function>) -> Arc<Pool> {
        let mut pools = self.pools.lock();
        let pool = pools
            .entry(function.name.clone())
            .or_insert_with(|| self.new_pool(function));
        Arc::clone(pool)
    }

    fn new_pool(&self, function: &Arc<Function>) -> Arc<Pool> {
        Arc::new(Pool::new(Arc::clone(function), Arc::clone(&self.shared)))
    }

    /// The pool that came in place of `retired`; none: its function has gone.
    fn later(&self, retired: &Arc<Pool>) -> Option<Arc<Pool>> {
        let pool = self.pools.lock().get(&retired.function.name).cloned();
        pool.filter(|pool| !Arc::ptr_eq(pool, retired))
    }

    /// Errors: nothing is run any more.
    fn check_open(&self) -> Result<(), Refused> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Refused::Unavailable("the server stops".to_owned()));
        }
        Ok(())
    }

    /// Makes room for an instance of `function`: what is idle goes first where memory is short.
    fn make_room(&self, function: &Function) {
        while available_bytes().is_some_and(|available| available < function.memory_bytes) {
            let pools: Vec<_> = self.pools.lock().values().cloned().collect();
            if !self.shared.spares.give_up() && !pools.iter().any(|pool| pool.end_coldest()) {
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
                let Function {
                    archive,
                    folder,
                    handler,
                    ..
                } = function;
                self.shared
                    .archives
                    .check_executable(archive, &format!("{folder}/{handler}"))
                    .await
            }
            // Where a module is, its interpreter says.
            Language::Python(_) | Language::Node(_) => Ok(()),
        }
    }

    async fn room(&self, function: &Arc<Function>) -> Option<Room> {
        self.pool(function).room().await
    }

    async fn run(
        &self,
        function: &Arc<Function>,
        mut invocation: Invocation,
    ) -> Result<Ran, Refused> {
        self.check_open()?;
        let mut pool = self.pool(function);
        loop {
            match pool.run(invocation, &|| self.make_room(function)).await {
                Ok(ran) => return Ok(ran),
                Err(NotRun::Refused(refused)) => return Err(refused),
                Err(NotRun::Retired(returned)) => invocation = *returned,
            }
            self.check_open()?;
            // Who waited for an instance of one revision waits for one of the next.
            let later = self.later(&pool).ok_or(Refused::Throttled);
            pool = later.inspect_err(|_| self.shared.tally.throttled())?;
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
        // Whoever the retired one turns away finds this.
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
        self.shared.spares.give_up();
        self.shared.launcher.end().await;
        if timeout(FLUSH_MAX, self.shared.logs.flush()).await.is_err() {
            tracing::warn!(
                "the last lines of functions are not kept: the disk does not answer in time"
            );
        }
    }

    fn figures(&self) -> Figures {
        let pools: Vec<_> = self.pools.lock().values().cloned().collect();
        let idle = pools.iter().map(|pool| pool.idle());
        let (warm, frozen) = idle.fold((0, 0), |(warm, frozen), idle| {
            (warm + idle.0, frozen + idle.1)
        });
        Figures {
            spares: self.shared.spares.ready(),
            ..self.shared.tally.figures(warm, frozen)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{edges::Nothing, logs::Share, process::Enforcement};

    #[tokio::test]
    async fn what_was_printed_is_in_the_files_once_it_is_closed() {
        let directory = tempfile::tempdir().expect("a directory");
        let launcher =
            Launcher::new("nothing is launched".into(), Enforcement::nothing()).expect("a thread");
        let config = Config {
            directory: directory.path().into(),
            launcher,
            api: Arc::new(Nothing),
            carried: &[],
            idle_max: Duration::from_secs(1),
        };
        let sandbox = Sandbox::open(config).expect("opened");
        let share = Arc::new(Share::new("one"));
        assert!(
            sandbox
                .shared
                .logs
                .keep(&share, &"a".into(), "the last words".to_owned())
        );
        sandbox.close().await;
        let kept = fs::read_to_string(directory.path().join("logs/one.log")).expect("it is there");
        assert!(kept.contains("the last words"), "{kept}");
    }
}
