//! Functions as processes of this machine, with the isolation that it offers.

// Why: it polls real processes, in real time.
#![allow(clippy::disallowed_methods, clippy::print_stderr)]

mod allocations;
mod archives;
mod calls;
mod contract;
mod ends_after_answer;
mod failed;
mod peers;
mod processes;
mod reserved;
mod retired;
mod runtime_api;
mod spares;
mod starts;
mod volumes;
mod world;
