//! Each suite notices every way in which its port is broken on purpose.

use std::{
    collections::BTreeSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use ports::contract::{self, Case, broken, broken::Broken};
use simulated::World;

use crate::subjects;

/// Where the ports state their promises.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The numbers of the promises that a port's documentation states, as `**K1**`, in its module or in
/// those below it.
fn promised(source: &Path) -> BTreeSet<String> {
    let below = fs::read_dir(source.with_extension(""))
        .into_iter()
        .flatten();
    let below = below
        .map(|entry| entry.expect("an entry reads").path())
        .filter(|path| path.is_file());
    let mut promised = BTreeSet::new();
    for path in below.chain([source.to_owned()]) {
        let text = fs::read_to_string(path).expect("a port's source reads");
        promised.extend(
            text.split("**")
                .skip(1)
                .filter(|word| is_number(word))
                .map(str::to_owned),
        );
    }
    promised
}

/// One capital letter and digits.
fn is_number(word: &str) -> bool {
    let digits = word.strip_prefix(|letter: char| letter.is_ascii_uppercase());
    digits.is_some_and(|digits| {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Runs the cases of each promise that `port` makes on each store that breaks it, until one fails.
fn suite_catches<S>(port: &str, broken: &[Broken<S>], cases: &[Case<S>], open: fn(&World) -> S) {
    let promises = promised(&sources().join(port).with_extension("rs"));
    assert!(!promises.is_empty(), "{port} promises nothing");
    for promise in broken
        .iter()
        .map(|broken| broken.promise)
        .chain(cases.iter().map(|case| case.promise))
    {
        assert!(
            promises.contains(promise),
            "{port} does not promise {promise}"
        );
    }
    for promise in &promises {
        assert!(
            broken.iter().any(|broken| broken.promise == *promise),
            "nothing breaks {promise}"
        );
        let cases: Vec<_> = cases
            .iter()
            .filter(|case| case.promise == *promise)
            .collect();
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

/// K1 to K12.
#[test]
fn the_key_value_suite_catches_every_broken_store() {
    suite_catches(
        "key_value",
        broken::key_value::BROKEN,
        contract::key_value::CASES,
        subjects::key_value,
    );
}

/// Q1 to Q12.
#[test]
fn the_queue_suite_catches_every_broken_queue() {
    suite_catches(
        "queue",
        broken::queue::BROKEN,
        contract::queue::CASES,
        subjects::queue,
    );
}

/// N1 to N6.
#[test]
fn the_functions_suite_catches_every_broken_provider_of_functions() {
    suite_catches(
        "functions",
        broken::functions::BROKEN,
        contract::functions::CASES,
        subjects::functions,
    );
}

/// U1 to U5.
#[test]
fn the_runtime_suite_catches_every_broken_runtime() {
    suite_catches(
        "runtime",
        broken::runtime::BROKEN,
        contract::runtime::CASES,
        subjects::runtime,
    );
}

/// B1 to B4.
#[test]
fn the_code_store_suite_catches_every_broken_code_store() {
    suite_catches(
        "code_store",
        broken::code_store::BROKEN,
        contract::code_store::CASES,
        subjects::code_store,
    );
}

/// X1 to X5.
#[test]
fn the_instances_suite_catches_every_broken_provider_of_instances() {
    suite_catches(
        "instances",
        broken::instances::BROKEN,
        contract::instances::CASES,
        subjects::instances,
    );
}

/// G1 to G3.
#[test]
fn the_logs_suite_catches_every_broken_kind_of_logs() {
    suite_catches(
        "logs",
        broken::logs::BROKEN,
        contract::logs::CASES,
        subjects::runtime,
    );
}

/// L1 to L4.
#[test]
fn the_clock_suite_catches_every_broken_clock() {
    suite_catches(
        "clock",
        broken::clock::BROKEN,
        contract::clock::CASES,
        subjects::clock,
    );
}

/// O1 to O4.
#[test]
fn the_objects_suite_catches_every_broken_object_store() {
    suite_catches(
        "objects",
        broken::objects::BROKEN,
        contract::objects::CASES,
        subjects::objects,
    );
}

/// D1 to D6.
#[test]
fn the_durability_suite_catches_every_store_that_breaks_in_a_crash() {
    suite_catches(
        "durability",
        broken::durability::BROKEN,
        contract::durability::CASES,
        subjects::durability,
    );
}

#[test]
fn every_port_that_promises_something_has_a_suite() {
    let suites = [
        "clock",
        "code_store",
        "durability",
        "functions",
        "instances",
        "key_value",
        "logs",
        "objects",
        "queue",
        "runtime",
    ];
    let mut promising = Vec::new();
    for entry in fs::read_dir(sources()).expect("the sources list") {
        let path = entry.expect("an entry reads").path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && !promised(&path).is_empty()
        {
            promising.push(
                path.file_stem()
                    .expect("a file has a name")
                    .to_string_lossy()
                    .into_owned(),
            );
        }
    }
    promising.sort_unstable();
    assert_eq!(promising, suites);
}
