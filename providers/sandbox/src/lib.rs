//! Functions as isolated processes of this machine, behind the AWS Lambda Runtime API.
//!
//! It provides the ports [`Runtime`](ports::Runtime), [`CodeStore`](ports::CodeStore),
//! [`Logs`](ports::Logs) and [`Instances`](ports::Instances) for users whose functions run on the
//! server's machine.
//!
//! ```text
//!  runtime     the runtime port: a pool for each function
//!  pool        the instances of a function: warm ones are reused, idle ones are frozen, then ended
//!  function    an instance of a function: its process, its [invocation_channel], the [runtime_api]
//!              that it sees, its [output]; and [prewarmed] interpreters
//!  instances   the instances port: any program as a process, with channels and shared memory
//!  guest       the inside of an instance, for programs in Rust
//!  process     a process: launch, limits, freezing, and the end of everything it has started
//!  launcher    the other side of a launch: this program, started again, isolates itself
//!  order       the order from the server to a launcher
//!  code_store  the code store port: unpacked archives
//!  logs        the logs port: the lines that functions print
//! ```
//!
//! A frozen instance costs its memory and nothing else: no timer, no thread, no polling. A deployed
//! function without instances costs nothing.
//!
//! From `faaskeeper.txt`, section 2.2, and the Runtime API as AWS documents it.

#![allow(
    clippy::disallowed_methods,
    reason = "processes, clocks and threads live in providers"
)]

mod code_store;
mod figures;
mod function;
pub mod fuzzing;
mod guest;
mod handler_files;
mod instances;
pub mod launcher;
mod logs;
mod machine;
mod order;
mod pool;
pub mod process;
mod runtime;
mod system;

pub use function::{
    request_body::Incoming,
    runtime_api::{Api, Reply},
};
pub use guest::channels_of_instance;
pub use handler_files::{HandlerFiles, handler_files};
pub use runtime::{Config, Sandbox, SharedFiles};
