//! Functions as isolated processes of this machine, behind the AWS Lambda Runtime API.
//!
//! It is the [`Runtime`](ports::Runtime) port for those who run their functions where Landfast runs.
//!
//! ```text
//!  sandbox    the port: a pool for each function
//!  pool       its instances: warm ones are taken again, frozen when idle, ended when idle for long
//!  instance   a process, what passes between it and us ([exchange], [runtime_api], [peers]), what it prints ([output], [logs])
//!  spares     processes that have come as far as an instance comes without a function
//!  process    the process itself: namespaces, limits, freezing, and the end of all it has started ([launcher])
//! ```
//!
//! An instance that is frozen and waits costs its memory and nothing else: no timer, no thread, no look now and then. A
//! deployed function without instances costs nothing.
//!
//! From `faaskeeper.txt`, section 2.2, and the Runtime API as AWS documents it.

#![allow(
    clippy::disallowed_methods,
    reason = "processes, clocks and threads live in providers"
)]

mod archives;
mod asking;
mod command;
pub mod edges;
mod exchange;
mod failure;
mod instance;
pub mod launcher;
mod logs;
mod output;
mod peers;
mod pool;
pub mod process;
mod processes;
mod receiving;
mod runtime_api;
mod sandbox;
mod spares;
mod system;
mod tally;

pub use receiving::Incoming;
pub use runtime_api::{Api, Reply};
pub use sandbox::{Config, Sandbox};
