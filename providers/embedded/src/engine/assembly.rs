//! From an open data directory to a state that may be served.

use std::{path::Path, sync::Arc};

use ports::{DurabilityPoint, Incarnation, Position};

use crate::{
    ballast::Ballast,
    checkpoint_store::{CheckpointEnd, CheckpointStore, View},
    config::Config,
    directory::{
        format::{self, Format},
        layout,
        lock::DirectoryLock,
    },
    durability::{Durability, INCARNATIONS_MAX},
    error::OpenError,
    journal::{
        frame::{self, Header},
        recovery::{Recovered, TrustedEnd, check_for_checkpoint, recover},
        segment::{SEGMENT_HEADER_BYTES, SegmentHeader},
        spare::Spare,
        usage::{ClosedSegment, Folded, JournalUsage},
        writer::{CurrentSegment, Journal},
    },
    queues::Queues,
    records::{Record, RecordKey, Table, overlay::Overlay},
    status::RecoveryReport,
    storage::make_directory,
    store::Store,
};

/// What the first record of an incarnation takes, at most.
const FIRST_RECORD_BYTES_MAX: u64 = (INCARNATIONS_MAX * 20 + 256) as u64;

/// A data directory whose journal is yet to be read.
pub(super) struct OpenDirectory {
    pub(super) lock: DirectoryLock,
    pub(super) format: Format,
    pub(super) checkpoint_store: Arc<CheckpointStore>,
    pub(super) view: Option<View>,
}

/// Locks the directory, and opens its checkpoint store.
pub(super) fn open_directory(config: &Config) -> Result<OpenDirectory, OpenError> {
    let storage = &*config.storage;
    let journal_directory = config.data_dir.join(layout::JOURNAL);
    make_directory(storage, &config.data_dir).map_err(OpenError::making(&config.data_dir))?;
    let lock = DirectoryLock::take(&config.data_dir)?;
    // This syncs the data directory, too: with the lock, as another process may have given names there until now.
    make_directory(storage, &journal_directory).map_err(OpenError::making(&journal_directory))?;
    let format = format::open(storage, &config.data_dir)?;
    check_for_checkpoint(storage, &config.data_dir, &journal_directory)?;
    let checkpoint_store = CheckpointStore::open(config, format)?;
    let format = format.renew(storage, &config.data_dir)?;
    let checkpoint_store = Arc::new(checkpoint_store);
    let view = checkpoint_store
        .view()
        .map_err(OpenError::checkpoint(checkpoint_store.path()))?;
    Ok(OpenDirectory {
        lock,
        format,
        checkpoint_store,
        view,
    })
}

/// What a start, or a return to the durable state, begins with.
pub(super) struct Assembled {
    pub(super) journal: Journal,
    pub(super) store: Store,
    pub(super) queues: Queues,
    pub(super) ends: Arc<Vec<(u64, u64)>>,
    pub(super) report: RecoveryReport,
}

/// What a state is assembled from.
pub(super) struct Parts<'engine> {
    pub(super) config: &'engine Config,
    pub(super) format: Format,
    pub(super) checkpoint_store: &'engine Arc<CheckpointStore>,
    pub(super) spare: &'engine Arc<Spare>,
    pub(super) ballast: &'engine Arc<Ballast>,
    pub(super) usage: &'engine Arc<JournalUsage>,
    pub(super) durability: &'engine Arc<Durability>,
}

impl Parts<'_> {
    /// Recovers, and begins a new incarnation durably.
    pub(super) fn assemble(
        &self,
        view: Option<View>,
        trusted: Option<TrustedEnd>,
    ) -> Result<Assembled, OpenError> {
        let storage = &*self.config.storage;
        let checkpoint_end = view.as_ref().map(|view| view.checkpoint_end);
        let directory = self.spare.directory().display();
        self.spare.clean().map_err(OpenError::io(format!(
            "remove a spare segment from {directory}"
        )))?;
        let mut recovered = recover(
            storage,
            self.spare.directory(),
            self.format,
            checkpoint_end,
            trusted,
        )?;
        let report = std::mem::take(&mut recovered.report);
        let ends = Arc::new(ends(&recovered, view.as_ref(), &self.config.data_dir)?);
        let incarnation = recovered.incarnation + 1;
        let position = recovered.position;
        let overlay = Overlay::recovered(std::mem::take(&mut recovered.generation));
        let mut journal = self.open_journal(recovered, incarnation)?;
        let point = DurabilityPoint {
            incarnation: Incarnation(incarnation),
            position: Position(position),
        };
        let mut store = Store::new(
            overlay,
            view,
            point,
            Arc::clone(self.checkpoint_store),
            Arc::clone(self.spare),
            Arc::clone(self.durability),
            self.config.cache_bytes,
        );
        self.begin(&mut journal, &mut store, &ends)?;
        let advice = format!(
            "if {} is damaged, restore the whole data directory from a copy",
            self.checkpoint_store.path().display()
        );
        let queues = Queues::rebuild(&mut store, self.config.queue_limits.dead_letters_max)
            .map_err(|error| {
                OpenError::io(format!("read the queues ({advice})"))(std::io::Error::other(error))
            })?;
        self.remove_folded(checkpoint_end);
        store.spare_room = self.spare.grow(0);
        store.tail_room = journal.room();
        Ok(Assembled {
            journal,
            store,
            queues,
            ends,
            report,
        })
    }

    /// The journal's writing end: behind the last record, or in a new segment where that may not be.
    fn open_journal(&self, recovered: Recovered, incarnation: u64) -> Result<Journal, OpenError> {
        let (mut closed, sequence) = (recovered.closed, recovered.sequence);
        // A store that is killed often must not gather journal for ever.
        let bytes_since_checkpoint = recovered.unfolded_bytes;
        // Of a segment that is made here nobody knows how much room it has, until it is.
        self.usage
            .begin(closed.clone(), (0, 0), bytes_since_checkpoint);
        let current = match recovered.current {
            Some(current)
                if recovered.appendable
                    && current.end + FIRST_RECORD_BYTES_MAX <= current.bytes =>
            {
                current
            }
            previous => {
                let created = self.create_segment(previous.as_ref(), sequence, incarnation)?;
                closed.extend(previous.map(|previous| ClosedSegment {
                    number: previous.number,
                    last_sequence: sequence,
                    bytes: previous.records_bytes(),
                }));
                created
            }
        };
        let lengths = (
            current.records_bytes(),
            current.bytes - SEGMENT_HEADER_BYTES,
        );
        self.usage.begin(closed, lengths, bytes_since_checkpoint);
        let (usage, spare) = (Arc::clone(self.usage), Arc::clone(self.spare));
        Ok(Journal {
            usage,
            spare,
            salt: self.format.salt,
            sequence,
            current,
            bytes_since_checkpoint,
        })
    }

    /// Makes the segment that follows `previous`, whose last record has the number `sequence`.
    fn create_segment(
        &self,
        previous: Option<&CurrentSegment>,
        sequence: u64,
        incarnation: u64,
    ) -> Result<CurrentSegment, OpenError> {
        let attempted = || {
            format!(
                "make a journal segment in {}",
                self.spare.directory().display()
            )
        };
        self.make_room(FIRST_RECORD_BYTES_MAX)?;
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        let spare = self
            .spare
            .take()
            .ok_or_else(full)
            .map_err(OpenError::io(attempted()))?;
        let header = SegmentHeader {
            number: previous.map_or(0, |previous| previous.number) + 1,
            first_sequence: sequence + 1,
            previous_end: previous.map_or(0, |previous| previous.end),
            incarnation,
            bytes: spare.bytes(),
        };
        let promoted = self.spare.promote(spare, header, self.format.salt);
        let (file, bytes) = promoted.map_err(OpenError::io(attempted()))?;
        Ok(CurrentSegment {
            number: header.number,
            file,
            end: SEGMENT_HEADER_BYTES,
            bytes,
            zeroed: SEGMENT_HEADER_BYTES,
        })
    }

    /// Removes what the checkpoint at `checkpoint_end` holds of the journal. Nothing may fail behind this, nor because of this: a return to the durable
    /// state that is tried again goes back to the segment that was written last, which may be among those.
    fn remove_folded(&self, checkpoint_end: Option<CheckpointEnd>) {
        let Some(checkpoint_end) = checkpoint_end else {
            return;
        };
        let folded = Folded {
            sequence: checkpoint_end.sequence,
            written_bytes: 0,
        };
        if let Err(error) =
            self.usage
                .remove_until(folded, self.spare.directory(), &*self.config.storage)
        {
            tracing::warn!(%error, "a journal segment could not be removed; the next checkpoint tries again");
        }
    }

    /// Has the spare hold at least `bytes`, at the cost of the ballast if that must be: a full disk keeps no store from
    /// starting.
    fn make_room(&self, bytes: u64) -> Result<(), OpenError> {
        if self.spare.grow(bytes) < bytes && self.spare.grow_anyway(bytes) < bytes {
            self.ballast
                .release()
                .map_err(OpenError::io("let the ballast go"))?;
            self.spare
                .grow_anyway(bytes + 2 * self.spare.reserve_bytes());
            self.spare.grow_anyway(bytes);
            self.ballast.take();
        }
        Ok(())
    }

    /// Writes the first record of the incarnation: where the earlier ones ended.
    fn begin(
        &self,
        journal: &mut Journal,
        store: &mut Store,
        ends: &Arc<Vec<(u64, u64)>>,
    ) -> Result<(), OpenError> {
        let key = RecordKey::new(Table::Incarnations, bytes::Bytes::new());
        store.set(key, Some(Record::Incarnations(Arc::clone(ends))), true);
        let group = store.overlay.take_group();
        let header = Header {
            sequence: journal.sequence + 1,
            incarnation: store.incarnation,
            end_position: store.position,
        };
        let mut buffer = Vec::new();
        frame::encode(header, &group, self.format.salt, &mut buffer);
        journal
            .write(&buffer)
            .and_then(|()| journal.sync(buffer.len()))
            .map_err(OpenError::io("write the journal"))
    }
}

/// Where all earlier incarnations ended, the last one included.
fn ends(
    recovered: &Recovered,
    view: Option<&View>,
    data_dir: &Path,
) -> Result<Vec<(u64, u64)>, OpenError> {
    let mut ends = recovered.ends.to_vec();
    if ends.is_empty()
        && let Some(view) = view
    {
        let key = [Table::Incarnations as u8];
        let stored = view
            .get(&key)
            .map_err(OpenError::checkpoint(&layout::checkpoint_store(data_dir)))?;
        if let Some(Record::Incarnations(stored)) =
            stored.and_then(|bytes| Record::decode(Table::Incarnations, bytes))
        {
            ends = stored.to_vec();
        }
    }
    if recovered.incarnation > 0 {
        ends.push((recovered.incarnation, recovered.position));
    }
    ends.drain(..ends.len().saturating_sub(INCARNATIONS_MAX));
    Ok(ends)
}
