//! The packs that one start of a node knows: those it puts, and those it compacts.
//!
//! Only the in-memory state and the rows of packs are here. [`packing`](crate::packing) puts, reads
//! and compacts them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use ports::{LogThrottle, Monotonic};
use tokio::sync::watch;

use crate::{
    Config, Error, Result,
    model::{Attempt, Key, Located, NodeId, PackId},
    storage::records::Write,
};

pub(crate) mod directory;
pub(crate) mod rows;
pub(crate) mod table;

use self::table::Table;

/// Keeps packs from being examined for compaction: its holder may still write items that name them.
pub(crate) type Hold = Arc<()>;

/// A value that goes into a pack.
#[derive(Debug)]
pub(crate) struct PackEntry {
    pub(crate) key: Key,
    pub(crate) attempt: Attempt,
    pub(crate) write: u32,
    pub(crate) value: Bytes,
}

/// The future positions of values, and a wait until they are stored.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    pub(crate) located: Vec<Located>,
    /// Held as long as items that name these positions may be written.
    pub(crate) holds: Vec<Hold>,
    pub(crate) put: Vec<watch::Receiver<Option<Result<()>>>>,
}

/// The packs of one start of a node, and those it compacts.
#[derive(Debug)]
pub(crate) struct Packs(Mutex<State>);

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) last: u64,
    pub(crate) gathering: Option<Gathering>,
    pub(crate) table: Table,
    /// The object store failed; nothing is compacted before this.
    pub(crate) paused_until: Monotonic,
    /// The throttle of the log lines about that.
    pub(crate) outage: LogThrottle,
    /// When to add the bytes that died to the packs' rows.
    pub(crate) owed_until: Monotonic,
    /// How often this node has noted dead values in packs that it does not compact.
    pub(crate) noted: u64,
    /// The rows tell of packs, or of dead values, that this node does not know.
    pub(crate) are_rows_due: bool,
    /// This node compacts the packs of dead nodes.
    pub(crate) takes_over: bool,
}

/// A pack that gathers values.
#[derive(Debug)]
pub(crate) struct Gathering {
    pub(crate) id: PackId,
    pub(crate) entries: Vec<PackEntry>,
    pub(crate) bytes: u64,
    pub(crate) hold: Hold,
    pub(crate) told: watch::Sender<Option<Result<()>>>,
}

impl Packs {
    pub(crate) fn new(config: &Config) -> Self {
        Self(Mutex::new(State {
            last: 0,
            gathering: None,
            table: Table::new(config),
            paused_until: Monotonic::default(),
            outage: LogThrottle::default(),
            owed_until: Monotonic::default(),
            noted: 0,
            are_rows_due: false,
            takes_over: false,
        }))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of packs that this node compacts, and the bytes of their values.
    pub(crate) fn sums(&self) -> (u64, u64) {
        self.state().table.sums()
    }

    /// How often this node has noted dead values in packs that it does not compact.
    pub(crate) fn noted(&self) -> u64 {
        self.state().noted
    }

    /// Another node has noted something.
    pub(crate) fn more_is_noted(&self) {
        self.state().are_rows_due = true;
    }

    /// This node compacts all packs of dead nodes that exist by now.
    pub(crate) fn takes_over(&self) {
        let mut state = self.state();
        (state.takes_over, state.are_rows_due) = (true, true);
    }

    /// Compacts only the packs of `own` from now on.
    pub(crate) fn give_back(&self, own: NodeId) {
        let mut state = self.state();
        if std::mem::take(&mut state.takes_over) {
            state.table.give_back(own);
        }
    }
}

impl Gathering {
    pub(crate) fn new(id: PackId) -> Self {
        Self {
            id,
            entries: Vec::new(),
            bytes: 0,
            hold: Hold::default(),
            told: watch::Sender::new(None),
        }
    }

    /// Accepts a value, and tells its future position to `packed`.
    pub(crate) fn take(&mut self, entry: PackEntry, packed: &mut Packed) {
        packed.located.push(Located {
            pack: self.id,
            offset: self.bytes,
        });
        let is_held = |hold: &Hold| Arc::ptr_eq(hold, &self.hold);
        if !packed.holds.last().is_some_and(is_held) {
            packed.holds.push(Arc::clone(&self.hold));
            packed.put.push(self.told.subscribe());
        }
        self.bytes += entry.value.len() as u64;
        self.entries.push(entry);
    }
}

impl Packed {
    /// Waits until they are stored. Errors: `NoRoom`; `Unavailable` once the node cannot go on.
    pub(crate) async fn is_put(&self) -> Result<()> {
        let mut answer = Ok(());
        for put in &self.put {
            let mut put = put.clone();
            let put = match put.wait_for(Option::is_some).await {
                Ok(put) => put.clone().expect("waited for"),
                Err(_) => Err(Error::unavailable("the engine stops")),
            };
            // Waits for all of them, even after an error: a clean-up must not run beside writes
            // that are still on their way.
            answer = answer.and(put);
        }
        answer
    }
}

/// The packed values of an attempt, kept as long as it may write items that name them.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) holds: Vec<Hold>,
    /// The pack of each key's last value, and its length.
    pub(crate) places: BTreeMap<Key, (PackId, u64)>,
}

impl Written {
    /// Takes the positions of all its writes, which are deleted now.
    pub(crate) fn take_places(&mut self) -> Vec<(PackId, u64)> {
        std::mem::take(&mut self.places).into_values().collect()
    }
}

/// Values on their way into packs.
#[derive(Debug, Default)]
pub(crate) struct OnTheirWay {
    pub(crate) located: BTreeMap<u32, Located>,
    pub(crate) packed: Packed,
}

impl OnTheirWay {
    /// The future position of a write's value, if it goes into a pack.
    pub(crate) fn located(&self, write: &Write) -> Option<Located> {
        self.located.get(&write.write).copied()
    }

    /// Waits until all of them are stored.
    pub(crate) async fn are_put(&self) -> Result<()> {
        self.packed.is_put().await
    }
}
