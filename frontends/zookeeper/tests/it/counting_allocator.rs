//! Counts a thread's allocations, so that a test can check a bound.
#![allow(unsafe_code)] // A global allocator is an unsafe trait; this one only counts and passes on.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// The allocations of a piece of work.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Allocated {
    /// Total bytes, freed or not.
    pub(crate) total_bytes: usize,
    /// The largest single allocation in bytes.
    pub(crate) largest_bytes: usize,
}

thread_local! {
    static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
    static ALLOCATED: Cell<Allocated> = const { Cell::new(Allocated { total_bytes: 0, largest_bytes: 0 }) };
}

/// Runs some work and returns its allocations on this thread.
pub(crate) fn allocated_by<T>(work: impl FnOnce() -> T) -> (T, Allocated) {
    ALLOCATED.set(Allocated::default());
    let done = work();
    (done, ALLOCATED.get())
}

/// The bytes that this thread has allocated and not freed, in a test whose work is all on it.
pub(crate) fn live_bytes() -> usize {
    LIVE_BYTES.get()
}

fn grew(by: usize) {
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get().wrapping_add(by)));
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: usize) {
    grew(bytes);
    // A thread that is ending has no cell and measures nothing.
    let _ = ALLOCATED.try_with(|allocated| {
        let Allocated {
            total_bytes,
            largest_bytes,
        } = allocated.get();
        allocated.set(Allocated {
            total_bytes: total_bytes.saturating_add(bytes),
            largest_bytes: largest_bytes.max(bytes),
        });
    });
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps this trait's contract, which is the system allocator's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        grew(layout.size().wrapping_neg());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        grew(layout.size().wrapping_neg());
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
