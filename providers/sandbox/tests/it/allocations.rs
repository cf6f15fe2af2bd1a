//! The peak memory of a thread: hostile input may cost no more than its bound.

#![allow(unsafe_code)] // An allocator that counts, around the system's.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(bytes: isize) {
    // A thread that is ending has neither any more.
    let now = NOW.try_with(|now| {
        now.set(now.get() + bytes);
        now.get()
    });
    if let Ok(now) = now {
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now)));
    }
}

// SAFETY: the system allocator does all the work; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller guarantees.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller guarantees.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The result of `work`, and how many bytes this thread had allocated at the peak beyond those
/// before.
pub(crate) fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let done = work();
    (
        done,
        usize::try_from(PEAK.with(Cell::get) - before).unwrap_or(0),
    )
}
