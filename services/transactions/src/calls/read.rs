//! Get: own writes, the choice, the load of what is not known, the value.
//!
//! A load is one scan and, for each version found, its decision row, read after the version was: a commit decided in
//! between is either seen in its row or heard of like any other. One load of a key serves all who wait for it, and
//! goes on if they do not.
//!
//! A value in chunks is put together in memory that all such reads share: it counts there until the last who holds it lets
//! it go.
//!
//! A version that is chosen and whose item is gone means that the entry is stale: it is loaded again, three times at
//! most, and then `NoValidVersion` is the answer, never absent. Nor is it the answer of a node that does not count any more:
//! its successor collects what transactions here still need, and no horizon of theirs holds it (T6).

use std::sync::Arc;

use bytes::Bytes;

use tokio::sync::watch;

use crate::{
    Error, Result,
    attempts::{
        read_set::{Choice, Read, ReadSet, Seen},
        snapshot,
        transaction::{Phase, Transaction},
        write_buffer::Held,
    },
    broken::Broken,
    cache::version_index::{Entry, Loaded},
    calls::Calls,
    loader::{Fetched, Pin, STALE_MAX, damaged, wait_for_load},
    model::{Call, Key, Shown},
    node::Node,
    storage::{frontier::Heard, records::Write},
};

/// What a look at memory came to.
enum Looked {
    /// The transaction wrote it itself; none: it deleted it.
    Own(Option<Bytes>),
    /// The same, and it has left memory.
    Spilled(Write),
    /// It was chosen: now, or by an earlier read.
    Chosen(Read, Age),
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
    ) -> Result<Shown<Option<Bytes>>> {
        let transaction = self.here(call).await?;
        transaction.check_keyspace(key)?;
        let read = self.get_of(&transaction, key).await;
        self.tell(&transaction.node, read).await
    }

    pub(crate) async fn get_now(self: &Arc<Self>, key: &Key) -> Result<Shown<Option<Bytes>>> {
        let node = self.serving.node()?;
        let read = self.get_newest(&node, key).await;
        self.tell(&node, read).await
    }

    /// What a read came to. That a version or a value is missing can only be said by who counts, asked after it was missed: else it
    /// is gone because this node was taken for dead.
    async fn tell<T>(&self, node: &Node, read: Result<T>) -> Result<T> {
        if let Err(error @ (Error::NoValidVersion | Error::SnapshotTooOld | Error::Corrupt(_))) =
            &read
        {
            if !self
                .context
                .config
                .is_broken(Broken::MissesWhatSuccessorTook)
            {
                self.loader.still_counts(node).await?;
            }
            if *error == Error::NoValidVersion {
                self.context.counters.no_valid_version();
            }
        }
        read
    }

    async fn get_of(
        self: &Arc<Self>,
        transaction: &Arc<Transaction>,
        key: &Key,
    ) -> Result<Shown<Option<Bytes>>> {
        let mut loaded = None;
        let mut stale = 0;
        loop {
            let (read, age) = match self.look(transaction, key, loaded.take().as_ref())? {
                Looked::Own(value) => return Ok(Shown::durable(value)),
                Looked::Spilled(write) => {
                    let Transaction { node, attempt, .. } = &**transaction;
                    if let Some(value) = self.loader.stored_value(node, *attempt, &write).await? {
                        return Ok(Shown::durable(Some(value)));
                    }
                    // It was written anew meanwhile, or the attempt has ended; nothing else takes it away.
                    stale += 1;
                    if stale > STALE_MAX {
                        return Err(Error::Corrupt(
                            format!("a value of {attempt} is gone").into(),
                        ));
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
                .value(&transaction.node, key, &read.choice)
                .await?
            {
                Fetched::Value(value) => {
                    if self
                        .context
                        .config
                        .is_broken(Broken::ChoosesBeforeRecording)
                    {
                        transaction
                            .state()
                            .reads
                            .record(key.clone(), read.choice, read.point);
                    }
                    self.cluster.may_answer(&transaction.node)?;
                    return Ok(Shown {
                        value,
                        point: read.point,
                    });
                }
                // Whoever has ended keeps nothing, and hears that.
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
                Fetched::Missing => return Err(damaged(key, &read.choice)),
            }
        }
    }

    async fn get_newest(
        self: &Arc<Self>,
        node: &Arc<Node>,
        key: &Key,
    ) -> Result<Shown<Option<Bytes>>> {
        let mut pin = None;
        let mut missed = Choice::Absent;
        for _ in 0..STALE_MAX {
            let known = self
                .cache
                .lock()
                .index
                .entry(key)
                .map(|entry| newest(entry));
            let Read { choice, point } = match known {
                Some(newest) => newest,
                None => newest(&*wait_for_load(self.loader.load(node, key)).await?),
            };
            if let Fetched::Value(value) = self.loader.value(node, key, &choice).await? {
                self.cluster.may_answer(node)?;
                return Ok(Shown { value, point });
            }
            self.cache.lock().index.forget(key);
            missed = choice;
            // It was superseded and collected meanwhile: what is newest from here on stays until it is read.
            pin = pin.or_else(|| Some(Pin::new(&self.loader)));
        }
        Err(damaged(key, &missed))
    }

    /// Own writes, what was read before, or a choice; `loaded` if the index could not keep what was loaded. Choosing
    /// and recording are one step.
    fn look(
        self: &Arc<Self>,
        transaction: &Transaction,
        key: &Key,
        loaded: Option<&Arc<Entry>>,
    ) -> Result<Looked> {
        let mut state = transaction.state();
        state.touch(self.context.clock.monotonic())?;
        transaction.node.store.standing()?;
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
        let Some(Read { choice, point }) = self.choose(transaction, &state.reads, key, loaded)?
        else {
            return Ok(Looked::Unknown(self.loader.load(&transaction.node, key)));
        };
        // Asked after the entry was looked at: what was absent before the attempt was overtaken is absent. Of a snapshot the
        // right version may be gone, and an older one there still.
        if transaction.is_overtaken() && (choice == Choice::Absent || transaction.is_serializable())
        {
            return Err(too_late(transaction));
        }
        let is_recorded = match &choice {
            Choice::Absent => !self.context.config.is_broken(Broken::ForgetsAbsence),
            Choice::Version(_) => true,
        };
        if is_recorded
            && !self
                .context
                .config
                .is_broken(Broken::ChoosesBeforeRecording)
        {
            state.reads.record(key.clone(), choice.clone(), point);
        }
        Ok(Looked::Chosen(Read { choice, point }, Age::New))
    }

    /// What `key` is read as; none: its versions have to be loaded first. Chosen where the entry lies: whoever held it beyond that
    /// would have the next commit of the key copy it, versions and all.
    fn choose(
        &self,
        transaction: &Transaction,
        reads: &ReadSet,
        key: &Key,
        loaded: Option<&Arc<Entry>>,
    ) -> Result<Option<Read>> {
        let cache = self.cache.lock();
        let Some(entry) = cache.index.entry(key).or(loaded) else {
            return Ok(None);
        };
        let choice = if let Some(slot) = transaction.read_at() {
            snapshot::choose(&entry.versions, slot)
        } else {
            let nothing = Heard::default();
            let revives = self.context.config.is_broken(Broken::RevivesCollected);
            let dropped = if revives { &nothing } else { &*cache.dropped };
            let seen = Seen {
                begin_heard: &transaction.start.heard,
                dropped,
            };
            let chosen = reads.choose(key, &entry.versions, &seen, self.context.config.broken);
            chosen.map_err(|_| Error::NoValidVersion)?
        };
        Ok(Some(Read {
            choice,
            point: entry.point,
        }))
    }
}

/// The newest version of an entry.
fn newest(entry: &Entry) -> Read {
    let choice = entry
        .versions
        .last()
        .map_or(Choice::Absent, |newest| Choice::Version(Arc::clone(newest)));
    Read {
        choice,
        point: entry.point,
    }
}

/// What an attempt may need is collected.
fn too_late(transaction: &Transaction) -> Error {
    if transaction.is_serializable() {
        Error::SnapshotTooOld
    } else {
        Error::NoValidVersion
    }
}
