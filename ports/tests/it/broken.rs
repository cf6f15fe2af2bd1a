//! Each suite notices every way in which its port is broken on purpose.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ports::contract::{self, Case, broken, broken::Broken};
use simulated::World;

use crate::subjects;

/// Runs the cases of each broken promise until one fails.
fn suite_catches<S>(broken: &[Broken<S>], cases: &[Case<S>], promises: &[&str], open: fn(&World) -> S) {
    for case in cases {
        assert!(promises.contains(&case.promise), "{case:?} checks a promise that nobody made");
    }
    for promise in promises {
        assert!(broken.iter().any(|broken| broken.promise == *promise), "nothing breaks {promise}");
        let cases: Vec<_> = cases.iter().filter(|case| case.promise == *promise).collect();
        for case in &cases {
            subjects::run(**case, open);
        }
        for broken in broken.iter().filter(|broken| broken.promise == *promise) {
            let is_caught = cases.iter().any(|case| {
                let run = || subjects::run(**case, |world| broken.wrap(open(world)));
                catch_unwind(AssertUnwindSafe(run)).is_err()
            });
            assert!(is_caught, "no case of {promise} fails on {broken:?}");
        }
    }
}

/// K1 to K9.
#[test]
fn the_key_value_suite_catches_every_broken_store() {
    let promises = ["K1", "K2", "K3", "K4", "K5", "K6", "K7", "K8", "K9"];
    suite_catches(broken::key_value::BROKEN, contract::key_value::CASES, &promises, subjects::key_value);
}

/// Q1 to Q7.
#[test]
fn the_queue_suite_catches_every_broken_queue() {
    let promises = ["Q1", "Q2", "Q3", "Q4", "Q5", "Q6", "Q7"];
    suite_catches(broken::queue::BROKEN, contract::queue::CASES, &promises, subjects::queue);
}

/// N1 to N5.
#[test]
fn the_functions_suite_catches_every_broken_provider_of_functions() {
    let promises = ["N1", "N2", "N3", "N4", "N5"];
    suite_catches(broken::functions::BROKEN, contract::functions::CASES, &promises, subjects::functions);
}

/// L1 to L3.
#[test]
fn the_clock_suite_catches_every_broken_clock() {
    let promises = ["L1", "L2", "L3"];
    suite_catches(broken::clock::BROKEN, contract::clock::CASES, &promises, subjects::clock);
}

/// O1 to O4.
#[test]
fn the_objects_suite_catches_every_broken_object_store() {
    let promises = ["O1", "O2", "O3", "O4"];
    suite_catches(broken::objects::BROKEN, contract::objects::CASES, &promises, subjects::objects);
}

/// D1 to D4.
#[test]
fn the_durability_suite_catches_every_store_that_breaks_in_a_crash() {
    let promises = ["D1", "D2", "D3", "D4"];
    suite_catches(broken::durability::BROKEN, contract::durability::CASES, &promises, subjects::durability);
}
