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
    assert!(said.total() > i64::from(KILLS), "the children got nothing done: {said:?}");
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
        let refused = Embedded::open(config(directory.path())).await.expect_err("the child has it");
        assert!(matches!(refused, OpenError::Locked { pid } if pid == child.id()), "{refused:?}");
    });
    child.kill(&mut said);
    block_on(async {
        drop(Embedded::open(config(directory.path())).await.expect("a dead process holds nothing"));
    });
}

/// What the threads of a process have done so far: how often each stopped to wait.
fn waits_of(process: u32) -> Vec<String> {
    let mut waits = Vec::new();
    for task in fs::read_dir(format!("/proc/{process}/task")).expect("the process is there") {
        let status = task.expect("a task reads").path().join("status");
        let status = fs::read_to_string(status).unwrap_or_default();
        waits.extend(status.lines().filter(|line| line.contains("ctxt_switches")).map(str::to_owned));
    }
    waits
}

/// A store that nobody uses takes no time at all: no thread of its process wakes.
#[test]
fn an_idle_store_with_armed_triggers_never_wakes() {
    const QUIET: Duration = Duration::from_millis(500);
    let directory = directory();
    let mut said = Said::default();
    let child = Talking::start(command(directory.path(), Orders { idle: true, ..Orders::default() }));
    child.hear(&mut said, |said| said.ready);
    block_on(async {
        for _ in 0..20 {
            let before = waits_of(child.id());
            tokio::time::sleep(QUIET).await;
            if before == waits_of(child.id()) {
                return;
            }
        }
        panic!("something in the idle process woke within every {QUIET:?}");
    });
    child.kill(&mut said);
}

/// The journal is folded in also where no process lives long enough to fill it alone.
#[test]
fn a_store_that_is_killed_often_does_not_gather_journal_for_ever() {
    let directory = directory();
    block_on(async {
        for number in 0..60 {
            let store = Embedded::open(config(directory.path())).await.expect("the store opens");
            let update = ports::Update::modify(
                key("large"),
                vec![Action::set_integer("value", number), Action::set("data", vec![7; 9000])],
            );
            durably(&store.key_value(), update).await;
            // Several times what makes a checkpoint due: it is, and it need only be given the time.
            if store.status().journal_bytes > 200 << 10 {
                let folded = || store.status().checkpoints > 0;
                eventually(&format!("a checkpoint is made after {number} starts"), folded).await;
            }
        }
    });
}
