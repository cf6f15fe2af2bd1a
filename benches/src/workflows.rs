//! Workflows and invocations: how long they take, and how many there are in a second, near and over a distant store.
//!
//! The distant store is a real Redis behind [`distant`], which holds answers back. The functions are real processes:
//! Python ones, and `bench-function`, which speaks the Runtime API over one connection. [`single_function`] alone runs in this process.

pub mod application;
pub mod chart;
pub mod distant;
pub mod exchange;
pub mod report;
pub mod restate;
pub mod runs;
pub mod runtime;
pub mod single_function;
