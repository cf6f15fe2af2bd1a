//! An invocation in a transaction of its function's volume.
//!
//! ```text
//!  begin ──▶ the invocation runs ──▶ it asks for its next one ──▶ commit ──▶ its answer counts
//!    ▲                                                              │
//!    └──────────────── conflict: it runs again ◀────────────────────┘
//! ```
//!
//! The commit waits until the instance asks for its next invocation, because a runtime may still
//! write files after it has sent its answer (rule VM1).

use std::time::Duration;

use ports::{VolumeMount, functions::Permit, runtime::Invocation, volume_mounts::VolumeCommit};
use tokio::time::{Instant, timeout_at};

use super::Outcome;
use crate::{
    figures::Failed,
    function::{failure, invocation_channel::InvocationChannel},
};

/// How often an invocation runs in all, if its transactions meet conflicts. Of those that conflict
/// with each other one commits, so this is how many may run at once.
const ATTEMPTS_MAX: u32 = 16;
/// The longest commit after the function's own time.
const COMMIT_MAX: Duration = Duration::from_secs(30);

/// The transaction of one invocation.
pub(super) struct Begun<'a> {
    volume: &'a dyn VolumeMount,
    channel: &'a InvocationChannel,
    id: &'a str,
    deadline: Instant,
    requests_before: u64,
}

/// How one attempt ended.
enum Attempt {
    Ended(Outcome),
    Conflict,
}

impl<'a> Begun<'a> {
    pub(super) fn new(
        volume: &'a dyn VolumeMount,
        channel: &'a InvocationChannel,
        id: &'a str,
        deadline: Instant,
    ) -> Self {
        let requests_before = *channel.requests().borrow();
        Self {
            volume,
            channel,
            id,
            deadline,
            requests_before,
        }
    }

    /// How often the instance had asked for an invocation before the last attempt.
    pub(super) fn requests_before(&self) -> u64 {
        self.requests_before
    }

    /// Runs `work` until its transaction commits, it fails, or its attempts or its time are over.
    pub(super) async fn run<W: Future<Output = Outcome>>(
        &mut self,
        mut work: impl FnMut() -> W,
    ) -> Outcome {
        let mut attempts = 0;
        loop {
            attempts += 1;
            if let Attempt::Ended(outcome) = self.attempt(&mut work).await {
                return outcome;
            }
            if attempts == ATTEMPTS_MAX || Instant::now() >= self.deadline {
                let cause = self.volume.cause().await;
                let payload = failure::conflicted(self.id, attempts, &cause);
                return Err((Failed::NotCommitted, payload));
            }
        }
    }

    async fn attempt<W: Future<Output = Outcome>>(
        &mut self,
        work: &mut impl FnMut() -> W,
    ) -> Attempt {
        self.requests_before = *self.channel.requests().borrow();
        if let Err(why) = self.volume.begin().await {
            self.volume.abort().await;
            return Attempt::Ended(Err(self.failed(&why)));
        }
        let outcome = work().await;
        if outcome.is_ok() && !self.is_back().await {
            // The process ended after its answer, or hangs: its writes are not complete.
            self.volume.abort().await;
            let why = "the instance did not ask for its next invocation";
            return Attempt::Ended(Err(self.failed(why)));
        }
        let Ok(answer) = outcome else {
            self.volume.abort().await;
            return Attempt::Ended(outcome);
        };
        let until = self.deadline.max(Instant::now() + COMMIT_MAX);
        match timeout_at(until, self.volume.commit()).await {
            Ok(Ok(VolumeCommit::Committed)) => Attempt::Ended(Ok(answer)),
            Ok(Ok(VolumeCommit::Conflict)) => Attempt::Conflict,
            Ok(Err(why)) => Attempt::Ended(Err(self.failed(&why))),
            Err(_) => {
                self.volume.abort().await;
                let why = "its commit took too long, and its outcome is not known";
                Attempt::Ended(Err(self.failed(why)))
            }
        }
    }

    /// Waits until the instance asks for its next invocation. Whether it does.
    async fn is_back(&self) -> bool {
        let mut requests = self.channel.requests();
        let is_back = requests.wait_for(|requests| *requests > self.requests_before);
        matches!(timeout_at(self.deadline, is_back).await, Ok(Ok(_)))
    }

    fn failed(&self, why: &str) -> (Failed, bytes::Bytes) {
        (Failed::NotCommitted, failure::volume_failed(self.id, why))
    }
}

/// The invocation for one more attempt. The place of the first one counts for all.
pub(super) fn copy_of(invocation: &Invocation) -> Invocation {
    Invocation {
        id: invocation.id.clone(),
        payload: invocation.payload.clone(),
        client_context: invocation.client_context.clone(),
        waits: invocation.waits,
        permit: Permit::default(),
        timeout: invocation.timeout,
        scope: invocation.scope.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        path::Path,
        sync::atomic::{AtomicU32, Ordering},
    };

    use async_trait::async_trait;
    use bytes::Bytes;
    use parking_lot::Mutex;

    use super::*;

    /// A volume that answers as told, and notes its calls.
    #[derive(Debug, Default)]
    struct Scripted {
        commits: Mutex<VecDeque<VolumeCommit>>,
        calls: Mutex<Vec<&'static str>>,
    }

    impl Scripted {
        fn new(commits: impl IntoIterator<Item = VolumeCommit>) -> Self {
            Self {
                commits: Mutex::new(commits.into_iter().collect()),
                calls: Mutex::default(),
            }
        }
    }

    #[async_trait]
    impl VolumeMount for Scripted {
        fn path(&self) -> &Path {
            Path::new("/nowhere")
        }

        async fn begin(&self) -> Result<(), String> {
            self.calls.lock().push("begin");
            Ok(())
        }

        async fn commit(&self) -> Result<VolumeCommit, String> {
            self.calls.lock().push("commit");
            let next = self.commits.lock().pop_front();
            Ok(next.unwrap_or(VolumeCommit::Conflict))
        }

        async fn cause(&self) -> String {
            "another transaction changed the file".to_owned()
        }

        async fn abort(&self) {
            self.calls.lock().push("abort");
        }
    }

    /// Runs an instance that answers `outcome` each time. Returns the result, and how often it ran.
    async fn run(volume: &Scripted, outcome: Outcome, comes_back: bool) -> (Outcome, u32) {
        let channel = InvocationChannel::new();
        let ran = AtomicU32::new(0);
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut begun = Begun::new(volume, &channel, "an-id", deadline);
        let result = begun
            .run(|| {
                ran.fetch_add(1, Ordering::Relaxed);
                if comes_back {
                    // No task waits for it: only the count matters.
                    let _ = futures_util::FutureExt::now_or_never(channel.next());
                }
                std::future::ready(outcome.clone())
            })
            .await;
        (result, ran.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn an_invocation_runs_again_after_a_conflict() {
        let volume = Scripted::new([VolumeCommit::Conflict, VolumeCommit::Committed]);
        let (result, ran) = run(&volume, Ok(Bytes::from("answer")), true).await;
        assert_eq!((result, ran), (Ok(Bytes::from("answer")), 2));
        let calls = ["begin", "commit", "begin", "commit"];
        assert_eq!(*volume.calls.lock(), calls);
    }

    #[tokio::test(start_paused = true)]
    async fn conflicts_in_each_attempt_fail_it_and_are_named() {
        let (result, ran) = run(&Scripted::default(), Ok(Bytes::new()), true).await;
        assert_eq!(ran, ATTEMPTS_MAX);
        let (failed, payload) = result.expect_err("it never commits");
        assert_eq!(failed, Failed::NotCommitted);
        let payload = String::from_utf8_lossy(&payload);
        assert!(payload.contains("Volume.Conflict"), "{payload}");
        assert!(payload.contains("the file"), "{payload}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_invocation_leaves_no_trace() {
        let volume = Scripted::default();
        let failed = Err((Failed::ByFunction, Bytes::from("error")));
        let (result, ran) = run(&volume, failed.clone(), true).await;
        assert_eq!((result, ran), (failed, 1));
        assert_eq!(*volume.calls.lock(), ["begin", "abort"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_may_still_write_does_not_commit() {
        let volume = Scripted::default();
        let (result, _) = run(&volume, Ok(Bytes::new()), false).await;
        assert_eq!(result.expect_err("refused").0, Failed::NotCommitted);
        assert_eq!(*volume.calls.lock(), ["begin", "abort"]);
    }
}
