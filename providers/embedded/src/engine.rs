//! One lock, one order: the state that every port of this provider works on, and its life from open to close.
//!
//! A mutation takes the lock, changes memory, takes the next position and is done; nobody waits for the disk
//! in here. The journal thread ([`crate::journal::thread`]) takes what changed and makes it durable; the
//! checkpoint thread ([`crate::checkpoint`]) folds it into the checkpoint store.
//!
//! Invariants
//! - While [`Health`] is not `Serving` nothing is read or changed: after a failed write the memory is ahead
//!   of what can be made durable, and must not be seen (rule P6).
//! - Locks are taken in the order state, spare or durability; nothing is locked while the disk is written,
//!   except by a mutation that needs another segment.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use ports::{Error, ErrorKind, Result, key_value};
use tokio::time::Instant;

use crate::{
    ballast::{self, Ballast},
    base::{self, Base, Place, View},
    checkpoint::{self, Checkpoints},
    config::Config,
    durability::{Durability, INCARNATIONS_MAX, Work},
    error::OpenError,
    format::{self, DirectoryLock, Format},
    journal::{
        ClosedSegment, CurrentSegment, Folded, Journal, JournalFacts,
        frame::{self, Header},
        segment::{self, SEGMENT_HEADER_BYTES, SegmentHeader, Spare},
        thread,
    },
    overlay::Overlay,
    queue::Queues,
    record::{Record, RecordKey, Table},
    recovery::{Recovered, TrustedEnd, is_cut_at_the_start, recover},
    status::{Health, RecoveryReport, Room, Status},
    storage::{Storage, make_directory},
    store::{Growth, Store, item_cache},
};

/// The state behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) queues: Queues,
    pub(crate) health: Health,
}

/// The engine.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) config: Config,
    pub(crate) durability: Arc<Durability>,
    pub(crate) base: Arc<Base>,
    pub(crate) facts: Arc<JournalFacts>,
    pub(crate) checkpoints: Checkpoints,
    format: Format,
    spare: Arc<Spare>,
    pub(crate) ballast: Arc<Ballast>,
    state: Mutex<State>,
    recovery: RecoveryReport,
    lock: Mutex<Option<DirectoryLock>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Where the monotonic clock starts.
    origin: Instant,
}

/// What a start, or a return to the durable state, begins with.
pub(crate) struct Assembled {
    pub(crate) journal: Journal,
    pub(crate) store: Store,
    pub(crate) queues: Queues,
    pub(crate) ends: Arc<Vec<(u64, u64)>>,
    pub(crate) report: RecoveryReport,
}

impl Engine {
    /// Opens the directory, recovers it and starts the two threads.
    pub(crate) fn open(config: Config) -> Result<Arc<Self>, OpenError> {
        let storage = Arc::clone(&config.storage);
        let journal_directory = config.data_dir.join(segment::DIRECTORY);
        make_directory(&*storage, &config.data_dir).map_err(OpenError::making(&config.data_dir))?;
        let lock = DirectoryLock::take(&config.data_dir)?;
        // This syncs the data directory, too: with the lock, as another process may have given names there until now.
        make_directory(&*storage, &journal_directory)
            .map_err(OpenError::making(&journal_directory))?;
        let format = format::open(&*storage, &config.data_dir)?;
        check_for_checkpoint(&*storage, &config.data_dir, &journal_directory)?;
        let base = Base::open(&config, format)?;
        let format = format.renew(&*storage, &config.data_dir)?;
        let base = Arc::new(base);
        let view = base.view().map_err(OpenError::checkpoint(base.path()))?;
        let facts = Arc::new(JournalFacts::default());
        let ballast = config.data_dir.join(ballast::NAME);
        let ballast = Arc::new(Ballast::new(
            Arc::clone(&storage),
            ballast,
            config.segment_bytes(),
        ));
        ballast.take();
        let shared = (Arc::clone(&facts), Arc::clone(&ballast));
        let spare = Arc::new(Spare::new(
            storage,
            journal_directory,
            config.segment_bytes(),
            shared,
        ));
        let durability = Arc::new(Durability::default());
        let (base, spare, facts, durability) = (&base, &spare, &facts, &durability);
        let parts = Parts {
            config: &config,
            format,
            base,
            spare,
            ballast: &ballast,
            facts,
            durability,
        };
        let assembled = parts.assemble(view, None)?;
        let format = format.begin_journal(&*config.storage, &config.data_dir)?;
        let (incarnation, position) = (assembled.store.incarnation, assembled.store.position);
        durability.restart(incarnation, position, assembled.ends);
        let state = State {
            store: assembled.store,
            queues: assembled.queues,
            health: Health::Serving,
        };
        let engine = Arc::new(Self {
            durability: Arc::clone(durability),
            base: Arc::clone(base),
            facts: Arc::clone(facts),
            checkpoints: Checkpoints::default(),
            format,
            spare: Arc::clone(spare),
            ballast: Arc::clone(&ballast),
            config,
            state: Mutex::new(state),
            recovery: assembled.report,
            lock: Mutex::new(Some(lock)),
            threads: Mutex::default(),
            origin: Instant::now(),
        });
        engine
            .start(assembled.journal)
            .map_err(OpenError::io("start a thread"))?;
        Ok(engine)
    }

    fn start(self: &Arc<Self>, journal: Journal) -> std::io::Result<()> {
        let spawn = std::thread::Builder::new;
        let engine = Arc::clone(self);
        let journal_thread = spawn()
            .name("journal".into())
            .spawn(move || thread::run(&engine, journal))?;
        self.threads.lock().push(journal_thread);
        let engine = Arc::clone(self);
        let checkpoint_thread = spawn()
            .name("checkpoint".into())
            .spawn(move || checkpoint::run(&engine));
        // One that has been made keeps the directory until it ends.
        let checkpoint_thread = checkpoint_thread.inspect_err(|_| self.shut_down(false))?;
        self.threads.lock().push(checkpoint_thread);
        Ok(())
    }

    /// The state, whatever its health.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The state, if it may be read and changed.
    pub(crate) fn serving(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        match &state.health {
            Health::Serving => Ok(state),
            Health::FallingBack(_) => {
                let kind = ErrorKind::Unavailable {
                    retry_after_ms: Some(100),
                };
                Err(Error::new(
                    kind,
                    "use a store that is going back to its durable state",
                ))
            }
            Health::Closed => Err(Error::unavailable("use a closed store")),
        }
    }

    /// Time since the store was opened.
    pub(crate) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The instant that [`Engine::now`] calls `time`.
    pub(crate) fn instant(&self, time: Duration) -> Instant {
        self.origin + time
    }

    /// Stops serving until the durable state is back; the journal thread sees to it.
    pub(crate) fn fail(&self, reason: &str) {
        self.fail_from(self.state.lock(), reason);
    }

    /// The same for a caller that has the state already: nobody may see what it has found there.
    pub(crate) fn fail_from(&self, mut state: MutexGuard<'_, State>, reason: &str) {
        state.health = Health::FallingBack(reason.to_owned());
        drop(state);
        tracing::error!(reason, "going back to the durable state");
        self.durability.force();
    }

    /// Builds the durable state anew, behind `trusted`, and serves it as a new incarnation.
    pub(crate) fn reload(&self, trusted: TrustedEnd) -> Result<Journal, OpenError> {
        self.checkpoints.quiesce();
        // No view may be open while the store is opened again, and none is used: the health forbids it.
        self.state.lock().store.view = None;
        let checkpoint = || OpenError::checkpoint(self.base.path());
        self.base.reopen().map_err(checkpoint())?;
        let view = self.base.view().map_err(checkpoint())?;
        let parts = Parts {
            config: &self.config,
            format: self.format,
            base: &self.base,
            spare: &self.spare,
            ballast: &self.ballast,
            facts: &self.facts,
            durability: &self.durability,
        };
        let assembled = parts.assemble(view, Some(trusted))?;
        let mut state = self.state.lock();
        let (incarnation, position) = (assembled.store.incarnation, assembled.store.position);
        state.store = assembled.store;
        let earlier = std::mem::replace(&mut state.queues, assembled.queues);
        state.queues.take_over(earlier);
        state.health = Health::Serving;
        self.durability
            .restart(incarnation, position, assembled.ends);
        state.queues.wake_all();
        tracing::warn!(incarnation, position, "serving the durable state");
        Ok(assembled.journal)
    }

    /// Ends both threads and gives the directory back; with `finish`, writes what is left first.
    pub(crate) fn shut_down(&self, finish: bool) {
        let threads = std::mem::take(&mut *self.threads.lock());
        if threads.is_empty() {
            return;
        }
        self.durability
            .stop(if finish { Work::Finish } else { Work::Abandon });
        let mut threads = threads.into_iter();
        let joined =
            |thread: Option<JoinHandle<()>>| thread.is_some_and(|thread| thread.join().is_ok());
        let written = joined(threads.next());
        self.checkpoints.stop();
        let idle = joined(threads.next());
        if finish && written && idle {
            checkpoint::finish(self);
        }
        let mut state = self.state.lock();
        state.health = Health::Closed;
        state.store.view = None;
        state.queues.wake_all();
        drop(state);
        self.durability.close();
        self.base.close();
        drop(self.lock.lock().take());
    }

    /// What the store says about itself.
    pub(crate) fn status(&self) -> Status {
        let (checkpoints, checkpoint_error) = self.checkpoints.report();
        let mut state = self.state.lock();
        let store = &mut state.store;
        let room = match store.ask_for_room() {
            key_value::Room::Free => Room::Free {
                bytes: store.tail_room + store.spare_room,
            },
            _ => Room::Refusing,
        };
        let store = &state.store;
        Status {
            journal_bytes: self.facts.bytes(),
            segments: self.facts.segments(),
            overlay_records: store.overlay.len(),
            incarnation: store.point().incarnation,
            ordered: store.point(),
            durable: self.durability.durable(),
            fsyncs: self.facts.fsyncs(),
            checkpoints,
            blocked_groups: state.queues.blocked_count(),
            checkpoint_error,
            recovery: self.recovery.clone(),
            damage: self.base.damage().map(|damage| damage.to_string()),
            room,
            health: state.health.clone(),
        }
    }

    pub(crate) fn spare(&self) -> &Spare {
        &self.spare
    }

    /// Where objects live.
    pub(crate) fn objects_directory(&self) -> PathBuf {
        self.config.data_dir.join("objects")
    }
}

/// What a state is assembled from.
struct Parts<'engine> {
    config: &'engine Config,
    format: Format,
    base: &'engine Arc<Base>,
    spare: &'engine Arc<Spare>,
    ballast: &'engine Arc<Ballast>,
    facts: &'engine Arc<JournalFacts>,
    durability: &'engine Arc<Durability>,
}

impl Parts<'_> {
    /// Recovers, and begins a new incarnation durably.
    fn assemble(
        &self,
        view: Option<View>,
        trusted: Option<TrustedEnd>,
    ) -> Result<Assembled, OpenError> {
        let storage = &*self.config.storage;
        let place = view.as_ref().map(|view| view.place);
        let directory = self.spare.directory().display();
        self.spare.clean().map_err(OpenError::io(format!(
            "remove a spare segment from {directory}"
        )))?;
        let mut recovered = recover(storage, self.spare.directory(), self.format, place, trusted)?;
        let report = std::mem::take(&mut recovered.report);
        let ends = Arc::new(ends(&recovered, view.as_ref(), &self.config.data_dir)?);
        let incarnation = recovered.incarnation + 1;
        let position = recovered.position;
        let overlay = Overlay::recovered(std::mem::take(&mut recovered.generation));
        let mut journal = self.open_journal(recovered, incarnation)?;
        let mut store = Store {
            overlay,
            view,
            base: Arc::clone(self.base),
            is_view_lost: false,
            damaged: BTreeMap::new(),
            cache: Arc::new(item_cache(self.config.cache_bytes)),
            incarnation,
            position,
            tail_room: 0,
            spare_room: 0,
            spare: Arc::clone(self.spare),
            durability: Arc::clone(self.durability),
            announced: false,
            room: key_value::Room::Free,
            growth: Growth::Taken,
            refused_bytes: 0,
            reserved_bytes: 0,
            checkpoint_wanted: false,
            rotation_wanted: false,
            early_checkpoint_at: None,
            scratch: Vec::new(),
        };
        self.begin(&mut journal, &mut store, &ends)?;
        let advice = format!(
            "if {} is damaged, restore the whole data directory from a copy",
            self.base.path().display()
        );
        let queues = Queues::rebuild(&mut store, self.config.queue_limits.dead_letters_max)
            .map_err(|error| {
                OpenError::io(format!("read the queues ({advice})"))(std::io::Error::other(error))
            })?;
        self.remove_folded(place);
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
        const ROOM_MIN: u64 = (INCARNATIONS_MAX * 20 + 256) as u64;
        let attempted = || {
            format!(
                "make a journal segment in {}",
                self.spare.directory().display()
            )
        };
        let (mut closed, sequence) = (recovered.closed, recovered.sequence);
        // A store that is killed often must not gather journal for ever.
        let bytes_since_checkpoint = recovered.unfolded_bytes;
        // Of a segment that is made here nobody knows how much room it has, until it is.
        self.facts
            .begin(closed.clone(), (0, 0), bytes_since_checkpoint);
        let current = match recovered.current {
            Some(current) if recovered.appendable && current.end + ROOM_MIN <= current.bytes => {
                current
            }
            previous => {
                self.make_room(ROOM_MIN)?;
                let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
                let spare = self
                    .spare
                    .take()
                    .ok_or_else(full)
                    .map_err(OpenError::io(attempted()))?;
                let header = SegmentHeader {
                    number: previous.as_ref().map_or(0, |previous| previous.number) + 1,
                    first_sequence: sequence + 1,
                    previous_end: previous.as_ref().map_or(0, |previous| previous.end),
                    incarnation,
                    bytes: spare.bytes(),
                };
                let promoted = self.spare.promote(spare, header, self.format.salt);
                let (file, bytes) = promoted.map_err(OpenError::io(attempted()))?;
                if let Some(previous) = previous {
                    closed.push(ClosedSegment {
                        number: previous.number,
                        last_sequence: sequence,
                        bytes: previous.records_bytes(),
                    });
                }
                let (end, zeroed) = (SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES);
                CurrentSegment {
                    number: header.number,
                    file,
                    end,
                    bytes,
                    zeroed,
                }
            }
        };
        let lengths = (
            current.records_bytes(),
            current.bytes - SEGMENT_HEADER_BYTES,
        );
        self.facts.begin(closed, lengths, bytes_since_checkpoint);
        let (facts, spare) = (Arc::clone(self.facts), Arc::clone(self.spare));
        Ok(Journal {
            facts,
            spare,
            salt: self.format.salt,
            sequence,
            current,
            bytes_since_checkpoint,
        })
    }

    /// Removes what the checkpoint at `place` holds of the journal. Nothing may fail behind this, nor because of this: a return to the durable
    /// state that is tried again goes back to the segment that was written last, which may be among those.
    fn remove_folded(&self, place: Option<Place>) {
        let Some(place) = place else { return };
        let folded = Folded {
            sequence: place.sequence,
            written_bytes: 0,
        };
        if let Err(error) = self
            .facts
            .remove_until(folded, self.spare, &*self.config.storage)
        {
            tracing::warn!(%error, "a journal segment could not be removed; the next checkpoint tries again");
        }
    }

    /// Has the spare hold at least `bytes`, at the cost of the ballast if that must be: a full disk keeps no store from
    /// starting.
    fn make_room(&self, bytes: u64) -> Result<(), OpenError> {
        if self.spare.grow(bytes) < bytes && self.spare.grow_anyway(bytes) < bytes {
            self.ballast
                .let_go()
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

/// Errors: the checkpoint store is gone that holds what was removed from the journal. No other one may be made in its place.
pub(crate) fn check_for_checkpoint(
    storage: &dyn Storage,
    data_dir: &Path,
    journal: &Path,
) -> Result<(), OpenError> {
    let attempted = || OpenError::io(format!("look for {}", base::file(data_dir).display()));
    let is_needed = is_cut_at_the_start(storage, journal).map_err(attempted())?;
    if is_needed && !base::is_there(storage, data_dir).map_err(attempted())? {
        return Err(OpenError::Missing {
            file: base::file(data_dir),
        });
    }
    Ok(())
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
            .map_err(OpenError::checkpoint(&base::file(data_dir)))?;
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
