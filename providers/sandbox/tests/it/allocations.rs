//! How much memory this thread has at a time, at the most: what is hostile may cost no more than its bound.

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
    // A thread that ends has neither any more.
    let now = NOW.try_with(|now| {
        now.set(now.get() + bytes);
        now.get()
    });
    if let Ok(now) = now {
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now)));
    }
}

// SAFETY: everything is the system allocator's; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What `work` comes to, and how many bytes this thread had more at a time than before, at the most.
pub(crate) fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let done = work();
    (
        done,
        usize::try_from(PEAK.with(Cell::get) - before).unwrap_or(0),
    )
}
