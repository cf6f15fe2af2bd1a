//! What this process gives whatever keeps its state: functions run in place, the system's clock and randomness.
//!
//! Stores and queues differ; who runs the code beside them does not. So the Functions port is here once, over
//! any [`Queue`](ports::Queue), and the program puts it beside the provider that the user chose.

#![allow(
    clippy::disallowed_methods,
    reason = "clocks, tasks and the system's randomness live in providers"
)]

mod clock;
mod entropy;
mod functions;

pub use clock::SystemClock;
pub use entropy::SystemEntropy;
pub use functions::Functions;
