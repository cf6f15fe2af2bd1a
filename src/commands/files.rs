//! `landfast files`: volumes of files.

pub(crate) mod exec;
mod server;

use std::process::ExitCode;

use clap::Subcommand;

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program as one transaction on a volume
    ///
    /// The program sees the volume at --at, in a mount namespace of its own, as it was when the program started. If it ends with
    /// exit code 0, all of its changes take effect at once, and then its output is printed. Otherwise nothing of it takes effect,
    /// its stderr is printed, and its exit code is the exit code here. If another transaction changed what it read, it runs again.
    Exec(exec::Exec),
}

pub(crate) fn run(command: &Command) -> ExitCode {
    match command {
        Command::Exec(exec) => exec::run(exec),
    }
}
