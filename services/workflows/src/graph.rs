//! How a run goes through the graph of its workflow.
//!
//! A step's path says where it stands: places from zero with dots between, in `parallel` and `choice` the branch, in `map`
//! the element. So a path means the same step whenever the run is taken up.

use std::sync::Arc;

use bytes::Bytes;
use functions::manifest::workflow::{Choice, Map, Node, Parallel, Step, When};
use futures_util::{
    future::{BoxFuture, FutureExt as _, try_join_all},
    stream::{self, StreamExt as _, TryStreamExt as _},
};
use serde_json::value::RawValue;

use crate::run::{Failure, Run};

/// Goes through `nodes` one after the other.
pub(crate) fn sequence<'run>(
    run: &'run Arc<Run>,
    nodes: &'run [Node],
    prefix: String,
    input: Bytes,
) -> BoxFuture<'run, Result<Bytes, Failure>> {
    async move {
        let mut output = input;
        for (place, node) in nodes.iter().enumerate() {
            output = go(run, node, format!("{prefix}{place}"), output).await?;
        }
        Ok(output)
    }
    .boxed()
}

async fn go(run: &Arc<Run>, node: &Node, path: String, input: Bytes) -> Result<Bytes, Failure> {
    match node {
        Node::Function(function) => {
            let step = Step { function: function.clone(), retries: None, backoff_ms: None, timeout_s: None };
            run.step(&step, path, input).await
        }
        Node::Step(step) => run.step(step, path, input).await,
        Node::Parallel(Parallel { parallel }) => {
            let branches = parallel.iter().enumerate();
            let branches = branches
                .map(|(branch, nodes)| sequence(run, nodes, format!("{path}.{branch}."), input.clone()));
            listed(run, &path, &try_join_all(branches).await?)
        }
        Node::Map(Map { map, concurrency }) => {
            let elements = serde_json::from_slice::<Vec<Box<RawValue>>>(&input).map_err(|error| {
                Failure::new(
                    &path,
                    "Workflow.InvalidInput",
                    &format!("map is given a list, and this is none: {error}"),
                )
            })?;
            let each = elements.into_iter().enumerate().map(|(place, element)| {
                let element = Bytes::from(element.get().to_owned());
                sequence(run, map, format!("{path}.{place}."), element)
            });
            let outputs: Vec<Bytes> = stream::iter(each).buffered(*concurrency).try_collect().await?;
            listed(run, &path, &outputs)
        }
        Node::Choice(Choice { choice, otherwise }) => {
            let given: serde_json::Value = serde_json::from_slice(&input).unwrap_or_default();
            let chosen = choice.iter().position(|branch| holds(&branch.when, &given));
            let (branch, nodes) = match chosen {
                Some(branch) => (branch, &choice[branch].steps),
                None => (choice.len(), otherwise),
            };
            sequence(run, nodes, format!("{path}.{branch}."), input).await
        }
    }
}

/// What `parallel` and `map` come to.
fn listed(run: &Run, path: &str, outputs: &[Bytes]) -> Result<Bytes, Failure> {
    let list = list(outputs.iter());
    run.check_length(path, &list)?;
    Ok(list)
}

/// A list in JSON of outputs, which are JSON; empty ones are null.
fn list<'a>(outputs: impl Iterator<Item = &'a Bytes>) -> Bytes {
    let mut list = vec![b'['];
    for (place, output) in outputs.enumerate() {
        if place > 0 {
            list.push(b',');
        }
        let is_json = serde_json::from_slice::<&RawValue>(output).is_ok();
        list.extend_from_slice(if is_json { output } else { b"null" });
    }
    list.push(b']');
    list.into()
}

fn holds(when: &When, input: &serde_json::Value) -> bool {
    let mut names = when.path.split('.').filter(|name| !name.is_empty());
    let found = names.try_fold(input, |value, name| match value {
        serde_json::Value::Array(elements) => elements.get(name.parse::<usize>().ok()?),
        value => value.get(name),
    });
    let number = found.and_then(serde_json::Value::as_f64);
    when.exists.is_none_or(|exists| found.is_some() == exists)
        && when.equals.as_ref().is_none_or(|equals| found == Some(equals))
        && when.below.is_none_or(|below| number.is_some_and(|number| number < below as f64))
        && when.above.is_none_or(|above| number.is_some_and(|number| number > above as f64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_look_at_what_the_path_names() {
        let input = json!({"a": {"b": [1, {"c": "x"}]}, "n": 5});
        let holds =
            |when: serde_json::Value| holds(&serde_json::from_value(when).expect("a condition"), &input);
        assert!(holds(json!({"path": "a.b.1.c", "equals": "x"})));
        assert!(!holds(json!({"path": "a.b.1.c", "equals": "y"})));
        assert!(
            holds(json!({"path": "n", "above": 4, "below": 6})) && !holds(json!({"path": "n", "below": 5}))
        );
        assert!(holds(json!({"path": "z", "exists": false})) && !holds(json!({"path": "z", "above": 0})));
        assert!(holds(json!({"exists": true})));
    }

    #[test]
    fn lists_are_json_whatever_is_in_them() {
        let outputs = [Bytes::from("1"), Bytes::new(), Bytes::from("no JSON"), Bytes::from("{\"a\":[]}")];
        assert_eq!(list(outputs.iter()), Bytes::from("[1,null,null,{\"a\":[]}]"));
    }
}
