//! What stands between a function and us, by itself.

mod allocations;
mod archives;
mod runtime_api;
