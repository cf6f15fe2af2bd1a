//! Names of runs and steps.

use transactions::model::NodeId;

pub(crate) type RunKey = (String, String);

#[derive(Debug, Clone, Copy)]
pub(crate) struct StepAddress<'a> {
    pub(crate) workflow: &'a str,
    pub(crate) run: &'a str,
    pub(crate) began_ms: u64,
    /// The node that executes the run; none: this process shares its store with no other.
    pub(crate) driver: Option<NodeId>,
    /// The step's path; empty: the whole of an atomic run.
    pub(crate) path: &'a str,
}
