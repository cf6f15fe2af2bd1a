//! `memory-function`: the program of an instance of function memory.
//!
//! The server starts it through the instances port. It holds no bytes of chunks itself: they are in
//! the region that the server shares with it.

use std::{env, process::ExitCode};

use anyhow::Context as _;
use memory::function::{Function, serve};

/// Serves until the server closes the control socket.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    const WHO: &str = "only the server starts this command";
    let function = Function::from_environment(|name| env::var(name).ok()).context(WHO)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("the runtime")?;
    runtime.block_on(async {
        let channels = sandbox::channels_of_instance().context(WHO)?;
        serve(&function, channels).await;
        Ok(ExitCode::SUCCESS)
    })
}
