//! Workflows: chains and graphs of functions whose state, sends and output count once.
//!
//! ```text
//!  run begun ──▶ step: its writes stay in an overlay ──▶ one record: writes, sends, result ──▶ next step ──▶ ... ──▶ end
//!                      │ fails, times out, dies: the overlay goes, and it is tried again         (ordered, not yet durable)
//!                                                                                    whoever asks waits until it is durable
//! ```
//!
//! Promises
//! - **W1** A run has an id, and is begun once under it; who begins it again finds it.
//! - **W2** A step's code may run more than once; its writes, its sends and its result count once, together (rule W-1). What an
//!   attempt wrote is read by that attempt alone until then. Code that calls steps, and goes on after the failure of one, is told of
//!   the same failure whenever it is run again.
//! - **W3** Nothing leaves before what it rests on is durable: not a run's output or error, nor an invocation outside the run, nor a
//!   message, nor what follows [`Service::externalize`].
//! - **W4** A run that was begun goes on after a death at any moment, from its last step that counts, and ends once.
//! - **W5** An atomic run is one transaction: what its steps wrote counts when it ends, all of it or nothing, and nothing else that
//!   its code asks for counts before.
//! - **W6** A run that was cancelled does nothing more; what its steps had written before stays.
//! - **W7** What a step's code asks for after its attempt has ended is refused.
//! - **W8** Runs are kept for a week after their end, and at most as many of a workflow as [`Options::finished_max`] says.
//! - **W9** An attempt of a step that ends for want of its far store uses up no retry.
//! - **W10** An atomic run that asks for it is as if it had run alone: strictly serializable by the keys that it gets and writes.
//!
//! Not promised: isolation between other runs that use the same keys. A read sees the last value that counts; who needs more uses a
//! serializable transaction, or a serializable atomic run.
//!
//! Reading order: `layout` and `records` (what is at rest), `store` and `commit` (how a step comes to count), `outbox` (what it sends in a range),
//! `overlay`, `run` (one run), `atomic`, `outage`, `graph`, `active` (who is at which run), `driver` (which process is), `homes`, `whereabouts`, `mark`, `range`, `service`, `shown` and `inside` (what callers and
//! functions are given). `docs/design/0005-workflows.md` says what a death between
//! two lines leaves.
//!
//! From `external-synchrony.txt`, chapters 3 and 4; ours has runs at rest, retries, overlays, and several far writes under way.

mod broken;
mod env;
mod error;
mod executor;
mod failure;
mod figures;
pub mod fuzz;
mod graph;
mod model;
mod options;
mod placement;
mod query;
mod run;
mod runner;
mod scheduler;
mod service;
mod step_api;
mod steps;
mod storage;

pub use broken::Broken;
pub use error::{Error, Result};
pub use figures::Figures;
pub use options::Options;
pub use placement::{FarStore, FarStores};
pub use query::{RunView, StepView};
pub use runner::Runner;
pub use service::{Parts, Service};
pub use step_api::{StepStart, StepToken};
pub use storage::{RESERVED_NAMES, Status, StepResult};
