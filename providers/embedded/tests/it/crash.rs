//! SIGKILL at any instant: nothing acknowledged is lost, nothing is torn, and queues keep their
//! order.

use std::{
    fs,
    time::{Duration, Instant},
};

use embedded::{Embedded, OpenError};
use ports::key_value::Action;

use crate::{
    child::{Acknowledged, Orders, Talking, command, config},
    world::{block_on, directory, durably, eventually, key},
};

/// How often a child is killed. One directory lives through all kills.
const KILLS: u32 = 60;

/// D1, D2, Q1, Q3, K5.
#[test]
fn a_process_killed_at_any_instant_loses_nothing_acknowledged() {
    let directory = directory();
    let mut random = fastrand::Rng::with_seed(0xdead);
    let mut acknowledged = Acknowledged::default();
    for kill in 0..KILLS {
        let child = Talking::start(command(directory.path(), Orders::default()));
        if random.u8(..5) == 0 {
            // During its recovery, or shortly after.
            let until = Instant::now() + Duration::from_micros(random.u64(..40_000));
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        } else {
            let enough = acknowledged.total() + random.i64(1..150);
            child.read_until(&mut acknowledged, |acknowledged| {
                acknowledged.total() >= enough
            });
        }
        child.kill(&mut acknowledged);
        let checked = block_on(acknowledged.check(directory.path()));
        assert_eq!(checked, Ok(()), "after kill {kill}: {acknowledged:?}");
    }
    assert!(
        acknowledged.total() > i64::from(KILLS),
        "the children got nothing done: {acknowledged:?}"
    );
}

/// One process has the directory open at a time. The next one may open it once the first is gone,
/// however that ended.
#[test]
fn a_second_process_is_refused_with_the_id_of_the_first() {
    let directory = directory();
    let mut acknowledged = Acknowledged::default();
    let child = Talking::start(command(directory.path(), Orders::default()));
    child.read_until(&mut acknowledged, |acknowledged| acknowledged.ready);
    assert!(acknowledged.ready, "the child never opened the store");
    block_on(async {
        let refused = Embedded::open(config(directory.path()))
            .await
            .expect_err("the child has it");
        assert!(
            matches!(refused, OpenError::Locked { pid } if pid == child.id()),
            "{refused:?}"
        );
    });
    child.kill(&mut acknowledged);
    block_on(async {
        drop(
            Embedded::open(config(directory.path()))
                .await
                .expect("a dead process holds nothing"),
        );
    });
}

/// A thread as the kernel reports it.
#[derive(Debug, PartialEq, Eq)]
struct Thread {
    id: u32,
    /// Its present system call with arguments, or `running`.
    call: String,
    /// How often it has blocked so far.
    waits: String,
}

/// The threads of a process, except the first, in which the test harness waits with a time limit.
fn threads_of(process: u32) -> Vec<Thread> {
    let mut threads = Vec::new();
    for task in fs::read_dir(format!("/proc/{process}/task")).expect("the process is there") {
        let task = task.expect("a task reads");
        let id = task
            .file_name()
            .to_string_lossy()
            .parse()
            .expect("a thread is a number");
        let read = |name: &str| match fs::read_to_string(task.path().join(name)) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                panic!("look at a child: {error}")
            }
            // The thread has ended meanwhile, so it waits for nothing, and the test polls again.
            read => read.unwrap_or_default(),
        };
        if id != process {
            let status = read("status");
            let waits = status
                .lines()
                .filter(|line| line.contains("ctxt_switches"))
                .collect();
            threads.push(Thread {
                id,
                call: read("syscall"),
                waits,
            });
        }
    }
    threads
}

/// Whether the thread waits without a time limit, so that only another thread can wake it.
fn waits_for_ever(thread: &Thread) -> bool {
    let mut words = thread.call.split_whitespace();
    let call: Option<i64> = words.next().and_then(|word| word.parse().ok());
    // The time limit is the fourth argument of each listed call.
    let limit = words
        .nth(3)
        .and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    match (call, limit) {
        (Some(libc::SYS_futex), Some(limit)) => limit == 0,
        (Some(libc::SYS_epoll_pwait), Some(limit)) => limit as u32 == u32::MAX,
        #[cfg(target_arch = "x86_64")]
        (Some(libc::SYS_epoll_wait), Some(limit)) => limit as u32 == u32::MAX,
        _ => false,
    }
}

/// An idle store takes no CPU time: no thread of its process wakes.
#[test]
fn an_idle_store_with_armed_triggers_never_wakes() {
    let directory = directory();
    let mut acknowledged = Acknowledged::default();
    let child = Talking::start(command(
        directory.path(),
        Orders {
            idle: true,
            ..Orders::default()
        },
    ));
    child.read_until(&mut acknowledged, |acknowledged| acknowledged.ready);
    block_on(eventually(
        "all threads of the idle process wait with no limit of time",
        || {
            let threads = threads_of(child.id());
            // No thread ran between the two polls. All of them waited at once, so none is left to
            // wake another.
            !threads.is_empty()
                && threads.iter().all(waits_for_ever)
                && threads == threads_of(child.id())
        },
    ));
    child.kill(&mut acknowledged);
}

/// Checkpoints are made even if no process lives long enough to write all the journal for one.
#[test]
fn the_journal_of_a_store_that_is_often_killed_stays_bounded() {
    let directory = directory();
    block_on(async {
        for number in 0..60 {
            let store = Embedded::open(config(directory.path()))
                .await
                .expect("the store opens");
            let update = ports::Update::modify(
                key("large"),
                vec![
                    Action::set_integer("value", number),
                    Action::set("data", vec![7; 9000]),
                ],
            );
            durably(&store.key_value(), update).await;
            // The journal has several times the bytes that make a checkpoint due, so one must come.
            if store.status().journal_bytes > 200 << 10 {
                let folded = || store.status().checkpoints > 0;
                eventually(
                    &format!("a checkpoint is made after {number} starts"),
                    folded,
                )
                .await;
            }
        }
    });
}
