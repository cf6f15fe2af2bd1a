//! The data of a workflow's graph: the lists of `map` and `parallel`, and the conditions of `choice`.

use std::{cmp::Ordering, fmt};

use bytes::Bytes;
use functions::manifest::workflow::{Branch, Step, When};
use serde::{
    Deserializer as _,
    de::{Error as _, SeqAccess, Visitor},
};
use serde_json::{Number, Value, value::RawValue};

/// The most elements in the list that a `map` takes.
const MAP_ELEMENTS_MAX: usize = 10_000;

/// A step with the terms of its function.
pub(crate) fn plain_step(function: &str) -> Step {
    Step {
        function: function.to_owned(),
        retries: None,
        backoff_ms: None,
        timeout_s: None,
    }
}

/// The elements of a JSON list, unchanged. Errors: the input is not a list, or is too long.
pub(crate) fn elements(input: &[u8]) -> Result<Vec<Box<RawValue>>, String> {
    let mut json = serde_json::Deserializer::from_slice(input);
    let elements = json.deserialize_seq(UpToTheMost);
    let whole = elements.and_then(|elements| json.end().map(|()| elements));
    whole.map_err(|error| {
        format!("map is given a list of {MAP_ELEMENTS_MAX} elements at most: {error}")
    })
}

struct UpToTheMost;

impl<'de> Visitor<'de> for UpToTheMost {
    type Value = Vec<Box<RawValue>>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = list.next_element()? {
            if elements.len() == MAP_ELEMENTS_MAX {
                return Err(A::Error::custom("this one has more"));
            }
            elements.push(element);
        }
        Ok(elements)
    }
}

/// The branch that a `choice` takes; none: the default one. Errors: the input is not valid JSON.
pub(crate) fn chosen(branches: &[Branch], input: &[u8]) -> Result<Option<usize>, String> {
    // An empty response means null.
    let given = if input.is_empty() {
        Ok(Value::Null)
    } else {
        serde_json::from_slice(input)
    };
    let given =
        given.map_err(|error| format!("choice is given JSON, 128 deep at most: {error}"))?;
    Ok(branches
        .iter()
        .position(|branch| holds(&branch.when, &given)))
}

/// Outputs become JSON; one that is not JSON becomes null.
pub(crate) fn listed(outputs: &[Bytes]) -> Bytes {
    let mut list = vec![b'['];
    for (place, output) in outputs.iter().enumerate() {
        if place > 0 {
            list.push(b',');
        }
        let is_json = serde_json::from_slice::<&RawValue>(output).is_ok();
        list.extend_from_slice(if is_json { output } else { b"null" });
    }
    list.push(b']');
    list.into()
}

fn holds(when: &When, input: &Value) -> bool {
    let mut names = when.path.split('.').filter(|name| !name.is_empty());
    let found = names.try_fold(input, |value, name| match value {
        Value::Array(elements) => elements.get(name.parse::<usize>().ok()?),
        value => value.get(name),
    });
    let number = found.and_then(Value::as_number);
    let is = |order, bound| number.and_then(|number| compare(number, bound)) == Some(order);
    when.exists.is_none_or(|exists| found.is_some() == exists)
        && when
            .equals
            .as_ref()
            .is_none_or(|equals| found.is_some_and(|found| is_same(found, equals)))
        && when
            .below
            .as_ref()
            .is_none_or(|below| is(Ordering::Less, below))
        && when
            .above
            .as_ref()
            .is_none_or(|above| is(Ordering::Greater, above))
}

/// Compares integers exactly: from 2^53 on several integers share one floating-point number.
fn compare(one: &Number, other: &Number) -> Option<Ordering> {
    let integer = |number: &Number| {
        number
            .as_i64()
            .map(i128::from)
            .or(number.as_u64().map(i128::from))
    };
    match (integer(one), integer(other)) {
        (Some(one), Some(other)) => Some(one.cmp(&other)),
        _ => one.as_f64()?.partial_cmp(&other.as_f64()?),
    }
}

/// Whether both values are equal, to the depth of `equals`. A number may have a decimal point or
/// not.
fn is_same(found: &Value, equals: &Value) -> bool {
    match (found, equals) {
        (Value::Number(found), Value::Number(equals)) if found.is_f64() != equals.is_f64() => {
            found.as_f64() == equals.as_f64()
        }
        (Value::Array(found), Value::Array(equals)) => {
            found.len() == equals.len()
                && found
                    .iter()
                    .zip(equals)
                    .all(|(found, equals)| is_same(found, equals))
        }
        (Value::Object(found), Value::Object(equals)) => {
            let has = |(name, equals)| found.get(name).is_some_and(|found| is_same(found, equals));
            found.len() == equals.len() && equals.iter().all(has)
        }
        (found, equals) => found == equals,
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_apply_to_the_value_at_their_path() {
        let input = json!({"a": {"b": [1, {"c": "x"}]}, "n": 5});
        let holds = |when: serde_json::Value| {
            holds(&serde_json::from_value(when).expect("a condition"), &input)
        };
        assert!(holds(json!({"path": "a.b.1.c", "equals": "x"})));
        assert!(!holds(json!({"path": "a.b.1.c", "equals": "y"})));
        assert!(
            holds(json!({"path": "n", "above": 4, "below": 6}))
                && !holds(json!({"path": "n", "below": 5}))
        );
        assert!(
            holds(json!({"path": "z", "exists": false}))
                && !holds(json!({"path": "z", "above": 0}))
        );
        assert!(holds(json!({"exists": true})));
        assert!(
            holds(json!({"path": "n", "above": 4.5, "below": 5.5}))
                && !holds(json!({"path": "n", "above": 5.5}))
        );
        assert!(
            holds(json!({"path": "n", "equals": 5.0}))
                && !holds(json!({"path": "n", "equals": 5.5}))
        );
        assert!(holds(
            json!({"path": "a", "equals": {"b": [1.0, {"c": "x"}]}})
        ));
        assert!(
            !holds(json!({"path": "a", "equals": {"b": [1]}}))
                && !holds(json!({"path": "a", "equals": {}}))
        );
    }

    #[test]
    fn integers_are_compared_as_integers() {
        let input = json!({"n": 9_007_199_254_740_993_u64, "most": u64::MAX, "least": i64::MIN});
        let holds = |when: serde_json::Value| {
            holds(&serde_json::from_value(when).expect("a condition"), &input)
        };
        assert!(holds(
            json!({"path": "n", "above": 9_007_199_254_740_992_u64})
        ));
        assert!(holds(
            json!({"path": "n", "below": 9_007_199_254_740_994_u64})
        ));
        assert!(!holds(
            json!({"path": "n", "equals": 9_007_199_254_740_992_u64})
        ));
        assert!(holds(
            json!({"path": "most", "above": u64::MAX - 1, "equals": u64::MAX})
        ));
        assert!(holds(json!({"path": "least", "below": i64::MIN + 1})));
        assert!(!holds(json!({"path": "most", "below": i64::MIN})));
    }

    #[test]
    fn a_list_of_any_outputs_is_json() {
        let outputs = [
            Bytes::from("1"),
            Bytes::new(),
            Bytes::from("no JSON"),
            Bytes::from("{\"a\":[]}"),
        ];
        assert_eq!(listed(&outputs), Bytes::from("[1,null,null,{\"a\":[]}]"));
    }

    #[test]
    fn a_map_takes_a_list_up_to_its_limit() {
        let of = |count: usize| format!("[{}]", vec!["{\"a\":[1]}"; count].join(",")).into_bytes();
        assert_eq!(
            elements(&of(MAP_ELEMENTS_MAX))
                .expect("as many as may be")
                .len(),
            MAP_ELEMENTS_MAX
        );
        assert!(
            elements(&of(MAP_ELEMENTS_MAX + 1))
                .expect_err("one more")
                .contains("more")
        );
        assert_eq!(elements(b" [ ] ").expect("a list").len(), 0);
        for none in ["", "{}", "[", "[1,]", "[1] 2", "nul", "\u{0}"] {
            elements(none.as_bytes()).expect_err(none);
        }
    }

    fn branches() -> Vec<Branch> {
        let branches = json!([{"when": {"path": "a.0", "equals": 1}, "steps": ["f"]}, {"when": {}, "steps": []}]);
        serde_json::from_value(branches).expect("branches")
    }

    #[test]
    fn no_branch_is_taken_on_malformed_input() {
        assert_eq!(chosen(&branches(), br#"{"a":[1]}"#), Ok(Some(0)));
        assert_eq!(
            chosen(&branches(), b""),
            Ok(Some(1)),
            "an empty response is null"
        );
        let deep = ["[".repeat(5000), "]".repeat(5000)].concat();
        for unread in [b"no JSON".as_slice(), b"{", deep.as_bytes(), b"\xff"] {
            chosen(&branches(), unread).expect_err("it cannot be read");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

        #[test]
        fn the_next_step_gets_json_from_any_output(outputs in vec(vec(select(b"[]{},:\"\\1e-.nul \xff\0".to_vec()), 0..12), 0..6)) {
            let outputs: Vec<Bytes> = outputs.into_iter().map(Bytes::from).collect();
            let list = listed(&outputs);
            assert_eq!(elements(&list).expect("a list").len(), outputs.len(), "{list:?}");
            for output in &outputs {
                // Any output terminates both.
                let _ = (elements(output), chosen(&branches(), output));
            }
        }
    }
}
