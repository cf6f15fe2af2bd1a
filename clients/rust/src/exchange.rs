//! Sending one request until it has a response: to which node, when to repeat it, and when to give
//! up.
//!
//! [`Course`] decides, without I/O: it receives the result of each sending, and the time.
//! [`Core::exchange`] is the shell around it.
//!
//! Invariants
//! - A request goes to the next node at the first sign that a node is gone; a pause comes only
//!   after every node has been tried. A commit whose outcome a node does not know moves on too: the
//!   node may be cut off from the commit sequencer.
//! - A repeat that the end of the time cuts short does not hide the server's earlier response,
//!   unless that repeat alone leaves the outcome of a change unknown.
//! - A change whose last response is missing ends as `OutcomeUnknown`, never as an error that
//!   denies it.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use crate::{
    call::{Call, Response},
    connections::{Connections, Event},
    error::{Error, ErrorKind, Result},
    limits::{ASIDE_CALL_MAX, Limits},
    nodes::Route,
    problem::{Meaning, Repeat, accepts, refusal},
};

const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// After this many doublings every pause has reached its maximum.
const DOUBLINGS_MAX: u32 = 16;

/// A response, and whether another copy of the request may still be in flight to the server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: Response,
    pub(crate) is_doubled: bool,
}

/// The next step after an event.
#[derive(Debug)]
enum Next {
    End(Result<Answer>),
    /// Send it again after the pause, to the next node if the client leaves this one.
    Again {
        pause: Duration,
        leaves_node: bool,
    },
}

#[derive(Debug)]
struct Course<'a> {
    call: &'a Call,
    nodes: usize,
    limits: Limits,
    may_have_happened: bool,
    failures: u32,
    said: Option<(Error, Meaning)>,
}

/// The settings and connections that every call needs.
#[derive(Debug, Clone)]
pub(crate) struct Core {
    pub(crate) connections: Connections,
    pub(crate) route: Arc<Route>,
    pub(crate) limits: Limits,
    /// Permits for background work.
    pub(crate) aside: Arc<Semaphore>,
}

impl Core {
    /// Runs background work, for [`ASIDE_CALL_MAX`] in all. Work beyond [`ASIDE_MAX`] tasks at a
    /// time is dropped. So is work without a runtime, for instance while the runtime shuts down.
    pub(crate) fn spawn_aside(&self, work: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        if let Ok(place) = Arc::clone(&self.aside).try_acquire_owned() {
            runtime.spawn(async move {
                // Work that exceeds its time is dropped at any point.
                let _ = timeout(ASIDE_CALL_MAX, work).await;
                drop(place);
            });
        }
    }

    /// Sends `call` until it succeeds, is refused permanently, or runs out of time.
    pub(crate) async fn exchange(&self, call: &Call) -> Result<Answer> {
        let (route, connections) = (&self.route, &self.connections);
        let mut course = Course::new(call, route.nodes(), self.limits);
        let began = Instant::now();
        loop {
            let node = route.node();
            let reply_max = course.reply_max(began.elapsed());
            let event = connections.send(node, call, reply_max).await;
            let address = connections.address(node);
            match course.judge(event, address, began.elapsed(), &mut full_jitter) {
                Next::End(result) => return result,
                Next::Again { pause, leaves_node } => {
                    if leaves_node {
                        route.leave(node);
                    }
                    if !pause.is_zero() {
                        sleep(pause).await;
                    }
                }
            }
        }
    }

    /// The same with a route of its own.
    pub(crate) fn branch(&self) -> Self {
        Self {
            route: self.route.branch(),
            ..self.clone()
        }
    }

    pub(crate) fn with_limits(&self, limits: Limits) -> Self {
        Self {
            limits,
            ..self.clone()
        }
    }
}

/// The pause after this many failures, drawn between zero and a ceiling that doubles.
pub(crate) fn full_jitter(failures: u32) -> Duration {
    let ceiling = PAUSE_FIRST
        .saturating_mul(1 << failures.min(DOUBLINGS_MAX))
        .min(PAUSE_MAX);
    // Without randomness (which every system has), all clients would return at once: late, but not
    // wrong.
    let drawn = getrandom::u32().unwrap_or(u32::MAX);
    ceiling.mul_f64(f64::from(drawn) / f64::from(u32::MAX))
}

impl<'a> Course<'a> {
    fn new(call: &'a Call, nodes: usize, limits: Limits) -> Self {
        let limits = limits.for_body(call.body.len());
        Self {
            call,
            nodes,
            limits,
            may_have_happened: false,
            failures: 0,
            said: None,
        }
    }

    /// How long to wait for the response to a request that is sent now.
    fn reply_max(&self, elapsed: Duration) -> Duration {
        let left = self
            .limits
            .call
            .saturating_sub(elapsed)
            .max(Duration::from_millis(1));
        self.limits.reply.min(left)
    }

    fn judge(
        &mut self,
        event: Event,
        node: &str,
        elapsed: Duration,
        jitter: &mut dyn FnMut(u32) -> Duration,
    ) -> Next {
        let is_lost = matches!(event, Event::Lost { .. });
        let (error, meaning) = match event {
            Event::Response(response) if accepts(self.call, &response) => {
                return Next::End(Ok(Answer {
                    response,
                    is_doubled: self.may_have_happened,
                }));
            }
            Event::Response(response) => refusal(self.call, node, &response),
            Event::Lost { reason, was_sent } => self.loss(node, reason, was_sent),
            Event::Malformed(why) => {
                return Next::End(Err(self.call.error(ErrorKind::InvalidRequest, why)));
            }
        };
        self.may_have_happened |= !meaning.is_certain;
        let is_in_doubt = self.is_in_doubt();
        if !is_lost {
            self.said = Some((error.clone(), meaning));
        } else if elapsed >= self.limits.call
            && let Some((said, meaning)) = self.said.take()
            && !(is_in_doubt && meaning.is_certain)
        {
            return Next::End(Err(self.given_up(said)));
        }
        let is_once = self.call.condition.is_some() && self.may_have_happened;
        if meaning.repeat == Repeat::Never || is_once {
            // A response about the attempt itself holds for every copy of the request.
            if error.kind().ends_attempt() {
                return Next::End(Err(error));
            }
            return Next::End(Err(self.given_up(error)));
        }
        self.failures += 1;
        let nodes = u32::try_from(self.nodes).unwrap_or(u32::MAX);
        let leaves_node = meaning.repeat == Repeat::Elsewhere;
        let has_another_node = leaves_node && !self.failures.is_multiple_of(nodes);
        let pause = if has_another_node {
            Duration::ZERO
        } else {
            jitter(self.failures / nodes).max(error.retry_after().unwrap_or_default())
        };
        if elapsed.saturating_add(pause) >= self.limits.call {
            return Next::End(Err(self.given_up(error)));
        }
        Next::Again { pause, leaves_node }
    }

    /// Whether it is unknown if the call has changed something.
    fn is_in_doubt(&self) -> bool {
        self.call.is_change && self.may_have_happened
    }

    fn loss(&self, node: &str, reason: String, was_sent: bool) -> (Error, Meaning) {
        let what = format!("{} at {node}", self.call.what);
        let error = Error::new(ErrorKind::Unavailable, what, reason);
        (
            error.of_transaction(self.call.transaction.as_deref()),
            Meaning::of_loss(was_sent),
        )
    }

    fn given_up(&self, last: Error) -> Error {
        let is_in_doubt = self.is_in_doubt();
        let error = last.that_may_have_happened(self.may_have_happened);
        if is_in_doubt {
            error.into_unknown()
        } else {
            error
        }
    }
}

#[cfg(test)]
mod tests;
