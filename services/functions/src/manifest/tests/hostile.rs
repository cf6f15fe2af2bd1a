//! Hostile manifests: each is parsed or refused with a bounded error, and a parsed one keeps its
//! meaning.

use proptest::{collection::vec, prelude::*, sample::select};

use super::super::{MANIFEST_BYTES_MAX, Manifest, REFUSAL_BYTES_MAX, workflow::Workflow};

const FUNCTION: &str = "[functions.f]\nruntime = \"executable\"\ncode = \"c\"\nhandler = \"f\"\n";

fn with_workflow(steps: &str) -> String {
    format!("{FUNCTION}[workflows.w]\nsteps = [{steps}]\n")
}

/// The rules that hold for every manifest.
fn check(text: &str) -> Result<Manifest, String> {
    let parsed = Manifest::parse(text);
    match &parsed {
        Err(why) => assert!(
            !why.is_empty() && why.len() <= REFUSAL_BYTES_MAX,
            "{} bytes",
            why.len()
        ),
        // A run stores its workflow as JSON.
        Ok(manifest) => {
            for workflow in manifest.workflows.values() {
                let kept = serde_json::to_vec(workflow).expect("it serialises");
                let read: Workflow =
                    serde_json::from_slice(&kept).expect("the stored form is read back");
                assert_eq!(read, *workflow, "in {text}");
            }
        }
    }
    parsed
}

#[test]
fn endless_nesting_is_refused() {
    let deep = 20_000;
    for text in [
        format!("x = {}", "[".repeat(deep)),
        format!("x = {}", "{a=".repeat(deep)),
        format!("[{}]", "a.".repeat(deep)),
        format!("{}.a = 1", vec!["a"; deep].join(".")),
        with_workflow(&"{ parallel = [[".repeat(deep / 2)),
        with_workflow(&format!(
            "{}\"f\"{}",
            "{ map = [".repeat(17),
            "] }".repeat(17)
        )),
        with_workflow(&format!(
            "{{ choice = [{{ when = {{ equals = {}1{} }}, steps = [\"f\"] }}] }}",
            "[".repeat(60),
            "]".repeat(60)
        )),
    ] {
        check(&text).expect_err("it is too deep");
    }
    check(&with_workflow(&format!(
        "{}\"f\"{}",
        "{ map = [".repeat(15),
        "] }".repeat(15)
    )))
    .expect("deep enough");
}

#[test]
fn errors_are_bounded_however_long_the_fault_is() {
    let long = "x".repeat(MANIFEST_BYTES_MAX - 1000);
    for text in [
        format!("name = \"{long}\""),
        format!("{long} = 1"),
        format!("[functions.{long}]\nruntime = \"executable\"\ncode = \"c\"\nhandler = \"f\""),
        format!("{FUNCTION}[functions.g]\nruntime = \"{long}\""),
        format!("{FUNCTION}on_failure = \"{}\"", "\u{e9}".repeat(100_000)),
        with_workflow(&format!("\"{long}\"")),
        format!("{FUNCTION}[workflows.w]\nsteps = [\"f\"]\nfar = \"{long}\""),
        long.repeat(2),
    ] {
        check(&text).expect_err("it is wrong");
    }
}

#[test]
fn more_than_may_be_is_refused() {
    let many = |count: usize| vec!["\"f\""; count].join(",");
    check(&with_workflow(&many(1000))).expect("as many as may be");
    assert!(
        check(&with_workflow(&many(1001)))
            .expect_err("one more")
            .contains("1000 are the most")
    );
    let function = |number| {
        format!("[functions.f{number}]\nruntime=\"executable\"\ncode=\"c\"\nhandler=\"f\"\n")
    };
    let functions = (0..1001).map(function).collect::<Vec<_>>().concat();
    assert!(
        check(&functions)
            .expect_err("one more")
            .contains("1 to 1000 functions")
    );
}

#[test]
fn a_condition_compares_with_json_values_alone() {
    let with = |equals: &str| {
        with_workflow(&format!(
            "{{ choice = [{{ when = {{ equals = {equals} }}, steps = [\"f\"] }}] }}"
        ))
    };
    for equals in [
        "nan",
        "-inf",
        "[1, nan]",
        "{ a = inf }",
        "2020-01-01",
        "[07:32:00]",
    ] {
        check(&with(equals)).expect_err(equals);
    }
    for equals in [
        "1",
        "0.5",
        "true",
        "\"2020-01-01\"",
        "[1, [\"a\"]]",
        "{ a = { b = 1 } }",
    ] {
        check(&with(equals)).expect(equals);
    }
}

fn node() -> impl Strategy<Value = String> {
    let name = select(vec!["f", "g", "", "a b"]);
    let number = select(vec![
        "0",
        "1",
        "7",
        "1000",
        "-1",
        "99999999999999999999",
        "nan",
        "1.5",
        "\"1\"",
        "[]",
    ]);
    let value = prop_oneof![
        number.clone().prop_map(str::to_owned),
        select(vec![
            "true",
            "\"t\"",
            "[1,[2]]",
            "{ a = 1 }",
            "inf",
            "1979-05-27"
        ])
        .prop_map(str::to_owned),
    ];
    let step = (
        name.clone(),
        select(vec!["retries", "backoff_ms", "timeout_s", "unknown"]),
        number.clone(),
    )
        .prop_map(|(name, field, number)| {
            format!("{{ function = \"{name}\", {field} = {number} }}")
        });
    let leaf = prop_oneof![4 => Just("\"f\"".to_owned()), 1 => name.prop_map(|name| format!("\"{name}\"")), 2 => step];
    leaf.prop_recursive(6, 40, 4, move |inner| {
        let nodes = vec(inner, 0..4).prop_map(|nodes| format!("[{}]", nodes.join(", ")));
        let condition = select(vec!["equals", "below", "above", "exists", "path", "unknown"]);
        prop_oneof![
            vec(nodes.clone(), 0..3).prop_map(|branches| format!("{{ parallel = [{}] }}", branches.join(", "))),
            (nodes.clone(), number.clone())
                .prop_map(|(nodes, number)| format!("{{ map = {nodes}, concurrency = {number} }}")),
            nodes.clone().prop_map(|nodes| format!("{{ map = {nodes} }}")),
            (nodes.clone(), condition, value.clone(), nodes).prop_map(|(steps, condition, value, otherwise)| format!(
                "{{ choice = [{{ when = {{ {condition} = {value} }}, steps = {steps} }}], otherwise = {otherwise} }}"
            )),
        ]
    })
}

const TOKENS: [&str; 32] = [
    "[functions.f]",
    "[workflows.w]",
    "[[",
    "]]",
    "[",
    "]",
    "{",
    "}",
    "=",
    ",",
    ".",
    "\"",
    "'",
    "\"\"\"",
    "#",
    "\n",
    "\r\n",
    " ",
    "runtime",
    "\"executable\"",
    "code",
    "handler",
    "\"f\"",
    "steps",
    "function",
    "triggers",
    "every_s",
    "queue",
    "1",
    "-0x",
    "nan",
    "\\u{0}",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn a_workflow_that_is_taken_is_read_back_as_it_was(nodes in vec(node(), 0..4)) {
        let _ = check(&with_workflow(&nodes.join(", ")));
    }

    #[test]
    fn any_order_of_words_is_read_or_refused(tokens in vec(select(TOKENS.to_vec()), 0..40), is_behind in any::<bool>()) {
        let text = tokens.concat();
        let _ = check(&if is_behind { format!("{FUNCTION}{text}") } else { text });
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        let _ = check(&text);
    }
}
