//! Get: own writes, the choice of a version, the load of an unknown key, the value.
//!
//! If the item of a chosen version is gone, the index entry is stale and is loaded again, three
//! times at most. After that the answer is `NoValidVersion`, never absent. A node that lost its
//! lease may not give that answer either: its successor collects versions that transactions here
//! still need, because no horizon of this node protects them (T6).

use std::sync::Arc;

use bytes::Bytes;
use ports::Read;
use tokio::sync::watch;

use crate::{
    Error, Result,
    attempts::{
        read_set::{Choice, ReadSet, Seen, choose_at},
        transaction::{Phase, Transaction},
        write_buffer::Held,
    },
    broken::Broken,
    cache::version_index::{Entry, Loaded},
    calls::Calls,
    loader::{Fetched, Pin, STALE_MAX, damaged, wait_for_load},
    model::{Attempt, Call, Key, Version, Versioned},
    node::Node,
    storage::{frontier::Frontier, records::Write},
};

/// The result of a look at memory.
enum Looked {
    /// The transaction's own write; `None` for its own deletion.
    Own(Option<Bytes>),
    /// The transaction's own write, which was spilled.
    Spilled(Write),
    /// A version chosen now, or by an earlier read.
    Chosen(Read<Choice>, Age),
    /// The versions have to be loaded first.
    Unknown(watch::Receiver<Loaded>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Age {
    New,
    Old,
}

impl Calls {
    pub(crate) async fn get(
        self: &Arc<Self>,
        call: &Call,
        key: &Key,
    ) -> Result<Read<Option<Bytes>>> {
        let transaction = self.here(call).await?;
        transaction.check_keyspace(key)?;
        let read = self.get_of(&transaction, key).await;
        self.tell(&transaction.node, read).await
    }

    pub(crate) async fn get_now(self: &Arc<Self>, key: &Key) -> Result<Read<Option<Bytes>>> {
        let Read { value, point } = self.get_version_now(key).await?;
        let value = value.map(|(value, _)| value);
        Ok(Read { value, point })
    }

    /// The newest committed value of `key`, with its version.
    pub(crate) async fn get_version_now(
        self: &Arc<Self>,
        key: &Key,
    ) -> Result<Read<Option<Versioned>>> {
        let node = self.serving.node()?;
        let read = self.get_newest(&node, key).await;
        self.tell(&node, read).await
    }

    /// Checks the result of a read. Only a node that still holds its lease may report a missing
    /// version or value, and the check must follow the read. Otherwise the version may be gone
    /// because this node was presumed dead.
    async fn tell<T>(&self, node: &Node, read: Result<T>) -> Result<T> {
        if let Err(error @ (Error::NoValidVersion | Error::SnapshotTooOld | Error::Corrupt(_))) =
            &read
        {
            if !self.context.breaks(Broken::MissesWhatSuccessorTook) {
                self.loader.still_counts(node).await?;
            }
            if *error == Error::NoValidVersion {
                self.context.counters.lock().no_valid_version += 1;
            }
        }
        read
    }

    async fn get_of(
        self: &Arc<Self>,
        transaction: &Arc<Transaction>,
        key: &Key,
    ) -> Result<Read<Option<Bytes>>> {
        let mut loaded = None;
        let mut stale = 0;
        loop {
            let (read, age) = match self.look(transaction, key, loaded.take().as_ref())? {
                Looked::Own(value) => return Ok(Read::durable(value)),
                Looked::Spilled(write) => {
                    let Transaction { node, attempt, .. } = &**transaction;
                    if let Some(value) = self.loader.stored_value(node, *attempt, &write).await? {
                        return Ok(Read::durable(Some(value)));
                    }
                    // It was written again meanwhile, or the attempt has ended; nothing else
                    // removes it.
                    stale += 1;
                    if stale > STALE_MAX {
                        return Err(lost_spill(*attempt));
                    }
                    continue;
                }
                Looked::Chosen(read, age) => (read, age),
                Looked::Unknown(waiter) => {
                    loaded = Some(wait_for_load(waiter).await?);
                    continue;
                }
            };
            match self
                .loader
                .value(&transaction.node, key, &read.value)
                .await?
            {
                Fetched::Value(value) => {
                    let point = read.point;
                    if self.context.breaks(Broken::ChoosesBeforeRecording) {
                        let mut state = transaction.state();
                        state.reads.record(key.clone(), read.value, point);
                    }
                    self.cluster.may_answer(&transaction.node)?;
                    return Ok(Read { value, point });
                }
                // An ended attempt protects no versions, so the read reports that end.
                Fetched::Missing if transaction.state().phase != Phase::Open => {
                    transaction.state().touch(self.context.clock.monotonic())?;
                }
                Fetched::Missing if transaction.is_overtaken() => {
                    return Err(too_late(transaction));
                }
                Fetched::Missing if age == Age::New && stale < STALE_MAX => {
                    transaction.state().reads.take_back(key);
                    self.cache.lock().index.forget(key);
                    stale += 1;
                }
                Fetched::Missing => return Err(damaged(key, &read.value)),
            }
        }
    }

    async fn get_newest(
        self: &Arc<Self>,
        node: &Arc<Node>,
        key: &Key,
    ) -> Result<Read<Option<Versioned>>> {
        let mut pin = None;
        let mut missed = Choice::Absent;
        for _ in 0..STALE_MAX {
            let known = self
                .cache
                .lock()
                .index
                .entry(key)
                .map(|entry| newest(entry));
            let read = match known {
                Some(newest) => newest,
                None => newest(&*wait_for_load(self.loader.load(node, key)).await?),
            };
            let (choice, point) = (read.value, read.point);
            if let Fetched::Value(value) = self.loader.value(node, key, &choice).await? {
                self.cluster.may_answer(node)?;
                let version = match &choice {
                    Choice::Version(record) => record.version,
                    Choice::Absent => Version::default(),
                };
                let value = value.map(|value| (value, version));
                return Ok(Read { value, point });
            }
            self.cache.lock().index.forget(key);
            missed = choice;
            // It was superseded and collected meanwhile. From here on the newest version is pinned
            // until it is read.
            pin = pin.or_else(|| Some(Pin::new(&self.loader)));
        }
        Err(damaged(key, &missed))
    }

    /// Looks for own writes, earlier reads, or a choice. `loaded` holds the versions if the index
    /// could not keep them. Choosing and recording are one step.
    fn look(
        self: &Arc<Self>,
        transaction: &Transaction,
        key: &Key,
        loaded: Option<&Arc<Entry>>,
    ) -> Result<Looked> {
        let mut state = transaction.state();
        state.touch(self.context.clock.monotonic())?;
        transaction.node.store.check_fence()?;
        if let Some(own) = state.buffer.get(key) {
            return Ok(match &own.held {
                Held::Stored => Looked::Spilled(Write {
                    key: key.clone(),
                    write: own.write,
                    place: own.place,
                }),
                Held::Memory(_) | Held::Leaving(_) | Held::Gone => {
                    Looked::Own(own.value().cloned())
                }
            });
        }
        if let Some(read) = state.reads.get(key) {
            return Ok(Looked::Chosen(read.clone(), Age::Old));
        }
        if state.reads.len() >= self.context.config.keys_read_max {
            return Err(Error::TooLarge("the transaction reads too many keys"));
        }
        let Some(read) = self.choose(transaction, &state.reads, key, loaded)? else {
            return Ok(Looked::Unknown(self.loader.load(&transaction.node, key)));
        };
        let is_absent = read.value == Choice::Absent;
        // Checked after the entry was examined: a key that was absent before the attempt's eviction
        // is absent. In a snapshot, the right version may be collected while an older one still
        // exists.
        if transaction.is_overtaken() && (is_absent || transaction.is_serializable()) {
            return Err(too_late(transaction));
        }
        let is_recorded = !is_absent || !self.context.breaks(Broken::ForgetsAbsence);
        if is_recorded && !self.context.breaks(Broken::ChoosesBeforeRecording) {
            state
                .reads
                .record(key.clone(), read.value.clone(), read.point);
        }
        Ok(Looked::Chosen(read, Age::New))
    }

    /// The version that `key` is read as, or `None` if its versions must be loaded first. The
    /// choice happens inside the entry: a reference held longer would make the key's next commit
    /// copy the entry with all its versions.
    fn choose(
        &self,
        transaction: &Transaction,
        reads: &ReadSet,
        key: &Key,
        loaded: Option<&Arc<Entry>>,
    ) -> Result<Option<Read<Choice>>> {
        let cache = self.cache.lock();
        let Some(entry) = cache.index.entry(key).or(loaded) else {
            return Ok(None);
        };
        let choice = if let Some(slot) = transaction.read_at() {
            choose_at(&entry.versions, slot)
        } else {
            let nothing = Frontier::default();
            let revives = self.context.breaks(Broken::RevivesCollected);
            let dropped = if revives { &nothing } else { &*cache.dropped };
            let seen = Seen {
                begin_frontier: &transaction.start.applied,
                dropped,
            };
            let chosen = reads.choose(key, &entry.versions, &seen, self.context.config.mutant);
            chosen.map_err(|_| Error::NoValidVersion)?
        };
        Ok(Some(Read {
            value: choice,
            point: entry.point,
        }))
    }
}

/// A spilled value of an open attempt is missing: the store is damaged.
fn lost_spill(attempt: Attempt) -> Error {
    Error::Corrupt(format!("a value of {attempt} is gone").into())
}

/// The newest version of an entry.
fn newest(entry: &Entry) -> Read<Choice> {
    let choice = entry
        .versions
        .last()
        .map_or(Choice::Absent, |newest| Choice::Version(Arc::clone(newest)));
    Read {
        value: choice,
        point: entry.point,
    }
}

/// The versions that an attempt may need are being collected.
fn too_late(transaction: &Transaction) -> Error {
    if transaction.is_serializable() {
        Error::SnapshotTooOld
    } else {
        Error::NoValidVersion
    }
}
