//! A workflow in a manifest: a chain or graph of functions, or one function whose code is the
//! workflow.
//!
//! ```toml
//! [workflows.grading]
//! steps = [
//!   "grader",                                                   # a function; its output is the next step's input
//!   { function = "grades", retries = 5, backoff_ms = 100, timeout_s = 10 },
//!   { parallel = [["report"], ["notify", "archive"]] },         # branches; the output is the list of theirs
//!   { map = ["resize"], concurrency = 4 },                      # once for each element of the input, which is a list
//!   { choice = [{ when = { path = "kind", equals = "video" }, steps = ["transcode"] }], otherwise = [] },
//! ]
//! atomic = true                                                 # the whole run as one transaction
//! isolation = "serializable"                                    # of that transaction; default: "read-atomic"
//! ```

mod condition;

use std::{collections::BTreeMap, fmt, time::Duration};

pub use self::condition::When;
use super::{OnlyTable, TIMEOUT_S, Table, check_name, table, within, word};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor, value::MapAccessDeserializer},
};

/// The most steps of a workflow, including those of branches.
const STEPS_MAX: usize = 1000;
const DEPTH_MAX: usize = 16;
const RETRIES_MAX: u32 = 100;
const BACKOFF_MS: std::ops::RangeInclusive<u64> = 1..=60_000;
const CONCURRENCY: std::ops::RangeInclusive<usize> = 1..=1000;
const CONCURRENCY_DEFAULT: usize = 16;
const FAR_BYTES_MAX: usize = 512;
const RUN_TIMEOUT_S: std::ops::RangeInclusive<u64> = 1..=6 * 24 * 3600;

/// A workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workflow {
    /// The steps, in order.
    #[serde(default)]
    pub steps: Vec<Node>,
    /// The function whose code is the workflow, in place of steps.
    pub function: Option<String>,
    /// The address of the far store; none: the near store alone.
    pub far: Option<String>,
    /// When a write returns.
    #[serde(default, deserialize_with = "word")]
    pub synchrony: Synchrony,
    /// Whether a run is one transaction.
    #[serde(default)]
    pub atomic: bool,
    /// The isolation of that transaction.
    #[serde(default, deserialize_with = "word")]
    pub isolation: Isolation,
    /// The timeout of a run, in seconds.
    #[serde(default = "timeout_s")]
    pub timeout_s: u64,
}

/// The location of the far store at `address`, for display and comparison: in one spelling, and
/// without parts that only that store needs, such as a password.
pub fn place_of(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("redis", address));
    // The same store, with or without TLS.
    let scheme = if scheme == "rediss" { "redis" } else { scheme };
    let rest = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    let rest = rest.trim_end_matches('/').trim_end_matches("/0");
    let has_port = rest
        .split(['/', '?'])
        .next()
        .is_some_and(|host| host.contains(':'));
    let port = if has_port || rest.contains(['/', '?']) {
        ""
    } else {
        ":6379"
    };
    format!("{scheme}://{}{port}", rest.to_ascii_lowercase())
}

/// When a write of a workflow with a far store returns, from the earliest to the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Synchrony {
    /// Once the near store has ordered it.
    #[default]
    External,
    /// The same, with one far write in flight, as in the paper.
    Serial,
    /// Once it is durable in the far store.
    Sync,
}

/// The forms of an entry of `steps`.
const SHAPES: &str = "\"FUNCTION\", { function = NAME } with retries, backoff_ms, timeout_s, { parallel = [[STEPS], ...] }, \
                      { map = [STEPS] } with concurrency, or { choice = [{ when, steps }, ...] } with otherwise";

/// The isolation of an atomic run, as for transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// It reads no uncommitted and no fractured state. Of two runs that write the same key, the
    /// later value stays.
    #[default]
    ReadAtomic,
    /// As if it ran alone: a run that has read a value which another run then wrote is repeated.
    Serializable,
}

/// An entry of `steps`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Node {
    /// A function, by name.
    Function(String),
    /// A function with options.
    Step(Step),
    /// Concurrent branches.
    Parallel(Parallel),
    /// The same steps for each element of a list.
    Map(Map),
    /// One of several branches.
    Choice(Choice),
}

/// Hand-written, because the error of a derived untagged enum only says that no variant matched.
impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(SHAPES)
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Node, E> {
        Ok(Node::Function(name.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Node, A::Error> {
        let entry = Entry::deserialize(MapAccessDeserializer::new(members))?;
        entry
            .node()
            .ok_or_else(|| A::Error::custom(format!("an entry of steps is {SHAPES}")))
    }
}

/// An entry of `steps` that is a table, of any form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    function: Option<String>,
    retries: Option<u32>,
    backoff_ms: Option<u64>,
    timeout_s: Option<u64>,
    parallel: Option<Vec<Vec<Node>>>,
    map: Option<Vec<Node>>,
    concurrency: Option<usize>,
    choice: Option<Vec<OnlyTable<Branch>>>,
    otherwise: Option<Vec<Node>>,
}

impl Entry {
    /// The entry; none: it mixes two forms, or has none.
    fn node(self) -> Option<Node> {
        let Self {
            function,
            retries,
            backoff_ms,
            timeout_s,
            parallel,
            map,
            concurrency,
            choice,
            otherwise,
        } = self;
        let is_retried = retries.is_some() || backoff_ms.is_some() || timeout_s.is_some();
        match (
            function,
            parallel,
            map,
            choice,
            (is_retried, &concurrency, &otherwise),
        ) {
            (Some(function), None, None, None, (_, None, None)) => Some(Node::Step(Step {
                function,
                retries,
                backoff_ms,
                timeout_s,
            })),
            (None, Some(parallel), None, None, (false, None, None)) => {
                Some(Node::Parallel(Parallel { parallel }))
            }
            (None, None, Some(map), None, (false, _, None)) => Some(Node::Map(Map {
                map,
                concurrency: concurrency.unwrap_or(CONCURRENCY_DEFAULT),
            })),
            (None, None, None, Some(choice), (false, None, _)) => Some(Node::Choice(Choice {
                choice: choice.into_iter().map(|OnlyTable(branch)| branch).collect(),
                otherwise: otherwise.unwrap_or_default(),
            })),
            _ => None,
        }
    }
}

/// A function as a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The function.
    pub function: String,
    /// Further attempts; default: the function's `retries`.
    pub retries: Option<u32>,
    /// The wait before the second attempt. It doubles with each further one.
    pub backoff_ms: Option<u64>,
    /// The timeout of an attempt, at most the function's own.
    pub timeout_s: Option<u64>,
}

/// Concurrent branches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Parallel {
    /// Each branch gets the input. The output is the list of their outputs.
    pub parallel: Vec<Vec<Node>>,
}

/// The same steps for each element.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Map {
    /// The steps for each element.
    pub map: Vec<Node>,
    /// The most elements at a time.
    pub concurrency: usize,
}

/// One of several branches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// The branches. The first one whose condition holds runs.
    pub choice: Vec<Branch>,
    /// The steps if no condition holds.
    pub otherwise: Vec<Node>,
}

/// A branch with its condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// The condition on the input.
    #[serde(deserialize_with = "table")]
    pub when: When,
    /// The steps.
    pub steps: Vec<Node>,
}

fn timeout_s() -> u64 {
    24 * 3600
}

impl Workflow {
    /// The timeout of a run.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s)
    }

    /// The functions of its steps.
    pub fn functions(&self) -> Vec<&str> {
        let mut named: Vec<&str> = self.function.as_deref().into_iter().collect();
        visit(&self.steps, &mut |node| match node {
            Node::Function(function) | Node::Step(Step { function, .. }) => named.push(function),
            _ => {}
        });
        named
    }

    pub(super) fn check(
        &self,
        name: &str,
        functions: &BTreeMap<String, Table>,
    ) -> Result<(), String> {
        check_name("a workflow", name)?;
        match (&self.function, self.steps.is_empty()) {
            (None, true) => return Err("it has no steps, nor a function".to_owned()),
            (Some(_), false) => return Err("it has steps or a function, not both".to_owned()),
            _ => {}
        }
        within("timeout_s", &self.timeout_s, &RUN_TIMEOUT_S)?;
        check_nodes(&self.steps, 1)?;
        let named = self.functions();
        if named.len() > STEPS_MAX {
            let count = named.len();
            return Err(format!(
                "it has {count} steps, and {STEPS_MAX} are the most"
            ));
        }
        for function in named {
            check_name("a function", function)?;
            if !functions.contains_key(function) {
                return Err(format!("{function:?} is no function of the application"));
            }
        }
        let is_wrong = |far: &String| far.len() > FAR_BYTES_MAX || far.contains(char::is_control);
        if self.far.as_ref().is_some_and(is_wrong) {
            return Err(format!(
                "far has {FAR_BYTES_MAX} bytes at most, and no control characters"
            ));
        }
        if self.atomic && self.far.is_some() {
            return Err("atomic is for workflows without a far store".to_owned());
        }
        if self.isolation != Isolation::default() && !self.atomic {
            return Err("isolation is for a workflow with atomic = true".to_owned());
        }
        if self.synchrony != Synchrony::default() && self.far.is_none() {
            return Err(
                "synchrony is for a workflow with a far store: say which with far, or leave it out"
                    .to_owned(),
            );
        }
        self.check_timeouts(functions)
    }

    /// Errors: a step has a longer timeout than its function, which would end it first.
    fn check_timeouts(&self, functions: &BTreeMap<String, Table>) -> Result<(), String> {
        let mut checked = Ok(());
        visit(&self.steps, &mut |node| {
            let Node::Step(step) = node else { return };
            let (function, most) = (&step.function, functions[&step.function].timeout_s);
            if let Some(asked) = step.timeout_s.filter(|asked| *asked > most) {
                checked = Err(format!(
                    "a step has timeout_s = {asked}, and functions.{function} ends after {most} s: raise timeout_s there"
                ));
            }
        });
        checked
    }
}

impl Node {
    /// The lists of steps in it.
    fn branches(&self) -> Vec<&[Node]> {
        match self {
            Self::Function(_) | Self::Step(_) => Vec::new(),
            Self::Parallel(Parallel { parallel }) => parallel.iter().map(Vec::as_slice).collect(),
            Self::Map(Map { map, .. }) => vec![map],
            Self::Choice(Choice { choice, otherwise }) => {
                let branches = choice.iter().map(|branch| &*branch.steps);
                branches.chain([&**otherwise]).collect()
            }
        }
    }

    /// Errors: a value that it may not have, an entry without effect, or an empty condition.
    fn check(&self) -> Result<(), String> {
        let wrong = |why: &str| Err(why.to_owned());
        match self {
            Self::Step(step) => {
                within("retries", &step.retries.unwrap_or(0), &(0..=RETRIES_MAX))?;
                within("backoff_ms", &step.backoff_ms.unwrap_or(1), &BACKOFF_MS)?;
                within("timeout_s", &step.timeout_s.unwrap_or(1), &TIMEOUT_S)
            }
            Self::Parallel(Parallel { parallel }) if parallel.is_empty() => {
                wrong("parallel has no branches")
            }
            Self::Parallel(Parallel { parallel }) if parallel.iter().all(Vec::is_empty) => {
                wrong("parallel: no branch has a step")
            }
            Self::Function(_) | Self::Parallel(_) => Ok(()),
            Self::Map(Map { map, .. }) if map.is_empty() => wrong("map has no steps"),
            Self::Map(Map { concurrency, .. }) => within("concurrency", concurrency, &CONCURRENCY),
            Self::Choice(Choice { choice, .. }) if choice.is_empty() => {
                wrong("choice has no branches")
            }
            Self::Choice(Choice { choice, .. }) => {
                choice.iter().try_for_each(|branch| branch.when.check())
            }
        }
    }
}

/// Calls `see` with every node, including those of branches.
fn visit<'nodes>(nodes: &'nodes [Node], see: &mut impl FnMut(&'nodes Node)) {
    for node in nodes {
        see(node);
        for branch in node.branches() {
            visit(branch, see);
        }
    }
}

fn check_nodes(nodes: &[Node], depth: usize) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("branches lie {DEPTH_MAX} deep at most"));
    }
    for node in nodes {
        node.check()?;
        for branch in node.branches() {
            check_nodes(branch, depth + 1)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
