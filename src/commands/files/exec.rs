//! `landfast files exec`: one transaction around any program.
//!
//! ```text
//!  begin a snapshot ──▶ mount it in a namespace of our own ──▶ run the command, hold its output
//!    ▲                                                              │
//!    └──── conflict ◀── commit ◀── unmount ◀── end its processes ◀──┘
//!                         └──▶ wait for the disk ──▶ print the output
//! ```
//!
//! With `--preload` there are no namespaces and no mount. A library in the programs shows them the
//! volume, through a server in this process.
//!
//! - `namespace` has our mount namespace, `guard` the processes around the command.
//! - `program` runs the command once, and `spool` holds its output.
//! - `attempts` decides when it runs again, and `transaction` has the snapshot, mount and commit.
//!
//! Invariants
//! - Only exit code 0 commits, and only when no process of the command is left.
//! - Nothing of the command's output is printed before its transaction has survived, except stderr
//!   of a command that failed: its user must learn why.
//! - After a death at any point, even by SIGKILL, nothing is mounted and no process is left.

mod attempts;
pub(crate) mod guard;
mod namespace;
mod program;
mod spool;
mod transaction;

use std::{
    env,
    ffi::OsString,
    io::{self, Write as _},
    path::{self, Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use clap::Args;
use preload_frontend::{environment, permissions::User, shared::Buffers};
use transactions::serializable::volumes::VolumeName;

use self::{
    attempts::{Outcome, attempt},
    guard::{BY_SIGNAL, FAILED},
    namespace::{MOUNTS, Right},
    program::{Ended, Program, Signals},
    spool::Held,
    transaction::{Attempts, Way},
};
use super::server::Server;
use crate::{commands::instant::age, startup_error};

/// The exit code of a command that ran out of time, as of `timeout`.
const TIME_UP: i32 = 124;
/// The exit code after conflicts in all attempts (`EX_TEMPFAIL`).
const CONFLICT: i32 = 75;
/// The exit code when the transaction has, or may have, taken effect, and that could not be told
/// by the output (`EX_IOERR`).
const UNKNOWN: i32 = 74;
const ATTEMPTS_MAX: u32 = 1_000;

/// The transaction and its command.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// The volume
    #[arg(value_parser = |name: &str| VolumeName::new(name))]
    volume: VolumeName,
    /// The directory on which the command sees the volume [default: /mnt/VOLUME; mounted: nothing else is in /mnt]
    #[arg(long, value_name = "DIR")]
    at: Option<PathBuf>,
    /// The working directory, from the root of the volume [default: the present one]
    #[arg(long, value_name = "DIR")]
    chdir: Option<PathBuf>,
    /// Read all of stdin first, and give it to the command [default: its stdin is empty]
    #[arg(long)]
    stdin: bool,
    /// The longest time of an attempt, as 90s, 15m or 2h
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = age)]
    time_max: Duration,
    /// The most attempts, if other transactions change what the command reads
    #[arg(long, value_name = "COUNT", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(ATTEMPTS_MAX)))]
    attempts: u32,
    /// Let the command write nothing; then it conflicts only over locks
    #[arg(long)]
    read_only: bool,
    /// Show the volume by a preloaded library, without a mount: to dynamically linked programs
    #[arg(long)]
    preload: bool,
    /// The library for --preload [default: liblandfast_preload.so beside this program or in ../lib]
    #[arg(long, env = environment::LIBRARY, value_name = "PATH")]
    preload_library: Option<PathBuf>,
    /// The most bytes of stdout and stderr together, and of stdin, that are held on disk
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30)]
    output_bytes_max: u64,
    #[command(flatten)]
    server: Server,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &Exec) -> ExitCode {
    // Everything but a committed success has an exit code that no command's success has.
    let code = arguments.run().unwrap_or_else(|error| {
        say(&format!(
            "{}; nothing was changed",
            startup_error::of(&error)
        ));
        FAILED
    });
    ExitCode::from(code as u8)
}

fn say(what: &str) {
    super::super::print_aside(&format!("landfast: {what}\n"));
}

impl Exec {
    fn run(&self) -> anyhow::Result<i32> {
        let present = env::current_dir().context("the working directory")?;
        let stdin = self
            .stdin
            .then(|| spool::spooled_input(io::stdin().lock(), self.output_bytes_max));
        let stdin = stdin.transpose()?;
        let server = self.server.place()?;
        let (right, way, point) = self.way()?;
        let directory = match &self.chdir {
            Some(inside) => {
                let is_inside = inside
                    .components()
                    .all(|part| part != std::path::Component::ParentDir);
                ensure!(
                    is_inside,
                    "--chdir {}: it must not leave the volume",
                    inside.display()
                );
                point.join(inside.strip_prefix("/").unwrap_or(inside))
            }
            None => present,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .worker_threads(2)
            .build()
            .context("the runtime")?;
        runtime.block_on(async {
            let mut program = Program {
                right,
                directory,
                point: matches!(way, Way::Mount(_)).then_some(point),
                command: self.command.clone(),
                stdin,
                time_max: self.time_max,
                output_bytes_max: self.output_bytes_max,
                signals: Signals::new()?,
            };
            let store = server.volume(&self.volume).await?;
            let name = self.volume.as_str();
            let mut volume = Attempts::new(name, store, way, self.read_only, self.time_max)?;
            let outcome = attempt(&mut volume, &mut program, self.attempts, say).await?;
            Ok(self.report(outcome))
        })
    }

    /// How the command sees the volume, and where. Call it while this process has one thread.
    fn way(&self) -> anyhow::Result<(Right, Way, PathBuf)> {
        let volume = self.volume.as_str();
        if !self.preload {
            let right = namespace::enter()?;
            let point = namespace::mount_point(self.at.as_deref(), volume)?;
            return Ok((right, Way::Mount(point.clone()), point));
        }
        let at = match &self.at {
            Some(at) => path::absolute(at).with_context(|| format!("--at {}", at.display()))?,
            None => Path::new(MOUNTS).join(volume),
        };
        // Without a slash at the end.
        let at: PathBuf = at.components().collect();
        let library = environment::find_library(self.preload_library.as_deref())?;
        let options = preload_frontend::Options {
            at: at.clone(),
            buffers: Buffers::default(),
            library: Some(library),
            is_read_only: self.read_only,
            user: User::current(),
        };
        Ok((Right::None, Way::Preload(options), at))
    }

    /// Prints the end of the command. Returns the exit code.
    fn report(&self, outcome: Outcome) -> i32 {
        match outcome {
            Outcome::Committed(held) => print_all(held),
            Outcome::Aborted(ended, mut held) => {
                // If stderr is closed, the exit code has to do.
                let _ = held.copy_stderr(&mut io::stderr().lock());
                let (why, code) = match ended {
                    Ended::Exited(code) => (format!("the command ended with {code}"), code),
                    Ended::TimeUp => {
                        let seconds = self.time_max.as_secs();
                        (
                            format!("the command took longer than {seconds} s (--time-max)"),
                            TIME_UP,
                        )
                    }
                    Ended::Signalled(signal) => (
                        format!("{signal} ended the command"),
                        BY_SIGNAL + signal as i32,
                    ),
                };
                say(&format!("{why}; nothing was changed"));
                code
            }
            Outcome::Conflict(cause) => {
                let attempts = self.attempts;
                say(&format!(
                    "conflict in each of {attempts} attempts, the last time because {cause}; nothing was changed; \
                     run it again, or with more --attempts"
                ));
                CONFLICT
            }
            Outcome::Unknown => {
                say(
                    "the volume did not answer the commit: all of the changes took effect, or none",
                );
                UNKNOWN
            }
        }
    }
}

fn print_all(mut held: Held) -> i32 {
    let printed = held
        .copy_stdout(&mut io::stdout().lock())
        .and_then(|()| held.copy_stderr(&mut io::stderr().lock()));
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(
                io::stderr(),
                "landfast: the transaction has committed, but its output cannot be written: {error}"
            );
            UNKNOWN
        }
        _ => 0,
    }
}
