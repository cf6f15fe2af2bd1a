//! Rules that a test may break, to see that another test would notice.

/// A rule that is not kept. Production code has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// E1: a batch leaves before the near store has made it durable.
    SendsBeforeNearIsDurable,
    /// E2: what a lane wrote after a batch that failed is sent, and taken, all the same.
    SendsPastAFailure,
    /// E2: a batch leaves before what its lane has read of others is far-durable.
    IgnoresDependencies,
    /// E3: a barrier does not look at what its lane has read of others.
    ForgetsWhatWasRead,
    /// E4: a key is written far whatever is there, and another lane's write to it is not waited for.
    OldOverwritesNewer,
    /// E5: what a far read brought is put near though the key was written meanwhile.
    FillsOverAWrite,
    /// E5: keys are evicted that the far store does not have yet.
    EvictsDirty,
    /// E6: a record that cannot be written is left out.
    SkipsWhatFails,
    /// E9: what was not sent is forgotten by a start.
    ForgetsTheTail,
    /// E9: a start writes back the near position that it has read, whatever the owner has written since.
    TakesStalePosition,
    /// E10: a start over a shared near store takes whoever has the range for its own past.
    TakesFromTheLiving,
    /// E10: far writes do not look at the epoch.
    DeposedWritesOn,
}
