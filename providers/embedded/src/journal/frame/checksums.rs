//! The checksum of any part of a file, after one pass over the file.
//!
//! After a broken frame, a whole frame may start at any aligned offset. The length that each
//! candidate claims may be arbitrary client data. To read the claimed length at each offset would
//! take quadratic time.
//!
//! A CRC is linear. The CRC of `A` followed by `B` is the CRC of `A`, shifted by the length of `B`,
//! combined with the CRC of `B` (as in zlib's `crc32_combine`). The CRC of a part therefore follows
//! from the CRCs of two prefixes.

use crc32fast::Hasher;

/// The distance between two stored prefixes, in bytes.
const STEP: usize = 256;

pub(super) struct Checksums<'file> {
    bytes: &'file [u8],
    /// The checksum of the prefix before each multiple of [`STEP`].
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

    /// Continues `checksum` over the bytes from `start` to `end`.
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
    fn a_part_has_the_checksum_of_its_own_bytes() {
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
