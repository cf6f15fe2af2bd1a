//! What passes between one instance and whoever has it run: one invocation at a time.
//!
//! The instance asks for its next invocation and answers it over the Runtime API; the pool hands it one and waits. Both
//! meet here. An instance that ends, or is ended, drops what it has, and what it is given after that: then the waiting side hears that
//! nobody answers.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use ports::runtime::Invocation;
use tokio::sync::{mpsc, oneshot, watch};

/// An invocation with what the instance is told beside it.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) invocation: Invocation,
    /// When it has to be done, in milliseconds since the epoch.
    pub(crate) deadline_ms: u64,
}

/// What an instance said.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Its result.
    Response(Bytes),
    /// A result of so many bytes or more, which is more than may be.
    TooLong(usize),
    /// It failed, in its own words.
    Error(Bytes),
}

/// Why an answer was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotAsked;

#[derive(Debug)]
struct Current {
    id: String,
    told: oneshot::Sender<Answer>,
}

/// What an instance is at.
#[derive(Debug, Default)]
struct Work {
    current: Option<Current>,
    /// It takes nothing any more.
    has_ended: bool,
}

/// One instance's exchange.
#[derive(Debug)]
pub(crate) struct Exchange {
    give: mpsc::Sender<Task>,
    take: tokio::sync::Mutex<mpsc::Receiver<Task>>,
    work: Mutex<Work>,
    /// As what its requests are answered: until it is given another invocation, also once it has answered this one. What still
    /// asks then is of this one, not anybody's.
    scope: Mutex<Option<Arc<str>>>,
    /// How often the instance has asked for its next invocation.
    asked: watch::Sender<u64>,
    /// What it said when it could not start.
    failed_start: watch::Sender<Option<Bytes>>,
}

impl Exchange {
    pub(crate) fn new() -> Self {
        let (give, take) = mpsc::channel(1);
        Self {
            give,
            take: tokio::sync::Mutex::new(take),
            work: Mutex::default(),
            scope: Mutex::default(),
            asked: watch::Sender::new(0),
            failed_start: watch::Sender::default(),
        }
    }

    /// Hands over `task`; the answer comes through what is returned, or its end means that none will.
    pub(crate) fn assign(&self, task: Task) -> oneshot::Receiver<Answer> {
        let (told, answer) = oneshot::channel();
        let Invocation { id, scope, .. } = &task.invocation;
        self.scope.lock().clone_from(scope);
        {
            let mut work = self.work.lock();
            if work.has_ended {
                return answer;
            }
            work.current = Some(Current {
                id: id.clone(),
                told,
            });
        }
        // Full only if an earlier one was never taken: then the instance hangs, and this one runs out of time.
        let _ = self.give.try_send(task);
        answer
    }

    /// The instance asks for its next invocation. What it has not answered by now it never will.
    pub(crate) async fn next(&self) -> Option<Task> {
        if self.asked.borrow().ne(&0) {
            let mut work = self.work.lock();
            if self.give.capacity() > 0 {
                work.current = None;
            }
        }
        self.asked.send_modify(|asked| *asked += 1);
        self.take.lock().await.recv().await
    }

    /// The instance answers the invocation `id`.
    pub(crate) fn answer(&self, id: &str, answer: Answer) -> Result<(), NotAsked> {
        let mut work = self.work.lock();
        match work.current.take_if(|current| current.id == id) {
            Some(current) => {
                // Who asked may have given up meanwhile.
                let _ = current.told.send(answer);
                Ok(())
            }
            None => Err(NotAsked),
        }
    }

    /// As what a request of the instance is answered at the moment.
    pub(crate) fn scope(&self) -> Option<Arc<str>> {
        self.scope.lock().clone()
    }

    /// Whether the instance has the invocation `id` to answer.
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

    /// What it said then.
    pub(crate) fn failed_start(&self) -> Option<Bytes> {
        self.failed_start.send_replace(None)
    }

    /// Ends once it says that it could not.
    pub(crate) async fn has_failed_to_start(&self) {
        // Without an error: it is there as long as we are.
        let _ = self
            .failed_start
            .subscribe()
            .wait_for(Option::is_some)
            .await;
    }

    /// Nobody answers any more.
    pub(crate) fn end(&self) {
        *self.work.lock() = Work {
            current: None,
            has_ended: true,
        };
    }

    /// How often the instance has asked for its next invocation.
    pub(crate) fn asked(&self) -> watch::Receiver<u64> {
        self.asked.subscribe()
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
    async fn an_answer_reaches_who_asked_and_counts_once() {
        let exchange = Exchange::new();
        let answer = exchange.assign(task("one"));
        assert_eq!(
            exchange.next().await.expect("assigned").invocation.id,
            "one"
        );
        assert!(exchange.expects("one"));
        assert_eq!(exchange.answer("two", Answer::TooLong(1)), Err(NotAsked));
        assert_eq!(
            exchange.answer("one", Answer::Response(Bytes::from("done"))),
            Ok(())
        );
        assert_eq!(
            exchange.answer("one", Answer::Response(Bytes::from("again"))),
            Err(NotAsked)
        );
        assert!(matches!(answer.await, Ok(Answer::Response(bytes)) if bytes == "done"));
    }

    /// W7.
    #[tokio::test]
    async fn what_asks_after_the_answer_is_still_of_the_same_invocation() {
        let exchange = Exchange::new();
        let mut first = task("one");
        first.invocation.scope = Some("step".into());
        let _answer = exchange.assign(first);
        exchange.next().await.expect("assigned");
        exchange
            .answer("one", Answer::Response(Bytes::new()))
            .expect("it was asked");
        assert_eq!(exchange.scope().as_deref(), Some("step"));
        let _answer = exchange.assign(task("two"));
        assert_eq!(exchange.scope(), None);
    }

    #[tokio::test]
    async fn who_asks_for_the_next_without_an_answer_gives_none() {
        let exchange = Exchange::new();
        let answer = exchange.assign(task("one"));
        exchange.next().await.expect("assigned");
        let next = exchange.next();
        tokio::pin!(next);
        assert!(futures_util::poll!(&mut next).is_pending());
        assert!(answer.await.is_err(), "the first is given up");
        let second = exchange.assign(task("two"));
        assert_eq!(next.await.expect("assigned").invocation.id, "two");
        exchange.end();
        assert!(second.await.is_err(), "the instance has ended");
    }

    /// It waited for as long as its function may run, and was told that it had.
    #[tokio::test]
    async fn what_is_given_to_an_instance_that_has_ended_is_not_answered() {
        let exchange = Exchange::new();
        exchange.end();
        let mut answer = exchange.assign(task("one"));
        let heard = answer.try_recv();
        assert!(
            matches!(heard, Err(oneshot::error::TryRecvError::Closed)),
            "{heard:?}"
        );
        assert!(!exchange.expects("one"));
    }
}
