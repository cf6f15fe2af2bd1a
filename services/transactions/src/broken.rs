//! Mutants: deliberately broken variants, one per rule, which the tests and the simulated scenarios
//! must catch.
//!
//! They are never set outside tests. Each breaks exactly one rule of the protocol. A scenario that
//! passes on the real engine and fails on the mutant is therefore known to check the rule.

/// A rule that a mutant breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The decision row is written before the data that it decides about.
    RecordBeforeData,
    /// Data and rows of a group are written in one step, and their slot after it.
    GroupsBeforeSlot,
    /// A group whose answer was lost is taken for refused.
    RefusesUnclearGroups,
    /// A commit is installed before its decision row is written.
    VisibleBeforeRecord,
    /// A commit is answered before its decision row is durable.
    AnswersBeforeDurable,
    /// Algorithm 1, case 2: a candidate's cowritten keys are not compared with what was read of
    /// them.
    SkipsCowrittenOfCandidate,
    /// Algorithm 1, case 1: the other keys that read records wrote set no lower bound.
    SkipsLowerBound,
    /// A version is chosen in one step and recorded in a later one.
    ChoosesBeforeRecording,
    /// A key that was read as absent is not in the read set.
    ForgetsAbsence,
    /// T-1: a commit is stamped by the wall clock as it is.
    StampsByWallClock,
    /// T-1: a node continues to commit however far its clock is ahead.
    AcceptsAnyClock,
    /// T5: a plain write is stamped above this node's frontier only.
    WritesBlindly,
    /// The frontier advances over announced slots even if an earlier one was not applied.
    AdvancesOverGaps,
    /// Announced commits count as applied before they are merged.
    HearsBeforeMerging,
    /// A commit that is superseded at its sender is not announced, regardless of the receiver's
    /// frontier.
    PrunesByItself,
    /// T-2: a log is followed by timestamps: slots below the highest known one are not read.
    FollowsClockNotSlots,
    /// A node answers although its lease has expired.
    AnswersWithoutLease,
    /// T6: a missing version is reported without a check that this node still serves.
    MissesWhatSuccessorTook,
    /// Versions are collected below this node's own horizon, regardless of readers on other nodes.
    CollectsByOwnHorizon,
    /// A node whose horizon is unknown is not counted.
    JoinsUncounted,
    /// T-1: a new node does not exceed the timestamps of the nodes before it.
    ForgetsItsClock,
    /// T-2: the log of an earlier node is resolved although that node may still append to it.
    ResolvesWithoutSeal,
    /// T-5: a begin with an id that is open continues with the earlier attempt's writes.
    KeepsEarlierBuffer,
    /// T-5: a node is not told that an attempt of its own was begun anew at another.
    BeginsAnewInSilence,
    /// T10: a node that has joined and is not known as a member yet is presumed dead.
    TakesTheNewForGone,
    /// T10: a forwarded write that timed out, and may still arrive, leaves its transaction open.
    OutlivesLateWrites,
    /// T-5: a commit does not check whether its attempt is the latest.
    CommitsAnyAttempt,
    /// T13: effects are sent before their commit is durable.
    SendsBeforeDurable,
    /// T13: the unsent effects of an earlier node are not looked up.
    ForgetsUnsent,
    /// T13: the id of an effect is generated anew at each send.
    NamesEffectsAnew,
    /// Versions are collected as if no transaction were running.
    CollectsAboveHorizon,
    /// A version is collected only with all that its transaction wrote, as the paper's Algorithm 2
    /// does.
    CollectsWholeTransactions,
    /// A deletion's version is dropped as soon as it is decided.
    DropsTombstonesAtOnce,
    /// Absent counts as version zero, not as a position.
    AbsenceIsVersionZero,
    /// The other writes of a read record are assumed to exist, even if their deletion is collected.
    RevivesCollected,
    /// T-2: rows and entries are dropped by the clock alone, whether or not their owner knows the
    /// decision.
    DropsUnheardDecisions,
    /// A dropped row is taken for one that never existed.
    ForgetsWhatItDropped,
    /// A node records its orderly shutdown before its running work has finished.
    LeavesAtOnce,
    /// Data that no log names stays.
    SweepsNothing,
    /// The leader's housekeeping expires only the ids that it has noted itself.
    WalksOwnNamesAlone,
    /// A node that ends during a sweep for others is not swept for.
    ForgetsWhoEndsMeanwhile,
    /// P6: a record is written while chunks that it names are still on their way.
    RecordBeforeChunks,
    /// P6: a record is written while packs with its values are still on their way.
    RecordBeforePack,
    /// P6: an existing object with the name of a new pack is taken for that pack, without a
    /// comparison.
    TakesAnyPackForItsOwn,
    /// A pack's object is deleted before its live values have moved.
    DeletesPackBeforeMoving,
    /// The live values of a pack are determined while items that name it are still being written.
    CompactsHeldPacks,
    /// The node that takes over packs of dead nodes also takes those of live ones.
    TakesPacksOfTheLiving,
    /// The live values of a dead node's packs are determined while the node may still move some
    /// into them.
    JudgesHalfMoved,
    /// A node that collects a version in another node's pack does not report it.
    KeepsDeadBytesToItself,
    /// Spilled data of an open transaction is not named in any log.
    SpillsUnlogged,
    /// Deleting a version leaves its chunks.
    ForgetsChunks,
    /// Chunks that a later write of their transaction replaced stay.
    KeepsReplacedChunks,
    /// A row is dropped with its window, even if it still decides about versions.
    DropsRowsOfLiveVersions,
    /// T-3: a keyspace is marked while commits with timestamps are running in it.
    MarksWithoutWaiting,
    /// T-3: read-atomic commits still take timestamps in a sequenced keyspace.
    ReadAtomicKeepsItsTimestamps,
    /// T-4: the sequencer's log is taken over without a seal.
    SequencerDoesNotSeal,
    /// T-4: a single node seals the sequencer's log without checking for a later start.
    OrdersBehindSuccessor,
    /// T-4: a begin takes this node's frontier for the tail of the sequencer's log.
    ReadsAtWhatItHeard,
    /// A query about a row that was handed over closes it without reading the sequencer's log.
    ClosesPreparedRows,
    /// T4: a node keeps asking for a commit whose client was told that its outcome is unknown.
    CommitsAfterUnknown,
    /// T11: reads are not validated against later writes.
    SkipsValidation,
    /// Any caller of a node is believed to be a node.
    BelievesStrangers,
    /// T11: a node that has applied commits which the store has lost since, and has yet to notice
    /// that, is believed too.
    BelievesEarlierLives,
    /// T11: a conflict with a commit that is still to be written is answered at once.
    RefusesBeforeSlot,
    /// T-3: only the elected sequencer finishes half-done marks.
    LeaderAloneFinishesMarks,
    /// T-4: a successor trims the log below its own seal.
    TrimsBelowOwnSeal,
    /// T20: the condition of a plain write is checked before the write, and not with it.
    ChecksConditionsBefore,
    /// T12: read-only transactions are validated like the others.
    ValidatesReaders,
    /// T18: a page of keys is read while versions that it has found are collected.
    ListsUnpinned,
    /// T18: a page shows a key with more versions than were read as its node's index has it.
    ListsFromMemory,
    /// V1: the ranges that a proposal has scanned are not validated.
    ForgetsRanges,
    /// V1: numbers are compared as of the snapshot, and not when the proposal is ordered.
    ComparesNumbersAtSnapshot,
    /// V3: a slot names a stage whose parts are not all stored.
    SlotBeforeStage,
    /// V6: the log of a volume is trimmed before its slots are installed.
    TrimsBeforeInstalling,
    /// V2: versions that a pin reads are collected.
    CollectsPinned,
    /// V3: a proposal that is sent again is decided again.
    ForgetsProposalIds,
    /// V5: the keys that a proposal writes are validated like those that it has read.
    ValidatesWrites,
    /// V1: the log of a volume is taken over without a seal.
    VolumeDoesNotSeal,
    /// V6: the installed state is written even if a successor has taken the log over.
    InstallsBehindSuccessor,
    /// V1: a proposal that is older than the validator is decided without the change rows.
    SkipsChangeRows,
    /// V2: an object is deleted although versions still lie in it.
    DeletesReferencedObjects,
    /// V6: rows name an object before it is put.
    RowsBeforeObject,
    /// V2: slots that the store has lost count as slots that wrote nothing.
    ForgetsLostSlots,
    /// V7: a proposal is ordered while sessions still have leases on what it writes.
    AnswersBeforeRecall,
    /// V7: leases are granted on what a proposal under way writes.
    GrantsDuringRecall,
    /// V7: leases that an earlier start of the node has granted are not waited for.
    ForgetsLeasesOfPredecessor,
}
