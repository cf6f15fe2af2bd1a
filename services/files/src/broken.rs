//! Mutants: deliberately broken variants, one per rule, which the tests must catch.
//!
//! Never set outside tests. The shipped program contains none of their branches.

/// A rule that is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// A directory moves without depending on the parents of its new place.
    RenameForgetsAncestors,
    /// A directory is removed without a predicate on its entries.
    RmdirForgetsEntries,
    /// Data are written without reading that the inode exists.
    WritesWithoutInode,
    /// The cache keeps values that others changed.
    KeepsChanged,
    /// The cache keeps values that were read at an earlier slot than it knows.
    KeepsOldReads,
    /// Blocks that the kernel has from earlier transactions do not count as read.
    RereadsNothing,
    /// M1: a client goes on to answer from groups that were recalled.
    KeepsRecalled,
    /// M1: it keeps what it has read before a recall of the group.
    FillsAfterRecall,
    /// M2: it goes on to answer after its leases are over.
    AnswersAfterLapse,
    /// M3: it answers from keys that its own commit under way writes.
    AnswersSuspended,
    /// M4: it keeps its session after a commit without a verdict.
    KeepsSessionInDoubt,
    /// A read of several steps stays at the slot that the memory has named first.
    KeepsFirstSlot,
    /// F-1: a lock of another session does not end the elision of locks.
    ElidesHeldLocks,
    /// A change depends on values that its client remembers, and its commit does not validate them.
    TrustsMemory,
    /// Unlinked files are deleted although a session has them open.
    ReapsHeld,
    /// A transaction commits although a block of it was aborted.
    ForgetsTornBlocks,
}
