//! The definitions of the workflows of these tests; [`super::code`] has their functions.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use functions::manifest::workflow::Workflow;

/// The address of the far store.
pub const ADDRESS: &str = "far";

/// Adds one in each step, and sends a message.
pub const COUNTS: &str = "counts";
/// Sends a message half way, and continues.
pub const FIRST: &str = "first";
/// Waits for that message, and depends on it.
pub const SECOND: &str = "second";
/// The same as [`COUNTS`], atomic.
pub const WHOLE: &str = "whole";
/// Adds one, and then fails permanently; atomic.
pub const NOTHING: &str = "nothing";
/// Adds one, writes its count in a transaction, and then fails permanently; atomic.
pub const LEAKS: &str = "leaks";
/// Adds one slowly to a counter that all its runs share; atomic and isolated.
pub const SHARES: &str = "shares";
/// Waits for longer than its transaction may last, and then reads; atomic.
pub const LINGERS: &str = "lingers";
/// Waits for long, then adds one.
pub const SLOW: &str = "slow";
/// Adds one, waits for some seconds, and adds one; atomic.
pub const DAWDLES: &str = "dawdles";
/// Adds one, and takes most of its time limit; atomic.
pub const HASTENS: &str = "hastens";
/// Waits for long, then does the same as [`FIRST`].
pub const TELLS_LATE: &str = "tells-late";
/// Its first attempt ends, and sends a request later.
pub const LATE: &str = "late";
/// Writes a value that the far store refuses permanently.
pub const SPOILS: &str = "spoils";
/// Reads that value.
pub const RESTS_ON_SPOILT: &str = "rests";
/// Adds one, and then fails permanently.
pub const FAILS: &str = "fails";
/// Sends a message, externalizes it, and fails; then finds the message sent, and sends another one.
pub const TURNS: &str = "turns";
/// Writes more than it can externalize, and ignores the error.
pub const OVERFLOWS: &str = "overflows";
/// Adds one, then writes its count in a transaction.
pub const COPIES: &str = "copies";

/// Adds one, waits for long repeatedly, and adds one.
pub const LONG: &str = "long";
/// Its code calls steps that may fail, and continues depending on the result.
pub const HANDLES: &str = "handles";

/// Waits for long, then reads far state; one attempt.
pub const PEEKS: &str = "peeks";
/// Waits for long, then externalizes with a short time limit; one attempt.
pub const HURRIES: &str = "hurries";
/// Waits for long, then has a step read far state, and continues even if that fails.
pub const MINDS: &str = "minds";
/// Calls a function that does the same as [`PEEKS`].
pub const ASKS: &str = "asks";
/// The time limit of [`HURRIES`].
pub const HURRY: Duration = Duration::from_secs(5);
/// The far state after a run of [`COUNTS`] with this id.
pub const BEFORE: &str = "before";

/// The number of steps of [`COUNTS`] and [`WHOLE`].
pub const STEPS: u64 = 4;
/// How often a step of [`TURNS`] fails before it succeeds.
pub const TURNS_TAKEN: u64 = 2;
/// The text that each step of [`COUNTS`] sends.
pub const SENDS: [&str; 2] = ["a", "b"];
/// How long a step of [`SLOW`] waits.
pub const SLOW_FOR: Duration = Duration::from_mins(1);
/// How long a step of [`DAWDLES`] waits.
pub const DAWDLES_FOR: Duration = Duration::from_secs(3);
/// How long after its end an attempt of [`LATE`] sends its request.
pub const LATE_BY: Duration = Duration::from_secs(1);

/// All workflows by name. `far` is when a write to the far store returns; none: there is no far
/// store.
pub(super) fn deployed(far: Option<&str>) -> BTreeMap<String, Arc<Workflow>> {
    let counts = vec!["\"add\""; STEPS as usize].join(",");
    let far = far.map(|synchrony| format!(r#","far":"{ADDRESS}","synchrony":"{synchrony}""#));
    let mut all = far.as_deref().map_or_else(|| atomic(&counts), far_only);
    let far = far.as_deref().unwrap_or_default();
    let retried = |function: &str| format!(r#"{{"function":"{function}","backoff_ms":20}}"#);
    all.extend([
        (COUNTS, made(&counts, far)),
        (FIRST, made(&retried("tells"), far)),
        (SECOND, made(&retried("hears"), far)),
        (TELLS_LATE, made(r#""tells-late""#, far)),
        (SLOW, made(r#""waits","add""#, far)),
        (LATE, made(r#""late""#, far)),
        (COPIES, made(r#""add","copies""#, far)),
        (TURNS, made(&retried("turns"), far)),
        (LONG, made(r#""add","waits","waits","waits","add""#, far)),
        (FAILS, made(ADD_AND_FAIL, far)),
        (HANDLES, made(r#""handles""#, far)),
    ]);
    all.into_iter()
        .map(|(name, workflow)| (name.to_owned(), workflow))
        .collect()
}

type Definitions = BTreeMap<&'static str, Arc<Workflow>>;

const ADD_AND_FAIL: &str = r#""add",{"function":"fails","retries":0}"#;

fn far_only(far: &str) -> Definitions {
    let once = |name| (name, made(&once(name), far));
    let mut all = BTreeMap::from([PEEKS, HURRIES, MINDS, ASKS, OVERFLOWS].map(once));
    let twice = |function: &str| format!(r#""add",{{"function":"{function}","retries":1}}"#);
    all.extend([SPOILS, RESTS_ON_SPOILT].map(|name| (name, made(&twice(name), far))));
    all
}

fn atomic(counts: &str) -> Definitions {
    let atomic = r#","atomic":true"#;
    let leaks = format!(r#""add",{},{}"#, once("copies"), once("fails"));
    BTreeMap::from([
        (WHOLE, made(counts, atomic)),
        (NOTHING, made(ADD_AND_FAIL, atomic)),
        (LEAKS, made(&leaks, atomic)),
        (LINGERS, made(r#""waits","waits","rests""#, atomic)),
        (
            DAWDLES,
            made(r#""add","dawdles","dawdles","dawdles","add""#, atomic),
        ),
        (
            HASTENS,
            made(r#""add","dawdles""#, r#","atomic":true,"timeout_s":5"#),
        ),
        (
            SHARES,
            made(
                r#""shares""#,
                r#","atomic":true,"isolation":"serializable""#,
            ),
        ),
    ])
}

fn once(function: &str) -> String {
    format!(r#"{{"function":"{function}","retries":0}}"#)
}

fn made(steps: &str, more: &str) -> Arc<Workflow> {
    let text = format!(r#"{{"steps":[{steps}]{more}}}"#);
    Arc::new(serde_json::from_str(&text).expect("a workflow"))
}
