//! What a manifest says of a workflow: a chain or graph of functions, or one function whose code is the workflow.
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
//! isolation = "serializable"                                    # of that; "read-atomic", if absent
//! ```

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Number;

use super::{TIMEOUT_S, Table, check_name, within};

/// Steps of one workflow, those of branches included.
const STEPS_MAX: usize = 1000;
/// How deep branches lie in branches.
const DEPTH_MAX: usize = 16;
const RETRIES_MAX: u32 = 100;
const BACKOFF_MS: std::ops::RangeInclusive<u64> = 1..=60_000;
const CONCURRENCY: std::ops::RangeInclusive<usize> = 1..=1000;
const CONCURRENCY_DEFAULT: usize = 16;
/// The longest address of a far store.
const FAR_BYTES_MAX: usize = 512;
/// How deep lists and tables lie in what a condition compares with.
const EQUALS_DEPTH_MAX: usize = 8;
const RUN_TIMEOUT_S: std::ops::RangeInclusive<u64> = 1..=6 * 24 * 3600;

/// A workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workflow {
    /// What is done, one after the other.
    #[serde(default)]
    pub steps: Vec<Node>,
    /// The function whose code is the workflow, in place of steps.
    pub function: Option<String>,
    /// The far store; none: what is near is all.
    pub far: Option<String>,
    /// When a write returns.
    #[serde(default)]
    pub synchrony: Synchrony,
    /// Whether a run is one transaction.
    #[serde(default)]
    pub atomic: bool,
    /// What that is kept apart from.
    #[serde(default)]
    pub isolation: Isolation,
    /// What a run may take, in seconds.
    #[serde(default = "timeout_s")]
    pub timeout_s: u64,
}

/// Where the far store at `address` is, to be shown and compared: however it is written, and without what is for that store alone, such
/// as a password.
pub fn place_of(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("redis", address));
    // With or without TLS it is the same store.
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

/// When a write of a workflow with a far store returns; the later, the stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Synchrony {
    /// Once it is ordered near.
    #[default]
    External,
    /// The same, with one far write under way, as in the paper.
    Serial,
    /// Once it is durable far.
    Sync,
}

/// What an entry of `steps` is.
const SHAPES: &str = "\"FUNCTION\", { function = NAME } with retries, backoff_ms, timeout_s, { parallel = [[STEPS], ...] }, \
                      { map = [STEPS] } with concurrency, or { choice = [{ when, steps }, ...] } with otherwise";

/// What an atomic run is kept apart from; as that of transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// It reads nothing uncommitted and nothing fractured; of two that write the same key the later one's value stays.
    #[default]
    ReadAtomic,
    /// As if it had run alone: one that has read what another has written since is made anew.
    Serializable,
}

/// Something that a workflow does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Node {
    /// A function, by its name alone.
    Function(String),
    /// A function.
    Step(Step),
    /// Branches at the same time.
    Parallel(Parallel),
    /// The same for each element of a list.
    Map(Map),
    /// One of several.
    Choice(Choice),
}

/// By hand, since what is derived for an untagged enum says of everything that no variant matches.
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

/// An entry of `steps` that is a table, whichever.
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
    choice: Option<Vec<Branch>>,
    otherwise: Option<Vec<Node>>,
}

impl Entry {
    /// What it is; none: of two kinds, or of none.
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
                choice,
                otherwise: otherwise.unwrap_or_default(),
            })),
            _ => None,
        }
    }
}

/// A function as a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Which.
    pub function: String,
    /// Further attempts; none: as many as the function says.
    pub retries: Option<u32>,
    /// The wait before the second attempt; it doubles with each further one.
    pub backoff_ms: Option<u64>,
    /// What an attempt may take: no longer than its function may.
    pub timeout_s: Option<u64>,
}

/// Branches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Parallel {
    /// Each is given the input; the output is the list of theirs.
    pub parallel: Vec<Vec<Node>>,
}

/// The same for each element.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Map {
    /// What is done with each.
    pub map: Vec<Node>,
    /// With how many at a time.
    pub concurrency: usize,
}

/// One of several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// The first whose condition holds.
    pub choice: Vec<Branch>,
    /// If none does.
    pub otherwise: Vec<Node>,
}

/// A branch with its condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// What holds of the input.
    pub when: When,
    /// What is done then.
    pub steps: Vec<Node>,
}

/// What may hold of an input: all that is said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// Members and places, with dots between them; empty: the input itself.
    #[serde(default)]
    pub path: String,
    /// What is there is this; numbers are compared by their values, so that 1 is 1.0.
    pub equals: Option<serde_json::Value>,
    /// What is there is a number below this.
    pub below: Option<Number>,
    /// What is there is a number above this.
    pub above: Option<Number>,
    /// Whether anything is there.
    pub exists: Option<bool>,
}

impl When {
    /// Errors: it asks for nothing, or for what cannot be all at once.
    fn check_meaning(&self) -> Result<(), String> {
        let Self {
            path,
            equals,
            below,
            above,
            exists,
        } = self;
        if equals.is_none() && below.is_none() && above.is_none() && exists.is_none() {
            return Err(format!(
                "choice: when {{ path = {path:?} }} asks for nothing there: add equals, below, above or exists"
            ));
        }
        let never = |why: String| {
            Err(format!(
                "choice: when {{ path = {path:?} }} never holds, as {why}: mend it"
            ))
        };
        let asks_for_a_value = equals.is_some() || below.is_some() || above.is_some();
        if *exists == Some(false) && path.split('.').all(str::is_empty) {
            return never("the input is always there (exists = false)".to_owned());
        }
        if *exists == Some(false) && asks_for_a_value {
            return never("what is not there has no value (exists = false)".to_owned());
        }
        if let (Some(above), Some(below)) = (above, below)
            && above.as_f64() >= below.as_f64()
        {
            return never(format!("no number is above {above} and below {below}"));
        }
        let Some(equals) = equals else { return Ok(()) };
        if !equals.is_number() && (below.is_some() || above.is_some()) {
            return never(format!(
                "{equals} is no number, which below and above ask for"
            ));
        }
        let (number, above, below) = (
            equals.as_f64(),
            above.as_ref().and_then(Number::as_f64),
            below.as_ref().and_then(Number::as_f64),
        );
        if above.is_some_and(|above| number <= Some(above))
            || below.is_some_and(|below| number >= Some(below))
        {
            return never(format!("{equals} lies outside of above and below"));
        }
        Ok(())
    }
}

fn timeout_s() -> u64 {
    24 * 3600
}

impl Workflow {
    /// What a run may take.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s)
    }

    /// The functions that it names.
    pub fn functions(&self) -> Vec<&str> {
        let mut named: Vec<&str> = self.function.as_deref().into_iter().collect();
        visit(&self.steps, &mut |node| match node {
            Node::Function(function) | Node::Step(Step { function, .. }) => named.push(function),
            _ => {}
        });
        named
    }

    /// Errors: what cannot be meant. Only for what is deployed anew: what an earlier build took goes on as it did.
    pub(crate) fn check_anew(&self, functions: &BTreeMap<String, Table>) -> Result<(), String> {
        if self.synchrony != Synchrony::default() && self.far.is_none() {
            return Err(
                "synchrony is for a workflow with a far store: say which with far, or leave it out"
                    .to_owned(),
            );
        }
        check_meaning(&self.steps)?;
        self.check_timeouts(functions)
    }

    /// Errors: a step may take longer than its function, which would end it.
    fn check_timeouts(&self, functions: &BTreeMap<String, Table>) -> Result<(), String> {
        let mut checked = Ok(());
        visit(&self.steps, &mut |node| {
            let Node::Step(Step {
                function,
                timeout_s: Some(asked),
                ..
            }) = node
            else {
                return;
            };
            let most = functions
                .get(function)
                .map_or(u64::MAX, |table| table.timeout_s);
            if *asked > most {
                checked = Err(format!(
                    "a step has timeout_s = {asked}, and functions.{function} ends after {most} s: raise timeout_s there"
                ));
            }
        });
        checked
    }

    pub(super) fn check(&self, name: &str) -> Result<(), String> {
        check_name("a workflow", name)?;
        match (&self.function, self.steps.is_empty()) {
            (None, true) => return Err("it has no steps, nor a function".to_owned()),
            (Some(_), false) => return Err("it has steps or a function, not both".to_owned()),
            _ => {}
        }
        within("timeout_s", &self.timeout_s, &RUN_TIMEOUT_S)?;
        check_nodes(&self.steps, 1)?;
        let count = self.functions().len();
        if count > STEPS_MAX {
            return Err(format!(
                "it has {count} steps, and {STEPS_MAX} are the most"
            ));
        }
        for function in self.functions() {
            check_name("a function", function)?;
        }
        if self
            .far
            .as_ref()
            .is_some_and(|far| far.len() > FAR_BYTES_MAX || far.contains(char::is_control))
        {
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
        Ok(())
    }
}

/// Shows every step, those of branches included.
fn visit<'nodes>(nodes: &'nodes [Node], see: &mut impl FnMut(&'nodes Node)) {
    for node in nodes {
        match node {
            Node::Function(_) | Node::Step(_) => see(node),
            Node::Parallel(Parallel { parallel }) => {
                parallel.iter().for_each(|branch| visit(branch, see))
            }
            Node::Map(Map { map, .. }) => visit(map, see),
            Node::Choice(Choice { choice, otherwise }) => {
                for branch in choice {
                    visit(&branch.steps, see);
                }
                visit(otherwise, see);
            }
        }
    }
}

fn check_nodes(nodes: &[Node], depth: usize) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("branches lie {DEPTH_MAX} deep at most"));
    }
    for node in nodes {
        match node {
            Node::Function(_) => {}
            Node::Step(step) => {
                within("retries", &step.retries.unwrap_or(0), &(0..=RETRIES_MAX))?;
                within("backoff_ms", &step.backoff_ms.unwrap_or(1), &BACKOFF_MS)?;
                within("timeout_s", &step.timeout_s.unwrap_or(1), &TIMEOUT_S)?;
            }
            Node::Parallel(Parallel { parallel }) => {
                if parallel.is_empty() {
                    return Err("parallel has no branches".to_owned());
                }
                parallel
                    .iter()
                    .try_for_each(|branch| check_nodes(branch, depth + 1))?;
            }
            Node::Map(Map { map, concurrency }) => {
                within("concurrency", concurrency, &CONCURRENCY)?;
                check_nodes(map, depth + 1)?;
            }
            Node::Choice(Choice { choice, otherwise }) => {
                for branch in choice {
                    if let Some(equals) = &branch.when.equals {
                        check_equals(equals, 1)?;
                    }
                    check_nodes(&branch.steps, depth + 1)?;
                }
                check_nodes(otherwise, depth + 1)?;
            }
        }
    }
    Ok(())
}

/// Errors: an entry that does nothing, or a condition of nothing.
fn check_meaning(nodes: &[Node]) -> Result<(), String> {
    for node in nodes {
        match node {
            Node::Function(_) | Node::Step(_) => {}
            Node::Parallel(Parallel { parallel }) => {
                if parallel.iter().all(Vec::is_empty) {
                    return Err("parallel: no branch has a step".to_owned());
                }
                parallel
                    .iter()
                    .try_for_each(|branch| check_meaning(branch))?;
            }
            Node::Map(Map { map, .. }) => {
                if map.is_empty() {
                    return Err("map has no steps".to_owned());
                }
                check_meaning(map)?;
            }
            Node::Choice(Choice { choice, otherwise }) => {
                if choice.is_empty() {
                    return Err("choice has no branches".to_owned());
                }
                for Branch { when, steps } in choice {
                    when.check_meaning()?;
                    check_meaning(steps)?;
                }
                check_meaning(otherwise)?;
            }
        }
    }
    Ok(())
}

/// A run keeps its workflow in JSON, and reads it back: what JSON has no word for would be something else then.
fn check_equals(equals: &serde_json::Value, depth: usize) -> Result<(), String> {
    use serde_json::Value;
    if depth > EQUALS_DEPTH_MAX {
        return Err(format!("equals is {EQUALS_DEPTH_MAX} deep at most"));
    }
    match equals {
        Value::Null => Err("equals: nan and infinity are no JSON".to_owned()),
        Value::Array(elements) => elements
            .iter()
            .try_for_each(|element| check_equals(element, depth + 1)),
        Value::Object(members) if members.keys().any(|name| name.starts_with("$__")) => {
            Err("equals: a date is no JSON, but a string with one is".to_owned())
        }
        Value::Object(members) => members
            .values()
            .try_for_each(|member| check_equals(member, depth + 1)),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn what_is_wrong_with_a_graph_is_named() {
        for (workflow, said) in [
            ("", "no steps"),
            ("steps = [\"f\"]\nfunction = \"f\"", "not both"),
            ("steps = [{ parallel = [] }]", "no branches"),
            (
                "steps = [{ map = [\"f\"], concurrency = 0 }]",
                "concurrency = 0 is to be 1 to 1000",
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
        ] {
            assert!(
                refusal(workflow).contains(said),
                "{workflow}: {}",
                refusal(workflow)
            );
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_to_who_deploys_it() {
        let never = |when: &str| {
            format!("steps = [{{ choice = [{{ when = {{ {when} }}, steps = [] }}] }}]")
        };
        for (workflow, said) in [
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
            (
                &never("above = 5, below = 3"),
                "never holds, as no number is above 5 and below 3",
            ),
            (
                &never("above = 4.5, below = 4.5"),
                "no number is above 4.5 and below 4.5",
            ),
            (
                &never("equals = 5, below = 5"),
                "5 lies outside of above and below",
            ),
            (&never("equals = 5, above = 5.5"), "5 lies outside"),
            (
                &never("equals = \"video\", above = 1"),
                "\"video\" is no number",
            ),
            (
                &never("path = \"a\", exists = false, equals = 1"),
                "what is not there has no value",
            ),
            (
                &never("path = \"a\", exists = false, below = 1"),
                "what is not there has no value",
            ),
            (
                &never("path = \"\", exists = false"),
                "the input is always there",
            ),
            (&never("path = \"a\", exists = false"), ""),
            (
                &never("exists = true, equals = 4, above = 3.5, below = 4.5"),
                "",
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
        ] {
            // What an earlier build took is read as before.
            let manifest = parsed(workflow).expect(workflow);
            let refusal = manifest.workflows["w"]
                .check_anew(&manifest.functions)
                .err()
                .unwrap_or_default();
            assert!(
                refusal.contains(said) && refusal.is_empty() == said.is_empty(),
                "{workflow}: {refusal}"
            );
        }
    }
}
