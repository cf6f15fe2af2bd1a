//! The processes of functions, on this machine as it is, and with less isolation.
//!
//! The groups of one process have one folder, so tests that use them take turns.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};
use ports::{Runtime as _, runtime::Invocation};
use sandbox::process::Enforcement;

use crate::world::{CODE, World, copy_program};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_sandbox-test-server");
/// The longest wait for an expected event.
const PATIENCE: Duration = Duration::from_mins(2);

pub(crate) fn world(enforcement: impl FnOnce(&Path) -> Enforcement) -> World {
    let home = tempfile::tempdir().expect("a directory");
    let folder = home.path().to_owned();
    World::within(home, &folder, PROGRAM.as_ref(), enforcement)
}

pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(work)
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

fn status(process: u32, field: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    text.lines()
        .find_map(|line| Some(line.strip_prefix(field)?.trim().to_owned()))
}

/// Whether a process exists and has not ended.
pub(crate) fn lives(process: u32) -> bool {
    status(process, "State:")
        .is_some_and(|state| !state.starts_with('Z') && !state.starts_with('X'))
}

fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("listed").flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The processes of `program`: its launchers, and forks of them that execute no other program.
pub(crate) fn of(program: &Path) -> Vec<u32> {
    let name = program.to_str().expect("text");
    let is_one = |process: &u32| {
        fs::read_to_string(format!("/proc/{process}/cmdline"))
            .is_ok_and(|line| line.starts_with(name))
    };
    all().into_iter().filter(is_one).collect()
}

pub(crate) fn parent(process: u32) -> Option<u32> {
    status(process, "PPid:")?.parse().ok()
}

/// All descendants of these, in any namespace.
pub(crate) fn below(processes: &[u32]) -> Vec<u32> {
    let mut found = processes.to_vec();
    loop {
        let more: Vec<_> = all()
            .into_iter()
            .filter(|process| {
                !found.contains(process) && parent(*process).is_some_and(|it| found.contains(&it))
            })
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// The missing measures, by their subject.
fn measures(command: &mut Command) -> String {
    String::from_utf8(command.output().expect("it runs").stdout).expect("text")
}

pub(crate) fn can_isolate() -> bool {
    measures(Command::new(PROGRAM).arg("measures"))
        .contains("own processes, files and network: enforced")
}

/// U2, without namespaces and control groups.
#[test]
fn processes_that_a_function_forks_end_with_it_without_isolation() {
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let function = world
            .function("forks", CODE, |function| {
                function.timeout = PATIENCE;
            })
            .await;
        let left = |said: &str| -> u32 { said.trim().parse().unwrap_or_else(|_| panic!("{said}")) };
        let by_retiring = left(&world.said(&function, r#"{"do": "fork"}"#).await);
        assert!(lives(by_retiring));
        // The same instance times out: the processes that it has left end with it.
        let payload = r#"{"do": "echo", "sleep": 600}"#.into();
        let short = Invocation {
            timeout: Some(Duration::from_secs(2)),
            ..Invocation::new("short".to_owned(), payload, true)
        };
        let timed_out = world.sandbox.run(&function, short).await;
        let timed_out = timed_out.expect("it is run").result.expect_err("too long");
        let timed_out = String::from_utf8_lossy(&timed_out.payload);
        assert!(timed_out.contains("Timedout"), "{timed_out}");
        until("what the timed out instance had left", || {
            !lives(by_retiring)
        });
        // An instance that exits.
        let said = world.call(&function, r#"{"do": "fork and exit"}"#).await;
        let log = String::from_utf8_lossy(&said.log_tail).into_owned();
        let word = log
            .lines()
            .find_map(|line| line.strip_prefix("left "))
            .expect("it says what it has left");
        let by_exit = left(word);
        until("what the ended instance had left", || !lives(by_exit));
        // An idle instance that is ended.
        let idle = left(&world.said(&function, r#"{"do": "fork"}"#).await);
        assert!(lives(idle));
        world.sandbox.retire("forks");
        until("what the idle instance had left", || !lives(idle));
        until("the launchers", || of(&world.program).is_empty());
        world.close().await;
    });
}

/// U2: the server's death ends all of them.
#[test]
fn processes_that_a_function_forks_end_with_a_killed_server() {
    let home = tempfile::tempdir().expect("a directory");
    fs::set_permissions(
        home.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .expect("set");
    let program = home.path().join("killed-server");
    copy_program(PROGRAM.as_ref(), &program);
    let mut command = Command::new(&program);
    command.arg("hold").arg(home.path()).stdout(Stdio::piped());
    let mut server = command.spawn().expect("it starts");
    let mut said = String::new();
    BufReader::new(server.stdout.take().expect("piped"))
        .read_line(&mut said)
        .expect("it says what is left");
    let left: u32 = said.trim().parse().unwrap_or_else(|_| panic!("{said}"));
    assert!(lives(left));
    server.kill().expect("it is ended");
    server.wait().expect("it has ended");
    until("what its function had left", || !lives(left));
    until("its launchers", || of(&program).is_empty());
}

/// In a container, root may create no namespaces, and no setting says so.
#[test]
fn isolation_is_tried_and_functions_run_without_it_where_it_is_impossible() {
    if !geteuid().is_root() || !can_isolate() {
        eprintln!("not root, or nothing to take away");
        return;
    }
    let _turn = one_at_a_time();
    let drops = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args([
                "--bounding-set=-sys_admin",
                "--inh-caps=-sys_admin",
                PROGRAM,
            ])
            .args(arguments);
        measures(&mut command)
    };
    let said = drops(&["measures"]);
    assert!(
        said.contains("own processes, files and network: they cannot be had here"),
        "{said}"
    );
    assert!(
        said.contains("scratch_mb: there are no namespaces"),
        "{said}"
    );
    assert!(
        said.contains("code, data and processes of others: enforced"),
        "each has a user of its own: {said}"
    );
    let rights = "-sys_admin,-setuid,-setgid";
    let mut command = Command::new("setpriv");
    command.args([
        format!("--bounding-set={rights}"),
        format!("--inh-caps={rights}"),
    ]);
    let said = measures(command.args([PROGRAM, "measures"]));
    assert!(
        said.contains("functions run as this server's user"),
        "{said}"
    );
    let home = tempfile::tempdir().expect("a directory");
    fs::set_permissions(
        home.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .expect("set");
    let said = drops(&["call", home.path().to_str().expect("text")]);
    assert!(
        said.trim().parse::<u32>().is_ok(),
        "it has forked, and says whom: {said}"
    );
}

/// The server's groups in all hierarchies.
pub(crate) fn groups(process: u32) -> Vec<String> {
    fn visit(folder: &Path, name: &str, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_str() == Some(name) {
                    found.push(entry.path().display().to_string());
                } else {
                    visit(&entry.path(), name, found);
                }
            }
        }
    }
    let mut found = Vec::new();
    visit(
        "/sys/fs/cgroup".as_ref(),
        &format!("landfast-functions-{process}"),
        &mut found,
    );
    found
}

/// Those that belong to an instance or a spare.
pub(crate) fn groups_of_instances() -> Vec<String> {
    let of_one = |folder: String| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders
            .map(|entry| entry.path().display().to_string())
            .collect::<Vec<_>>()
    };
    groups(std::process::id())
        .into_iter()
        .flat_map(of_one)
        .collect()
}

/// Marks the process of a test that needs its own.
const ALONE: &str = "LANDFAST_TEST_ALONE";

/// Whether the test `name` has this process to itself. Otherwise the test ran in another process,
/// and has passed. Groups belong to a process, and other tests of this one have some.
pub(crate) fn is_alone(name: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut again = Command::new(std::env::current_exe().expect("a path"));
    let output = again
        .args(["--exact", name, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// A closed sandbox leaves no control group to the next start.
#[test]
fn a_closed_sandbox_leaves_no_control_groups() {
    if !is_alone("processes::a_closed_sandbox_leaves_no_control_groups") {
        return;
    }
    block_on(async {
        let world = world(Enforcement::probe);
        let function = world.function("grouped", CODE, |_| {}).await;
        world.call(&function, r#"{"do": "fork"}"#).await;
        let busy = tokio::spawn({
            let (sandbox, function) = (world.sandbox.clone(), function.clone());
            async move {
                let payload = bytes::Bytes::from(r#"{"do": "echo", "sleep": 100}"#);
                let invocation = ports::runtime::Invocation::new("busy".to_owned(), payload, true);
                sandbox.run(&function, invocation).await
            }
        });
        until("a second instance to be at work", || {
            world.sandbox.figures().busy == 1
        });
        let had = groups(std::process::id());
        world.close().await;
        busy.abort();
        assert_eq!(
            groups(std::process::id()),
            Vec::<String>::new(),
            "of {had:?}"
        );
        assert!(of(&world.program).is_empty(), "processes are left");
        let refused = world.sandbox.run(
            &function,
            ports::runtime::Invocation::new("x".into(), "{}".into(), true),
        );
        refused.await.expect_err("it is closed");
    });
}

/// The CPU time of all of these so far.
pub(crate) fn ran(processes: &[u32]) -> Vec<Option<String>> {
    let read = |process: &u32| fs::read_to_string(format!("/proc/{process}/schedstat")).ok();
    processes.iter().map(read).collect()
}

/// The CPU time of this thread.
pub(crate) fn own_time() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("it is there");
    let nanoseconds = text
        .split_whitespace()
        .next()
        .and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.expect("a number"))
}

/// The kernel counts a process as frozen just before it leaves its core, which takes at most one
/// more turn and far less time than this.
const TO_PARK: Duration = Duration::from_millis(1);

/// How long a process ran so far, in how many turns.
#[derive(Debug)]
struct Turns {
    nanoseconds: u64,
    count: u64,
}

fn turns(processes: &[u32]) -> Vec<Turns> {
    let parsed = |text: &String| {
        let fields: Vec<u64> = text
            .split_whitespace()
            .map(|field| field.parse().expect("a number"))
            .collect();
        Turns {
            nanoseconds: fields[0],
            count: fields[2],
        }
    };
    ran(processes).iter().flatten().map(parsed).collect()
}

fn is_still_when_reported_as_frozen(enforcement: impl FnOnce(&Path) -> Enforcement) {
    block_on(async {
        let world = world(enforcement);
        // Too small for a spare, which would be found among its processes.
        let function = world
            .function("spins", CODE, |function| function.memory_bytes = 64 << 20)
            .await;
        for _ in 0..3 {
            world.call(&function, r#"{"do": "spin"}"#).await;
        }
        for round in 0..5 {
            until("it is frozen", || world.sandbox.figures().frozen == 1);
            // The launcher is not a process of the function.
            let launchers = of(&world.program);
            let processes: Vec<_> = below(&launchers);
            let processes: Vec<_> = processes
                .into_iter()
                .filter(|process| parent(*process) != Some(std::process::id()))
                .collect();
            assert!(
                processes.len() >= 4,
                "init, the function and its children: {processes:?}"
            );
            let before = turns(&processes);
            let enough = own_time() + Duration::from_millis(50);
            until("there was time to run", || own_time() > enough);
            let after = turns(&processes);
            assert_eq!(after.len(), before.len(), "round {round}: a process ended");
            let ran = after.iter().zip(&before).any(|(after, before)| {
                after.nanoseconds > before.nanoseconds + TO_PARK.as_nanos() as u64
                    || after.count > before.count + 1
            });
            assert!(!ran, "round {round}: {before:?}, then {after:?}");
            assert_eq!(
                world.said(&function, r#"{"value": 7}"#).await,
                "7",
                "it goes on"
            );
        }
        world.close().await;
    });
}

/// An instance is reported as frozen only when all of it is.
#[test]
fn a_frozen_instance_is_still_by_its_group() {
    let _turn = one_at_a_time();
    is_still_when_reported_as_frozen(Enforcement::probe);
}

#[test]
fn a_frozen_instance_is_still_by_signals() {
    is_still_when_reported_as_frozen(|_| Enforcement::nothing());
}

/// U2: it fails when the kernel ends any of its processes for lack of memory, whatever it makes of
/// that. The failure says why.
#[test]
fn a_function_fails_if_any_of_its_processes_runs_out_of_memory() {
    let _turn = one_at_a_time();
    block_on(async {
        let world = world(Enforcement::probe);
        let function = world
            .function("hungry", CODE, |function| function.memory_bytes = 64 << 20)
            .await;
        let first = world.said(&function, r#"{"do": "instance"}"#).await;
        let ran = world
            .call(
                &function,
                r#"{"do": "child allocates", "value": 300000000}"#,
            )
            .await;
        let failed = match ran.result {
            // It can continue, because only its child was ended.
            Ok(said) if said == "0" => {
                eprintln!("no memory control group here");
                return world.close().await;
            }
            result => {
                result
                    .expect_err("its child was ended for want of memory")
                    .payload
            }
        };
        let failed = String::from_utf8_lossy(&failed);
        assert!(failed.contains("Runtime.OutOfMemory"), "{failed}");
        let log = String::from_utf8_lossy(&ran.log_tail);
        assert!(log.contains("Error Type: Runtime.OutOfMemory"), "{log}");
        let second = world.said(&function, r#"{"do": "instance"}"#).await;
        assert_ne!(second, first, "what is left of the first does not go on");
        let said = world.said(&function, r#"{"do": "exit", "value": 3}"#).await;
        assert!(
            said.contains("Runtime.ExitError") && said.contains("exit status 3"),
            "{said}"
        );
        let said = world
            .said(&function, r#"{"do": "allocate", "value": 300000000}"#)
            .await;
        assert!(said.contains("Runtime.OutOfMemory"), "{said}");
        assert_eq!(world.sandbox.figures().failed.out_of_memory, 2);
        world.close().await;
    });
}

/// A launcher may die at any moment, such as for lack of memory: also between its fork and the
/// moment from which the kernel ends its child with it.
#[test]
fn the_children_of_a_launcher_end_with_it_however_early_it_dies() {
    if !can_isolate() {
        eprintln!("no namespaces here");
        return;
    }
    let _turn = one_at_a_time();
    block_on(async {
        let world = world(|program| Enforcement::probe(program).without_groups());
        // Too small for a spare, whose launcher would be found among these.
        let function = world
            .function("early", CODE, |function| function.memory_bytes = 64 << 20)
            .await;
        for _ in 0..12 {
            let run = tokio::spawn({
                let (sandbox, function) = (world.sandbox.clone(), function.clone());
                async move {
                    let invocation = ports::runtime::Invocation::new("x".into(), "{}".into(), true);
                    drop(sandbox.run(&function, invocation).await);
                }
            });
            let ours = std::process::id();
            let mut caught = None;
            until("a launcher with its child", || {
                let started = of(&world.program);
                let launcher = started
                    .iter()
                    .copied()
                    .find(|process| parent(*process) == Some(ours));
                caught = launcher.and_then(|launcher| {
                    let init = started
                        .iter()
                        .copied()
                        .find(|process| parent(*process) == Some(launcher))?;
                    kill(Pid::from_raw(init as i32), Signal::SIGSTOP).ok()?;
                    Some((launcher, init))
                });
                caught.is_some() || run.is_finished()
            });
            if let Some((launcher, init)) = caught {
                kill(Pid::from_raw(launcher as i32), Signal::SIGKILL).expect("it is there");
                until("the launcher's end", || !lives(launcher));
                let _ = kill(Pid::from_raw(init as i32), Signal::SIGCONT);
                until("init's end", || !lives(init));
            }
            run.await.expect("it ends well");
            world.sandbox.retire("early");
            until("all of them to be gone", || of(&world.program).is_empty());
        }
        world.close().await;
    });
}

/// A caller may disconnect at any moment.
#[test]
fn a_caller_that_leaves_during_a_launch_leaves_nothing() {
    if !is_alone("processes::a_caller_that_leaves_during_a_launch_leaves_nothing") {
        return;
    }
    block_on(async {
        let world = world(Enforcement::probe);
        let function = world
            .function("left", CODE, |function| function.memory_bytes = 64 << 20)
            .await;
        for _ in 0..5 {
            let run = tokio::spawn({
                let (sandbox, function) = (world.sandbox.clone(), function.clone());
                async move {
                    let invocation = ports::runtime::Invocation::new("x".into(), "{}".into(), true);
                    drop(sandbox.run(&function, invocation).await);
                }
            });
            until("a launcher with its child", || {
                of(&world.program).len() == 2 || run.is_finished()
            });
            run.abort();
            let _ = run.await;
            world.sandbox.retire("left");
            until("all of it to be gone", || of(&world.program).is_empty());
            until("its groups to be gone", || groups_of_instances().is_empty());
        }
        world.close().await;
    });
}
