//! Rules that a test may break, to show that another test notices.

/// A rule that is broken. Production code breaks none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// W1: a begin treats an earlier one of unknown outcome as successful.
    TakesDoubtForBegun,
    /// W2: a step's writes take effect at once, even if its attempt fails.
    WritesThrough,
    /// W2: a step's result is written apart from its writes, and before them.
    ResultBeforeWrites,
    /// W2: only the name of a step's transaction says that the step has committed, however old it
    /// is.
    ConfirmsNoStep,
    /// W2: a step's failure is not stored although its code continues.
    ForgetsFailures,
    /// W3: a response does not wait for durability.
    AnswersBeforeDurable,
    /// W2: a step's transaction has another name for each attempt.
    NamesNoStep,
    /// W3: messages of a step in a shard are sent before the step is durable far.
    SendsBeforeFar,
    /// W2: the owner of a shard does not read its unsent messages.
    ForgetsUnsent,
    /// W2: a message of a step in a shard gets a random id when it is sent.
    NamesSendsAnew,
    /// W3: a transaction that the code of a step in a shard commits does not wait until the run's
    /// dependencies are durable far.
    CountsElsewhereBeforeFar,
    /// W2: a step whose externalize has failed commits without the writes of that externalize.
    CountsWithoutWhatIsMissing,
    /// W5: the writes of an atomic run's step take effect with the step.
    CountsByParts,
    /// W5: a transaction that the code of an atomic run commits takes effect at once.
    CountsElsewhereBeforeTheEnd,
    /// W10: an atomic run is not isolated from runs that write what it has read.
    IsolatesNoRun,
    /// W6: a cancelled run is not stopped.
    GoesOnAfterCancelling,
    /// W7: requests of an attempt are accepted after its end.
    HearsWhoHasEnded,
    /// W8: no run is forgotten.
    ForgetsNoRun,
    /// W8: ended runs are forgotten with the next sweep.
    ForgetsRunsAtOnce,
    /// W5: a process resumes active runs although another process executes them.
    TakesFromTheLiving,
    /// W4: a failed step is retried in a shard that has ended here.
    StaysInALostRange,
    /// W2: the unsent messages of a shard whose near store was lost wait for the next request to
    /// the shard.
    WaitsForACaller,
    /// W9: an attempt that fails because its far store is away uses up a retry.
    CountsOutages,
}
