//! W2 for code that handles failures of its steps: a repeat takes the same branch.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use simulation::{
    transactions::{
        crashable::{Life, Side},
        scenario::seeds,
    },
    workflows::{cluster::Cluster, definitions::HANDLES},
};
use workflows::{Broken, Options, Status};

/// The time limit of a run.
const END_MAX: Duration = Duration::from_mins(30);
/// The most calls of a life before it ends.
const CALLS_MAX: u64 = 150;
/// The deaths of each seed.
const DEATHS: usize = 4;
const SEEDS_MAX: u64 = 200;
const SEEDS_UNTIL_CAUGHT: u64 = 200;

/// A run through deaths. Errors: its code took one branch, and then another.
async fn play(seed: u64, is_far: bool, broken: Option<Broken>) -> Result<(), String> {
    let options = Options {
        mutant: broken.into(),
        ..Options::default()
    };
    let mut cluster = if is_far {
        Cluster::far(seed, options).await
    } else {
        Cluster::near(seed, options).await
    };
    let mut rng = Rng::with_seed(seed);
    for death in 0.. {
        let (life, side) = (
            Life::default(),
            if rng.bool() {
                Side::Before
            } else {
                Side::After
            },
        );
        if death < DEATHS {
            life.ends_after(rng.u64(..CALLS_MAX), side);
        }
        if let Some(process) = cluster.boot(&life).await {
            let looked = process.ask(async {
                process.begin(HANDLES, "run").await.expect("begun");
                let ended = process
                    .service
                    .wait(HANDLES, "run", END_MAX)
                    .await
                    .expect("it is shown");
                let torn = process
                    .service
                    .state(HANDLES, &Bytes::from_static(b"torn/run"))
                    .await;
                (ended, torn.expect("it is read"))
            });
            let looked = looked.await;
            process.end().await;
            if let Some((ended, torn)) = looked {
                assert_eq!(
                    ended.status,
                    Status::Succeeded,
                    "seed {seed}: {:?}",
                    ended.error
                );
                return torn.map_or(Ok(()), |torn| {
                    Err(String::from_utf8_lossy(&torn).into_owned())
                });
            }
        }
        cluster.near.crash();
    }
    unreachable!("the last process lives")
}

fn takes_one_branch(is_far: bool) {
    let all = seeds().take(usize::try_from(SEEDS_MAX).expect("few"));
    for seed in all {
        assert_eq!(
            simulated::run(play(seed, is_far, None)),
            Ok(()),
            "seed {seed}"
        );
    }
    let broken = Some(Broken::ForgetsFailures);
    let caught =
        (0..SEEDS_UNTIL_CAUGHT).any(|seed| simulated::run(play(seed, is_far, broken)).is_err());
    assert!(caught, "the broken one is caught");
}

#[test]
fn code_that_continues_after_a_failure_receives_it_again() {
    takes_one_branch(false);
}

#[test]
fn code_that_continues_after_a_failure_receives_it_again_from_a_far_store() {
    takes_one_branch(true);
}
