//! Function memory in real instances: the program starts itself through the sandbox.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use in_process::SystemClock;
use memory::instance::{ChunkName, Epoch, HeldChunk, Instance, InstanceId, InstanceOptions};
use ports::Instances;
use sandbox::{
    Config, Sandbox,
    fuzzing::Nothing,
    process::{Enforcement, Launcher},
};

use crate::process::{WAIT_MAX, landfast, run, text};

struct World {
    instances: Arc<dyn Instances>,
    options: InstanceOptions,
    program: PathBuf,
    // Dropped after the instances.
    _sandbox: Sandbox,
    _home: tempfile::TempDir,
}

impl World {
    fn new(enforcement: impl FnOnce(&Path) -> Enforcement) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("set");
        // A copy that no other test runs. `cp` makes it, because a child that this process forks
        // meanwhile would hold it open for writing.
        let program = home.path().join("landfast");
        let copied = Command::new("cp")
            .args([Path::new(env!("CARGO_BIN_EXE_landfast")), &program])
            .status();
        assert!(copied.expect("it runs").success());
        let launcher = Launcher::new(program.clone(), enforcement(&program)).expect("a launcher");
        let sandbox = Sandbox::open(Config {
            directory: home.path().join("functions"),
            launcher,
            api: Arc::new(Nothing),
            bundled: &[],
            idle_max: WAIT_MAX,
            volumes: Arc::new(Nothing),
        })
        .expect("opened");
        let name = program.to_str().expect("a text").to_owned();
        Self {
            instances: sandbox.instances(),
            options: InstanceOptions {
                command: vec![name, "memory-function".to_owned()],
                memory_bytes: 64 << 20,
                shared_bytes: 64 << 20,
                ..InstanceOptions::default()
            },
            program,
            _sandbox: sandbox,
            _home: home,
        }
    }

    async fn start(&self, number: u64) -> Arc<Instance> {
        let (id, epoch) = (InstanceId(number), Epoch(number + 100));
        let started = Instance::start(
            &self.instances,
            &self.options,
            id,
            epoch,
            Arc::new(SystemClock),
        )
        .await;
        started.expect("it starts")
    }

    /// The processes that run function memory in this world.
    fn processes(&self) -> Vec<String> {
        let command = format!("{}\0memory-function\0", self.program.display());
        let entries = fs::read_dir("/proc").expect("read");
        entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|pid| {
                fs::read_to_string(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|found| found == command)
            })
            .collect()
    }
}

fn name(index: u8) -> ChunkName {
    ChunkName {
        segment: 9,
        fragment: 1,
        index,
    }
}

async fn put(instance: &Arc<Instance>, index: u8, content: &[u8]) -> HeldChunk {
    let slot = instance.reserve(name(index), content.len() as u64).await;
    let slot = slot.expect("there is space");
    slot.write(0, content).expect("alive");
    slot.seal().await.expect("alive")
}

fn content(chunk: &HeldChunk) -> ports::Result<Vec<u8>> {
    let mut content = vec![0; chunk.bytes() as usize];
    chunk.read(0, &mut content)?;
    Ok(content)
}

async fn soon(what: &str, event: impl Future<Output = ()>) {
    let came = tokio::time::timeout(WAIT_MAX, event).await;
    came.unwrap_or_else(|_| panic!("{what} does not come"));
}

async fn chunks_live_and_die_with_their_instance(world: World) {
    let instance = world.start(1).await;
    let [pid] = &world.processes()[..] else {
        panic!("one process: {:?}", world.processes());
    };
    let large: Vec<_> = (0..20 << 20).map(|at: u32| at as u8).collect();
    let (small, large_chunk) = (
        put(&instance, 0, b"small").await,
        put(&instance, 1, &large).await,
    );
    assert_eq!(content(&small).expect("alive"), b"small");
    assert!(content(&large_chunk).expect("alive") == large);
    assert_eq!(instance.used_bytes(), (20 << 20) + 4096);
    assert_eq!(instance.capacity_bytes(), 64 << 20);

    // A removed chunk gives its space back: three of 20 MiB fit, a fourth fits after a removal.
    let more = [
        put(&instance, 2, &large).await,
        put(&instance, 3, &large).await,
    ];
    assert!(instance.reserve(name(4), 20 << 20).await.is_err(), "full");
    drop(more);
    soon("free space", async {
        while instance.reserve(name(4), 40 << 20).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let other = world.start(2).await;
    let kept = put(&other, 0, b"kept").await;
    let killed = Command::new("kill").args(["-9", pid]).status();
    assert!(killed.expect("it runs").success());
    soon("the death", instance.died()).await;
    assert!(content(&small).is_err() && content(&large_chunk).is_err());
    assert!(instance.reserve(name(5), 1).await.is_err());
    assert_eq!(content(&kept).expect("alive"), b"kept");
    other.end();
    soon("the end", other.died()).await;
    assert!(content(&kept).is_err());
}

fn block_on(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(work);
}

/// M7.
#[test]
fn chunks_live_and_die_with_an_instance_of_this_machine() {
    block_on(async {
        chunks_live_and_die_with_their_instance(World::new(Enforcement::probe)).await;
    });
}

/// M7.
#[test]
fn chunks_live_and_die_with_an_instance_without_isolation() {
    block_on(async {
        chunks_live_and_die_with_their_instance(World::new(|_| Enforcement::nothing())).await;
    });
}

#[test]
fn the_program_of_function_memory_is_not_for_users() {
    let home = tempfile::tempdir().expect("a directory");
    let ended = run(&mut landfast(home.path(), &["memory-function"]));
    assert!(!ended.status.success());
    let error = text(&ended.stderr);
    assert!(
        error.contains("only the server starts this command"),
        "{error}"
    );
    let help = run(&mut landfast(home.path(), &["--help"]));
    assert!(!text(&help.stdout).contains("memory-function"));
}
