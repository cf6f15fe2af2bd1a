//! The content of a PUT on its way into memory and into the object store, one stripe at a time.

use std::{io, sync::Arc};

use bytes::{Buf as _, Bytes};
use futures_util::StreamExt as _;
use md5::{Digest as _, Md5};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    Error, Result,
    broken::Broken,
    buffers::Buffers,
    durable::{DurableFragments, Storing},
    erasure::Code,
    fragment::{Fragment, Segment, Stripe},
    md5_lanes::{Md5Pool, Md5Stream},
    model::Body,
    residency::{Residency, Slots},
};

/// The stripes that wait to be hashed. MD5 is slower than all other work on a byte.
const UNHASHED_STRIPES_MAX: usize = 3;

/// Writes segments.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    pub(crate) code: Arc<Code>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) durable: DurableFragments,
    pub(crate) residency: Arc<Residency>,
    pub(crate) md5: Arc<Md5Pool>,
}

impl Writer {
    /// Writes the content of `segment` from `body`, and returns its MD5. It is durable then.
    pub(crate) async fn write(&self, segment: Segment, body: Body) -> Result<[u8; 16]> {
        let mut source = Source::new(body);
        let mut hash = Hash::begin(self.md5.stream());
        for fragment in segment.fragments() {
            self.write_fragment(fragment, &mut source, &mut hash)
                .await?;
        }
        source.expect_end().await?;
        hash.finish().await
    }

    async fn write_fragment(
        &self,
        fragment: Fragment,
        source: &mut Source,
        hash: &mut Hash,
    ) -> Result<()> {
        let mut slots = self.residency.reserve(fragment).await;
        let mut storing = self.durable.begin(fragment).await?;
        let written = self.write_stripes(fragment, source, hash, &mut slots, &mut storing);
        if let Err(error) = written.await {
            storing.abort().await;
            return Err(error);
        }
        if !self.residency.breaks(Broken::AcknowledgesMemoryAlone) {
            storing.finish().await?;
        }
        if let Some(slots) = slots {
            self.residency.seal(fragment, slots, None).await;
        }
        Ok(())
    }

    async fn write_stripes(
        &self,
        fragment: Fragment,
        source: &mut Source,
        hash: &mut Hash,
        slots: &mut Option<Slots>,
        storing: &mut Storing,
    ) -> Result<()> {
        for index in 0..fragment.stripes() {
            let stripe = fragment.stripe(index);
            // A client that sends nothing holds no buffer.
            source.begin().await?;
            let mut buffer = self.buffers.take().await;
            let cells = &mut buffer.as_mut()[..stripe.stored_bytes()];
            source.fill(&stripe, cells).await?;
            encode(&self.code, &stripe, cells);
            let cells = buffer.freeze(stripe.stored_bytes());
            // Too many instances died. The object store has the fragment, and memory gets it later.
            slots.take_if(|slots| !slots.write(&stripe, &cells));
            hash.add(&stripe, &cells).await;
            storing.put(cells).await?;
        }
        Ok(())
    }
}

/// Fills the parity units and the checksums of a stripe, whose data units are there.
pub(crate) fn encode(code: &Code, stripe: &Stripe, cells: &mut [u8]) {
    let (cell, unit, data) = (
        stripe.cell_bytes(),
        stripe.unit_bytes,
        usize::from(stripe.shape.data),
    );
    let (inputs, outputs) = cells.split_at_mut(cell * data);
    let inputs: Vec<_> = inputs
        .chunks_exact(cell)
        .map(|cell| &cell[..unit])
        .collect();
    let mut outputs: Vec<_> = outputs
        .chunks_exact_mut(cell)
        .map(|cell| &mut cell[..unit])
        .collect();
    code.encode(&inputs, &mut outputs);
    for (index, cell) in cells.chunks_exact_mut(cell).enumerate() {
        let (unit, checksum) = cell.split_at_mut(unit);
        checksum.copy_from_slice(&stripe.checksum(index, unit));
    }
}

/// A body that is read in stripes.
struct Source {
    body: Body,
    rest: Bytes,
}

impl Source {
    fn new(body: Body) -> Self {
        Self {
            body,
            rest: Bytes::new(),
        }
    }

    /// Waits for the first byte of what comes next.
    async fn begin(&mut self) -> Result<()> {
        while self.rest.is_empty() {
            self.rest = self.next().await?.ok_or_else(too_short)?;
        }
        Ok(())
    }

    /// Fills the data units of `stripe` with the next content, and the last ones with zeros.
    async fn fill(&mut self, stripe: &Stripe, cells: &mut [u8]) -> Result<()> {
        let mut missing = (stripe.content.end - stripe.content.start) as usize;
        let data = usize::from(stripe.shape.data);
        for cell in cells.chunks_exact_mut(stripe.cell_bytes()).take(data) {
            let unit = &mut cell[..stripe.unit_bytes];
            let (content, padding) = unit.split_at_mut(missing.min(stripe.unit_bytes));
            self.read_exact(content).await?;
            padding.fill(0);
            missing -= content.len();
        }
        Ok(())
    }

    async fn read_exact(&mut self, mut into: &mut [u8]) -> Result<()> {
        while !into.is_empty() {
            if self.rest.is_empty() {
                let next = self.next().await?;
                self.rest = next.ok_or_else(too_short)?;
                continue;
            }
            let bytes = into.len().min(self.rest.len());
            let (now, later) = into.split_at_mut(bytes);
            self.rest.copy_to_slice(now);
            into = later;
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        let next = self.body.next().await.transpose();
        next.map_err(|error| Error::Body(Arc::new(error)))
    }

    /// Reads the end. A body checks its own signature there.
    async fn expect_end(&mut self) -> Result<()> {
        while self.rest.is_empty() {
            match self.next().await? {
                Some(bytes) => self.rest = bytes,
                None => return Ok(()),
            }
        }
        Err(ended(io::ErrorKind::InvalidData, "it is too long"))
    }
}

/// The error of a body that ends before its announced length.
pub(crate) fn too_short() -> Error {
    ended(io::ErrorKind::UnexpectedEof, "it is too short")
}

fn ended(kind: io::ErrorKind, why: &'static str) -> Error {
    Error::Body(Arc::new(io::Error::new(kind, why)))
}

/// The whole of a short body of up to `bytes_max`, and its MD5.
pub(crate) async fn collect(mut body: Body, bytes_max: usize) -> Result<(Bytes, [u8; 16])> {
    let mut whole = Vec::new();
    while let Some(bytes) = body.next().await {
        let bytes = bytes.map_err(|error| Error::Body(Arc::new(error)))?;
        if whole.len() + bytes.len() > bytes_max {
            return Err(Error::TooLarge("a body without a length"));
        }
        whole.extend_from_slice(&bytes);
    }
    let md5 = Md5::digest(&whole).into();
    Ok((whole.into(), md5))
}

/// The MD5 of content, beside the other work on it.
struct Hash {
    stripes: mpsc::Sender<(Stripe, Bytes)>,
    digest: JoinHandle<[u8; 16]>,
}

impl Hash {
    fn begin(mut md5: Md5Stream) -> Self {
        let (stripes, mut unhashed) = mpsc::channel::<(Stripe, Bytes)>(UNHASHED_STRIPES_MAX);
        let digest = tokio::spawn(async move {
            while let Some((stripe, cells)) = unhashed.recv().await {
                let mut rest = (stripe.content.end - stripe.content.start) as usize;
                let cell = stripe.cell_bytes();
                for start in (0..cells.len()).step_by(cell) {
                    let bytes = rest.min(stripe.unit_bytes);
                    md5.update(cells.slice(start..start + bytes)).await;
                    rest -= bytes;
                }
            }
            md5.finish()
        });
        Self { stripes, digest }
    }

    async fn add(&mut self, stripe: &Stripe, cells: &Bytes) {
        let added = self.stripes.send((stripe.clone(), cells.clone())).await;
        added.expect("the task hashes until the last sender is gone");
    }

    async fn finish(self) -> Result<[u8; 16]> {
        drop(self.stripes);
        let digest = self.digest.await;
        digest.map_err(|_| Error::Unavailable("the server stops".into()))
    }
}
