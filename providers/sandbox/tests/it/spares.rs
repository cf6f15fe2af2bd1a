//! Pre-warmed interpreters: an adopted one is an instance like any other, and an unused one leaves
//! nothing.
//!
//! Each test has its own folder and program. They take turns, because the groups of one process
//! have one folder.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};
use ports::{
    Runtime as _,
    runtime::{Function, Invocation, Ran, Refused},
};
use sandbox::process::Enforcement;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    processes::{
        PROGRAM, below, block_on, can_isolate, groups, groups_of_instances, is_alone, lives, of,
        one_at_a_time, own_time, parent, ran, until, world,
    },
    world::{BUNDLED, CODE, LOOK, World, copy_program},
};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"))
}

/// Calls the function in a new instance.
async fn cold(world: &World, function: &Arc<Function>, payload: &str) -> String {
    world.sandbox.retire(&function.name);
    let before = world.sandbox.figures().cold_starts;
    let said = world.said(function, payload).await;
    assert_eq!(world.sandbox.figures().cold_starts, before + 1, "{said}");
    said
}

/// Runs `test` with a function that reports its isolation, and a waiting spare.
fn with_a_spare(
    change: impl FnOnce(&mut Function),
    test: impl AsyncFnOnce(&World, &Arc<Function>, String),
) {
    if !can_isolate() {
        eprintln!("no namespaces here");
        return;
    }
    let _turn = one_at_a_time();
    block_on(async {
        let world = world(Enforcement::probe);
        let function = world.function("looks", LOOK, change).await;
        let ordinary = world.said(&function, "{}").await;
        world.spare().await;
        test(&world, &function, ordinary).await;
        world.close().await;
        assert!(of(&world.program).is_empty(), "processes are left");
    });
}

fn adopted(world: &World) -> u64 {
    world.sandbox.figures().adopted
}

/// The facts by which independent instances differ.
fn assert_alike(ordinary: &Value, adopted: &Value) {
    let (alike, as_well) = (ordinary["alike"].as_object(), adopted["alike"].as_object());
    let (Some(alike), Some(as_well)) = (alike, as_well) else {
        panic!("{ordinary} {adopted}")
    };
    assert!(alike.len() > 20, "{alike:?}");
    for (what, value) in alike {
        assert_eq!(value, &as_well[what], "{what}");
    }
    assert_eq!(alike["own"]["CapEff"], "0000000000000000");
    assert_eq!(alike["own"]["NoNewPrivs"], "1");
    for of_two in [ordinary, adopted] {
        for name in ["mnt", "pid", "ipc", "uts", "net"] {
            let host = fs::read_link(format!("/proc/self/ns/{name}")).expect("there");
            assert_ne!(
                of_two["spaces"][name],
                host.to_str().expect("text"),
                "{name} is the machine's"
            );
        }
    }
}

/// The facts by which simultaneous instances differ: the kernel reuses numbers.
fn assert_apart(ordinary: &Value, adopted: &Value) {
    for name in ["mnt", "pid", "ipc", "uts", "net"] {
        assert_ne!(
            ordinary["spaces"][name], adopted["spaces"][name],
            "{name} is shared"
        );
    }
}

/// U2, from capabilities to descriptors.
#[test]
fn an_adopted_instance_is_isolated_as_an_ordinary_one() {
    with_a_spare(
        |function| function.environment = [("OWN".to_owned(), "ä=1".to_owned())].into(),
        async |world, function, ordinary| {
            let ordinary = json(&ordinary);
            let mut seen = Vec::new();
            for _ in 0..3 {
                world.spare().await;
                let adopted = json(&cold(world, function, "{}").await);
                assert_alike(&ordinary, &adopted);
                seen.push(adopted);
            }
            assert_eq!(adopted(world), 3);
            assert_apart(&ordinary, &seen[0]);
            seen.push(ordinary);
            for seed in ["hash", "random", "bytes", "at"] {
                let all: BTreeSet<_> = seen
                    .iter()
                    .map(|value| value["seeds"][seed].to_string())
                    .collect();
                assert_eq!(all.len(), seen.len(), "{seed} is shared: {all:?}");
            }
        },
    );
}

/// The same without root, and with the substitutes for control groups.
#[test]
fn an_adopted_instance_is_isolated_as_an_ordinary_one_in_a_user_namespace() {
    if !geteuid().is_root() || !can_isolate() {
        eprintln!("not root, so that is tested already, or nothing to take away");
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let nobody = Some(65_534);
    chown(home.path(), nobody, nobody).expect("root may");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("set");
    let program = home.path().join("program");
    copy_program(PROGRAM.as_ref(), &program);
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program)
            .args(arguments);
        let output = command.output().expect("it runs");
        String::from_utf8(output.stdout).expect("text")
    };
    if !as_nobody(&["measures"]).contains("own processes, files and network: enforced") {
        eprintln!("no user namespaces here");
        return;
    }
    let said = as_nobody(&["look", home.path().to_str().expect("text")]);
    let lines: Vec<_> = said.lines().collect();
    let [ordinary, adopted, "adopted 1"] = lines.as_slice() else {
        panic!("{said}")
    };
    let (ordinary, adopted) = (json(ordinary), json(adopted));
    assert_alike(&ordinary, &adopted);
    assert_apart(&ordinary, &adopted);
}

/// U2.
#[test]
fn an_adopted_instance_has_the_bounds_of_its_function() {
    with_a_spare(
        |function| (function.processes_max, function.memory_bytes) = (40, 160 << 20),
        async |world, function, _| {
            let adopted_forks = cold(world, function, r#"{"fork": 1}"#).await;
            assert_eq!(adopted(world), 1);
            let ordinary = world.function("ordinary", LOOK, |ordinary| {
                (ordinary.processes_max, ordinary.memory_bytes) = (40, 100 << 20);
            });
            assert_eq!(
                world.said(&ordinary.await, r#"{"fork": 1}"#).await,
                adopted_forks
            );
            let forks: u32 = adopted_forks.parse().expect("a number");
            assert!(
                (20..=41).contains(&forks),
                "more than a spare may have, and at most its own: {forks}"
            );
            world.spare().await;
            let hungry = world
                .function("hungry", CODE, |hungry| hungry.memory_bytes = 160 << 20)
                .await;
            let said = cold(
                world,
                &hungry,
                r#"{"do": "child allocates", "value": 300000000}"#,
            )
            .await;
            assert_eq!(adopted(world), 2);
            if said != "-9" {
                eprintln!("no memory control group here: {said}");
                return;
            }
            let said = world
                .said(&hungry, r#"{"do": "allocate", "value": 300000000}"#)
                .await;
            assert!(said.contains("Runtime.OutOfMemory"), "{said}");
            world.spare().await;
            // More than the limit of a spare.
            let large = world
                .function("large", CODE, |large| large.memory_bytes = 400 << 20)
                .await;
            let said = cold(world, &large, r#"{"do": "allocate", "value": 250000000}"#).await;
            assert_eq!((said.as_str(), adopted(world)), (r#""allocated""#, 3));
        },
    );
}

#[test]
fn an_adopted_instance_sees_the_code_of_its_function_alone() {
    with_a_spare(
        |_| {},
        async |world, first, _| {
            let files = [("app.py", LOOK), ("only_of_second.py", "")];
            let second = world.function_of("second", &files, |_| {}).await;
            let asked = r#"{"files": ["/var/task", "/var", "/"]}"#;
            let seen = json(&cold(world, &second, asked).await);
            assert_eq!(adopted(world), 1);
            assert_eq!(seen["/var/task"], json!(["app.py", "only_of_second.py"]));
            assert_eq!(seen["/var"], json!(["runtime", "task"]));
            let mounts = json(&world.said(&second, "{}").await)["alike"]["mounts"].to_string();
            assert!(
                mounts.contains("second") && !mounts.contains("looks"),
                "{mounts}"
            );
            assert_eq!(mounts.matches("archives").count(), 1, "{mounts}");
            world.spare().await;
            let seen = json(&cold(world, first, asked).await);
            assert_eq!(
                (&seen["/var/task"], adopted(world)),
                (&json!(["app.py"]), 2)
            );
        },
    );
}

/// An interpreter keeps every module that it has imported.
#[test]
fn modules_of_the_code_come_before_early_imports() {
    with_a_spare(
        |_| {},
        async |world, _, _| {
            let app = "import os, sys, landfast\ndef handler(event, context):\n    return [landfast.WHOSE, os.getcwd(), sys.argv[1:], os.environ['OWN']]\n";
            let files = [("app.py", app), ("landfast.py", "WHOSE = 'its own'\n")];
            let own = |function: &mut Function| {
                function.environment = [("OWN".to_owned(), "x".to_owned())].into();
            };
            let function = world.function_of("brings", &files, own).await;
            let said = json(&cold(world, &function, "{}").await);
            assert_eq!(said, json!(["its own", "/var/task", ["app.handler"], "x"]));
        },
    );
}

#[test]
fn a_function_that_no_spare_fits_starts_in_its_own_process() {
    with_a_spare(
        |_| {},
        async |world, _, _| {
            let variable = |name: &'static str| {
                move |function: &mut Function| {
                    function.environment = [(name.to_owned(), "C".to_owned())].into();
                }
            };
            let unfit = [
                world
                    .function("hash", CODE, variable("PYTHONHASHSEED"))
                    .await,
                world.function("zone", CODE, variable("TZ")).await,
                world
                    .function("asks", CODE, variable("LANDFAST_SPARE"))
                    .await,
                world
                    .function("small", CODE, |function| function.memory_bytes = 64 << 20)
                    .await,
                world
                    .function("connected", CODE, |function| function.network = true)
                    .await,
                world
                    .function_of(
                        "client",
                        &[
                            ("app.py", CODE),
                            ("awslambdaric/__init__.py", ""),
                            ("awslambdaric/__main__.py", ""),
                        ],
                        |_| {},
                    )
                    .await,
            ];
            for function in unfit {
                world.said(&function, r#"{"do": "count"}"#).await;
                assert_eq!(adopted(world), 0, "{}", function.name);
            }
            assert!(world.sandbox.figures().spares >= 1, "it still waits");
        },
    );
}

/// The launcher, init and the interpreter of the only spare, while there is no instance.
fn parts(world: &World) -> [u32; 3] {
    let launchers: Vec<_> = of(&world.program)
        .into_iter()
        .filter(|process| parent(*process) == Some(std::process::id()))
        .collect();
    let all = below(&launchers);
    all.as_slice()
        .try_into()
        .unwrap_or_else(|_| panic!("of one spare: {all:?}"))
}

fn end(process: u32) {
    kill(Pid::from_raw(process as i32), Signal::SIGKILL).expect("it is there");
}

#[test]
fn a_spare_that_dies_leaves_nothing_and_is_replaced() {
    with_a_spare(
        |_| {},
        async |world, function, _| {
            for which in 0..3 {
                world.sandbox.retire("looks");
                until("the spare to be alone", || {
                    below(&of(&world.program)).len() == 3
                });
                let parts = parts(world);
                end(parts[which]);
                until("all of it to be gone", || !parts.into_iter().any(lives));
                until("it to be missed", || world.sandbox.figures().spares == 0);
                until("its launcher to be reaped", || {
                    of(&world.program).is_empty()
                });
                cold(world, function, r#"{"files": []}"#).await;
                world.spare().await;
            }
            assert_eq!(adopted(world), 0);
            cold(world, function, r#"{"files": []}"#).await;
            assert_eq!(adopted(world), 1);
        },
    );
}

type Run = JoinHandle<Result<Ran, Refused>>;

/// Calls `function` while there is no instance, and stops the only spare before its adoption.
/// Returns that call, and the spare's launcher and init.
fn half_adopted(world: &World, function: &Arc<Function>) -> (Run, u32, u32) {
    world.sandbox.retire(&function.name);
    until("the spare to be alone", || {
        below(&of(&world.program)).len() == 3
    });
    let [launcher, init, _] = parts(world);
    kill(Pid::from_raw(init as i32), Signal::SIGSTOP).expect("it is there");
    let (sandbox, function) = (world.sandbox.clone(), Arc::clone(function));
    let run = tokio::spawn(async move {
        sandbox
            .run(
                &function,
                Invocation::new("x".into(), r#"{"files": []}"#.into(), true),
            )
            .await
    });
    until("the spare to be taken", || {
        world.sandbox.figures().spares == 0
    });
    (run, launcher, init)
}

async fn answer(run: Run) -> String {
    let ran = run.await.expect("it ends").expect("it is run");
    String::from_utf8_lossy(&ran.result.expect("it succeeds")).into_owned()
}

/// The process that answers is an instance, however much the spare has received.
#[test]
fn a_spare_that_dies_during_its_adoption_is_replaced() {
    with_a_spare(
        |_| {},
        async |world, function, _| {
            let (run, launcher, init) = half_adopted(world, function);
            end(launcher);
            assert_eq!(answer(run).await, "{}");
            assert_eq!(adopted(world), 0);
            until("all of it to be gone", || !lives(init));
        },
    );
}

#[test]
fn a_spare_that_hangs_is_not_waited_for() {
    with_a_spare(
        |_| {},
        async |world, function, _| {
            let (run, launcher, init) = half_adopted(world, function);
            assert_eq!(answer(run).await, "{}");
            assert_eq!(adopted(world), 0);
            until("all of it to be gone", || !lives(launcher) && !lives(init));
        },
    );
}

/// A caller may disconnect at any moment.
#[test]
fn a_caller_that_leaves_during_an_adoption_leaves_nothing() {
    if !is_alone("spares::a_caller_that_leaves_during_an_adoption_leaves_nothing") {
        return;
    }
    with_a_spare(
        |_| {},
        async |world, function, _| {
            for _ in 0..5 {
                let (run, ..) = half_adopted(world, function);
                run.abort();
                let _ = run.await;
                until("all of it to be gone", || of(&world.program).is_empty());
                until("its groups to be gone", || groups_of_instances().is_empty());
                cold(world, function, r#"{"files": []}"#).await;
                world.spare().await;
            }
        },
    );
}

#[test]
fn a_spare_in_adoption_ends_with_the_sandbox() {
    with_a_spare(
        |_| {},
        async |world, function, _| {
            let (run, launcher, init) = half_adopted(world, function);
            world.close().await;
            assert!(of(&world.program).is_empty(), "processes are left");
            until("the kernel to be done with them", || {
                !lives(launcher) && !lives(init)
            });
            assert!(
                run.await.expect("it ends").is_err(),
                "nothing is run any more"
            );
        },
    );
}

#[test]
fn a_spare_ends_if_its_function_is_removed_during_the_adoption() {
    with_a_spare(
        |_| {},
        async |world, function, _| {
            let (run, _, init) = half_adopted(world, function);
            world.sandbox.retire(&function.name);
            let code = world
                .program
                .with_file_name("functions")
                .join("archives")
                .join(&function.archive);
            fs::remove_dir_all(code).expect("removed");
            kill(Pid::from_raw(init as i32), Signal::SIGCONT).expect("it is there");
            assert!(run.await.expect("it ends").is_err(), "it has no code");
            assert_eq!(adopted(world), 0);
            until("all of it to be gone", || of(&world.program).is_empty());
        },
    );
}

/// It sees neither the code of its later function nor any other.
#[test]
fn a_spare_reads_no_code() {
    with_a_spare(
        |_| {},
        async |world, function, _| {
            world.sandbox.retire(&function.name);
            until("the spare to be alone", || {
                below(&of(&world.program)).len() == 3
            });
            let [_, _, interpreter] = parts(world);
            let inside = |path: &str| format!("/proc/{interpreter}/root{path}");
            let mode = fs::metadata(inside("/var/task"))
                .expect("there")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0, "it is for init alone");
            let options =
                fs::read_to_string(format!("/proc/{interpreter}/mountinfo")).expect("read");
            let all: Vec<_> = options
                .lines()
                .filter(|line| line.contains("archives"))
                .collect();
            assert!(
                matches!(all.as_slice(), [one] if one.contains(" /var/task/all ro,nosuid,nodev")),
                "once, behind that: {all:?}"
            );
        },
    );
}

/// A server without calls pays with memory alone, and only for a while.
#[test]
fn a_waiting_spare_does_not_run() {
    with_a_spare(
        |_| {},
        async |world, function, _| {
            world.sandbox.retire(&function.name);
            until("the spare to be alone", || {
                below(&of(&world.program)).len() == 3
            });
            let parts = parts(world);
            let mut before = ran(&parts);
            // It reports that it is ready a moment before it waits.
            until("nothing of it to run", || {
                let enough = own_time() + Duration::from_millis(200);
                until("there was time to run", || own_time() > enough);
                let earlier = std::mem::replace(&mut before, ran(&parts));
                before == earlier
            });
        },
    );
}

/// As with an interpreter that is too old for it.
#[test]
fn functions_run_without_a_client_that_cannot_be_imported() {
    if !can_isolate() {
        eprintln!("no namespaces here");
        return;
    }
    let _turn = one_at_a_time();
    block_on(async {
        let home = tempfile::tempdir().expect("a directory");
        let bundled = &[("landfast/__init__.py", "this is newer")];
        let world = beside(home.path(), Duration::from_mins(10), bundled);
        let function = world.function("without", CODE, |_| {}).await;
        assert_eq!(world.said(&function, r#"{"value": 1}"#).await, "1");
        world.spare().await;
        assert_eq!(cold(&world, &function, r#"{"value": 2}"#).await, "2");
        assert_eq!(adopted(&world), 1);
        world.close().await;
    });
}

/// A world in `folder` with its own program.
fn beside(
    folder: &Path,
    idle_max: Duration,
    bundled: &'static [(&'static str, &'static str)],
) -> World {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("set");
    let program = folder.join("program");
    copy_program(PROGRAM.as_ref(), &program);
    World::beside_for(folder, &program, Enforcement::probe, idle_max, bundled)
}

#[test]
fn a_spare_ends_with_a_killed_server() {
    if !can_isolate() {
        eprintln!("no namespaces here");
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("set");
    let program = home.path().join("spare-server");
    copy_program(PROGRAM.as_ref(), &program);
    let mut command = Command::new(&program);
    let mut server = command
        .arg("spare")
        .arg(home.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(server.stdout.take().expect("piped")).lines();
    let waits = lines
        .map_while(Result::ok)
        .any(|line| line == "a spare waits");
    assert!(waits, "no spare became ready");
    let all = below(&of(&program));
    assert!(
        all.len() > 2 * 3,
        "the server, an instance, a spare: {all:?}"
    );
    server.kill().expect("it is ended");
    server.wait().expect("it has ended");
    until("all of it to be gone", || !all.iter().copied().any(lives));
}

/// Neither processes nor control groups.
#[test]
fn a_closed_sandbox_leaves_nothing_of_its_spares() {
    if !is_alone("spares::a_closed_sandbox_leaves_nothing_of_its_spares") {
        return;
    }
    with_a_spare(
        |_| {},
        async |world, function, _| {
            let had = groups(std::process::id());
            world.close().await;
            assert_eq!(
                groups(std::process::id()),
                Vec::<String>::new(),
                "of {had:?}"
            );
            assert!(of(&world.program).is_empty(), "processes are left");
            assert_eq!(world.sandbox.figures().spares, 0);
            let refused = world
                .sandbox
                .run(function, Invocation::new("x".into(), "{}".into(), true));
            refused.await.expect_err("it is closed");
        },
    );
}

/// A server that never runs Python has no spares, and one that has not run it for a while has none
/// any more.
#[test]
fn a_spare_waits_as_long_as_an_idle_instance() {
    if !can_isolate() {
        eprintln!("no namespaces here");
        return;
    }
    let _turn = one_at_a_time();
    block_on(async {
        let home = tempfile::tempdir().expect("a directory");
        let world = beside(home.path(), Duration::from_secs(3), BUNDLED);
        assert_eq!(world.sandbox.figures().spares, 0);
        let function = world.function("looks", LOOK, |_| {}).await;
        world.said(&function, r#"{"files": []}"#).await;
        world.spare().await;
        until("all to be given up", || {
            of(&world.program).is_empty() && world.sandbox.figures().spares == 0
        });
        world.close().await;
    });
}
