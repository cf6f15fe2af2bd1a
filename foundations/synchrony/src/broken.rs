//! Rules that a test may break, to show that another test notices.

/// A rule that is broken. Production code breaks none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// E1: a batch is sent before the near store has made it durable.
    SendsBeforeNearIsDurable,
    /// E2: writes of a lane after a failed batch are sent and accepted.
    SendsPastAFailure,
    /// E2: a batch is sent before writes of other lanes that its lane has read are durable far.
    IgnoresDependencies,
    /// E3: a barrier ignores writes of other lanes that its lane has read.
    ForgetsWhatWasRead,
    /// E3: a barrier ignores what its lane had read once a later write of the lane has taken it over.
    ForgetsWhatWasTakenOver,
    /// E4: a key is written far over any version, without waiting for another lane's write to it.
    OldOverwritesNewer,
    /// E5: a fetched row is stored near although the key was written meanwhile.
    FillsOverAWrite,
    /// E5: keys are evicted that are not far yet.
    EvictsDirty,
    /// E6: a record that cannot be written is skipped.
    SkipsWhatFails,
    /// E9: a start drops the unsent tail.
    ForgetsTheTail,
    /// E9: a start writes back the near position that it has read, although the owner has written
    /// since.
    TakesStalePosition,
    /// E10: a start over a shared near store treats a live owner as dead.
    TakesFromTheLiving,
    /// E10: far writes do not check the epoch.
    DeposedWritesOn,
}
