//! Mutants: deliberately broken variants, one per rule, which the simulated scenarios must catch.
//!
//! Never set outside tests. Each drops exactly one rule of `protocols.md`. A scenario that passes
//! on the real service and fails on the mutant is known to check the rule.

/// A rule that is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// P1: a request that fails permanently is retried forever.
    BlocksForever,
    /// P1: a failure to decide a request counts as a failed planning.
    CountsSuccessfulPlannings,
    /// C-1: a writer takes an expired lock without fencing its holder out or installing its
    /// outcome.
    BreaksLocksUnasked,
    /// A writer waits for a lock until its time is over, although its holder is fenced out.
    WaitsForDeadWriters,
    /// C-1: a writer without locks does not check that its znodes are as it read them.
    DecidesOnOutdatedStates,
    /// C-1: a decision over several znodes is installed in every second one.
    InstallsHalfOfADecision,
    /// C-2: a redelivered request is validated and decided again.
    ForgetsRequestNumbers,
    /// C-3: a refusal is numbered before the update that caused it.
    ForgetsCausesOfRefusals,
    /// C-3: the writer assumes that a missing znode is still missing once its ancestor is locked.
    LocksAncestorsByUnlockedReads,
    /// C-3: decided requests are numbered as they arrive.
    IgnoresPredecessors,
    /// C-4: a distributor that takes over the log assumes that all its slots are applied.
    AssumesTheLogIsApplied,
    /// C-4: a distributor takes over the log without a seal, so its predecessor may still append.
    TakesOverWithoutSeal,
    /// C-4: answers are sent before the user store is written.
    AnswersBeforeApplying,
    /// C-4: the statistics of quotas are computed again over a partly applied slot.
    CountsAgain,
    /// C-5: reads return state that the applied view has not reached.
    ReadsAheadOfTheView,
    /// C4: a watch fires for changes after it is armed, not for changes after its znode was read.
    ArmsWatchesTooLate,
    /// C9: an event is sent to a connection that may not read the znode.
    SendsEventsToAll,
    /// C3, C9: a read is allowed by an ACL that was set after the zxid of its answer.
    ReadsByLaterAcls,
    /// C3: a read of several calls returns what it saw, even if it changed between the calls.
    ReturnsUncorrectedReads,
    /// C3: a read starts again whenever its data changed meanwhile.
    RestartsReadsForever,
    /// C4: if one watch changes during a reset after a reconnect, all of them are read again.
    ForgetsRestoredWatches,
    /// C4: a persistent watch ends when it fires.
    FiresPersistentWatchesOnce,
    /// C4: a recursive watch fires only for the znodes that were there when it was set.
    MissesNewDescendants,
    /// C4: a reset after a reconnect sets one-shot watches alone.
    ForgetsPersistentWatches,
    /// Memory bound per client: reads continue however many outputs wait for the client.
    QueuesOutputsWithoutBound,
    /// C-6: requests of replaced connections are decided.
    AcceptsOldAttaches,
    /// C-6: a decision for several sessions checks the row of the first one alone.
    ChecksOneRow,
    /// C-6: a writer decides by the row that it left, although others have changed the row since.
    TrustsOutdatedRows,
    /// C-6: the connection registered last acts for a session, even if another attached later.
    LastToRegisterWins,
    /// C-6: a heartbeat's observations are lost with its instance.
    KeepsSilenceInTheInstance,
    /// P5: a replaced connection's temporary objects are removed before their requests are applied.
    SweepsUnappliedObjects,
    /// P5: a distributor that recomputes a partly applied slot removes objects that look replaced.
    CollectsObjectsInUse,
    /// D4, P5: an object is taken for the object of a lost decision with the same name.
    ChecksObjectsOfLostDecisions,
    /// P5: objects are named after decisions that the store may still lose.
    PutsObjectsOfUndurableDecisions,
    /// P5: a restored store names objects as the store did that went on after the backup.
    ForgetsTheTimeline,
    /// D4: writers decide and install under locks that the store may have lost.
    DecidesUnderLostLocks,
    /// D4, C-3: requests are numbered although the store may have lost their decisions.
    NumbersLostDecisions,
    /// D4, C-3: a slot does not depend on the state from which it was computed.
    NumbersByTheLogAlone,
    /// C5: an answer is sent before its zxid is durable.
    AnswersBeforeDurable,
    /// D4, C5: an answer is sent once its zxid is durable in any incarnation of the store.
    ConfirmsLostZxids,
    /// D4, C-5: a read combines answers of different incarnations of the store.
    ReadsAcrossRestarts,
    /// D4: a process keeps its log position in a store that may have lost the slots before it.
    FollowsALostLog,
    /// D4, C-6: silence observed in one incarnation of the store still counts in the next.
    CountsLostSilence,
    /// C-4: a slot that was applied with its decisions is announced only once, even if its writer
    /// dies before that.
    AnnouncesOnce,
    /// D4, C-6: a client is accepted under an attach that the store may have lost.
    AcceptsLostAttaches,
    /// D4, P5: temporary objects are removed for row states that the store may have lost.
    SweepsByLostRows,
    /// C-3, C6: a session's end is numbered before other sessions' deletions of its ephemerals.
    EndsBeforeForeignDeletions,
    /// C-3, C6: an ephemeral leaves its index once another session's deletion of it is decided.
    DropsIndexEntriesWhenDecided,
    /// D4, C6: an ephemeral leaves its session's index for a deletion that the store lost.
    DropsIndexEntriesOfLostDeletions,
    /// C6: a container or a znode with a time to live is indexed after the decision.
    IndexesWhenDecided,
    /// C6: a time to live counts from the creation, not from the last update of the data.
    CountsFromTheCreation,
    /// C6: optimistic writers maintain the index of znodes that end by themselves.
    IndexesWithoutLocks,
    /// C-1: a znode that was due is removed without a check under its lock.
    RemovesUnchecked,
    /// The queue's bound: each check requests all removals, also those whose requests wait.
    RepeatsWaitingRemovals,
    /// C-6: a session that ends in parts stays open while it loses its first ephemerals.
    EndsOpenSessions,
    /// C-6: the parts of a large end are decided without waiting for each to be applied.
    EndsInOneGo,
    /// C-3, C6: a session's end is pushed once, although the store may lose the message.
    PushesEndsOnce,
    /// C-6: a silent session is expired although it was renewed during the check.
    ExpiresRenewedSessions,
    /// C-6: a replaced connection renews the lease of its replacement.
    RenewsForItsReplacement,
    /// C-6: a lease counts from the answer to its renewal, not from the request.
    CountsLeasesFromTheirAnswer,
    /// C-6: the timeout counts from the last renewal, although later messages arrived.
    TreatsRowsAsExact,
    /// C-6: a request that took longer than the lease is still answered.
    AnswersAfterItsLease,
    /// C-6: a session is expired without a whole timeout of observation.
    ExpiresAtFirstSilence,
}
