//! A runtime: where the functions that people write are run, each call in an instance of its own.
//!
//! [`functions`](crate::functions) says *when* code runs and what happens if it fails; this port is *how* code runs that is
//! not part of this program: a process, behind the AWS Lambda Runtime API, in as much isolation as the machine gives.
//!
//! What it gives, numbered as users are promised it in `docs/functions.md`:
//! - **U1** An instance runs one invocation at a time, and is reused for later ones of the same function and revision.
//! - **U2** An invocation that runs past its timeout, exceeds its memory or ends its process fails by that, and nothing of
//!   it is left: what it forked ends with it. Others do not notice. So does one whose new instance takes longer to start than
//!   [`START_BOUND_MIN`] and the function's timeout.
//! - **U3** An invocation is run once. What it answers is returned whole or as a failure that says why, never cut.
//! - **U4** After [`Runtime::retire`] no instance of an earlier revision takes a new invocation, nor after [`Runtime::renew`] with another
//!   one: what waited for one of the earlier waits for one of that, and so is run what is still asked of the earlier.
//! - **U5** What a function prints is kept under its invocation's id, up to a bound, before its answer is returned.

use std::{collections::BTreeMap, fmt::Debug, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use crate::functions::Room;

/// How long a start may take, until an instance asks for its first invocation, where its function's timeout is not longer. Lambda ends it
/// after so long, and begins it anew under that timeout; here it goes on.
pub const START_BOUND_MIN: Duration = Duration::from_secs(10);

/// What runs the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Language {
    /// A Python interpreter; none: the machine's `python3`.
    Python(Option<PathBuf>),
    /// Node.js; none: the machine's `node`.
    Node(Option<PathBuf>),
    /// The handler is an executable that speaks the Runtime API by itself.
    Executable,
}

/// A function as it is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The name it is called by.
    pub name: String,
    /// Changes whenever anything of it changes.
    pub revision: String,
    /// What runs its code.
    pub language: Language,
    /// `module.function`, or the executable's file name in [`Self::folder`].
    pub handler: String,
    /// Which archive its code is in: one that was [installed](Runtime::install).
    pub archive: String,
    /// The folder with its code in that archive; it is only read.
    pub folder: String,
    /// What an instance may use.
    pub memory_bytes: u64,
    /// What an invocation may take.
    pub timeout: Duration,
    /// Instances at a time.
    pub concurrency: usize,
    /// Processes and threads of an instance.
    pub processes_max: u32,
    /// Bytes in its `/tmp`.
    pub scratch_bytes: u64,
    /// What its environment has beside what every function finds there.
    pub environment: BTreeMap<String, String>,
    /// Whether it reaches the machine's network (rule P5: then it externalizes by itself).
    pub network: bool,
}

/// One call.
#[derive(Debug)]
pub struct Invocation {
    /// What the function, its logs and its caller know it by; the same for every attempt of an event.
    pub id: String,
    /// What it is given.
    pub payload: Bytes,
    /// What a mobile client says about itself: passed on as it came, in JSON.
    pub client_context: Option<String>,
    /// Whether it waits for a free instance however long, as an event does. Otherwise it is a call: it is refused as
    /// [`Refused::Throttled`], at once where calls have all instances; where events have some it may have its turn first.
    pub waits: bool,
    /// The [room](Runtime::room) that was kept for it, if there was.
    pub room: Room,
    /// What it may take, if that is less than its function may.
    pub timeout: Option<Duration>,
    /// As what its requests are answered, in the words of whoever answers them; none: as anybody's.
    pub scope: Option<Arc<str>>,
}

impl Invocation {
    /// One whose requests are anybody's, and which waits for a free instance if `waits`.
    pub fn new(id: String, payload: Bytes, waits: bool) -> Self {
        let room = Room::default();
        Self {
            id,
            payload,
            client_context: None,
            waits,
            room,
            timeout: None,
            scope: None,
        }
    }
}

/// What came of a call.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Its answer, or how it failed.
    pub result: Result<Bytes, FunctionError>,
    /// The end of what it printed, with the lines that frame it.
    pub log_tail: Bytes,
}

/// How a function failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionError {
    /// A JSON object with `errorType` and `errorMessage`.
    pub payload: Bytes,
}

/// The `errorType` of a function that did not end in time.
pub const TIMED_OUT: &str = "Sandbox.Timedout";

/// Why an invocation was not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// As many instances as the function may have are at work.
    #[error("as many instances as it may have are at work")]
    Throttled,
    /// No instance can be started; what is said tells what to do.
    #[error("{0}")]
    Unavailable(String),
}

/// A line that a function printed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Line {
    /// Its place among the lines of the function; grows.
    pub number: u64,
    /// When it was read, in milliseconds since the epoch.
    pub at_ms: u64,
    /// The invocation that printed it; empty: none, such as while it starts.
    pub id: String,
    /// What it printed.
    pub text: String,
}

/// Which lines of a function are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// The number of the first of them.
    pub from: u64,
    /// How many there are at the most.
    pub lines_max: usize,
    /// What their texts take at the most, in bytes. One line is given whatever it takes, so that who reads on comes behind it.
    pub bytes_max: usize,
}

/// What a runtime has done since it was opened, and what it has now. None of it is kept over a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Instances that have an invocation.
    pub busy: u64,
    /// Idle instances that run.
    pub warm: u64,
    /// Idle instances that are frozen.
    pub frozen: u64,
    /// Invocations that were given to an instance.
    pub invocations: u64,
    /// New instances that were started for a call.
    pub cold_starts: u64,
    /// Those of them for which a process stood ready.
    pub adopted: u64,
    /// Processes that stand ready for instances to come.
    pub spares: u64,
    /// Calls that were refused as [`Refused::Throttled`].
    pub throttled: u64,
    /// Calls that were refused as [`Refused::Unavailable`].
    pub unavailable: u64,
    /// Invocations that failed, by how.
    pub failed: Failures,
}

/// Invocations that failed, by how: a fixed list, whatever functions say of themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Failures {
    /// The function said so.
    pub by_function: u64,
    /// It ran past its timeout.
    pub timed_out: u64,
    /// It used more memory than it may.
    pub out_of_memory: u64,
    /// Its process ended.
    pub exited: u64,
    /// A new instance did not come to its first invocation.
    pub not_started: u64,
    /// It asked for the next invocation without an answer to this one.
    pub not_answered: u64,
    /// Its answer was longer than it may be.
    pub too_long: u64,
}

/// Runs functions.
#[async_trait]
pub trait Runtime: Debug + Send + Sync {
    /// Unpacks `content`, a tar compressed by gzip, as the archive `name`, a file name. One that is there is left as it is.
    ///
    /// Errors: `Invalid` if it does not unpack, says paths outside of itself, or is too large; `NoRoom`; `Unavailable`.
    async fn install(&self, name: &str, content: Bytes) -> crate::Result<()>;

    /// The file at `path` in an installed archive; none: there is none.
    ///
    /// Errors: `Invalid` if it is longer than `bytes_max`.
    async fn file(
        &self,
        archive: &str,
        path: &str,
        bytes_max: usize,
    ) -> crate::Result<Option<Bytes>>;

    /// Errors: why no instance of `function` can ever be started, as far as its archive, which is installed, shows. Whoever cannot tell
    /// has nothing against it.
    async fn check(&self, _function: &Function) -> Result<(), String> {
        Ok(())
    }

    /// Removes all archives but `kept`; those of instances that are there once these have ended.
    async fn keep_archives(&self, kept: &[String]) -> crate::Result<()>;

    /// Ends once an instance of `function` may take one more invocation, which is kept for that; none: the function was
    /// retired meanwhile. Whoever has room for any number says so at once.
    async fn room(&self, _function: &Arc<Function>) -> Option<Room> {
        Some(Room::default())
    }

    /// Runs `invocation` in an instance of `function` (U1 to U3).
    async fn run(&self, function: &Arc<Function>, invocation: Invocation) -> Result<Ran, Refused>;

    /// Makes the revision of `function` the one that runs under its name, as [`Self::retire`] does away with an earlier one (U4). Who has
    /// looked that up before, and asks for it only now, is run in instances of this one. Returns at once.
    fn renew(&self, _function: &Arc<Function>) {}

    /// Ends the idle instances of the function of this name, and busy ones once they are idle (U4).
    fn retire(&self, function: &str);

    /// Ends all instances, at work or not, and returns once nothing is left of them, or after a while. Nothing is run any more.
    async fn close(&self);

    /// Some of the lines that were kept of `function`, in the order of their numbers; none: there are none from there on now.
    /// Who asks from behind the last one on, again and again, is given each line that is kept meanwhile once.
    async fn lines(&self, function: &str, page: Page) -> std::io::Result<Vec<Line>>;

    /// Ends once the line of `function` that has the number `from` is kept, or a later one, if that is printed after
    /// [`Runtime::lines`] has answered that there is none.
    async fn more_lines(&self, function: &str, from: u64);

    /// What it has done and has now; returns at once.
    fn figures(&self) -> Figures;
}
