//! The cases of [`Runtime`], over one function that obeys commands.
//!
//! The suite cannot know the language of a provider's functions. A provider therefore brings one
//! whose code obeys [`Command`]s, which are its JSON payloads. It answers in JSON too.

mod failures;
mod instances;
mod output;
mod results;

use std::{fmt, fmt::Write as _, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Case, eventually};
use crate::{
    Clock, Logs, Runtime,
    runtime::{Function, FunctionError, Invocation, Ran, Refused},
};

/// A fresh runtime with one function, its logs, and a clock.
#[derive(Clone)]
pub struct Subject {
    /// The port under test.
    pub runtime: Arc<dyn Runtime>,
    /// Where it keeps the lines of its functions.
    pub logs: Arc<dyn Logs>,
    /// A function whose code is installed and obeys [`Command`]s. Cases change its bounds and its
    /// revision.
    pub function: Function,
    /// The clock that the cases wait on.
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("runtime", &self.runtime)
            .finish_non_exhaustive()
    }
}

/// A command: the function prints, sleeps, and then does one thing.
///
/// ```text
/// {"do": "count"}                    answers how many invocations its instance has had, including this one
/// {"do": "instance"}                 answers a value that differs for each instance
/// {"do": "id"}                       answers the id of its invocation
/// {"do": "echo", "value": 7}         answers the value
/// {"do": "long", "value": 7}         answers a string with this many letters
/// {"do": "fail", "value": "words"}   fails with this message
/// {"do": "exit", "value": 3}         ends its process with this status
/// {..., "sleep": 0.5}                sleeps this many seconds before
/// {..., "print": "words"}            prints a line before that
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    /// The command.
    pub what: String,
    /// Its argument, as JSON.
    pub value: Option<String>,
    /// How long it sleeps before.
    pub sleep: Duration,
    /// The line that it prints before.
    pub print: Option<String>,
}

impl Command {
    /// The command `what`.
    pub(super) fn new(what: &str) -> Self {
        Self {
            what: what.to_owned(),
            value: None,
            sleep: Duration::ZERO,
            print: None,
        }
    }

    fn with(what: &str, value: impl fmt::Display) -> Self {
        Self {
            value: Some(value.to_string()),
            ..Self::new(what)
        }
    }

    fn after(self, sleep: Duration) -> Self {
        Self { sleep, ..self }
    }

    pub(super) fn printing(self, line: &str) -> Self {
        Self {
            print: Some(line.to_owned()),
            ..self
        }
    }

    fn encode(&self) -> Bytes {
        let mut text = format!("{{\"do\": \"{}\"", self.what);
        if let Some(value) = &self.value {
            let _ = write!(text, ", \"value\": {value}");
        }
        if !self.sleep.is_zero() {
            let _ = write!(text, ", \"sleep\": {}", self.sleep.as_secs_f64());
        }
        if let Some(line) = &self.print {
            let _ = write!(text, ", \"print\": \"{line}\"");
        }
        Bytes::from(text + "}")
    }

    /// Parses a payload of this suite, for functions without a JSON parser: its words are plain.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(payload)
            .ok()?
            .strip_prefix('{')?
            .strip_suffix('}')?;
        let mut command = Self::new("");
        for field in text.split(", ") {
            let (name, value) = field.split_once(": ")?;
            let word = value.trim_matches('"').to_owned();
            match name.trim_matches('"') {
                "do" => command.what = word,
                "value" => command.value = Some(value.to_owned()),
                "sleep" => command.sleep = Duration::from_secs_f64(word.parse().ok()?),
                "print" => command.print = Some(word),
                _ => return None,
            }
        }
        Some(command)
    }
}

impl Subject {
    /// The function with a change.
    pub(super) fn function(&self, change: impl FnOnce(&mut Function)) -> Arc<Function> {
        let mut function = self.function.clone();
        change(&mut function);
        Arc::new(function)
    }

    async fn ran(&self, function: &Arc<Function>, command: &Command) -> Ran {
        let invocation = Invocation::new("an-id".to_owned(), command.encode(), true);
        self.runtime
            .run(function, invocation)
            .await
            .expect("it is run")
    }

    /// The answer as text.
    pub(super) async fn answer(&self, function: &Arc<Function>, command: &Command) -> String {
        text(
            &self
                .ran(function, command)
                .await
                .result
                .expect("it answers"),
        )
    }

    /// The error, which looks like a JSON object with a type and a message.
    async fn failure(&self, function: &Arc<Function>, command: &Command) -> String {
        let FunctionError { payload } = self
            .ran(function, command)
            .await
            .result
            .expect_err("it fails");
        let said = text(&payload);
        let is_one = said.starts_with('{') && said.ends_with('}');
        assert!(
            is_one && said.contains("\"errorType\"") && said.contains("\"errorMessage\""),
            "{said}"
        );
        said
    }

    /// Runs `command` as a call, which needs a free instance.
    async fn at_once(&self, function: &Arc<Function>, command: &Command) -> Result<Ran, Refused> {
        self.runtime
            .run(
                function,
                Invocation::new("at-once".to_owned(), command.encode(), false),
            )
            .await
    }

    /// Waits until `count` instances are busy.
    async fn busy(&self, count: u64) {
        eventually(&*self.clock, "instances to be at work", async || {
            (self.runtime.figures().busy == count).then_some(())
        })
        .await;
    }
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The suite.
pub const CASES: &[Case<Subject>] = crate::runtime_contract!(@list);

/// One test per case of the runtime contract; `run` takes a
/// [`Case<contract::runtime::Subject>`](crate::contract::Case) and runs it on a fresh runtime.
#[macro_export]
macro_rules! runtime_contract {
    ($($run:tt)*) => {
        $crate::contract_cases! { [$($run)*] runtime {
            instances {
                "U1" an_instance_is_used_again,
                "U1" calls_beside_each_other_have_instances_of_their_own,
                "U1" a_call_beyond_the_instances_waits_or_is_refused,
                "U4" no_instance_is_used_again_after_retiring,
                "U4" another_revision_has_instances_of_its_own,
                "U4" a_call_of_an_earlier_revision_runs_the_current_one,
                "U4" an_invocation_finishes_although_its_function_is_retired,
            }
            failures {
                "U2" an_invocation_past_its_timeout_fails_and_its_instance_is_gone,
                "U2" an_invocation_may_be_given_less_than_its_function_may_take,
                "U2" one_that_ends_its_process_fails_and_others_do_not,
            }
            results {
                "U3" an_answer_is_returned_whole,
                "U3" an_answer_that_is_too_long_fails_and_is_not_cut,
                "U3" a_failure_says_why_in_the_functions_own_words,
                "U3" an_invocation_is_run_once_whether_it_fails_or_not,
                "U3" a_function_sees_the_id_of_its_invocation,
            }
            output {
                "U5" output_is_kept_under_its_invocation_before_the_result,
                "U5" output_of_a_failed_invocation_is_kept,
            }
        } }
    };
}
