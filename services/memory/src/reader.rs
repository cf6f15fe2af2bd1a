//! Content on its way to a reader: from function memory, or from the object store.
//!
//! A unit counts only if its checksum is right (M4). Missing and damaged units are decoded from
//! others of their stripe.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use ports::metering::function_memory::Category;

use crate::{
    Error, Result,
    buffers::Buffers,
    durable::DurableFragments,
    erasure::Code,
    fragment::{CHECKSUM_BYTES, Fragment, Segment, Stripe},
    model::Content,
    residency::{Chunks, Residency},
};

/// The stripes that are read ahead of a slow client.
const READ_AHEAD: usize = 2;

/// Reads segments.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    pub(crate) code: Arc<Code>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) durable: DurableFragments,
    pub(crate) residency: Arc<Residency>,
}

/// Content of one stripe.
struct Piece {
    fragment: Fragment,
    stripe: Stripe,
    /// In the fragment's content, within the stripe.
    range: Range<u64>,
    /// Of its fragment in this read.
    is_first: bool,
}

impl Reader {
    /// The bytes `range` of the segments' content. `held` lives until the end.
    pub(crate) fn read(
        self,
        segments: Vec<Segment>,
        range: Range<u64>,
        held: impl Send + Sync + 'static,
    ) -> Content {
        let held = Arc::new(held);
        let reader = Arc::new(self);
        let pieces = stream::iter(pieces(segments, range)).map(move |piece| {
            let (reader, held) = (Arc::clone(&reader), Arc::clone(&held));
            async move {
                let content = reader.piece(&piece).await;
                drop(held);
                content
            }
        });
        let pieces = pieces.buffered(READ_AHEAD);
        Box::pin(
            pieces
                .map_ok(|content| stream::iter(content.into_iter().map(Ok)))
                .try_flatten(),
        )
    }

    async fn piece(&self, piece: &Piece) -> Result<Vec<Bytes>> {
        let chunks = self.residency.chunks(piece.fragment.name);
        if let Some(chunks) = &chunks {
            if piece.is_first {
                self.residency.accessed(chunks);
            }
            if let Some(content) = self.read_memory(piece, chunks) {
                self.meter(piece);
                return Ok(vec![content]);
            }
        }
        self.residency.miss(piece.fragment, chunks.as_ref());
        self.read_store(piece).await
    }

    /// A cloud bills one invocation per chunk that a read takes.
    fn meter(&self, piece: &Piece) {
        let units = piece.stripe.units_of(&piece.range).len();
        let invocations = if piece.is_first { units } else { 0 };
        let bytes = units * piece.stripe.cell_bytes();
        let meter = &self.residency.meter;
        meter.invoked(Category::Io, invocations as u64, bytes as u64);
    }

    /// None: too many units are missing.
    fn read_memory(&self, piece: &Piece, chunks: &Chunks) -> Option<Bytes> {
        let stripe = &piece.stripe;
        let units = stripe.units_of(&piece.range);
        // A reader never waits for a buffer: slow clients would keep all of them.
        let length = units.len() * stripe.unit_bytes + CHECKSUM_BYTES;
        let mut buffer = self.buffers.take_now(length);
        let is_whole = units.clone().enumerate().all(|(position, unit)| {
            // The checksum of each unit is overwritten by the next unit.
            let start = position * stripe.unit_bytes;
            let cell = &mut buffer.as_mut()[start..start + stripe.cell_bytes()];
            chunks.read(stripe, unit, cell)
        });
        if !is_whole {
            let read = |unit: usize, cell: &mut [u8]| chunks.read(stripe, unit, cell);
            let cells = self.repaired(stripe, read)?;
            for (position, unit) in units.clone().enumerate() {
                let content = &cells[unit * stripe.cell_bytes()..][..stripe.unit_bytes];
                buffer.as_mut()[position * stripe.unit_bytes..][..stripe.unit_bytes]
                    .copy_from_slice(content);
            }
        }
        let first = stripe.content.start + (units.start * stripe.unit_bytes) as u64;
        let from = (piece.range.start - first) as usize;
        let until = (piece.range.end - first) as usize;
        Some(buffer.freeze(until).slice(from..))
    }

    async fn read_store(&self, piece: &Piece) -> Result<Vec<Bytes>> {
        let stripe = &piece.stripe;
        let units = stripe.units_of(&piece.range);
        let read = self
            .durable
            .read(piece.fragment.name, stripe.in_object(units.clone()));
        let mut cells = read.await?;
        let mut first = units.start;
        let is_intact = units.clone().zip(cells.chunks(stripe.cell_bytes()));
        if !is_intact
            .clone()
            .all(|(unit, cell)| stripe.is_intact(unit, cell))
            || is_intact.count() < units.len()
        {
            cells = self.stripe(piece.fragment, stripe).await?;
            first = 0;
        }
        let content = units.map(|unit| {
            let cell = (unit - first) * stripe.cell_bytes();
            let start = stripe.content.start + (unit * stripe.unit_bytes) as u64;
            let end = (start + stripe.unit_bytes as u64).min(piece.range.end);
            let skipped = piece.range.start.saturating_sub(start);
            cells.slice(cell + skipped as usize..cell + (end - start) as usize)
        });
        Ok(content.collect())
    }

    /// All units of a stripe from the object store, with damaged ones repaired.
    pub(crate) async fn stripe(&self, fragment: Fragment, stripe: &Stripe) -> Result<Bytes> {
        let all = stripe.in_object(0..stripe.shape.total());
        let cells = self.durable.read(fragment.name, all).await?;
        let is_intact = |unit: usize| {
            let cell = cells.get(unit * stripe.cell_bytes()..(unit + 1) * stripe.cell_bytes());
            cell.filter(|cell| stripe.is_intact(unit, cell))
        };
        if (0..stripe.shape.total()).all(|unit| is_intact(unit).is_some()) {
            return Ok(cells);
        }
        tracing::warn!(
            segment = %format_args!("{:032x}", fragment.name.segment.0), fragment = fragment.name.index, stripe = stripe.index,
            "the object store returned damaged bytes; they are repaired by the erasure code for this read. Check the disk"
        );
        let repaired = self.repaired(stripe, |unit, into| {
            is_intact(unit).is_some_and(|cell| {
                into.copy_from_slice(cell);
                true
            })
        });
        repaired.map(Bytes::from).ok_or_else(|| {
            let name = format!("{:032x}-{}", fragment.name.segment.0, fragment.name.index);
            Error::Damaged(
                format!(
                    "stripe {} of fragment {name} in the object store",
                    stripe.index
                )
                .into(),
            )
        })
    }

    /// Unit `index` of a stripe with its checksum, decoded from chunks in memory. None: they are too
    /// few.
    pub(crate) fn decode_unit(
        &self,
        chunks: &Chunks,
        stripe: &Stripe,
        index: usize,
    ) -> Option<Vec<u8>> {
        let (cell, unit) = (stripe.cell_bytes(), stripe.unit_bytes);
        let mut buffer = self.buffers.take_now(stripe.stored_bytes());
        let mut present = Vec::new();
        for (at, cell) in buffer.as_mut().chunks_exact_mut(cell).enumerate() {
            let is_wanted = at != index && present.len() < usize::from(stripe.shape.data);
            if is_wanted && at < stripe.shape.total() && chunks.read(stripe, at, cell) {
                present.push((at, &cell[..unit]));
            }
        }
        if present.len() < usize::from(stripe.shape.data) {
            return None;
        }
        let mut decoded = vec![0; cell];
        let (bytes, checksum) = decoded.split_at_mut(unit);
        self.code.reconstruct(&present, &mut [(index, bytes)]);
        checksum.copy_from_slice(&stripe.checksum(index, bytes));
        Some(decoded)
    }

    /// The whole stripe from the units that `read` can give. None: they are too few.
    fn repaired(
        &self,
        stripe: &Stripe,
        mut read: impl FnMut(usize, &mut [u8]) -> bool,
    ) -> Option<Vec<u8>> {
        let cell = stripe.cell_bytes();
        let mut cells = vec![0; stripe.stored_bytes()];
        let (mut present, mut missing) = (Vec::new(), Vec::new());
        for (unit, cell) in cells.chunks_exact_mut(cell).enumerate() {
            if read(unit, cell) {
                present.push((unit, &cell[..stripe.unit_bytes]));
            } else {
                missing.push((unit, &mut cell[..stripe.unit_bytes]));
            }
        }
        if present.len() < usize::from(stripe.shape.data) {
            return None;
        }
        self.code.reconstruct(&present, &mut missing);
        let missing: Vec<_> = missing.into_iter().map(|(unit, _)| unit).collect();
        for unit in missing {
            let (bytes, checksum) =
                cells[unit * cell..(unit + 1) * cell].split_at_mut(stripe.unit_bytes);
            checksum.copy_from_slice(&stripe.checksum(unit, bytes));
        }
        Some(cells)
    }
}

/// The pieces of `range`, in order.
fn pieces(segments: Vec<Segment>, range: Range<u64>) -> impl Iterator<Item = Piece> + Send {
    let mut start = 0;
    let fragments = segments.into_iter().flat_map(Segment::fragments);
    let placed = fragments.map(move |fragment| {
        let at = start;
        start += fragment.bytes;
        (fragment, at)
    });
    placed.flat_map(move |(fragment, at)| {
        let inside = range.start.clamp(at, at + fragment.bytes) - at
            ..range.end.clamp(at, at + fragment.bytes) - at;
        let stripes = if inside.is_empty() {
            0..0
        } else {
            fragment.stripes_of(&inside)
        };
        let first = stripes.start;
        stripes.map(move |index| {
            let stripe = fragment.stripe(index);
            let range = inside.start.max(stripe.content.start)..inside.end.min(stripe.content.end);
            Piece {
                fragment,
                stripe,
                range,
                is_first: index == first,
            }
        })
    })
}
