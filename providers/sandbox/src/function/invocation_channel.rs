//! The invocation channel of one instance: hands it one invocation at a time, and returns the
//! result.
//!
//! The pool assigns an invocation and waits. The instance requests its next invocation and answers
//! it over the Runtime API. When the instance ends, the channel drops the present invocation and
//! any later one, so that the waiting side learns that no answer will come.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use ports::runtime::Invocation;
use tokio::sync::{mpsc, oneshot, watch};

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) invocation: Invocation,
    /// The time by which it must be answered, in milliseconds since the epoch.
    pub(crate) deadline_ms: u64,
}

#[derive(Debug)]
pub(crate) enum Answer {
    Response(Bytes),
    /// A result over the bound, of at least this many bytes.
    TooLong(usize),
    Error(Bytes),
}

#[derive(Debug)]
struct Current {
    id: String,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug, Default)]
struct Work {
    current: Option<Current>,
    has_ended: bool,
}

#[derive(Debug)]
pub(crate) struct InvocationChannel {
    give: mpsc::Sender<Task>,
    take: tokio::sync::Mutex<mpsc::Receiver<Task>>,
    work: Mutex<Work>,
    /// The scope of the instance's requests. It stays after the answer, until the next invocation:
    /// a request in between still belongs to this one.
    scope: Mutex<Option<Arc<str>>>,
    /// How often the instance has requested an invocation.
    requests: watch::Sender<u64>,
    /// The error that it reported when it could not start.
    failed_start: watch::Sender<Option<Bytes>>,
}

impl InvocationChannel {
    pub(crate) fn new() -> Self {
        let (give, take) = mpsc::channel(1);
        Self {
            give,
            take: tokio::sync::Mutex::new(take),
            work: Mutex::default(),
            scope: Mutex::default(),
            requests: watch::Sender::new(0),
            failed_start: watch::Sender::default(),
        }
    }

    /// Assigns `task`. The receiver gets the answer, or an error if none will come.
    pub(crate) fn assign(&self, task: Task) -> oneshot::Receiver<Answer> {
        let (answered, answer) = oneshot::channel();
        let Invocation { id, scope, .. } = &task.invocation;
        self.scope.lock().clone_from(scope);
        {
            let mut work = self.work.lock();
            if work.has_ended {
                return answer;
            }
            work.current = Some(Current {
                id: id.clone(),
                answer: answered,
            });
        }
        // Full only if the instance hangs and never took an earlier one. This one then times out.
        let _ = self.give.try_send(task);
        answer
    }

    /// The instance requests its next invocation. An earlier one that it has not answered gets no
    /// answer.
    pub(crate) async fn next(&self) -> Option<Task> {
        if self.requests.borrow().ne(&0) {
            let mut work = self.work.lock();
            if self.give.capacity() > 0 {
                work.current = None;
            }
        }
        self.requests.send_modify(|requests| *requests += 1);
        self.take.lock().await.recv().await
    }

    /// The instance answers the invocation `id`. Whether it has such an invocation.
    pub(crate) fn answer(&self, id: &str, answer: Answer) -> bool {
        let mut work = self.work.lock();
        let current = work.current.take_if(|current| current.id == id);
        let is_current = current.is_some();
        if let Some(current) = current {
            // The caller may be gone.
            let _ = current.answer.send(answer);
        }
        is_current
    }

    pub(crate) fn scope(&self) -> Option<Arc<str>> {
        self.scope.lock().clone()
    }

    /// Whether the instance has yet to answer the invocation `id`.
    pub(crate) fn expects(&self, id: &str) -> bool {
        self.work
            .lock()
            .current
            .as_ref()
            .is_some_and(|current| current.id == id)
    }

    pub(crate) fn fail_start(&self, error: Bytes) {
        self.failed_start.send_replace(Some(error));
    }

    /// Takes the error of the start.
    pub(crate) fn failed_start(&self) -> Option<Bytes> {
        self.failed_start.send_replace(None)
    }

    pub(crate) async fn has_failed_to_start(&self) {
        // No error: the sender lives as long as `self`.
        let _ = self
            .failed_start
            .subscribe()
            .wait_for(Option::is_some)
            .await;
    }

    pub(crate) fn end(&self) {
        *self.work.lock() = Work {
            current: None,
            has_ended: true,
        };
    }

    pub(crate) fn requests(&self) -> watch::Receiver<u64> {
        self.requests.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: &str) -> Task {
        let invocation = Invocation::new(id.to_owned(), Bytes::new(), false);
        Task {
            invocation,
            deadline_ms: 0,
        }
    }

    #[tokio::test]
    async fn an_answer_reaches_its_caller_once() {
        let channel = InvocationChannel::new();
        let answer = channel.assign(task("one"));
        assert_eq!(channel.next().await.expect("assigned").invocation.id, "one");
        assert!(channel.expects("one"));
        assert!(!channel.answer("two", Answer::TooLong(1)));
        assert!(channel.answer("one", Answer::Response(Bytes::from("done"))));
        assert!(!channel.answer("one", Answer::Response(Bytes::from("again"))));
        assert!(matches!(answer.await, Ok(Answer::Response(bytes)) if bytes == "done"));
    }

    /// W7.
    #[tokio::test]
    async fn requests_after_the_answer_belong_to_the_same_invocation() {
        let channel = InvocationChannel::new();
        let mut first = task("one");
        first.invocation.scope = Some("step".into());
        let _answer = channel.assign(first);
        channel.next().await.expect("assigned");
        assert!(channel.answer("one", Answer::Response(Bytes::new())));
        assert_eq!(channel.scope().as_deref(), Some("step"));
        let _answer = channel.assign(task("two"));
        assert_eq!(channel.scope(), None);
    }

    #[tokio::test]
    async fn requesting_the_next_invocation_gives_up_the_present_one() {
        let channel = InvocationChannel::new();
        let answer = channel.assign(task("one"));
        channel.next().await.expect("assigned");
        let next = channel.next();
        tokio::pin!(next);
        assert!(futures_util::poll!(&mut next).is_pending());
        assert!(answer.await.is_err(), "the first is given up");
        let second = channel.assign(task("two"));
        assert_eq!(next.await.expect("assigned").invocation.id, "two");
        channel.end();
        assert!(second.await.is_err(), "the instance has ended");
    }

    /// It waited for the function's timeout, and was reported as timed out.
    #[tokio::test]
    async fn an_invocation_for_an_ended_instance_gets_no_answer() {
        let channel = InvocationChannel::new();
        channel.end();
        let mut answer = channel.assign(task("one"));
        let received = answer.try_recv();
        assert!(
            matches!(received, Err(oneshot::error::TryRecvError::Closed)),
            "{received:?}"
        );
        assert!(!channel.expects("one"));
    }
}
