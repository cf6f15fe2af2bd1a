//! Workflows and invocations: their latency and their rate per second, near and over a distant
//! store.
//!
//! The distant store is a real Redis behind [`distant`], which delays responses. The functions are
//! real processes: Python ones, and `bench-function`, which speaks the Runtime API over one
//! connection. Only [`single_function`] runs in this process.

pub mod application;
pub mod chart;
pub mod distant;
pub mod exchange;
pub mod report;
pub mod restate;
pub mod runs;
pub mod runtime;
pub mod single_function;
