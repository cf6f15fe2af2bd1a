//! Invariants of the far store, read directly: at every moment it holds a causal prefix of every
//! run, and all dependencies of every output.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use ports::{Item, Key};
use simulated::World;
use synchrony::far_items;

use super::definitions::{COUNTS, FIRST, SECOND, STEPS};

/// The name of the range with that address.
const RANGE: Bytes = Bytes::from_static(b"landfast/redis://far:6379");
/// The status of a successful run in its row.
const SUCCEEDED: i64 = 1;

/// A fact that the far store must hold from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// A step took effect.
    Step {
        /// In this workflow,
        workflow: String,
        /// this run,
        run: String,
        /// and place.
        path: String,
    },
    /// A run has succeeded.
    Succeeded {
        /// Its workflow.
        workflow: String,
        /// The run.
        run: String,
    },
    /// A key of the functions' state has a value.
    State {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
}

impl Claim {
    /// The dependency of a message with the text `WORKFLOW RUN PATH ...`.
    pub fn of(message: &str) -> Option<Self> {
        let mut words = message.split(' ').map(str::to_owned);
        Some(Self::Step {
            workflow: words.next()?,
            run: words.next()?,
            path: words.next()?,
        })
    }
}

/// A far store at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Far(BTreeMap<Key, Arc<Item>>);

impl Far {
    /// One page holds everything, so it is consistent.
    pub async fn look(world: &World) -> Self {
        let items = far_items(&*world.key_value(), &RANGE)
            .await
            .expect("it is read directly");
        assert!(
            items.len() < 200,
            "{} items are more than a page",
            items.len()
        );
        Self(items.into_iter().collect())
    }

    /// The value of a key that functions have written.
    pub fn state(&self, key: &str) -> Option<String> {
        let item = self
            .0
            .get(&Key::new("s", Bytes::copy_from_slice(key.as_bytes())))?;
        Some(String::from_utf8_lossy(item.bytes("v")?).into_owned())
    }

    /// The places of the steps of a run that took effect.
    pub fn steps(&self, workflow: &str, run: &str) -> Vec<String> {
        let (partition, from) = (
            format!("w/{workflow}"),
            [b"j", run.as_bytes(), &[0]].concat(),
        );
        let rows = self
            .0
            .keys()
            .filter(|key| key.partition() == partition.as_bytes());
        let paths = rows.filter_map(|key| key.sort().strip_prefix(&from[..]).map(<[u8]>::to_vec));
        paths
            .map(|path| String::from_utf8_lossy(&path).into_owned())
            .collect()
    }

    /// The status of a run.
    pub fn status(&self, workflow: &str, run: &str) -> Option<i64> {
        let key = Key::new(format!("w/{workflow}"), format!("r{run}"));
        self.0.get(&key)?.integer("status")
    }

    /// The number of rows in the outbox.
    pub fn unsent(&self) -> usize {
        self.0
            .keys()
            .filter(|key| key.partition() == b"o".as_slice())
            .count()
    }

    /// What is missing for a claim.
    pub fn lacks(&self, claim: &Claim) -> Option<String> {
        let holds = match claim {
            Claim::Step {
                workflow,
                run,
                path,
            } => self.steps(workflow, run).contains(path),
            Claim::Succeeded { workflow, run } => self.status(workflow, run) == Some(SUCCEEDED),
            Claim::State { key, value } => self.state(key).as_ref() == Some(value),
        };
        (!holds).then(|| format!("{claim:?} is not far"))
    }

    /// Checks each run: its steps are a prefix of their order, and their reads are present.
    pub fn check(&self, runs: &[String]) -> Vec<String> {
        let mut wrong = Vec::new();
        for run in runs {
            let steps = self.steps(COUNTS, run);
            let counted = self
                .state(&format!("count/{run}"))
                .map_or(0, |count| count.parse().unwrap_or(0));
            let prefix: Vec<String> = (0..counted).map(|path| path.to_string()).collect();
            if steps != prefix {
                wrong.push(format!(
                    "prefix: {run} has counted {counted}, beside the steps {steps:?}"
                ));
            }
            if self.status(COUNTS, run) == Some(SUCCEEDED) && counted != STEPS {
                wrong.push(format!(
                    "prefix: {run} has ended, and counted {counted} of {STEPS}"
                ));
            }
            let heard = self.state(&format!("heard/{run}"));
            let told = self.state(&format!("told/{run}"));
            if heard.is_some() && heard != told {
                wrong.push(format!(
                    "cause: {run} received {heard:?}, but {told:?} was sent"
                ));
            }
            let (has_told, has_heard) = (self.steps(FIRST, run), self.steps(SECOND, run));
            if has_heard.is_empty() != heard.is_none() {
                wrong.push(format!(
                    "prefix: {run} received {heard:?}, beside the steps {has_heard:?}"
                ));
            }
            if !has_told.is_empty()
                && (told.is_none() || self.state(&format!("more/{run}")).is_none())
            {
                wrong.push(format!(
                    "prefix: {run} has the sending step, but not its message"
                ));
            }
        }
        wrong
    }
}
