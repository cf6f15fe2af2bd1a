//! Rules that a test may break, to see that another test would notice.

/// A rule that is not kept. Production code has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// W2: a step's writes count at once, whatever becomes of its attempt.
    WritesThrough,
    /// W2: a step's result is written apart from what it wrote, and before.
    ResultBeforeWrites,
    /// W3: what is answered is not waited for.
    AnswersBeforeDurable,
    /// W4: a start does not look at what counts already.
    ForgetsTheJournal,
    /// W7: an attempt that has ended may write.
    BelievesTheDead,
}
