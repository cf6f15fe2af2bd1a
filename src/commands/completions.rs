//! `landfast completions`: a completion script for a shell, made from the same definition as the help.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Which shell.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The shell the script is for
    shell: Shell,
}

/// Prints the script of the whole command line `C`.
pub(crate) fn run<C: CommandFactory>(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut C::command(), "landfast", &mut script);
    super::print(std::str::from_utf8(&script)?)
}
