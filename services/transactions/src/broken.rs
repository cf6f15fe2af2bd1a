//! Deliberately broken variants, one per rule: what the tests and the simulated scenarios must catch.
//!
//! Never set outside tests. Each drops exactly one rule of the protocol, so that a scenario which passes on the
//! real engine and fails on the variant is known to hold the rule.

/// A rule that is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The decision row is written before the data it decides about.
    RecordBeforeData,
    /// Data and rows of a group are written in one step, and their slot after it.
    GroupsBeforeSlot,
    /// A group whose answer was lost is taken for refused.
    RefusesUnclearGroups,
    /// A commit is installed before its decision row is written.
    VisibleBeforeRecord,
    /// A commit is answered before its decision row is durable.
    AnswersBeforeDurable,
    /// Algorithm 1, case 2: a candidate's cowritten keys are not compared with what was read of them.
    SkipsCowrittenOfCandidate,
    /// Algorithm 1, case 1: what the records read were cowritten with sets no lower bound.
    SkipsLowerBound,
    /// A version is chosen in one step and recorded in a later one.
    ChoosesBeforeRecording,
    /// A key that was read as absent is not in the read set.
    ForgetsAbsence,
    /// T-1: a commit is stamped by the wall clock as it is.
    StampsByWallClock,
    /// T-1: a node goes on committing however far its clock is ahead.
    AcceptsAnyClock,
    /// T5: a plain write is stamped by what this node has heard alone.
    WritesBlindly,
    /// What is announced is passed over whether or not all before it was heard.
    AdvancesOverGaps,
    /// What is announced counts as heard before it is merged.
    HearsBeforeMerging,
    /// A commit is not announced that is superseded where it was made, whatever its receiver has heard.
    PrunesByItself,
    /// T-2: a log is followed by timestamps: what lies below the highest known is not looked at.
    FollowsClockNotSlots,
    /// T-2: an undecided row of another node is answered without closing it. Nothing catches it since a node is judged only once it is no
    /// member: by then its log is as good as sealed, which refuses what it still commits.
    AnswersWithoutClosing,
    /// A node answers although its lease has run out.
    AnswersWithoutLease,
    /// T6: that a version is missing is told without a look at whether this node still serves.
    MissesWhatSuccessorTook,
    /// Versions are collected below this node's own horizon, whoever else reads.
    CollectsByOwnHorizon,
    /// A node whose horizon was never heard does not count.
    JoinsUncounted,
    /// T-1: a new node does not go on above the timestamps of the nodes before it.
    ForgetsItsClock,
    /// T-2: the log of an earlier node is resolved although that node may still append to it.
    ResolvesWithoutSeal,
    /// T-5: a begin under a name that is open goes on with the earlier attempt's writes.
    KeepsEarlierBuffer,
    /// T-5: a node is not told that an attempt of its own was begun anew at another.
    BeginsAnewInSilence,
    /// T10: a node that has joined and is not heard of as a member yet is taken for one that is gone.
    TakesTheNewForGone,
    /// T10: a write that is waited for no longer, and may still arrive, leaves its transaction open.
    OutlivesLateWrites,
    /// T-5: a commit does not ask whether its attempt is the latest.
    CommitsAnyAttempt,
    /// T13: effects leave before the commit that they belong to is durable.
    SendsBeforeDurable,
    /// T13: what an earlier node had not sent is not asked for.
    ForgetsUnsent,
    /// T13: the id of an effect is drawn when it is sent.
    NamesEffectsAnew,
    /// Versions are collected as if no transaction were running.
    CollectsAboveHorizon,
    /// A version is collected only with all that its transaction wrote, as the paper's Algorithm 2 does.
    CollectsWholeTransactions,
    /// A deletion's version is dropped as soon as it is decided.
    DropsTombstonesAtOnce,
    /// Absent counts as version zero, not as a position.
    AbsenceIsVersionZero,
    /// What a record that was read wrote to another key is taken to be there, also if its deletion is collected.
    RevivesCollected,
    /// T-2: rows and entries go by the clock alone, whether or not their owner has heard the decision.
    DropsUnheardDecisions,
    /// A dropped row is taken for one that never was.
    ForgetsWhatItDropped,
    /// A node says that it has left before what it has under way has come to its end.
    LeavesAtOnce,
    /// What no log names stays.
    SweepsNothing,
    /// The node that tidies up for all walks only the names that it has kept itself.
    WalksOwnNamesAlone,
    /// Who ends while the store is searched for others is not searched for.
    ForgetsWhoEndsMeanwhile,
    /// P6: a record is written while chunks that it names are still on their way.
    RecordBeforeChunks,
    /// P6: a record is written while packs that its values go into are still on their way.
    RecordBeforePack,
    /// P6: an object that has the name of a new pack is taken for that pack, whatever it holds.
    TakesAnyPackForItsOwn,
    /// A pack's object goes before what is live in it has moved.
    DeletesPackBeforeMoving,
    /// What is live in a pack is judged while items are still written that name it.
    CompactsHeldPacks,
    /// Whoever takes care of the packs of the dead takes those of the living, too.
    TakesPacksOfTheLiving,
    /// Packs of a dead node are judged while it may still move something into them.
    JudgesHalfMoved,
    /// Who collects a version in another node's pack does not say so.
    KeepsDeadBytesToItself,
    /// What an open transaction writes ahead stands in no log.
    SpillsUnlogged,
    /// Whoever deletes a version leaves its chunks.
    ForgetsChunks,
    /// Chunks that a later write of their transaction replaced stay.
    KeepsReplacedChunks,
    /// A row goes with its window, whether or not versions are left that it decides about.
    DropsRowsOfLiveVersions,
    /// T-3: a keyspace is marked while commits with timestamps are under way in it.
    MarksWithoutWaiting,
    /// T-3: read-atomic commits go on with timestamps in a sequenced keyspace.
    ReadAtomicKeepsItsTimestamps,
    /// T-4: the sequencer's log is taken over without a seal.
    SequencerDoesNotSeal,
    /// T-4: a lone node seals the sequencer's log without a look at whether there is a later start.
    OrdersBehindSuccessor,
    /// T-4: a begin takes what this node knows for the tail of the sequencer's log.
    ReadsAtWhatItHeard,
    /// Whoever asks about a row that was handed over closes it, whatever the sequencer's log says.
    ClosesPreparedRows,
    /// T4: a commit whose client was answered that it is unknown goes on being asked for.
    CommitsAfterUnknown,
    /// T11: nobody asks whether what was read was written since.
    SkipsValidation,
    /// Who may call a node is believed to be one.
    BelievesStrangers,
    /// T11: so is a node that has heard what the store has lost since, and has yet to notice that.
    BelievesEarlierLives,
    /// T11: who conflicts with a commit that is still to be written is told so at once.
    RefusesBeforeSlot,
    /// T-3: only the leader of the sequencer's office finishes what was begun to be marked.
    OfficeAloneFinishesMarks,
    /// T-4: a successor trims the log below its own seal.
    TrimsBelowOwnSeal,
    /// T12: transactions that only read are validated like the others.
    ValidatesReaders,
    /// T18: a page of keys is read while what it has found is collected.
    ListsUnpinned,
    /// T18: of a key with more versions than were read, a page shows what its node has heard of.
    ListsFromMemory,
}
