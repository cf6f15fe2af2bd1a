//! Plain writes under a condition on the present value: each is a serializable transaction of one
//! read and one write.
//!
//! The sequencer validates the read when it orders the write. So of two nodes that write one key
//! under the same condition, one succeeds. A conflict with another write says nothing about the
//! condition, which is therefore checked again. All of it runs as a task of the engine. A caller that
//! leaves in the middle would leave the transaction open, and the write undone or not.
//!
//! The first such write of a store marks the keyspace as sequenced (T-3): every later commit there
//! takes its slot from the sequencer.

use std::sync::Arc;

use bytes::Bytes;
use ports::Read;

use crate::{
    Error, Result,
    attempts::read_set::Choice,
    broken::Broken,
    calls::{Calls, commit::Committing},
    model::{Begin, Begun, Call, Committed, Isolation, Key, Version},
};

/// How often a write meets a conflict before its caller has to repeat it.
const CONFLICTS_MAX: usize = 8;

/// The condition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The key has no value.
    Absent,
    /// The key has a value.
    Present,
    /// The key has the value of this version.
    Version(Version),
}

impl Expected {
    /// Whether the condition holds for the version of the present value; `None`: there is none.
    fn holds(self, present: Option<Version>) -> bool {
        match self {
            Self::Absent => present.is_none(),
            Self::Present => present.is_some(),
            Self::Version(expected) => present == Some(expected),
        }
    }
}

impl Calls {
    /// Writes `key` if `expected` holds. None: it does not hold, which depends on the point.
    pub(crate) async fn put_if(
        self: &Arc<Self>,
        key: Key,
        value: Option<Bytes>,
        expected: Expected,
    ) -> Result<Read<Option<Committed>>> {
        self.check_write(&key, value.as_ref())?;
        // The body of a request no longer counts once its caller has left.
        let reserved = self.reserve_waiting(value.as_ref()).await?;
        let calls = Arc::clone(self);
        self.context
            .spawn_and_wait(async move {
                let _reserved = reserved;
                calls
                    .put_despite_conflicts(&key, value.as_ref(), expected)
                    .await
            })
            .await
    }

    async fn put_despite_conflicts(
        self: &Arc<Self>,
        key: &Key,
        value: Option<&Bytes>,
        expected: Expected,
    ) -> Result<Read<Option<Committed>>> {
        let mut conflicts = 0;
        loop {
            match self.try_put_if(key, value, expected).await {
                Err(Error::Conflict | Error::SnapshotTooOld) if conflicts < CONFLICTS_MAX => {
                    conflicts += 1;
                }
                answer => return answer,
            }
        }
    }

    async fn try_put_if(
        self: &Arc<Self>,
        key: &Key,
        value: Option<&Bytes>,
        expected: Expected,
    ) -> Result<Read<Option<Committed>>> {
        let isolation = if self.context.breaks(Broken::ChecksConditionsBefore) {
            Isolation::ReadAtomic
        } else {
            Isolation::Serializable
        };
        let begin = Begin {
            isolation,
            ..Begin::default()
        };
        let call = match self.begin(begin).await?.value {
            Begun::Open { id, attempt } => Call {
                id,
                attempt: Some(attempt),
            },
            Begun::Committed { .. } => unreachable!("no other caller knows a generated id"),
        };
        let written = self.put_in(&call, key, value, expected).await;
        if !matches!(written, Ok(Read { value: Some(_), .. }))
            && let Err(Error::Unavailable(_)) = self.abort(&call).await
        {
            tracing::debug!("a refused write is open until it expires");
        }
        let Read { value, point } = written?;
        let committed = match value {
            None => None,
            Some(Committing::Here(transaction)) => Some(self.wait_for_end(&transaction).await?),
            Some(Committing::Ended(committed)) => Some(committed),
        };
        Ok(Read {
            value: committed,
            point,
        })
    }

    /// Begins to commit the write if the condition holds in its transaction.
    async fn put_in(
        self: &Arc<Self>,
        call: &Call,
        key: &Key,
        value: Option<&Bytes>,
        expected: Expected,
    ) -> Result<Read<Option<Committing>>> {
        let read = self.get(call, key).await?;
        let transaction = self.here(call).await?;
        let chosen = transaction.state().reads.get(key).cloned();
        let version = match chosen.map(|chosen| chosen.value) {
            // A deletion has a version and no value.
            Some(Choice::Version(record)) if read.value.is_some() => Some(record.version),
            _ => None,
        };
        let committing = if expected.holds(version) {
            self.buffer(&transaction, key.clone(), value.cloned())
                .await?;
            Some(self.begin_to_commit(call).await?)
        } else {
            None
        };
        Ok(Read {
            value: committing,
            point: read.point,
        })
    }
}
