//! What must hold of the far store at any moment, seen beside everybody: a causal prefix of every run, and all that anything which
//! was shown or let out rests on.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use ports::{Item, Key};
use simulated::World;
use synchrony::far_items;

use super::code::{COUNTS, FIRST, SECOND, STEPS};

/// The address of the far store.
pub const ADDRESS: &str = "far";
/// What a range is called whose address is that.
const RANGE: Bytes = Bytes::from_static(b"landfast/redis://far:6379");
/// What a run's row says of one that has succeeded.
const SUCCEEDED: i64 = 1;

/// Something that is far, and stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// A step counts.
    Step {
        /// Of this workflow,
        workflow: String,
        /// this run,
        run: String,
        /// and place.
        path: String,
    },
    /// A run has succeeded.
    Succeeded {
        /// Of this workflow.
        workflow: String,
        /// Which.
        run: String,
    },
    /// A key of functions' state has a value.
    State {
        /// Which.
        key: String,
        /// What.
        value: String,
    },
}

impl Claim {
    /// What a message rests on, which says `WORKFLOW RUN PATH ...`.
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
    /// One page has all of it, so nothing changes meanwhile.
    pub async fn look(world: &World) -> Self {
        let items = far_items(&*world.key_value(), &RANGE)
            .await
            .expect("it is read beside the weather");
        assert!(
            items.len() < 200,
            "{} items are more than a page",
            items.len()
        );
        Self(items.into_iter().collect())
    }

    /// What functions have written to a key.
    pub fn state(&self, key: &str) -> Option<String> {
        let item = self
            .0
            .get(&Key::new("s", Bytes::copy_from_slice(key.as_bytes())))?;
        Some(String::from_utf8_lossy(item.bytes("v")?).into_owned())
    }

    /// Where steps of a run stand that count.
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

    /// How far a run is.
    pub fn status(&self, workflow: &str, run: &str) -> Option<i64> {
        let key = Key::new(format!("w/{workflow}"), format!("r{run}"));
        self.0.get(&key)?.integer("status")
    }

    /// How many rows of the outbox there are.
    pub fn unsent(&self) -> usize {
        self.0
            .keys()
            .filter(|key| key.partition() == b"o".as_slice())
            .count()
    }

    /// What is missing of a claim.
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

    /// Of each run whatever its order and its reads ask for.
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
                    "cause: {run} has heard {heard:?}, and {told:?} is told"
                ));
            }
            let (has_told, has_heard) = (self.steps(FIRST, run), self.steps(SECOND, run));
            if has_heard.is_empty() != heard.is_none() {
                wrong.push(format!(
                    "prefix: {run} has heard {heard:?}, beside the steps {has_heard:?}"
                ));
            }
            if !has_told.is_empty()
                && (told.is_none() || self.state(&format!("more/{run}")).is_none())
            {
                wrong.push(format!(
                    "prefix: {run} has the step that tells, and not what it told"
                ));
            }
        }
        wrong
    }
}
