//! SIGKILL at any instant: nothing acknowledged is lost, nothing is torn, queues keep their order.

use std::time::{Duration, Instant};

use embedded::{Embedded, OpenError};

use crate::{
    child::{Orders, Said, Talking, command, config},
    world::{block_on, directory},
};

/// How often the child is killed. The directory lives through all of them.
const KILLS: u32 = 1000;

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
