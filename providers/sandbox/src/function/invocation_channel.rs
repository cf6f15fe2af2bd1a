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

/// An invocation with its deadline.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) invocation: Invocation,
    /// The time by which it must be answered, in milliseconds since the epoch.
    pub(crate) deadline_ms: u64,
}

/// The answer of an instance.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Its result.
    Response(Bytes),
    /// A result over the bound, of at least this many bytes.
    TooLong(usize),
    /// The function's error.
    Error(Bytes),
}

/// The answer was not accepted: the instance has no such invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotAsked;

#[derive(Debug)]
struct Current {
    id: String,
    answer: oneshot::Sender<Answer>,
}

/// The work of an instance.
#[derive(Debug, Default)]
struct Work {
    current: Option<Current>,
    /// Whether the instance has ended.
    has_ended: bool,
}

/// The invocation channel.
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

    /// The instance answers the invocation `id`.
    pub(crate) fn answer(&self, id: &str, answer: Answer) -> Result<(), NotAsked> {
        let mut work = self.work.lock();
        match work.current.take_if(|current| current.id == id) {
            Some(current) => {
                // The caller may be gone.
                let _ = current.answer.send(answer);
                Ok(())
            }
            None => Err(NotAsked),
        }
    }

    /// The scope of the instance's requests now.
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

    /// The instance could not start.
    pub(crate) fn fail_start(&self, error: Bytes) {
        self.failed_start.send_replace(Some(error));
    }

    /// Takes the error of the start.
    pub(crate) fn failed_start(&self) -> Option<Bytes> {
        self.failed_start.send_replace(None)
    }

    /// Waits until the instance reports that it could not start.
    pub(crate) async fn has_failed_to_start(&self) {
        // No error: the sender lives as long as `self`.
        let _ = self
            .failed_start
            .subscribe()
            .wait_for(Option::is_some)
            .await;
    }

    /// The instance has ended.
    pub(crate) fn end(&self) {
        *self.work.lock() = Work {
            current: None,
            has_ended: true,
        };
    }

    /// How often the instance has requested an invocation.
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
        assert_eq!(channel.answer("two", Answer::TooLong(1)), Err(NotAsked));
        assert_eq!(
            channel.answer("one", Answer::Response(Bytes::from("done"))),
            Ok(())
        );
        assert_eq!(
            channel.answer("one", Answer::Response(Bytes::from("again"))),
            Err(NotAsked)
        );
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
        channel
            .answer("one", Answer::Response(Bytes::new()))
            .expect("it was asked");
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
