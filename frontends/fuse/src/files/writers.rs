//! The files that are open for writing.
//!
//! Of these the kernel may keep writes. It sends them before the release of the last one.

use std::collections::BTreeMap;

use files::Ino;
use nix::libc;
use parking_lot::Mutex;

#[derive(Debug, Default)]
pub(super) struct Writers(Mutex<BTreeMap<Ino, u64>>);

impl Writers {
    /// The file is open with these flags of open(2).
    pub(super) fn open(&self, ino: Ino, flags: u32) {
        if writes(flags) {
            *self.0.lock().entry(ino).or_default() += 1;
        }
    }

    /// An open file with these flags is released.
    pub(super) fn close(&self, ino: Ino, flags: u32) {
        let counts = &mut *self.0.lock();
        if writes(flags)
            && let Some(count) = counts.get_mut(&ino)
        {
            *count -= 1;
            if *count == 0 {
                counts.remove(&ino);
            }
        }
    }

    /// Whether the file is open for writing.
    pub(super) fn has(&self, ino: Ino) -> bool {
        self.0.lock().contains_key(&ino)
    }
}

fn writes(flags: u32) -> bool {
    flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32
}
