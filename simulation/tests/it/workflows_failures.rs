//! W2 of code that handles the failures of its steps: it goes the same way whenever it is run again.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use simulation::{
    transactions::{
        mortal::{Life, Side},
        scenario::seeds,
    },
    workflows::{code::HANDLES, house::House},
};
use workflows::{Broken, Options, Status};

/// What a run takes at the most.
const END_MAX: Duration = Duration::from_mins(30);
/// Calls of a life, at the most, before it ends.
const CALLS_MAX: u64 = 150;
/// Deaths of each seed.
const DEATHS: usize = 4;
const SEEDS_MAX: u64 = 200;
const SEEDS_UNTIL_CAUGHT: u64 = 200;

/// A run through deaths. Errors: its code has gone one way, and then another.
async fn play(seed: u64, is_far: bool, broken: Option<Broken>) -> Result<(), String> {
    let options = Options {
        broken,
        ..Options::default()
    };
    let mut house = if is_far {
        House::far(seed, options).await
    } else {
        House::near(seed, options).await
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
        if let Some(process) = house.boot(&life).await {
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
        house.near.crash();
    }
    unreachable!("the last process lives")
}

fn goes_one_way(is_far: bool) {
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
fn code_that_goes_on_after_a_failure_is_told_of_it_again() {
    goes_one_way(false);
}

#[test]
fn code_that_goes_on_after_a_failure_is_told_of_it_again_from_a_far_store() {
    goes_one_way(true);
}
