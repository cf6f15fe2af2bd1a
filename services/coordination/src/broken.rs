//! Deliberately broken variants, one per rule: what the simulated scenarios must catch.
//!
//! Never set outside tests. Each drops exactly one rule of `protocols.md`, so that a scenario which passes
//! on the real service and fails on the variant is known to hold the rule.

/// A rule that is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// P1: a request that fails for good is tried for ever, and what its session sent after it waits.
    BlocksForEver,
    /// P1: a request that was planned counts as one that was not, if it cannot be decided then.
    CountsWhatWasPlanned,
    /// C-1: an expired lock is taken without shutting its holder out or installing what it decided.
    BreaksLocksUnasked,
    /// C-2: a redelivered request is validated and decided again.
    ForgetsRequestNumbers,
    /// C-3: a refusal is numbered before the update that it was refused for.
    ForgetsWhatRefused,
    /// C-3: what was missing when it was read is still missing when its ancestor is locked.
    AnchorsByWhatWasRead,
    /// C-3: decided requests are numbered as they arrive.
    IgnoresPredecessors,
    /// C-4: whoever takes the log over takes what stands in it for applied.
    TakesTheLogForApplied,
    /// C-4: answers leave before the user store is written.
    AnswersBeforeApplying,
    /// C-5: reads show what the view has not reached.
    ReadsAheadOfTheView,
    /// C4: a watch hears of what changes from when it is left, not from when its znode was looked at.
    WatchesFromNowOn,
    /// C3: what takes several calls to see is shown as it was seen, whatever changed between the first and the last.
    ShowsWhatItSaw,
    /// C3: a read looks again whenever what it looks at has changed meanwhile.
    LooksAgainForEver,
    /// C4: watches that are set again are all looked at anew when one of them changes meanwhile.
    ForgetsWhichWatchesAreSet,
    /// What one client may have waiting: reads run on however much is held for it.
    HoldsWithoutBound,
    /// C-6: requests of connections that were replaced are decided.
    AcceptsOldAttaches,
    /// C-6: of two connections to a session the one speaks that registered last, whichever was attached last.
    LetsTheLastToRegisterSpeak,
    /// C-6: what a heartbeat has seen dies with its instance.
    RemembersSilenceInTheInstance,
    /// P5: temporary objects of a replaced connection are removed although what they came for is not applied.
    SweepsWhatIsNotApplied,
    /// P5: objects go that look replaced to whoever computes a slot again over what others have applied of it.
    CollectsWhatOthersHaveApplied,
    /// D4, P5: an object is taken for a lost decision's that has the name of the one that stands.
    LooksForObjectsOfTheLost,
    /// P5: objects are named by decisions that the store may yet lose.
    PlacesWhatMayBeLost,
    /// D4: writers decide and install by locks that the store may have lost.
    DecidesByLostLocks,
    /// D4, C-3: decided requests are numbered although the store may have lost the decision.
    NumbersWhatWasLost,
    /// D4, C-3: what is numbered rests on the slots before it alone, not on what it was computed from.
    NumbersByTheLogAlone,
    /// D4, C5: answers wait for their zxid to be durable, whichever start of the store has given it.
    ConfirmsWhatAnotherPlaceLost,
    /// D4: a process goes on from its place in the log in a store that may have lost what stood before it.
    FollowsALostLog,
    /// D4, C-6: silence that was noted in one start of the store goes on in the next.
    RemembersLostSilence,
    /// D4, C-6: a client is let in by an attach that the store may have lost.
    LetsInByLostAttaches,
    /// D4, P5: temporary objects are removed for what the store may have lost.
    SweepsByLostRows,
    /// C-3, C6: the end of a session is numbered before the updates of others that took its ephemerals.
    EndsBesideWhatIsGone,
    /// C-3, C6: an ephemeral leaves the index of its session as soon as its deletion by another is decided.
    ForgetsWhatIsStillThere,
    /// D4, C6: an ephemeral leaves the index of its session for a deletion that the store has lost.
    ForgetsWhatMayComeBack,
    /// C-6: a session that is too large to end at once stays open while it loses its first ephemerals.
    EndsOpenSessions,
    /// C-6: the parts of a large end are decided one after the other, whatever else waits to be applied.
    EndsInOneGo,
    /// C-3, C6: the end of a session is left to the message that tells of it, which the store may lose.
    PushesEndsOnce,
    /// C-6: a session is condemned for its silence although it was renewed while it was judged.
    CondemnsTheRenewed,
    /// C-6: a connection that was replaced renews the lease of the one that replaced it.
    RenewsForWhoeverIsAttached,
    /// C-6: a lease is counted from when its renewal was answered, though it was made before.
    CountsLeasesFromTheirAnswer,
    /// C-6: a session has its timeout from its last renewal, though its client was heard of since by a process that has died.
    TakesRowsForExact,
    /// C-6: what took longer than the lease is answered all the same.
    AnswersAfterItsLease,
    /// C-6: a session is ended without watching it for a whole timeout.
    ExpiresAtFirstSilence,
}
