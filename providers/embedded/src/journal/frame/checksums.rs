//! The checksum of any stretch of a file, after one pass over all of it.
//!
//! Behind a broken frame every place has to be tried as the start of a whole one, and how long a frame claims to be there may
//! be what a client wrote. Reading as much as is claimed at each place would take time by the square of the damage.
//!
//! A CRC is linear: that of `A` followed by `B` is that of `A` moved on by the length of `B`, combined with that of `B`
//! (as zlib's `crc32_combine`). So the difference of two beginnings is what lies between them.

use crc32fast::Hasher;

/// How many bytes lie between two beginnings that are kept.
const STEP: usize = 256;

pub(super) struct Checksums<'file> {
    bytes: &'file [u8],
    /// Of everything before each multiple of [`STEP`].
    before: Vec<u32>,
}

impl<'file> Checksums<'file> {
    pub(super) fn of(bytes: &'file [u8]) -> Self {
        let mut hasher = Hasher::new();
        let mut before = Vec::with_capacity(bytes.len() / STEP + 2);
        before.push(0);
        before.extend(bytes.chunks(STEP).map(|chunk| {
            hasher.update(chunk);
            hasher.clone().finalize()
        }));
        Self { bytes, before }
    }

    /// The checksum of what has `checksum`, followed by the bytes from `start` until `end`.
    pub(super) fn after(&self, checksum: u32, start: usize, end: usize) -> u32 {
        let mut moved = Hasher::new_with_initial(checksum ^ self.until(start));
        moved.combine(&Hasher::new_with_initial_len(0, (end - start) as u64));
        moved.finalize() ^ self.until(end)
    }

    fn until(&self, end: usize) -> u32 {
        let step = end / STEP;
        let mut hasher = Hasher::new_with_initial(self.before[step]);
        hasher.update(&self.bytes[step * STEP..end]);
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_has_the_checksum_it_has_by_itself() {
        let bytes: Vec<u8> = (0..3_000_u32)
            .map(|place| (place * place / 7) as u8)
            .collect();
        let checksums = Checksums::of(&bytes);
        for start in (0..bytes.len()).step_by(37) {
            for end in (start..=bytes.len())
                .step_by(61)
                .chain([start, bytes.len()])
            {
                let initial = start as u32 * 7919;
                let mut expected = Hasher::new_with_initial(initial);
                expected.update(&bytes[start..end]);
                assert_eq!(
                    checksums.after(initial, start, end),
                    expected.finalize(),
                    "{start}..{end}"
                );
            }
        }
    }
}
