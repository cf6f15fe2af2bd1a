//! Blocks: parts of a transaction that begin and end within it.
//!
//! A block that writes and does not end well cannot be undone alone, so its transaction must not
//! commit.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicUsize, Ordering},
};

use super::Transaction;
use crate::broken::Broken;

/// A part of one transaction.
#[derive(Debug)]
pub struct Block {
    /// How many blocks of the transaction have written and not ended well.
    unfinished: Weak<AtomicUsize>,
    writes: bool,
}

impl Transaction {
    /// Begins a block.
    pub fn block(&self) -> Block {
        Block {
            unfinished: Arc::downgrade(&self.unfinished),
            writes: false,
        }
    }

    /// Whether a block has written, and is open or was aborted. Then do not commit.
    pub fn is_torn(&self) -> bool {
        self.unfinished.load(Ordering::Acquire) > 0
            && !self.context.mutant.breaks(Broken::ForgetsTornBlocks)
    }
}

impl Block {
    /// Whether it is a part of `transaction`.
    pub fn is_of(&self, transaction: &Transaction) -> bool {
        Weak::as_ptr(&self.unfinished) == Arc::as_ptr(&transaction.unfinished)
    }

    /// Notes that it writes. Call it before it does.
    pub fn write(&mut self) {
        if !self.writes {
            self.writes = true;
            if let Some(unfinished) = self.unfinished.upgrade() {
                unfinished.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    /// Ends it well. If it is dropped instead, its writes stay unfinished.
    pub fn end(self) {
        if self.writes
            && let Some(unfinished) = self.unfinished.upgrade()
        {
            unfinished.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
