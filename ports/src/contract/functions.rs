//! The cases of [`Functions`], one module per class of function.

mod calls;
mod room;
mod timers;
mod triggers;

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::{Case, eventually};
use crate::{
    Clock, Event, Functions, Handler,
    functions::{Definition, Failure, FunctionOptions},
    queue::{SharedQueue, SharedQueueAdmin},
};

/// Registers the functions that cases define. Any function over definitions implements it.
pub trait Register: Send + Sync {
    /// Registers the function under its name.
    fn register(&self, definition: Definition);
}

impl<F: Fn(Definition) + Send + Sync> Register for F {
    fn register(&self, definition: Definition) {
        self(definition);
    }
}

/// A fresh provider of functions, and further parts that the cases need.
#[derive(Clone)]
pub struct Subject {
    /// The port under test.
    pub functions: Arc<dyn Functions>,
    /// Registers functions with it.
    pub register: Arc<dyn Register>,
    /// The queues that can trigger its functions.
    pub queue: SharedQueue,
    /// The administration of those queues.
    pub admin: SharedQueueAdmin,
    /// The clock that the cases wait on.
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("functions", &self.functions)
            .finish_non_exhaustive()
    }
}

impl Subject {
    /// Registers `code` under `name`.
    fn define<C, F>(&self, name: &'static str, options: FunctionOptions, code: C)
    where
        C: Fn(Event) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Bytes, Failure>> + Send + 'static,
    {
        let code = Code {
            name,
            run: Box::new(move |event| Box::pin(code(event))),
        };
        self.register.register(Definition {
            name: name.into(),
            options,
            handler: Arc::new(code),
        });
    }

    /// Waits until `count` things were noted.
    async fn noted<T: Clone + Send>(&self, what: &str, notes: &Notes<T>, count: usize) -> Vec<T> {
        eventually(&*self.clock, what, async || {
            let noted = notes.all();
            (noted.len() >= count).then_some(noted)
        })
        .await
    }

    /// Waits long enough for a forbidden effect to happen.
    async fn a_while(&self) {
        self.clock.sleep(Duration::from_millis(300)).await;
    }
}

struct Code {
    name: &'static str,
    run: Box<dyn Fn(Event) -> BoxFuture<'static, Result<Bytes, Failure>> + Send + Sync>,
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[async_trait]
impl Handler for Code {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        (self.run)(event).await
    }
}

/// The functions' notes, shared with the case.
struct Notes<T>(Arc<Mutex<Vec<T>>>);

impl<T: Clone> Notes<T> {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Vec::new())))
    }

    fn add(&self, note: T) -> usize {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        notes.push(note);
        notes.len()
    }

    fn all(&self) -> Vec<T> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl<T> Clone for Notes<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Counts concurrent invocations. Dropped with the invocation, however that ends.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn enter(running: &Arc<AtomicUsize>) -> (Self, usize) {
        let now = running.fetch_add(1, Ordering::SeqCst) + 1;
        (Self(Arc::clone(running)), now)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn payload(event: &Event) -> String {
    match event {
        Event::Call { payload, .. } => text(payload),
        other => panic!("a call is expected, not {other:?}"),
    }
}

/// The suite.
pub const CASES: &[Case<Subject>] = crate::functions_contract!(@list);

/// One test per case of the functions contract; `run` takes a
/// [`Case<contract::functions::Subject>`](crate::contract::Case) and runs it on a fresh provider.
#[macro_export]
macro_rules! functions_contract {
    ($($run:tt)*) => {
        $crate::contract_cases! { [$($run)*] functions {
            calls {
                "N1" an_invocation_runs_once_and_returns_its_result,
                "N1" a_failed_invocation_is_not_repeated_and_says_why,
                "N1" invocations_that_cannot_run_are_refused,
                "N1" a_function_may_invoke_another,
                "N2" a_sent_event_runs_and_its_sender_does_not_wait,
                "N2" a_failed_event_is_tried_again_until_it_succeeds,
                "N2" an_event_that_fails_for_good_goes_to_the_exception_handler_with_its_reason,
                "N2" an_event_waits_for_its_unavailable_exception_handler,
                "N5" an_invocation_past_its_timeout_is_dropped,
                "N5" an_event_that_times_out_counts_as_failed,
                "N6" an_event_shows_its_id_in_every_run_and_to_its_exception_handler,
                "N6" an_exception_handler_that_fails_hands_the_id_on,
            }
            triggers {
                "N3" a_trigger_runs_one_invocation_per_group_at_a_time_in_order,
                "N3" groups_run_beside_each_other,
                "N3" a_function_of_two_queues_is_told_which_of_them_messages_are_from,
                "N3" completed_messages_are_acknowledged_and_the_rest_comes_again,
                "N3" an_invocation_receives_messages_of_several_groups,
                "N3" all_groups_after_a_failed_message_come_again,
                "N3" a_group_that_always_fails_delays_no_other,
                "N3" a_message_that_fails_for_good_is_a_dead_letter_with_the_failures_reason,
                "N3" a_message_declared_hopeless_is_a_dead_letter_at_once,
                "N3" an_invocation_past_its_timeout_gives_its_messages_back,
                "N3" no_other_invocation_receives_messages_of_a_running_one,
                "N3" a_trigger_works_from_arming_to_disarming,
                "N3" an_invocation_finishes_although_its_trigger_is_disarmed,
            }
            room {
                "N7" nothing_is_taken_for_a_function_before_it_has_room,
                "N7" an_event_that_waits_for_room_has_not_been_tried,
            }
            timers {
                "N4" an_armed_timer_fires_about_once_per_period,
                "N4" a_disarmed_timer_fires_no_more,
                "N4" nothing_starts_once_disarming_has_returned,
                "N4" arming_an_armed_timer_changes_its_period_alone,
                "N4" a_timer_that_is_armed_again_and_again_fires_all_the_same,
                "N4" a_timer_goes_on_after_a_failure,
            }
        } }
    };
}
