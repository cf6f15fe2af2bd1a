//! The state layer for serverless functions, as one program.
//!
//! Parses the command line, settles the configuration and runs the command. The layers below make
//! all decisions; this crate is the only one that names concrete providers.

// Why: the program is where real time, real threads and the runtime enter.
#![allow(clippy::disallowed_methods)]

mod backups;
mod bind;
mod bundled_client;
mod commands;
mod far_stores;
mod from_functions;
mod front_ends;
mod function_directory;
mod function_volumes;
mod log;
mod machine;
mod memory_service;
mod object_events;
mod open_files;
mod overview;
mod peer_volumes;
mod provider;
mod reaping;
mod same_store;
mod settings;
mod startup_error;
mod wiring;

use std::{
    env,
    io::{self, Write as _},
    process::ExitCode,
};

use clap::{
    CommandFactory as _, Parser, Subcommand,
    error::{ContextKind, ContextValue},
};
use clap_complete::Shell;
use sandbox::launcher::{LAUNCHER_ARGUMENT, launcher_main};

/// A request allocates a few dozen small objects that die with it. The system's allocator takes a
/// quarter of a write's time for them. mimalloc is built to request no huge pages, because each
/// thread that had touched one held it whole (28 MB instead of 15 at a start).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The state layer for serverless functions: coordination for ZooKeeper clients, transactions, functions and workflows.
#[derive(Debug, Parser)]
#[command(name = "landfast", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server until SIGTERM or Ctrl-C
    Serve(settings::Options),
    /// Show what a running server is doing (at LANDFAST_URL)
    Status(commands::status::Arguments),
    /// Show what the use of a running server would cost in a cloud, and the use itself
    Cost(commands::cost::Arguments),
    /// Check whether this machine is fit to run the server, and say what to do if it is not
    Doctor(commands::doctor::Arguments),
    /// Deploy functions to a running server, run them, read what they print
    #[command(subcommand)]
    Functions(commands::functions::Command),
    /// Run workflows of deployed functions, look at their runs, end them
    #[command(subcommand)]
    Workflows(commands::workflows::Command),
    /// Read and write plain state of a running server
    #[command(subcommand)]
    State(commands::state::Command),
    /// List the queues that start functions, look into them, send to them, empty them
    #[command(subcommand)]
    Queues(commands::queues::Command),
    /// Create and mount volumes of files, copy files in and out, run programs as transactions on them
    #[command(subcommand)]
    Files(commands::files::Command),
    /// List the open transactions of a running server
    #[command(subcommand)]
    Transactions(commands::transactions::Command),
    /// Replay a workload against the placement of function memory, without a server
    #[command(subcommand)]
    Bench(commands::bench::Command),
    /// Serve as an instance of function memory; the server starts it
    #[command(hide = true)]
    MemoryFunction,
    /// Write the whole store of a running server to one file, as of one moment
    ///
    /// The file holds items, queues, objects and volumes, and the keys of S3 clients: it is for its owner's eyes. Nothing is left of
    /// a backup that does not succeed.
    Backup(commands::backup::Backup),
    /// Make a data directory from a backup, for a server to start on
    ///
    /// The directory must be missing or empty. It appears once everything is written, verified and durable.
    Restore(commands::backup::Restore),
    /// Move trees of znodes between ZooKeeper and Landfast
    #[command(subcommand)]
    Zookeeper(commands::zookeeper::Command),
    /// Print a completion script for a shell
    Completions {
        /// The shell the script is for
        shell: Shell,
    },
}

impl Cli {
    /// Parses the command line and the environment. Ends the process if they are invalid.
    fn arguments() -> Self {
        Self::try_parse().unwrap_or_else(|mut error| {
            let mut program = Self::command();
            program.build();
            if let Some(variable) = settings::variable_to_blame(&error, &program) {
                let tip = format!("the value is from {variable} in the environment").into();
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
            }
            error.exit()
        })
    }
}

/// Prints the script of the whole command line.
fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "landfast", &mut script);
    commands::print(std::str::from_utf8(&script)?)
}

fn main() -> ExitCode {
    // This comes first: a function's launcher is this program, and it has one thread.
    if env::args_os()
        .nth(1)
        .is_some_and(|first| first == LAUNCHER_ARGUMENT)
    {
        launcher_main();
    }
    commands::files::exec::guard::run_if_asked();
    let ended = match Cli::arguments().command {
        Command::Serve(options) => commands::serve::run(options),
        Command::Status(arguments) => commands::status::run(&arguments),
        Command::Cost(arguments) => commands::cost::run(&arguments),
        Command::Doctor(arguments) => commands::doctor::run(arguments),
        Command::Functions(command) => commands::functions::run(&command),
        Command::Workflows(command) => commands::workflows::run(&command),
        Command::State(command) => commands::state::run(&command),
        Command::Queues(command) => commands::queues::run(&command),
        Command::Files(command) => commands::files::run(&command),
        Command::Transactions(command) => commands::transactions::run(&command),
        Command::Bench(command) => commands::bench::run(&command),
        Command::MemoryFunction => commands::memory_function::run(),
        Command::Backup(backup) => backup.run(),
        Command::Restore(restore) => restore.run(),
        Command::Zookeeper(command) => commands::zookeeper::run(&command),
        Command::Completions { shell } => completions(shell),
    };
    ended.unwrap_or_else(|error| {
        // If stderr is closed, the exit code has to do.
        let _ = io::stderr().write_all(startup_error::line(&error).as_bytes());
        ExitCode::FAILURE
    })
}
