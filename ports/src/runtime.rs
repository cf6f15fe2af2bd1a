//! The runtime: runs functions that users deploy, each invocation in an instance of its function.
//!
//! [`functions`](crate::functions) says *when* code runs, and handles its failures. This port
//! is *how* code runs that is not part of this program: in a process behind the AWS Lambda Runtime
//! API, as isolated as the machine allows. Its code comes from a [code store](crate::code_store),
//! and its output goes to the [logs](crate::logs).
//!
//! Promises, numbered as `docs/functions.md` numbers them for users
//! - **U1** An instance runs one invocation at a time. It is reused for later invocations of the
//!   same function and revision.
//! - **U2** An invocation that exceeds its timeout or its memory, or ends its process, fails for
//!   that reason. Every process it has forked ends with it. Other invocations are unaffected. An
//!   invocation also fails if its new instance needs longer to start than [`START_BOUND_MIN`] and
//!   longer than the function's timeout.
//! - **U3** An invocation runs once. Its result is returned whole, or as a failure that says why.
//!   It is never cut.
//! - **U4** After [`Runtime::retire`], no instance of an earlier revision takes a new invocation.
//!   The same holds after [`Runtime::renew`] with another revision. Invocations that wait for an
//!   instance of the earlier revision then wait for one of the new revision, and later calls that
//!   still name the earlier one run there.
//! - **U5** The lines a function prints are in the [logs](crate::logs) under their invocation's id,
//!   up to a bound, before its result is returned.

use std::{collections::BTreeMap, fmt::Debug, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{functions::Permit, volume_mounts::VolumeAt};

/// The shortest bound on a start: the time until an instance asks for its first invocation. A
/// function with a longer timeout has that timeout as its bound. Lambda ends the start after this
/// time and repeats it under the function's timeout; here the first start continues.
pub const START_BOUND_MIN: Duration = Duration::from_secs(10);

/// The interpreter of a function's code, if it needs one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Language {
    /// A Python interpreter; none: the machine's `python3`.
    Python(Option<PathBuf>),
    /// Node.js; none: the machine's `node`.
    Node(Option<PathBuf>),
    /// The handler is an executable that speaks the Runtime API itself.
    Executable,
}

/// A deployed function with everything an instance needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The name callers use.
    pub name: String,
    /// Differs between any two versions of the function.
    pub revision: String,
    /// Its interpreter, if it needs one.
    pub language: Language,
    /// The version that the interpreter must have: `3.11` of Python, `20` of Node; none: any.
    pub runtime_version: Option<String>,
    /// `module.function`, or the executable's file name in [`Self::folder`].
    pub handler: String,
    /// The archive with its code, which is [installed](crate::CodeStore::install).
    pub archive: String,
    /// The folder with its code in that archive, which instances only read.
    pub folder: String,
    /// The memory limit of an instance.
    pub memory_bytes: u64,
    /// The longest an invocation may run.
    pub timeout: Duration,
    /// The most instances at a time.
    pub concurrency: usize,
    /// The most processes and threads of an instance.
    pub processes_max: u32,
    /// The size of an instance's `/tmp`, in bytes.
    pub scratch_bytes: u64,
    /// Its own variables, in addition to the common ones.
    pub environment: BTreeMap<String, String>,
    /// The buckets of objects that it reaches through the server.
    pub buckets: Vec<String>,
    /// The volume that it sees, each invocation in a transaction.
    pub volume: Option<VolumeAt>,
    /// Differs between two functions of a name, one of which was removed before the other was
    /// deployed. Its keys to [buckets](Self::buckets) derive from it.
    pub incarnation: u64,
    /// Whether it reaches the machine's network (rule P5: then it externalizes by itself).
    pub network: bool,
}

/// One call of a function.
#[derive(Debug)]
pub struct Invocation {
    /// The id that the function, its logs and its caller use; the same for every attempt of an
    /// event.
    pub id: String,
    /// The input.
    pub payload: Bytes,
    /// A mobile client's description of itself, in JSON; passed on unchanged.
    pub client_context: Option<String>,
    /// Whether it waits for a free instance without limit, as an event does. Otherwise it is a
    /// call, and may be refused as [`Refused::Throttled`]: at once where calls use all instances,
    /// and after its turn in a queue where events use some.
    pub waits: bool,
    /// The [permit](Runtime::permit) that was reserved for it, if there is one.
    pub permit: Permit,
    /// A timeout shorter than the function's own.
    pub timeout: Option<Duration>,
    /// The scope in which its requests to the server are answered, in the terms of the server's
    /// API; none: the default one.
    pub scope: Option<Arc<str>>,
}

impl Invocation {
    /// An invocation with the default scope and timeout, which waits for a free instance if
    /// `waits`.
    pub fn new(id: String, payload: Bytes, waits: bool) -> Self {
        let permit = Permit::default();
        Self {
            id,
            payload,
            client_context: None,
            waits,
            permit,
            timeout: None,
            scope: None,
        }
    }
}

/// The outcome of an invocation that ran.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Its result, or how it failed.
    pub result: Result<Bytes, FunctionError>,
    /// The end of its output, with the lines that frame it.
    pub log_tail: Bytes,
}

/// How a function failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionError {
    /// A JSON object with `errorType` and `errorMessage`.
    pub payload: Bytes,
}

/// The `errorType` of a function that exceeded its timeout.
pub const TIMED_OUT: &str = "Sandbox.Timedout";

/// Why an invocation did not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// All the instances the function may have are busy.
    #[error("as many instances as it may have are at work")]
    Throttled,
    /// No instance can be started. The message says what to do.
    #[error("{0}")]
    Unavailable(String),
}

/// Counters since the runtime was opened, and its instances now. A restart resets all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Instances with an invocation.
    pub busy: u64,
    /// Idle instances that are not frozen.
    pub warm: u64,
    /// Idle instances that are frozen.
    pub frozen: u64,
    /// Invocations that reached an instance.
    pub invocations: u64,
    /// Instances that were started for an invocation.
    pub cold_starts: u64,
    /// Cold starts that adopted a pre-warmed process.
    pub adopted: u64,
    /// Pre-warmed processes that wait for adoption.
    pub spares: u64,
    /// Calls refused as [`Refused::Throttled`].
    pub throttled: u64,
    /// Calls refused as [`Refused::Unavailable`].
    pub unavailable: u64,
    /// Invocations that failed, by reason.
    pub failed: Failures,
}

/// Failed invocations by reason. The list is fixed, so that no function can add a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Failures {
    /// The function reported an error.
    pub by_function: u64,
    /// It exceeded its timeout.
    pub timed_out: u64,
    /// It exceeded its memory.
    pub out_of_memory: u64,
    /// Its process ended.
    pub exited: u64,
    /// Its new instance did not ask for a first invocation.
    pub not_started: u64,
    /// It asked for the next invocation before it had answered this one.
    pub not_answered: u64,
    /// Its result was longer than the bound.
    pub too_long: u64,
    /// The transaction on its volume could not begin or commit.
    pub not_committed: u64,
}

/// Runs functions (U1 to U5).
#[async_trait]
pub trait Runtime: Debug + Send + Sync {
    /// Errors: why no instance of `function` can ever start, as far as its installed archive shows.
    /// A provider that cannot tell returns `Ok`.
    async fn check(&self, _function: &Function) -> Result<(), String> {
        Ok(())
    }

    /// Waits until an instance of `function` can take one more invocation, and reserves it; none:
    /// the function was retired meanwhile. A provider without a limit returns at once.
    async fn permit(&self, _function: &Arc<Function>) -> Option<Permit> {
        Some(Permit::default())
    }

    /// Runs `invocation` in an instance of `function` (U1 to U3).
    async fn run(&self, function: &Arc<Function>, invocation: Invocation) -> Result<Ran, Refused>;

    /// Makes the revision of `function` the current one under its name, and retires an earlier one
    /// (U4). A caller that still holds the earlier function runs in instances of this one. Returns
    /// at once.
    fn renew(&self, _function: &Arc<Function>) {}

    /// Ends the idle instances of the function of this name, and each busy one once it is idle
    /// (U4).
    fn retire(&self, function: &str);

    /// Ends all instances, busy or idle. Returns once nothing is left of them, or after a bounded
    /// wait. Nothing runs after this call.
    async fn close(&self);

    /// The counters and the present instances; returns at once.
    fn figures(&self) -> Figures;
}
