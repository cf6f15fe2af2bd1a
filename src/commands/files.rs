//! `landfast files`: volumes of files.

pub(crate) mod exec;
mod mount;
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
    /// Mount a volume on a directory of this machine, until Ctrl-C or an unmount
    ///
    /// Several mounts of a volume see each other's changes at once, and locks hold across them. Memory that is mapped shared is
    /// coherent within one mount only.
    Mount(mount::Mount),
}

pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Exec(exec) => Ok(exec::run(exec)),
        Command::Mount(mount) => mount.run(),
    }
}
