//! Workflows: chains and graphs of functions whose state, sends and output take effect once.
//!
//! ```text
//!  run begun ──▶ step: its writes stay in an overlay ──▶ one record: writes, sends, result ──▶ next step ──▶ ... ──▶ end
//!                      │ it fails, times out, dies:            (ordered, not yet durable)
//!                      │ the overlay is dropped, and it is retried         responses to callers wait until it is durable
//! ```
//!
//! Promises
//! - **W1** A run has an id, and begins once under it. A repeated begin with an equal input finds the
//!   run; one with another input is refused.
//! - **W2** A step's code may run more than once. Its writes, its sends and its result take effect
//!   once, together (rule W-1). Until then its writes are visible to that attempt alone. Code that
//!   calls steps, and continues after the failure of one, is told of the same failure whenever it
//!   runs again.
//! - **W3** Nothing becomes visible outside before its dependencies are durable. This covers a run's
//!   output or error, an invocation outside the run, a message, and all that follows
//!   [`Service::externalize`].
//! - **W4** A run that has begun continues after a death at any moment, from its last committed step,
//!   and ends once.
//! - **W5** An atomic run is one transaction. When it ends, all writes of its steps take effect, or
//!   none. No other effect of its code takes place before.
//! - **W6** A cancelled run does nothing more. The writes of its earlier steps stay.
//! - **W7** A request of a step's code after the end of its attempt is refused.
//! - **W8** A run is kept for a week after its end, and at most [`Options::finished_max`] ended runs
//!   of a workflow are kept.
//! - **W9** An attempt of a step that fails because its far store is away uses up no retry.
//! - **W10** An atomic run that asks for it is strictly serializable by the keys that it gets and
//!   writes: as if it had run alone.
//!
//! Not promised: isolation between other runs that use the same keys. A read sees the latest committed
//! value. For more, use a serializable transaction, or a serializable atomic run.
//!
//! Where to read
//!
//! | module | part |
//! | --- | --- |
//! | `storage` | rows near and in a far store, how a step commits, the outbox |
//! | `placement` | which store has a run; the shards of far stores |
//! | `run`, `steps` | one active run; attempts of its steps |
//! | `executor`, `graph` | how a run walks its graph, and tries its steps |
//! | `scheduler` | how runs begin, resume, move between processes, end and are forgotten |
//! | `service` | requests of callers, and of the code of steps |
//!
//! `docs/design/0005-workflows.md` describes the state after a death at each point.
//!
//! From `external-synchrony.txt`, chapters 3 and 4. Unlike the paper, runs are stored, steps are
//! retried over overlays, and several far writes are under way.

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
mod run;
mod runner;
mod same_json;
mod scheduler;
mod service;
mod steps;
mod storage;

pub use broken::Broken;
pub use error::{Error, Result};
pub use figures::Figures;
pub use options::Options;
pub use placement::{FarStore, FarStores};
pub use runner::Runner;
pub use service::{Parts, RunView, Service, StepStart, StepToken, StepView};
pub use storage::{RESERVED_NAMES, Status, StepResult};
