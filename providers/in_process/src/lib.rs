//! Functions run in this process over any queue, and the system's clock and randomness.
//!
//! Stores and queues differ between providers; the code that runs beside them does not. The
//! Functions port is therefore implemented once, over any [`Queue`](ports::Queue). The program
//! combines it with the chosen provider.

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
