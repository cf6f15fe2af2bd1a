//! SIGKILL at any instant: nothing acknowledged is lost, nothing is torn, queues keep their order.

use std::{
    fs,
    time::{Duration, Instant},
};

use embedded::{Embedded, OpenError};
use ports::key_value::Action;

use crate::{
    child::{Orders, Said, Talking, command, config},
    world::{block_on, directory, durably, eventually, key},
};

/// How often the child is killed. The directory lives through all of them.
const KILLS: u32 = 60;

/// D1, D2, Q1, Q3, K5.
#[test]
fn a_process_killed_at_any_instant_loses_nothing_that_it_acknowledged() {
    let directory = directory();
    let mut random = fastrand::Rng::with_seed(0xdead);
    let mut said = Said::default();
    for kill in 0..KILLS {
        let child = Talking::start(command(directory.path(), Orders::default()));
        if random.u8(..5) == 0 {
            // In the middle of its recovery, or shortly after.
            let until = Instant::now() + Duration::from_micros(random.u64(..40_000));
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        } else {
            let enough = said.total() + random.i64(1..150);
            child.hear(&mut said, |said| said.total() >= enough);
        }
        child.kill(&mut said);
        let checked = block_on(said.check(directory.path()));
        assert_eq!(checked, Ok(()), "after kill {kill}; said: {said:?}");
    }
    assert!(
        said.total() > i64::from(KILLS),
        "the children got nothing done: {said:?}"
    );
}

/// One process at a time; the next one may once the first is gone, however it went.
#[test]
fn a_second_process_is_refused_and_told_who_is_first() {
    let directory = directory();
    let mut said = Said::default();
    let child = Talking::start(command(directory.path(), Orders::default()));
    child.hear(&mut said, |said| said.ready);
    assert!(said.ready, "the child never opened the store");
    block_on(async {
        let refused = Embedded::open(config(directory.path()))
            .await
            .expect_err("the child has it");
        assert!(
            matches!(refused, OpenError::Locked { pid } if pid == child.id()),
            "{refused:?}"
        );
    });
    child.kill(&mut said);
    block_on(async {
        drop(
            Embedded::open(config(directory.path()))
                .await
                .expect("a dead process holds nothing"),
        );
    });
}

/// A thread as the kernel sees it.
#[derive(Debug, PartialEq, Eq)]
struct Thread {
    id: u32,
    /// The system call that it is in and the call's arguments, or `running`.
    call: String,
    /// How often it stopped to wait so far.
    waits: String,
}

/// The threads of a process, but for its first: in that one the test harness waits, with a time limit of its
/// own.
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
            // It has ended meanwhile: then it waits for nothing, and the test looks again.
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

/// Whether it waits for others with no limit of time, so that it never wakes by itself.
fn waits_for_ever(thread: &Thread) -> bool {
    let mut words = thread.call.split_whitespace();
    let call: Option<i64> = words.next().and_then(|word| word.parse().ok());
    // The time limit is the fourth argument of each call listed.
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

/// A store that nobody uses takes no time at all: no thread of its process wakes, however long one watches.
#[test]
fn an_idle_store_with_armed_triggers_never_wakes() {
    let directory = directory();
    let mut said = Said::default();
    let child = Talking::start(command(
        directory.path(),
        Orders {
            idle: true,
            ..Orders::default()
        },
    ));
    child.hear(&mut said, |said| said.ready);
    block_on(eventually(
        "all threads of the idle process wait with no limit of time",
        || {
            let threads = threads_of(child.id());
            // None ran between the two looks: so all were waiting at once, and nobody is left to wake anybody.
            !threads.is_empty()
                && threads.iter().all(waits_for_ever)
                && threads == threads_of(child.id())
        },
    ));
    child.kill(&mut said);
}

/// The journal is folded in also where no process lives long enough to fill it alone.
#[test]
fn a_store_that_is_killed_often_does_not_gather_journal_for_ever() {
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
            // Several times what makes a checkpoint due: it is, and it need only be given the time.
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
