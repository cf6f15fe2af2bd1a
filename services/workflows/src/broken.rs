//! Rules that a test may break, to see that another test would notice.

/// A rule that is not kept. Production code has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// W1: a run whose begin was not answered is taken for begun by whoever begins it again.
    TakesDoubtForBegun,
    /// W2: a step's writes count at once, whatever becomes of its attempt.
    WritesThrough,
    /// W2: a step's result is written apart from what it wrote, and before.
    ResultBeforeWrites,
    /// W2: that a step counts is said by the name of its transaction alone, however long ago that was.
    ConfirmsNoStep,
    /// W2: that a step failed is not written down, though the code that has called it goes on.
    ForgetsFailures,
    /// W3: what is answered is not waited for.
    AnswersBeforeDurable,
    /// W2: what a step writes is committed under a name that no other attempt has.
    NamesNoStep,
    /// W3: what a step in a range sends leaves before the step is far-durable.
    SendsBeforeFar,
    /// W2: what a step in a range has sent is not asked for by whoever opens the range.
    ForgetsUnsent,
    /// W2: the id of what a step in a range sends is drawn when it leaves.
    NamesSendsAnew,
    /// W3: what a step in a range has a transaction write counts before what the run rests on is far-durable.
    CountsElsewhereBeforeFar,
    /// W2: a step counts whose externalize has failed, without what it was to externalize.
    CountsWithoutWhatIsMissing,
    /// W5: what a step of an atomic run writes counts with the step.
    CountsByParts,
    /// W5: what a step of an atomic run has a transaction write counts at once.
    CountsElsewhereBeforeTheEnd,
    /// W10: an atomic run is kept apart from no other that writes what it has read.
    IsolatesNoRun,
    /// W6: a run that is cancelled is not stopped.
    GoesOnAfterCancelling,
    /// W7: an attempt goes on being heard after its end.
    HearsWhoHasEnded,
    /// W8: runs stay.
    ForgetsNoRun,
    /// W8: runs go with the next sweep.
    ForgetsRunsAtOnce,
    /// W5: who finds a run under way goes on with it, also where another process is at it.
    TakesFromTheLiving,
    /// W4: a step that fails is tried again where its run is, though that serves nobody any more.
    StaysInALostRange,
    /// W2: what a range has unsent whose near store was lost waits until somebody asks for something there.
    WaitsForACaller,
    /// W9: an attempt that ends for want of its far store has failed as any.
    CountsOutages,
}
