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
    /// M6: a replaced segment of a shared store is deleted at once, also under readers at other servers.
    CollectsAtOnce,
    /// M2: a server that was taken for gone still commits content that others collect.
    CommitsAfterEnd,
    /// Degraded functions are warmed up as often as active ones.
    WarmsAllAlike,
}
