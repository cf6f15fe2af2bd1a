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
    /// Section 5.4: what a read misses is stored, not cached.
    CachesAsStorage,
    /// Section 5.4: the cached fragments used last are evicted first.
    EvictsNewestFirst,
    /// Degraded functions are warmed up as often as active ones.
    WarmsAllAlike,
}
