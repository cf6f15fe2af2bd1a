//! The attempts of a transaction: one run of the command each, again after a conflict.

use async_trait::async_trait;
use transactions::serializable::model::Key;

use super::{
    program::{Ended, Program, Variables},
    spool::Held,
};

/// The transactions of `exec`.
#[async_trait]
pub(super) trait Volume: Send {
    /// Begins a transaction at the present state, and shows it: by a mount, or to programs with the
    /// variables that it returns.
    async fn begin(&mut self) -> anyhow::Result<Variables>;

    /// Hides and commits it. Once this returns `Committed`, it survives any crash. Errors:
    /// nothing took effect.
    async fn commit(&mut self) -> anyhow::Result<Decision>;

    /// Hides and forgets it. Once this returns, all that it read survives any crash.
    async fn abort(&mut self) -> anyhow::Result<()>;

    /// The cause of a conflict on `key`, as a sentence.
    async fn cause(&self, key: Option<Key>) -> String;
}

/// The end of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// It took effect.
    Committed,
    /// Another transaction wrote a value that it read. `None`: as of [`files::Outcome`]. Nothing
    /// took effect.
    Conflict(Option<Key>),
    /// The volume did not answer. It may have taken effect.
    Unknown,
}

/// A runner of the command.
#[async_trait]
pub(super) trait Run: Send {
    /// Runs it to its end.
    async fn run(&mut self, variables: &Variables) -> anyhow::Result<(Ended, Held)>;
}

#[async_trait]
impl Run for Program {
    async fn run(&mut self, variables: &Variables) -> anyhow::Result<(Ended, Held)> {
        Self::run(self, variables).await
    }
}

/// The end of all attempts.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The command succeeded, and the transaction took effect.
    Committed(Held),
    /// The command did not succeed. Nothing took effect.
    Aborted(Ended, Held),
    /// The last attempt conflicted, for this cause. Nothing took effect.
    Conflict(String),
    /// The volume did not answer. The transaction may have taken effect.
    Unknown,
}

/// Runs the command until its transaction is decided, at most `attempts` times. It `reports` each
/// conflict that is not the last. Errors: nothing took effect.
pub(super) async fn attempt(
    volume: &mut impl Volume,
    command: &mut impl Run,
    attempts: u32,
    mut reports: impl FnMut(&str),
) -> anyhow::Result<Outcome> {
    let mut count = 1;
    loop {
        let variables = volume.begin().await?;
        let (ended, held) = match command.run(&variables).await {
            Ok(run) => run,
            Err(error) => {
                volume.abort().await?;
                return Err(error);
            }
        };
        if ended != Ended::Exited(0) {
            volume.abort().await?;
            return Ok(Outcome::Aborted(ended, held));
        }
        match volume.commit().await? {
            Decision::Committed => return Ok(Outcome::Committed(held)),
            Decision::Unknown => return Ok(Outcome::Unknown),
            Decision::Conflict(key) if count >= attempts => {
                return Ok(Outcome::Conflict(volume.cause(key).await));
            }
            Decision::Conflict(_) => {
                count += 1;
                reports(&format!(
                    "conflict with another transaction; attempt {count} of {attempts} begins"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use anyhow::bail;

    use super::*;
    use crate::commands::files::exec::spool::Spool;

    /// Decides as it is told, and notes the calls.
    #[derive(Default)]
    struct Told {
        decisions: Vec<Decision>,
        calls: Vec<&'static str>,
    }

    #[async_trait]
    impl Volume for Told {
        async fn begin(&mut self) -> anyhow::Result<Variables> {
            self.calls.push("begin");
            Ok(Variables::new())
        }

        async fn commit(&mut self) -> anyhow::Result<Decision> {
            self.calls.push("commit");
            Ok(self.decisions.remove(0))
        }

        async fn abort(&mut self) -> anyhow::Result<()> {
            self.calls.push("abort");
            Ok(())
        }

        async fn cause(&self, key: Option<Key>) -> String {
            format!("{:?}", key.expect("a key").name())
        }
    }

    /// Ends as it is told, and writes the number of the run.
    struct Ends(Vec<Option<Ended>>, u8);

    #[async_trait]
    impl Run for Ends {
        async fn run(&mut self, _: &Variables) -> anyhow::Result<(Ended, Held)> {
            self.1 += 1;
            let Some(ended) = self.0.remove(0) else {
                bail!("no run");
            };
            let (spool, mut pipes) = Spool::start(1)?;
            write!(pipes.stdout, "{}", self.1)?;
            Ok((ended, spool.finish()?))
        }
    }

    fn run(decisions: &[Decision], ends: &[Option<Ended>]) -> (String, Vec<&'static str>, usize) {
        let mut volume = Told {
            decisions: decisions.to_vec(),
            ..Told::default()
        };
        let mut reports = 0;
        let mut ends = Ends(ends.to_vec(), 0);
        let attempted = attempt(&mut volume, &mut ends, 3, |_| reports += 1);
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let outcome = runtime.expect("a runtime").block_on(attempted);
        let mut stdout = Vec::new();
        let mut copied = |mut held: Held| {
            held.copy_stdout(&mut stdout).expect("a copy");
            String::from_utf8(stdout.clone()).expect("text")
        };
        let said = match outcome {
            Ok(Outcome::Committed(held)) => format!("committed {}", copied(held)),
            Ok(Outcome::Aborted(ended, _)) => format!("aborted {ended:?}"),
            Ok(Outcome::Conflict(name)) => format!("conflict {name}"),
            Ok(Outcome::Unknown) => "unknown".to_owned(),
            Err(error) => error.to_string(),
        };
        (said, volume.calls, reports)
    }

    const GOOD: Option<Ended> = Some(Ended::Exited(0));

    fn conflict(name: &str) -> Decision {
        Decision::Conflict(Some(Key::new("d", name.to_owned()).expect("a key")))
    }

    #[test]
    fn a_conflict_runs_again_and_only_the_last_output_counts() {
        let decided = run(&[conflict("a"), Decision::Committed], &[GOOD, GOOD]);
        let calls = vec!["begin", "commit", "begin", "commit"];
        assert_eq!(decided, ("committed 2".to_owned(), calls, 1));
    }

    #[test]
    fn attempts_are_bounded_and_the_last_cause_is_told() {
        let conflicts = [conflict("a"), conflict("b"), conflict("c")];
        let (said, calls, reports) = run(&conflicts, &[GOOD; 3]);
        assert_eq!(
            (said.as_str(), calls.len(), reports),
            ("conflict b\"c\"", 6, 2)
        );
    }

    #[test]
    fn only_a_success_commits() {
        for ended in [
            Ended::Exited(1),
            Ended::TimeUp,
            Ended::Signalled(nix::sys::signal::Signal::SIGINT),
        ] {
            let (said, calls, _) = run(&[], &[Some(ended)]);
            assert_eq!(said, format!("aborted {ended:?}"));
            assert_eq!(calls, ["begin", "abort"]);
        }
        let (said, calls, _) = run(&[], &[None]);
        assert_eq!((said.as_str(), calls), ("no run", vec!["begin", "abort"]));
    }

    #[test]
    fn an_unknown_outcome_is_not_tried_again() {
        let (said, calls, _) = run(&[Decision::Unknown], &[GOOD]);
        assert_eq!((said.as_str(), calls), ("unknown", vec!["begin", "commit"]));
    }
}
