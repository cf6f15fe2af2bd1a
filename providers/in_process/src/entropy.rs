//! The randomness port over the kernel's generator.
//!
//! Session passwords are drawn from it, so it uses the kernel's generator, not a fast one in user
//! space. One system call fills a page of 512 numbers. L3 asks that one seed gives one sequence;
//! this generator has no seed.

use parking_lot::Mutex;
use ports::Entropy;

const PAGE_BYTES: usize = 4096;

/// The port over the system's generator.
#[derive(Debug)]
pub struct SystemEntropy {
    page: Mutex<Page>,
}

struct Page {
    bytes: [u8; PAGE_BYTES],
    used: usize,
}

impl std::fmt::Debug for Page {
    /// Hides the numbers that are not drawn yet.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Page")
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}

impl Default for SystemEntropy {
    fn default() -> Self {
        Self {
            page: Mutex::new(Page {
                bytes: [0; PAGE_BYTES],
                used: PAGE_BYTES,
            }),
        }
    }
}

impl Entropy for SystemEntropy {
    fn next_u64(&self) -> u64 {
        let mut page = self.page.lock();
        if page.used == PAGE_BYTES {
            getrandom::fill(&mut page.bytes).expect("a system that ran so far has randomness");
            page.used = 0;
        }
        let at = page.used;
        page.used += 8;
        let drawn: [u8; 8] = page.bytes[at..at + 8]
            .try_into()
            .expect("eight bytes are eight bytes");
        page.bytes[at..at + 8].fill(0);
        u64::from_le_bytes(drawn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_over_the_end_of_a_page() {
        let entropy = SystemEntropy::default();
        let mut drawn: Vec<u64> = (0..2000).map(|_| entropy.next_u64()).collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 2000);
    }
}
