//! The layout of a fragment: content, stripes, units and chunks.
//!
//! ```text
//!            content of the fragment, up to 200 MB
//!  stripe 0: [unit 0][unit 1] ... [unit 9][parity 10][parity 11]     each unit: bytes, CRC-32
//!  stripe 1: [unit 0][unit 1] ... [unit 9][parity 10][parity 11]
//!  the last: shorter units of equal length, filled up with zeros
//! ```
//!
//! The stored object of a fragment is stripe after stripe. A chunk is a column: the units of one
//! index. An instance keeps one chunk. Writers and readers therefore handle one stripe at a time,
//! and a ranged read touches only the units that it needs.
//!
//! Invariants
//! - The checksum of a unit covers its segment, fragment, stripe and index beside its bytes. A unit
//!   in the wrong place never passes for another.
//! - Every position below follows from the fragment's length and the code alone.
//!
//! `infinistore.txt` codes each chunk as one contiguous piece (section 5.2). Stripes are ours: a
//! body of unknown patience is encoded as it arrives, and never lies in memory as a whole.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    erasure::{DATA_UNITS_MAX, PARITY_UNITS_MAX},
    model::SEGMENT_BYTES_MAX,
};

/// The bytes of a unit's checksum.
pub(crate) const CHECKSUM_BYTES: usize = 4;
/// The bytes of a unit, unless it is in the last stripe.
pub(crate) const UNIT_BYTES: u32 = 128 << 10;
/// The most content in a fragment (`infinistore.txt`, section 5.3.4): whole stripes below 200 MB.
const FRAGMENT_BYTES_MAX: u64 = 200_000_000;

/// The largest unit that a row may name. A read holds a stripe of them.
const UNIT_BYTES_MAX: u32 = 16 << 20;

/// The parameters of the erasure code under which a segment is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(u8, u8, u32)")]
pub(crate) struct Shape {
    /// The data units of a stripe.
    pub(crate) data: u8,
    /// The parity units of a stripe.
    pub(crate) parity: u8,
    /// The bytes of a unit, unless it is in the last stripe.
    pub(crate) unit_bytes: u32,
}

impl TryFrom<(u8, u8, u32)> for Shape {
    type Error = &'static str;

    /// The shape in a stored row. A damaged row gives an error here, and no arithmetic error later.
    fn try_from((data, parity, unit_bytes): (u8, u8, u32)) -> Result<Self, Self::Error> {
        let is_code =
            (1..=DATA_UNITS_MAX).contains(&data.into()) && usize::from(parity) <= PARITY_UNITS_MAX;
        let is_valid = is_code && (1..=UNIT_BYTES_MAX).contains(&unit_bytes);
        let shape = Self {
            data,
            parity,
            unit_bytes,
        };
        is_valid.then_some(shape).ok_or("no such erasure code")
    }
}

impl Shape {
    /// The units of a stripe.
    pub(crate) fn total(self) -> usize {
        usize::from(self.data) + usize::from(self.parity)
    }

    /// The content of a whole stripe.
    pub(crate) fn stripe_bytes(self) -> u64 {
        u64::from(self.data) * u64::from(self.unit_bytes)
    }

    /// The content of a fragment that is not the last: a multiple of the stripe.
    pub(crate) fn fragment_bytes(self) -> u64 {
        let stripe = self.stripe_bytes();
        (FRAGMENT_BYTES_MAX / stripe).max(1) * stripe
    }
}

/// Immutable content under one id: that of one PUT, or of one uploaded part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(SegmentId, u64, Shape)")]
pub(crate) struct Segment {
    pub(crate) id: SegmentId,
    pub(crate) bytes: u64,
    pub(crate) shape: Shape,
}

impl TryFrom<(SegmentId, u64, Shape)> for Segment {
    type Error = &'static str;

    /// The segment in a stored row.
    fn try_from((id, bytes, shape): (SegmentId, u64, Shape)) -> Result<Self, Self::Error> {
        let segment = Self { id, bytes, shape };
        let is_valid = bytes <= SEGMENT_BYTES_MAX;
        is_valid.then_some(segment).ok_or("a segment beyond 5 GiB")
    }
}

/// The id of a segment. It is never used again (M2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct SegmentId(pub(crate) u128);

/// The name of a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FragmentName {
    pub(crate) segment: SegmentId,
    pub(crate) index: u32,
}

impl Segment {
    /// Its fragments in order.
    pub(crate) fn fragments(self) -> impl Iterator<Item = Fragment> {
        let each = self.shape.fragment_bytes();
        (0..self.bytes.div_ceil(each)).map(move |index| Fragment {
            name: FragmentName {
                segment: self.id,
                index: index as u32,
            },
            bytes: each.min(self.bytes - index * each),
            shape: self.shape,
        })
    }
}

/// One fragment of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) name: FragmentName,
    /// The length of its content.
    pub(crate) bytes: u64,
    pub(crate) shape: Shape,
}

impl Fragment {
    pub(crate) fn stripes(self) -> u64 {
        self.bytes.div_ceil(self.shape.stripe_bytes())
    }

    /// Stripe `index`, which is below [`Self::stripes`].
    pub(crate) fn stripe(self, index: u64) -> Stripe {
        let start = index * self.shape.stripe_bytes();
        let bytes = self.shape.stripe_bytes().min(self.bytes - start);
        let unit_bytes = bytes.div_ceil(u64::from(self.shape.data)) as usize;
        Stripe {
            fragment: self.name,
            index,
            content: start..start + bytes,
            unit_bytes,
            shape: self.shape,
        }
    }

    /// The stripes that hold `range` of the content.
    pub(crate) fn stripes_of(self, range: &Range<u64>) -> Range<u64> {
        let stripe = self.shape.stripe_bytes();
        range.start / stripe..range.end.div_ceil(stripe)
    }

    /// The bytes of one of its chunks, with checksums.
    pub(crate) fn chunk_bytes(self) -> u64 {
        match self.stripes() {
            0 => 0,
            stripes => self.stripe(stripes - 1).in_chunk().end,
        }
    }

    /// The bytes of its stored object.
    pub(crate) fn stored_bytes(self) -> u64 {
        self.chunk_bytes() * self.shape.total() as u64
    }
}

/// One stripe of a fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stripe {
    pub(crate) fragment: FragmentName,
    pub(crate) index: u64,
    /// Its content's place in the fragment's content.
    pub(crate) content: Range<u64>,
    /// The bytes of each of its units, without the checksum.
    pub(crate) unit_bytes: usize,
    pub(crate) shape: Shape,
}

impl Stripe {
    /// The bytes of a unit with its checksum.
    pub(crate) fn cell_bytes(&self) -> usize {
        self.unit_bytes + CHECKSUM_BYTES
    }

    fn full_cell_bytes(&self) -> u64 {
        u64::from(self.shape.unit_bytes) + CHECKSUM_BYTES as u64
    }

    /// The place of its unit in each chunk, with the checksum.
    pub(crate) fn in_chunk(&self) -> Range<u64> {
        let start = self.index * self.full_cell_bytes();
        start..start + self.cell_bytes() as u64
    }

    /// The place of units `units` in the stored object, with checksums.
    pub(crate) fn in_object(&self, units: Range<usize>) -> Range<u64> {
        let start = self.index * self.full_cell_bytes() * self.shape.total() as u64;
        let cell = self.cell_bytes() as u64;
        start + units.start as u64 * cell..start + units.end as u64 * cell
    }

    /// The bytes of the whole stripe in the stored object.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.cell_bytes() * self.shape.total()
    }

    /// The data units that hold `range` of the fragment's content, which overlaps the stripe.
    pub(crate) fn units_of(&self, range: &Range<u64>) -> Range<usize> {
        let (start, end) = (
            range.start.max(self.content.start) - self.content.start,
            range.end.min(self.content.end) - self.content.start,
        );
        let unit = self.unit_bytes as u64;
        (start / unit) as usize..end.div_ceil(unit) as usize
    }

    /// The checksum of its unit `index`.
    pub(crate) fn checksum(&self, index: usize, unit: &[u8]) -> [u8; CHECKSUM_BYTES] {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.fragment.segment.0.to_le_bytes());
        hasher.update(&self.fragment.index.to_le_bytes());
        hasher.update(&self.index.to_le_bytes());
        hasher.update(&(index as u32).to_le_bytes());
        hasher.update(unit);
        hasher.finalize().to_le_bytes()
    }

    /// Whether `cell` is its unit `index` with the right checksum (M4).
    pub(crate) fn is_intact(&self, index: usize, cell: &[u8]) -> bool {
        cell.len() == self.cell_bytes() && {
            let (unit, checksum) = cell.split_at(self.unit_bytes);
            self.checksum(index, unit) == checksum
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment(bytes: u64) -> Segment {
        let shape = Shape {
            data: 10,
            parity: 2,
            unit_bytes: 64,
        };
        Segment {
            id: SegmentId(7),
            bytes,
            shape,
        }
    }

    #[test]
    fn fragments_are_whole_stripes_below_the_bound_but_for_the_last() {
        let shape = Shape {
            unit_bytes: UNIT_BYTES,
            ..segment(0).shape
        };
        assert_eq!(shape.fragment_bytes() % shape.stripe_bytes(), 0);
        assert!(shape.fragment_bytes() <= 200_000_000);
        let whole = Segment {
            bytes: 2 * shape.fragment_bytes() + 1,
            ..segment(0)
        };
        let whole = Segment { shape, ..whole };
        let sizes: Vec<_> = whole.fragments().map(|fragment| fragment.bytes).collect();
        assert_eq!(sizes, [shape.fragment_bytes(), shape.fragment_bytes(), 1]);
    }

    #[test]
    fn empty_content_has_no_fragment() {
        assert_eq!(segment(0).fragments().count(), 0);
    }

    #[test]
    fn a_unit_in_another_place_is_not_intact() {
        let fragment = segment(5000).fragments().next().expect("one");
        let (first, second) = (fragment.stripe(0), fragment.stripe(1));
        let unit = [9; 64];
        let mut cell = unit.to_vec();
        cell.extend(first.checksum(3, &unit));
        assert!(first.is_intact(3, &cell));
        assert!(!first.is_intact(4, &cell) && !second.is_intact(3, &cell));
        cell[0] ^= 1;
        assert!(!first.is_intact(3, &cell));
    }

    proptest! {
        #[test]
        fn stripes_cover_the_content_and_the_stored_object_without_gaps(bytes in 1_u64..20_000) {
            let fragment = segment(bytes).fragments().next().expect("one");
            let (mut content, mut stored, mut chunk) = (0, 0, 0);
            for index in 0..fragment.stripes() {
                let stripe = fragment.stripe(index);
                prop_assert_eq!(stripe.content.start, content);
                prop_assert_eq!(stripe.in_object(0..12).start, stored);
                prop_assert_eq!(stripe.in_chunk().start, chunk);
                prop_assert!(stripe.unit_bytes * 10 >= (stripe.content.end - stripe.content.start) as usize);
                (content, stored, chunk) =
                    (stripe.content.end, stripe.in_object(0..12).end, stripe.in_chunk().end);
            }
            prop_assert_eq!(content, bytes);
            prop_assert_eq!(stored, fragment.stored_bytes());
            prop_assert_eq!(chunk, fragment.chunk_bytes());
        }

        #[test]
        fn the_units_of_a_range_hold_it(bytes in 1_u64..5_000, from in 0_u64..5_000, length in 1_u64..5_000) {
            let from = from % bytes;
            let range = from..(from + length).min(bytes);
            let fragment = segment(bytes).fragments().next().expect("one");
            let mut covered = 0;
            for index in fragment.stripes_of(&range) {
                let stripe = fragment.stripe(index);
                let units = stripe.units_of(&range);
                prop_assert!(units.end <= 10 && !units.is_empty());
                let first = stripe.content.start + (units.start * stripe.unit_bytes) as u64;
                prop_assert!(first <= range.start.max(stripe.content.start));
                covered += range.end.min(stripe.content.end) - range.start.max(stripe.content.start);
            }
            prop_assert_eq!(covered, range.end - range.start);
        }
    }
}
