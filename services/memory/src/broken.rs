//! Mutants: deliberately broken variants, one per rule, which the tests must catch.
//!
//! Never set outside tests. The shipped program contains none of their branches.

/// A rule that is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// A chunk that missed its instance's death when its fragment was stored is never recovered.
    ForgetsMissingChunks,
    /// Section 5.5.1: the state of an instance's log is neither noted nor compared.
    ForgetsRecords,
    /// M3: a reply of another epoch is delivered.
    AcceptsOtherEpochs,
    /// M1: conditions are checked when a change begins, and not when it is decided.
    ChecksConditionsEarly,
    /// M2: the store takes each attempt of a change for a change of its own.
    ForgetsOperations,
    /// M2, M7: a PUT returns once its content is in function memory, durable or not.
    AcknowledgesMemoryAlone,
    /// M4: units are taken without their checksums.
    TrustsUnits,
    /// M6: a read keeps nothing from being deleted.
    HoldsNothing,
    /// M6: a replaced segment of a shared store is deleted at once, also under readers at other servers.
    CollectsAtOnce,
    /// M2: a server that was taken for gone still commits content that others collect.
    CommitsAfterEnd,
    /// Section 5.4: what a read misses is stored, not cached.
    CachesAsStorage,
    /// Section 5.4: the cached fragments used last are evicted first.
    EvictsNewestFirst,
    /// Degraded functions are warmed up as often as active ones.
    WarmsAllAlike,
    /// A fragment leaves the buffer although its copy has failed.
    RemovesUncopied,
    /// M2: a fragment is deleted while its copy is under way.
    DeletesBesideCopies,
    /// M2: a deleted fragment whose copy failed is not deleted once more.
    ForgetsLateCopies,
    /// Section 5.3.2: a read that finds nothing, or damage, is not repeated.
    ReadsOnce,
}
