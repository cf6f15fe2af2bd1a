//! The parsing of workflows, and the errors for faults.

use super::super::Manifest;

fn parsed(workflow: &str) -> Result<Manifest, String> {
    let text = format!(
        "[functions.f]\nruntime = \"executable\"\ncode = \"c\"\nhandler = \"f\"\n[workflows.w]\n{workflow}"
    );
    Manifest::parse(&text)
}

fn refusal(workflow: &str) -> String {
    parsed(workflow).map(drop).err().unwrap_or_default()
}

#[test]
fn graphs_are_read() {
    for workflow in [
        "steps = [\"f\", \"f\"]",
        "function = \"f\"",
        "steps = [{ function = \"f\", retries = 3, backoff_ms = 10, timeout_s = 5 }]",
        "steps = [{ parallel = [[\"f\"], [{ map = [\"f\"] }]] }]",
        "function = \"f\"\natomic = true\nisolation = \"serializable\"",
        "steps = [{ choice = [{ when = { path = \"a.b\", equals = 1 }, steps = [\"f\"] }], otherwise = [] }]",
        "steps = [{ choice = [{ when = { above = 3.5, below = 4 }, steps = [\"f\"] }] }]",
        "steps = [\"f\"]\nfar = \"redis://127.0.0.1:1\"\nsynchrony = \"serial\"",
    ] {
        assert_eq!(refusal(workflow), "", "{workflow}");
    }
}

/// A workflow, and a part of the error.
const FAULTS: &[(&str, &str)] = &[
    ("", "no steps"),
    ("steps = [\"f\"]\nfunction = \"f\"", "not both"),
    ("steps = [{ parallel = [] }]", "no branches"),
    (
        "steps = [{ map = [\"f\"], concurrency = 0 }]",
        "concurrency = 0 must be 1 to 1000",
    ),
    (
        "steps = [{ function = \"f\", retries = 101 }]",
        "retries = 101",
    ),
    (
        "steps = [\"f\"]\natomic = true\nfar = \"redis://h\"",
        "without a far store",
    ),
    (
        "steps = [\"f\"]\nisolation = \"serializable\"",
        "isolation is for a workflow with atomic = true",
    ),
    (
        "steps = [\"f\"]\natomic = true\nisolation = \"snapshot\"",
        "unknown variant `snapshot`",
    ),
    (
        "steps = [{ choice = [[{ equals = 1 }, [\"f\"]]] }]",
        "invalid type: sequence, expected a table",
    ),
    (
        "steps = [{ choice = [{ when = [\"a\", 1], steps = [\"f\"] }] }]",
        "invalid type: sequence, expected a table",
    ),
    (
        "steps = [\"f\"]\nfar = \"redis://h\"\nsynchrony = { sync = {} }",
        "synchrony",
    ),
    ("steps = [\"a b\"]", "letters, digits"),
    ("steps = [\"g\"]", "\"g\" is no function"),
    ("steps = [\"f\"]\ntimeout_s = 0", "timeout_s = 0"),
    (
        "steps = [{ function = \"f\", retries = -1 }]",
        "invalid value: integer `-1`, expected u32",
    ),
    (
        "steps = [{ function = \"f\", retires = 1 }]",
        "unknown field `retires`, expected one of `function`",
    ),
    (
        "steps = [{ choice = [{ when = { above = \"3\" }, steps = [] }] }]",
        "expected a JSON number",
    ),
    (
        "steps = [{ choice = [{ when = { above = nan }, steps = [] }] }]",
        "not a JSON number",
    ),
    (
        "steps = [{ choice = [{ steps = [] }] }]",
        "missing field `when`",
    ),
    (
        "steps = [{ map = [\"f\"], retries = 1 }]",
        "an entry of steps is \"FUNCTION\"",
    ),
    (
        "steps = [{ function = \"f\", map = [] }]",
        "an entry of steps is",
    ),
    (
        "steps = [{ function = \"f\", concurrency = 2 }]",
        "an entry of steps is",
    ),
    (
        "steps = [{ parallel = [[]], otherwise = [] }]",
        "an entry of steps is",
    ),
    ("steps = [{}]", "an entry of steps is"),
    ("steps = [1]", "integer `1`, expected \"FUNCTION\""),
];

#[test]
fn faults_of_a_graph_are_named() {
    for (workflow, said) in FAULTS.iter().copied() {
        assert!(
            refusal(workflow).contains(said),
            "{workflow}: {}",
            refusal(workflow)
        );
    }
}

/// A workflow, and a part of the error; empty: it is accepted.
const WORKFLOWS: &[(&str, &str)] = &[
    ("steps = [{ choice = [] }]", "choice has no branches"),
    (
        "steps = [{ choice = [], otherwise = [\"f\"] }]",
        "choice has no branches",
    ),
    (
        "steps = [{ choice = [{ when = { path = \"a\" }, steps = [\"f\"] }] }]",
        "asks for nothing there",
    ),
    (
        "steps = [{ choice = [{ when = {}, steps = [] }] }]",
        "asks for nothing there",
    ),
    ("steps = [{ parallel = [[], []] }]", "no branch has a step"),
    (
        "steps = [{ parallel = [[{ map = [] }]] }]",
        "map has no steps",
    ),
    (
        "steps = [\"f\"]\nsynchrony = \"sync\"",
        "synchrony is for a workflow with a far store",
    ),
    ("steps = [{ parallel = [[\"f\"], []] }]", ""),
    (
        "steps = [{ choice = [{ when = { exists = true }, steps = [] }] }]",
        "",
    ),
    (
        "steps = [\"f\"]\nfar = \"redis://h\"\nsynchrony = \"sync\"",
        "",
    ),
];

#[test]
fn graphs_without_effect_are_refused() {
    for (workflow, said) in WORKFLOWS.iter().copied() {
        let refusal = refusal(workflow);
        assert!(
            refusal.contains(said) && refusal.is_empty() == said.is_empty(),
            "{workflow}: {refusal}"
        );
    }
}
