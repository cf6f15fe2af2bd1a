//! The runtime port in memory, in virtual time. Its functions are Rust closures that run in the
//! caller's task.
//!
//! Invariants
//! - An instance is idle or runs one invocation. An instance that exits or exceeds its timeout is
//!   dropped.
//! - An instance that is busy when its function is retired is not reused: retiring raises the
//!   function's generation, and only instances of the present generation become idle.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use ports::{
    Clock, Runtime,
    contract::runtime::Command,
    runtime::{Figures, Function, FunctionError, Invocation, Ran, Refused},
};
use tokio::sync::Notify;

use crate::logs::SimulatedLogs;

/// The longest answer.
const ANSWER_BYTES_MAX: usize = 6 << 20;

/// What a function is given beside its payload.
#[derive(Debug, Clone)]
pub struct Call {
    /// Which instance it is.
    pub instance: u64,
    /// How many invocations it was given, this one among them.
    pub count: u64,
    /// The invocation's id.
    pub id: String,
    /// What it is given.
    pub payload: Bytes,
    /// What it prints goes here.
    pub printed: Arc<Mutex<Vec<String>>>,
}

/// How a call ends by itself.
#[derive(Debug, Clone)]
pub enum End {
    /// With a result.
    Answer(Bytes),
    /// It fails: an object in JSON.
    Failed(Bytes),
    /// Its process ends.
    Exited(i32),
}

/// The code of all functions.
pub type Code = Arc<dyn Fn(Call) -> BoxFuture<'static, End> + Send + Sync>;

/// Runs functions that are code of this process.
pub struct SimulatedRuntime {
    clock: Arc<dyn Clock>,
    code: Code,
    state: Mutex<State>,
    freed: Notify,
    logs: Arc<SimulatedLogs>,
}

#[derive(Debug, Default)]
struct State {
    functions: BTreeMap<String, Of>,
    instances: u64,
    figures: Figures,
}

/// Of one function.
#[derive(Debug, Default)]
struct Of {
    revision: String,
    generation: u64,
    busy: usize,
    idle: Vec<Instance>,
}

#[derive(Debug, Clone, Copy)]
struct Instance {
    number: u64,
    count: u64,
}

impl Debug for SimulatedRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedRuntime").finish_non_exhaustive()
    }
}

/// Its function has one instance more at work for as long as this is held.
struct Busy<'runtime>(&'runtime SimulatedRuntime, String);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.figures.busy -= 1;
        state.of(&self.1).busy -= 1;
        drop(state);
        self.0.freed.notify_waiters();
    }
}

impl State {
    fn of(&mut self, function: &str) -> &mut Of {
        self.functions.entry(function.to_owned()).or_default()
    }
}

impl SimulatedRuntime {
    /// A runtime whose functions are `code`.
    pub fn new(clock: Arc<dyn Clock>, code: Code) -> Self {
        let logs = Arc::new(SimulatedLogs::new(Arc::clone(&clock)));
        Self {
            clock,
            code,
            state: Mutex::default(),
            freed: Notify::new(),
            logs,
        }
    }

    /// What its functions printed.
    pub fn logs(&self) -> Arc<SimulatedLogs> {
        Arc::clone(&self.logs)
    }

    /// One whose functions obey the commands of the contract.
    pub fn obedient(clock: Arc<dyn Clock>) -> Self {
        let time = Arc::clone(&clock);
        Self::new(
            clock,
            Arc::new(move |call| Box::pin(obey(call, Arc::clone(&time)))),
        )
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right to an instance, as soon as there is one.
    async fn busy(&self, function: &Function, waits: bool) -> Result<Busy<'_>, Refused> {
        loop {
            let freed = self.freed.notified();
            {
                let mut state = self.state();
                if state.of(&function.name).busy < function.concurrency {
                    state.of(&function.name).busy += 1;
                    state.figures.busy += 1;
                    return Ok(Busy(self, function.name.clone()));
                }
                if !waits {
                    state.figures.throttled += 1;
                    return Err(Refused::Throttled);
                }
            }
            freed.await;
        }
    }

    /// An instance, and the generation it is of.
    fn take(&self, function: &Function) -> (Instance, u64) {
        let mut state = self.state();
        state.figures.invocations += 1;
        let of = state.of(&function.name);
        if of.revision.is_empty() {
            of.revision.clone_from(&function.revision);
        }
        let (generation, idle) = (of.generation, of.idle.pop());
        let instance = idle.unwrap_or_else(|| {
            state.figures.cold_starts += 1;
            state.instances += 1;
            Instance {
                number: state.instances,
                count: 0,
            }
        });
        (
            Instance {
                count: instance.count + 1,
                ..instance
            },
            generation,
        )
    }
}

fn failed(kind: &str, message: &str) -> FunctionError {
    let payload = format!("{{\"errorType\":\"{kind}\",\"errorMessage\":\"{message}\"}}");
    FunctionError {
        payload: payload.into(),
    }
}

#[async_trait]
impl Runtime for SimulatedRuntime {
    async fn run(&self, function: &Arc<Function>, invocation: Invocation) -> Result<Ran, Refused> {
        let busy = self.busy(function, invocation.waits).await?;
        let (instance, generation) = self.take(function);
        let printed = Arc::<Mutex<Vec<String>>>::default();
        let Invocation {
            id,
            payload,
            timeout,
            ..
        } = invocation;
        let timeout = timeout.map_or(function.timeout, |most| most.min(function.timeout));
        let call = Call {
            instance: instance.number,
            count: instance.count,
            id: id.clone(),
            payload,
            printed: Arc::clone(&printed),
        };
        let end = tokio::select! {
            biased;
            end = (self.code)(call) => Some(end),
            () = self.clock.sleep(timeout) => None,
        };
        let lines = printed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        self.logs.keep(&function.name, &id, &lines);
        let is_fit = matches!(end, Some(End::Answer(_) | End::Failed(_)));
        let result = match end {
            None => Err(failed("Sandbox.Timedout", "it ran out of time")),
            Some(End::Exited(status)) => Err(failed(
                "Runtime.ExitError",
                &format!("exit status {status}"),
            )),
            Some(End::Failed(payload)) => Err(FunctionError { payload }),
            Some(End::Answer(answer)) if answer.len() > ANSWER_BYTES_MAX => Err(failed(
                "Function.ResponseSizeTooLarge",
                "its answer is too long",
            )),
            Some(End::Answer(answer)) => Ok(answer),
        };
        {
            let mut state = self.state();
            let of = state.of(&function.name);
            if is_fit && of.generation == generation {
                of.idle.push(instance);
            }
        }
        drop(busy);
        Ok(Ran {
            result,
            log_tail: Bytes::from(lines.join("\n")),
        })
    }

    fn renew(&self, function: &Arc<Function>) {
        let mut state = self.state();
        let of = state.of(&function.name);
        if of.revision != function.revision {
            of.revision.clone_from(&function.revision);
            of.generation += 1;
            of.idle.clear();
        }
    }

    fn retire(&self, function: &str) {
        let mut state = self.state();
        let of = state.of(function);
        of.generation += 1;
        of.idle.clear();
    }

    async fn close(&self) {
        self.state()
            .functions
            .values_mut()
            .for_each(|of| of.idle.clear());
    }

    fn figures(&self) -> Figures {
        let state = self.state();
        let warm = state
            .functions
            .values()
            .map(|of| of.idle.len() as u64)
            .sum();
        Figures {
            warm,
            ..state.figures
        }
    }
}

/// Does what a command of the contract says.
async fn obey(call: Call, clock: Arc<dyn Clock>) -> End {
    let command = Command::parse(&call.payload).expect("the contract's commands are well formed");
    if let Some(line) = command.print {
        call.printed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line);
    }
    if !command.sleep.is_zero() {
        clock.sleep(command.sleep).await;
    }
    let value = command.value.unwrap_or_default();
    let number = || value.parse().expect("a number");
    match command.what.as_str() {
        "count" => End::Answer(call.count.to_string().into()),
        "instance" => End::Answer(call.instance.to_string().into()),
        "id" => End::Answer(format!("\"{}\"", call.id).into()),
        "echo" => End::Answer(value.into()),
        "long" => End::Answer(format!("\"{}\"", "x".repeat(number())).into()),
        "fail" => End::Failed(failed("Error", value.trim_matches('"')).payload),
        "exit" => End::Exited(number() as i32),
        other => panic!("the contract has no command {other:?}"),
    }
}
