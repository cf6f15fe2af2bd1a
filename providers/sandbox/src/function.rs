//! An instance of a function: a process, the Runtime API that it sees, and its output.

pub(crate) mod bundled_clients;
pub(crate) mod command;
pub(crate) mod failure;
pub(crate) mod hint;
pub(crate) mod instance;
pub(crate) mod interpreters;
pub(crate) mod invocation_channel;
mod output;
pub(crate) mod prewarmed;
pub(crate) mod request_body;
pub(crate) mod runtime_api;
mod short_reads;
