//! Functions as processes of this machine, and what stands between the two of us, on the machine as it is.

// Why: it looks at real processes, in real time.
#![allow(clippy::disallowed_methods, clippy::print_stderr)]

mod allocations;
mod archives;
mod calls;
mod contract;
mod failed;
mod kept;
mod peers;
mod processes;
mod retired;
mod runtime_api;
mod spares;
mod starts;
mod world;
