//! `landfast zookeeper`: moves trees of znodes between ZooKeeper and Landfast.

mod connection;
mod copy;
mod kinds;
mod protocol;
mod report;
mod walk;

use std::process::ExitCode;

use clap::Subcommand;

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Copy a live tree of znodes between ZooKeeper servers and Landfast, in either direction
    ///
    /// Copies data, ACLs and kinds; ephemeral znodes belong to their sessions and are only counted. It compares and copies again
    /// until a pass over both sides finds no difference, so changes during the copy are copied too. Run it again to continue
    /// after an interruption. Exits 1 if a difference is left.
    Copy(copy::Copy),
}

pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Copy(copy) => copy.run(),
    }
}
