//! One file per command.

pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod functions;
pub(crate) mod request;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod workflows;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;

/// Writes `text` to stdout at once. A reader that has gone away (`landfast status | head`) is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("stdout cannot be written; send it somewhere else")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
