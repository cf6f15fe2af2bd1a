//! Reads at the snapshot of a check, in which damaged values are answers.

use std::{
    future::Future,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ports::Clock;
use transactions::{
    Error,
    serializable::{
        VolumeStore,
        model::{At, Entry, KEYS_MAX, Key, KeyRange, PageLimits, PinName, Slot},
    },
};

use crate::error::{Errno, Result};

/// The time for which a call is repeated while the volume does not answer.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The time for reads of damaged bytes, all together. The store may look again at each of them for
/// milliseconds, and a damaged page of it spans the keys of any number of inodes.
const DAMAGED_MAX: Duration = Duration::from_secs(30);
/// The pause between.
const PAUSE: Duration = Duration::from_millis(100);

/// The volume at one slot.
#[derive(Debug)]
pub(super) struct Reader {
    store: Arc<dyn VolumeStore>,
    clock: Arc<dyn Clock>,
    slot: Slot,
    /// The time that reads of damaged bytes took, in microseconds.
    damaged_us: AtomicU64,
}

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stored {
    Absent,
    Value(Bytes),
    /// It does not decode.
    Damaged,
}

/// A part of a range.
#[derive(Debug)]
pub(super) enum Part {
    /// The present keys, and where more may follow.
    Page(Vec<Entry>, Option<Bytes>),
    /// One of its keys is damaged.
    Damaged,
}

impl Reader {
    /// A reader of the state now, which `pin` keeps readable.
    pub(super) async fn open(
        store: Arc<dyn VolumeStore>,
        clock: Arc<dyn Clock>,
        pin: &PinName,
    ) -> Result<Self> {
        let slot = Slot::default();
        let mut reader = Self {
            store,
            clock,
            slot,
            damaged_us: AtomicU64::new(0),
        };
        let snapshot = reader.answered(|| reader.store.snapshot()).await?;
        reader.slot = snapshot.map_err(|_| Errno::EIO)?.value.slot;
        let pinned = reader.answered(|| reader.store.pin(pin.clone(), reader.slot));
        pinned.await?.map_err(|_| Errno::EIO)?;
        Ok(reader)
    }

    /// Removes the pin.
    pub(super) async fn close(&self, pin: &PinName) -> Result<()> {
        let unpinned = self.answered(|| self.store.unpin(pin));
        unpinned.await?.map_err(|_| Errno::EIO)
    }

    pub(super) fn slot(&self) -> Slot {
        self.slot
    }

    /// Whether so much is damaged that reads fail with `EIO` instead of going on.
    pub(super) fn gives_up(&self) -> bool {
        self.damaged_us.load(Ordering::Relaxed) > DAMAGED_MAX.as_micros() as u64
    }

    pub(super) fn block_bytes(&self) -> u64 {
        u64::from(self.store.block_bytes().get())
    }

    pub(super) async fn reserve_numbers(&self) -> Result<Range<u64>> {
        self.answered(|| self.store.reserve_numbers())
            .await?
            .map_err(|_| Errno::EIO)
    }

    /// The values of `keys`, in their order.
    pub(super) async fn get_many(&self, keys: &[Key]) -> Result<Vec<Stored>> {
        let mut found = Vec::with_capacity(keys.len());
        // How many keys the next call asks for: fewer where one is damaged.
        let mut count = KEYS_MAX;
        while found.len() < keys.len() {
            let rest = &keys[found.len()..];
            let asked = &rest[..rest.len().min(count)];
            let at = At::Slot(self.slot);
            match self.answered(|| self.store.get_many(at, asked)).await? {
                Ok(read) if read.value.found.is_empty() => return Err(Errno::EIO),
                Ok(read) => {
                    let values = read.value.found.into_iter();
                    found.extend(values.map(|value| value.map_or(Stored::Absent, Stored::Value)));
                    count = KEYS_MAX.min(count * 2);
                }
                Err(_) if asked.len() == 1 => {
                    found.push(Stored::Damaged);
                    // Its neighbours may be damaged with it.
                    count = 2;
                }
                Err(_) => count = asked.len() / 2,
            }
        }
        Ok(found)
    }

    /// The next page of a range.
    pub(super) async fn scan(&self, range: &KeyRange) -> Result<Part> {
        let (at, limits) = (At::Slot(self.slot), PageLimits::default());
        let answer = self.answered(|| self.store.scan(at, range, limits)).await?;
        Ok(match answer {
            Ok(read) => Part::Page(read.value.entries, read.value.next),
            Err(_) => Part::Damaged,
        })
    }

    /// The answer of the volume, if it is one about the stored bytes.
    async fn answered<T, F>(&self, call: impl Fn() -> F) -> Result<Result<T, Error>>
    where
        F: Future<Output = transactions::Result<T>>,
    {
        let began = self.clock.monotonic();
        let deadline = began + WAIT_MAX;
        loop {
            match call().await {
                Ok(answer) => return Ok(Ok(answer)),
                Err(error @ Error::Corrupt(_)) => {
                    let took = self.clock.monotonic().since(began).as_micros() as u64;
                    self.damaged_us.fetch_add(took, Ordering::Relaxed);
                    return if self.gives_up() {
                        Err(Errno::EIO)
                    } else {
                        Ok(Err(error))
                    };
                }
                Err(Error::SnapshotTooOld) => return Err(Errno::ESTALE),
                Err(Error::Unavailable(_)) if self.clock.monotonic() < deadline => {
                    self.clock.sleep(PAUSE).await;
                }
                Err(_) => return Err(Errno::EIO),
            }
        }
    }
}
