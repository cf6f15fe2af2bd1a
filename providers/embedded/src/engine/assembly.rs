//! Assembly: from a data directory to a state that may be served.

use std::{path::Path, sync::Arc};

use ports::{DurabilityPoint, Incarnation, Position};

use crate::{
    ballast::Ballast,
    checkpoint_store::{CheckpointEnd, CheckpointStore, View},
    config::Config,
    directory::{
        format::{self, Format},
        layout,
    },
    durability::{Durability, INCARNATIONS_MAX},
    error::OpenError,
    journal::{
        direct::FrameBuffer,
        frame::{self, Header},
        recovery::{Recovered, TrustedEnd, check_for_checkpoint, recover},
        segment::{CurrentSegment, SEGMENT_HEADER_BYTES},
        spare::Spare,
        usage::{ClosedSegment, Folded, JournalUsage},
        writer::Journal,
    },
    queues::Queues,
    records::{Record, RecordKey, Table, overlay::Overlay},
    status::RecoveryReport,
    storage::make_directory,
    store::Store,
};

/// An upper bound of the first record of an incarnation, in bytes.
const FIRST_RECORD_BYTES_MAX: u64 = (INCARNATIONS_MAX * 20 + 256) as u64;

/// The state at a start, or after a return to the durable state.
pub(super) struct Assembled {
    pub(super) journal: Journal,
    pub(super) store: Store,
    pub(super) queues: Queues,
    pub(super) ends: Arc<Vec<(u64, u64)>>,
    pub(super) report: RecoveryReport,
}

/// The parts of an open store beside its state, from which the state is assembled.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) format: Format,
    pub(crate) checkpoint_store: Arc<CheckpointStore>,
    pub(crate) spare: Arc<Spare>,
    pub(crate) ballast: Arc<Ballast>,
    pub(crate) usage: Arc<JournalUsage>,
    pub(crate) durability: Arc<Durability>,
}

impl Parts {
    /// Opens the checkpoint store of a directory that the caller has locked.
    pub(super) fn open(config: Config) -> Result<Self, OpenError> {
        let storage = &*config.storage;
        let journal_directory = config.data_dir.join(layout::JOURNAL);
        // This also syncs the data directory. The lock must be held, because until then another
        // process may have created names there.
        make_directory(storage, &journal_directory)
            .map_err(OpenError::making(&journal_directory))?;
        let format = format::open(storage, &config.data_dir)?;
        check_for_checkpoint(storage, &config.data_dir, &journal_directory)?;
        let checkpoint_store = Arc::new(CheckpointStore::open(&config, format)?);
        let usage = Arc::new(JournalUsage::default());
        let ballast = Arc::new(Ballast::new(
            Arc::clone(&config.storage),
            config.data_dir.join(layout::BALLAST),
            config.segment_bytes(),
        ));
        ballast.acquire();
        let spare = Arc::new(Spare::new(
            Arc::clone(&config.storage),
            journal_directory,
            config.segment_bytes(),
            (Arc::clone(&usage), Arc::clone(&ballast)),
        ));
        let parts = Self {
            config,
            format,
            checkpoint_store,
            spare,
            ballast,
            usage,
            durability: Arc::default(),
        };
        Ok(parts)
    }

    /// Recovers the state and begins a new incarnation durably.
    pub(super) fn assemble(&self, trusted: Option<TrustedEnd>) -> Result<Assembled, OpenError> {
        let storage = &*self.config.storage;
        let view = self.checkpoint_store.view();
        let view = view.map_err(OpenError::checkpoint(self.checkpoint_store.path()))?;
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
            Arc::clone(&self.checkpoint_store),
            Arc::clone(&self.spare),
            Arc::clone(&self.durability),
            self.config.cache_bytes,
        );
        Self::begin(&mut journal, &mut store, &ends)?;
        let queues = self.rebuild_queues(&mut store)?;
        // This must be the last step. A repeated return to the durable state needs the segment that
        // was written last, and that may be among the removed ones.
        if let Some(CheckpointEnd { sequence, .. }) = checkpoint_end {
            self.usage.note_folded(Folded {
                sequence,
                written_bytes: 0,
            });
            self.remove_folded();
        }
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

    fn rebuild_queues(&self, store: &mut Store) -> Result<Queues, OpenError> {
        let advice = format!(
            "if {} is damaged, restore the whole data directory from a copy",
            self.checkpoint_store.path().display()
        );
        Queues::rebuild(store, self.config.queue_limits.dead_letters_max).map_err(|error| {
            OpenError::io(format!("read the queues ({advice})"))(std::io::Error::other(error))
        })
    }

    /// Opens the journal for writing: after its last record, or in a new segment if nothing may be
    /// appended there.
    fn open_journal(&self, recovered: Recovered, incarnation: u64) -> Result<Journal, OpenError> {
        let (mut closed, sequence) = (recovered.closed, recovered.sequence);
        // The unfolded bytes of earlier starts count, so that the journal of a store that is often
        // killed stays bounded.
        let bytes_since_checkpoint = recovered.unfolded_bytes;
        // The room of a new segment is unknown until it is allocated.
        self.usage
            .begin(closed.clone(), (0, 0), bytes_since_checkpoint);
        let current = match recovered.current {
            Some(current)
                if recovered.appendable
                    && current.end + FIRST_RECORD_BYTES_MAX <= current.bytes =>
            {
                let mut current = current;
                let attempted = format!("write the end of segment {} again", current.number);
                let opened = self.spare.open_direct(&mut current);
                opened.map_err(OpenError::io(attempted))?;
                current
            }
            previous => {
                let created = self.create_segment(previous.as_ref(), sequence, incarnation)?;
                closed.extend(previous.map(|previous| ClosedSegment {
                    number: previous.number,
                    last_sequence: sequence,
                    bytes: previous.records_bytes(),
                    reusable: None,
                }));
                created
            }
        };
        let lengths = (
            current.records_bytes(),
            current.bytes - SEGMENT_HEADER_BYTES,
        );
        self.usage.begin(closed, lengths, bytes_since_checkpoint);
        let (usage, spare) = (Arc::clone(&self.usage), Arc::clone(&self.spare));
        Ok(Journal {
            usage,
            spare,
            salt: self.format.salt,
            sequence,
            current,
            bytes_since_checkpoint,
        })
    }

    /// Creates the segment after `previous`. The last record so far has number `sequence`.
    fn create_segment(
        &self,
        previous: Option<&CurrentSegment>,
        sequence: u64,
        incarnation: u64,
    ) -> Result<CurrentSegment, OpenError> {
        let attempted = || {
            format!(
                "create a journal segment in {}",
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
        self.spare
            .promote(spare, previous, sequence, incarnation, self.format.salt)
            .map_err(OpenError::io(attempted()))
    }

    /// Removes the segments that the last checkpoint covers. A failure is only logged.
    pub(super) fn remove_folded(&self) {
        let removed = self
            .usage
            .remove_folded(|segment| self.spare.retire(segment));
        if let Err(error) = removed {
            tracing::warn!(%error, "a journal segment could not be removed; the next checkpoint retries");
        }
    }

    /// Grows the spare to at least `bytes`, from the ballast if necessary, so that a store starts
    /// on a full disk.
    fn make_room(&self, bytes: u64) -> Result<(), OpenError> {
        if self.spare.grow(bytes) < bytes && self.spare.grow_anyway(bytes) < bytes {
            self.ballast
                .release()
                .map_err(OpenError::io("release the ballast"))?;
            self.spare
                .grow_anyway(bytes + 2 * self.spare.reserve_bytes());
            self.spare.grow_anyway(bytes);
            self.ballast.acquire();
        }
        Ok(())
    }

    /// Writes the first record of the incarnation, which holds the ends of the earlier ones.
    fn begin(
        journal: &mut Journal,
        store: &mut Store,
        ends: &Arc<Vec<(u64, u64)>>,
    ) -> Result<(), OpenError> {
        let key = RecordKey::new(Table::Incarnations, bytes::Bytes::new());
        store
            .overlay
            .set(key, Some(Record::Incarnations(Arc::clone(ends))), true);
        let bound = frame::frame_bound(store.overlay.pending_bytes());
        let group = store.overlay.take_group();
        let header = Header {
            sequence: journal.sequence + 1,
            incarnation: store.incarnation,
            end_position: store.position,
        };
        let mut buffer = FrameBuffer::default();
        journal.encode(header, &group, bound, &mut buffer);
        journal
            .write(&mut buffer)
            .and_then(|()| journal.sync(&buffer))
            .map_err(OpenError::io("write the journal"))
    }
}

/// The ends of all earlier incarnations, including the last one.
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
