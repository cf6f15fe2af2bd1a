//! Logs: the lines that functions print, kept per function and read in pages.
//!
//! A [runtime](crate::runtime) writes them (U5); this port reads them.
//!
//! Promises
//! - **G1** Line numbers of a function grow. A reader that asks for the number after the last one
//!   it has read gets each later line once, in order.
//! - **G2** A page holds at most `lines_max` lines and `bytes_max` bytes of text. A single longer
//!   line is a page of its own, so that a reader always gets past it.
//! - **G3** [`Logs::more_lines`] wakes its caller for a new line of that function, and for no other
//!   function's.

use std::fmt::Debug;

use async_trait::async_trait;

/// A line that a function printed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Line {
    /// Its place among the lines of the function; grows.
    pub number: u64,
    /// When it was read from the function, in milliseconds since the epoch.
    pub at_ms: u64,
    /// The invocation that printed it; empty: none, as while an instance starts.
    pub id: String,
    /// The text, without its line end.
    pub text: String,
}

/// Which lines of a function a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// The number of the first line.
    pub from: u64,
    /// The most lines.
    pub lines_max: usize,
    /// The most bytes of text, but for a single longer line (G2).
    pub bytes_max: usize,
}

/// Reads what functions printed (G1 to G3).
#[async_trait]
pub trait Logs: Debug + Send + Sync {
    /// The lines of `function` that fit in `page`, in the order of their numbers; empty: there are
    /// none from that number on now.
    async fn lines(&self, function: &str, page: Page) -> std::io::Result<Vec<Line>>;

    /// Waits for a line of `function` whose number is `from` or later. The caller has asked
    /// [`Logs::lines`] before, and got no line from that number on.
    async fn more_lines(&self, function: &str, from: u64);
}
