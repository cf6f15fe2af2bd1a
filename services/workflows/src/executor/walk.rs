//! The graph of a workflow: which steps run, with which input.
//!
//! The path of a step is its position: places from zero, separated by dots. In `parallel` and
//! `choice` the branch follows, in `map` the element. So a path names the same step each time that
//! the run is resumed.

use std::sync::Arc;

use bytes::Bytes;
use functions::manifest::workflow::{Choice, Map, Node, Parallel};
use futures_util::{
    future::{BoxFuture, FutureExt as _, try_join_all},
    stream::{self, StreamExt as _, TryStreamExt as _},
};

use super::Executor;
use crate::{
    failure::Failure,
    graph::{chosen, elements, listed, plain_step},
    run::Run,
};

impl Executor {
    /// Executes the code or the graph of a run.
    pub(super) async fn walk(&self, run: &Arc<Run>) -> Result<Bytes, Failure> {
        let input = run.input.clone();
        if let Some(function) = &run.workflow.function {
            let step = plain_step(function);
            return self.step(run, &step, "0".to_owned(), input, None).await;
        }
        self.sequence(run, &run.workflow.steps, String::new(), input)
            .await
    }

    /// Executes `nodes` one after the other.
    fn sequence<'run>(
        &'run self,
        run: &'run Arc<Run>,
        nodes: &'run [Node],
        prefix: String,
        input: Bytes,
    ) -> BoxFuture<'run, Result<Bytes, Failure>> {
        async move {
            let mut output = input;
            for (place, node) in nodes.iter().enumerate() {
                let path = format!("{prefix}{place}");
                output = self.execute_node(run, node, path, output).await?;
            }
            Ok(output)
        }
        .boxed()
    }

    async fn execute_node(
        &self,
        run: &Arc<Run>,
        node: &Node,
        path: String,
        input: Bytes,
    ) -> Result<Bytes, Failure> {
        let invalid = |why: String| Failure::new(&path, "Workflow.InvalidInput", &why);
        match node {
            Node::Function(function) => {
                self.step(run, &plain_step(function), path, input, None)
                    .await
            }
            Node::Step(step) => self.step(run, step, path, input, None).await,
            Node::Parallel(Parallel { parallel }) => {
                let branches = parallel.iter().enumerate().map(|(branch, nodes)| {
                    self.sequence(run, nodes, format!("{path}.{branch}."), input.clone())
                });
                list(run, &path, &try_join_all(branches).await?)
            }
            Node::Map(Map { map, concurrency }) => {
                let elements = elements(&input).map_err(invalid)?.into_iter();
                let each = elements.enumerate().map(|(place, element)| {
                    let element = Bytes::from(element.get().to_owned());
                    self.sequence(run, map, format!("{path}.{place}."), element)
                });
                let outputs = stream::iter(each).buffered(*concurrency);
                list(run, &path, &outputs.try_collect::<Vec<_>>().await?)
            }
            Node::Choice(Choice { choice, otherwise }) => {
                let (branch, nodes) = match chosen(choice, &input).map_err(invalid)? {
                    Some(branch) => (branch, &choice[branch].steps),
                    None => (choice.len(), otherwise),
                };
                self.sequence(run, nodes, format!("{path}.{branch}."), input)
                    .await
            }
        }
    }
}

/// The JSON list of outputs. Errors: it is too long.
fn list(run: &Run, path: &str, outputs: &[Bytes]) -> Result<Bytes, Failure> {
    // We check before we build the list: each of many outputs may have the maximum length.
    let bytes = outputs.iter().map(|output| output.len().max(4) + 1).sum();
    run.check_length(path, bytes)?;
    Ok(listed(outputs))
}
