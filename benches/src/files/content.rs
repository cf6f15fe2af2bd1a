//! Content that tells which file it belongs to, so that each read can be verified.
//!
//! A file consists of words of 8 bytes. The first word is the file's id, and the others follow from
//! the id and the position. All lengths and offsets are multiples of 8.

/// Bytes of a word.
pub const WORD_BYTES: u64 = 8;

/// The id of a file: its number among the files of a load, and how many times it was replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    /// Its number, which its name contains.
    pub number: u32,
    /// Counts the files that had this name.
    pub generation: u32,
}

impl FileId {
    fn word(self, index: u64) -> u64 {
        let id = u64::from(self.number) << 32 | u64::from(self.generation);
        if index == 0 {
            return id;
        }
        (id ^ index.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
    }

    /// The id that a file's first bytes name.
    pub fn of(content: &[u8]) -> Option<Self> {
        let word = u64::from_le_bytes(content.first_chunk().copied()?);
        Some(Self {
            number: (word >> 32) as u32,
            generation: word as u32,
        })
    }

    /// Fills `buffer` with the file's content from `offset` on.
    pub fn fill(self, buffer: &mut [u8], offset: u64) {
        debug_assert!(offset.is_multiple_of(WORD_BYTES));
        for (index, word) in (offset / WORD_BYTES..).zip(buffer.chunks_mut(WORD_BYTES as usize)) {
            word.copy_from_slice(&self.word(index).to_le_bytes()[..word.len()]);
        }
    }

    /// Whether `buffer` is the file's content from `offset` on.
    pub fn is_in(self, buffer: &[u8], offset: u64) -> bool {
        (offset / WORD_BYTES..)
            .zip(buffer.chunks(WORD_BYTES as usize))
            .all(|(index, word)| *word == self.word(index).to_le_bytes()[..word.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_verified_at_any_offset() {
        let id = FileId {
            number: 7,
            generation: 3,
        };
        let mut buffer = vec![0; 64];
        id.fill(&mut buffer, 0);
        assert_eq!(FileId::of(&buffer), Some(id));
        assert!(id.is_in(&buffer, 0) && id.is_in(&buffer[16..40], 16));
    }

    #[test]
    fn a_changed_byte_and_an_older_generation_are_found() {
        let [new, old] = [2, 1].map(|generation| FileId {
            number: 7,
            generation,
        });
        let mut buffer = vec![0; 64];
        new.fill(&mut buffer, 0);
        assert!(!old.is_in(&buffer[8..], 8));
        buffer[40] ^= 1;
        assert!(!new.is_in(&buffer, 0));
    }
}
