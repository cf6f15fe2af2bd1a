//! Content on its way to a reader: from function memory, or from the object store.
//!
//! A unit counts only if its checksum is right (M4). Missing and damaged units are decoded from
//! others of their stripe.
//!
//! Units in memory are verified one by one, when the client takes them. Their bytes are then still
//! in the processor's cache when they are sent. Only the object store is read ahead.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use ports::metering::function_memory::Category;

use crate::{
    Error, Result,
    broken::Broken,
    durable::DurableFragments,
    erasure::Code,
    fragment::{Fragment, Segment, Shape, Stripe},
    model::Content,
    residency::{Chunks, Residency},
};

/// The stripes that are read ahead of a slow client.
const READ_AHEAD: usize = 2;
/// Smaller units are copied together up to this size. A copy costs less than to send each by itself.
const TOGETHER_BYTES_MAX: usize = 64 << 10;

/// Reads segments.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    pub(crate) code: Arc<Code>,
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

impl Piece {
    fn units(&self) -> Range<usize> {
        self.stripe.units_of(&self.range)
    }

    /// The part of its range in `content`, which begins with unit `first`.
    fn cut(&self, first: usize, content: &Bytes) -> Bytes {
        let start = self.stripe.content.start + (first * self.stripe.unit_bytes) as u64;
        let end = self.range.end.min(start + content.len() as u64);
        content.slice(self.range.start.saturating_sub(start) as usize..(end - start) as usize)
    }
}

/// The units of a piece.
enum Units {
    /// They are looked for when they are sent. A client that stops reading then keeps no memory.
    InMemory,
    /// Units with their checksums, which are right, from unit `first` on.
    Read { first: usize, cells: Bytes },
}

impl Reader {
    /// The code of a segment. One that was stored under other settings has another.
    fn code(&self, shape: Shape) -> Arc<Code> {
        let (data, parity) = (shape.data.into(), shape.parity.into());
        if (data, parity) == (self.code.data(), self.code.parity()) {
            return Arc::clone(&self.code);
        }
        Arc::new(Code::new(data, parity))
    }

    /// The bytes `range` of the segments' content. `held` lives until the end.
    pub(crate) fn read(
        self,
        segments: Vec<Segment>,
        range: Range<u64>,
        held: impl Send + Sync + 'static,
    ) -> Content {
        let reader = Arc::new(self);
        let finding = Arc::clone(&reader);
        let found = stream::iter(pieces(segments, range)).map(move |piece| {
            let reader = Arc::clone(&finding);
            async move { reader.find(piece).await }
        });
        let content = found.buffered(READ_AHEAD).map_ok(move |(piece, units)| {
            let _held = &held;
            Arc::clone(&reader).content(piece, units)
        });
        Box::pin(content.try_flatten())
    }

    async fn find(&self, piece: Piece) -> Result<(Piece, Units)> {
        let chunks = self.residency.chunks(piece.fragment.name);
        if let Some(chunks) = chunks {
            if piece.is_first {
                self.residency.accessed(&chunks);
            }
            self.meter(&piece);
            return Ok((piece, Units::InMemory));
        }
        let units = self.read_store(&piece).await?;
        self.residency.miss(piece.fragment, None);
        Ok((piece, units))
    }

    /// The content of a piece, a few units at a time.
    fn content(self: Arc<Self>, piece: Piece, units: Units) -> impl Stream<Item = Result<Bytes>> {
        let start = (self, units, piece.units().start);
        stream::try_unfold(
            (start, piece),
            async |((reader, mut units, next), piece)| {
                if next == piece.units().end {
                    return Ok(None);
                }
                let (content, end) = reader.next(&piece, &mut units, next).await?;
                let content = piece.cut(next, &content);
                Ok(Some((content, ((reader, units, end), piece))))
            },
        )
    }

    /// The content of units from `next` on, and the unit after them.
    async fn next(&self, piece: &Piece, units: &mut Units, next: usize) -> Result<(Bytes, usize)> {
        let stripe = &piece.stripe;
        if let Units::InMemory = units {
            let together = (TOGETHER_BYTES_MAX / stripe.unit_bytes).max(1);
            let end = piece.units().end.min(next + together);
            let chunks = self.residency.chunks(piece.fragment.name);
            let content = chunks
                .as_ref()
                .map(|chunks| chunks.units(stripe, next..end));
            if let Some(content) = content.flatten() {
                return Ok((content, end));
            }
            // From the first unit that is missing or damaged on.
            *units = self.repair(piece, chunks).await?;
        }
        match units {
            Units::Read { first, cells } => {
                let cell = (next - *first) * stripe.cell_bytes();
                Ok((cells.slice(cell..cell + stripe.unit_bytes), next + 1))
            }
            Units::InMemory => unreachable!("they were replaced"),
        }
    }

    async fn repair(&self, piece: &Piece, chunks: Option<Arc<Chunks>>) -> Result<Units> {
        if let Some(chunks) = &chunks {
            let read = |unit: usize, cell: &mut [u8]| chunks.read(&piece.stripe, unit, cell);
            if let Some(cells) = self.repaired(&piece.stripe, read) {
                let cells = cells.into();
                return Ok(Units::Read { first: 0, cells });
            }
        }
        self.residency.miss(piece.fragment, chunks.as_ref());
        drop(chunks);
        self.read_store(piece).await
    }

    /// A cloud bills one invocation per chunk that a read takes.
    fn meter(&self, piece: &Piece) {
        let units = piece.units().len();
        let invocations = if piece.is_first { units } else { 0 };
        let bytes = units * piece.stripe.cell_bytes();
        let meter = &self.residency.meter;
        meter.invoked(Category::Io, invocations as u64, bytes as u64);
    }

    async fn read_store(&self, piece: &Piece) -> Result<Units> {
        let (stripe, units) = (&piece.stripe, piece.units());
        let read = self
            .durable
            .read(piece.fragment.name, stripe.in_object(units.clone()));
        let cells = read.await?;
        let mut read = units.clone().zip(cells.chunks(stripe.cell_bytes()));
        let is_whole = cells.len() == units.len() * stripe.cell_bytes();
        let is_trusted = self.residency.breaks(Broken::TrustsUnits);
        if is_whole && (is_trusted || read.all(|(unit, cell)| stripe.is_intact(unit, cell))) {
            let first = units.start;
            return Ok(Units::Read { first, cells });
        }
        let cells = self.stripe(piece.fragment, stripe).await?;
        Ok(Units::Read { first: 0, cells })
    }

    /// All units of a stripe from the object store, with damaged ones repaired. A distant store that
    /// returned other bytes is read again.
    pub(crate) async fn stripe(&self, fragment: Fragment, stripe: &Stripe) -> Result<Bytes> {
        let Some(buffer) = self.durable.buffer() else {
            return self.read_stripe(fragment, stripe).await;
        };
        let mut again = buffer.reads();
        loop {
            match self.read_stripe(fragment, stripe).await {
                Err(Error::Damaged(_)) if buffer.wait(&mut again).await => {}
                read => return read,
            }
        }
    }

    async fn read_stripe(&self, fragment: Fragment, stripe: &Stripe) -> Result<Bytes> {
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
        let mut buffer = vec![0; stripe.stored_bytes()];
        let mut present = Vec::new();
        for (at, cell) in buffer.chunks_exact_mut(cell).enumerate() {
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
        self.code(stripe.shape)
            .reconstruct(&present, &mut [(index, bytes)]);
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
        self.code(stripe.shape).reconstruct(&present, &mut missing);
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
