//! The packs that one start of a node knows: those it puts, and those it owns.
//!
//! Only the in-memory state and the rows of packs are here. [`packing`](crate::packing) puts, reads
//! and compacts them.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use ports::{LogThrottle, Monotonic};
use tokio::sync::watch;

use crate::{
    Config, Error, Result,
    model::{Attempt, Key, Located, NodeId, PackId},
};

pub(crate) mod directory;
pub(crate) mod rows;
pub(crate) mod table;
pub(crate) mod written;

use self::table::Table;

pub(crate) use self::written::{OnTheirWay, Written};

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
#[derive(Debug)]
pub(crate) struct Packed {
    /// The position of each value.
    pub(crate) located: Vec<Located>,
    /// Held as long as items that name these positions may be written.
    pub(crate) holds: Vec<Hold>,
    pub(crate) put: Vec<watch::Receiver<Option<Result<()>>>>,
}

/// The packs of one start of a node, and those it owns.
#[derive(Debug)]
pub(crate) struct Packs {
    pub(crate) state: Mutex<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) last: u64,
    pub(crate) gathering: Option<Gathering>,
    pub(crate) table: Table,
    /// Small reads that wait to be merged, by their pack.
    pub(crate) wanted: BTreeMap<PackId, Vec<Wanted>>,
    /// The object store failed; nothing is compacted before this.
    pub(crate) paused_until: Monotonic,
    /// The throttle of the log lines about that.
    pub(crate) outage: LogThrottle,
    /// Bytes that died here in packs of other owners, and when to add them to the packs' rows.
    pub(crate) owed: BTreeMap<PackId, u64>,
    pub(crate) owed_until: Monotonic,
    pub(crate) noted: u64,
    /// Others have noted dead values of packs that this node owns.
    pub(crate) is_look_due: bool,
    pub(crate) is_take_over_due: bool,
    /// The table has packs of dead nodes.
    pub(crate) has_taken_over: bool,
}

/// A small read that waits for others.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) range: Range<u64>,
    pub(crate) told: tokio::sync::oneshot::Sender<Result<Option<Bytes>>>,
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
        let state = State {
            last: 0,
            gathering: None,
            table: Table::new(config),
            wanted: BTreeMap::new(),
            paused_until: Monotonic::default(),
            outage: LogThrottle::default(),
            owed: BTreeMap::new(),
            owed_until: Monotonic::default(),
            noted: 0,
            is_look_due: false,
            is_take_over_due: false,
            has_taken_over: false,
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// The number of packs that this node owns, and the bytes of their values.
    pub(crate) fn sums(&self) -> (u64, u64) {
        self.state().table.sums()
    }

    /// The pack numbers up to `last` are taken.
    pub(crate) fn pass(&self, last: u64) {
        let mut state = self.state();
        state.last = state.last.max(last);
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Packs {
    /// How often this node has noted dead values in packs of other owners.
    pub(crate) fn noted(&self) -> u64 {
        self.state().noted
    }

    /// Another node has noted something.
    pub(crate) fn more_is_noted(&self) {
        self.state().is_look_due = true;
    }

    /// This node takes ownership of all packs of dead nodes that exist by now.
    pub(crate) fn takes_over(&self) {
        self.state().is_take_over_due = true;
    }

    /// Gives up ownership of all packs except those of `own`.
    pub(crate) fn give_back(&self, own: NodeId) {
        let state = &mut *self.state();
        if std::mem::take(&mut state.has_taken_over) {
            state.table.give_back(own);
        }
        state.is_take_over_due = false;
    }
}

impl Gathering {
    pub(crate) fn new(id: PackId) -> Self {
        let (hold, told) = (Hold::default(), watch::Sender::new(None));
        Self {
            id,
            entries: Vec::new(),
            bytes: 0,
            hold,
            told,
        }
    }

    /// Accepts a value. Returns its future position.
    pub(crate) fn take(&mut self, entry: PackEntry) -> Located {
        let located = Located {
            pack: self.id,
            offset: self.bytes,
        };
        self.bytes += entry.value.len() as u64;
        self.entries.push(entry);
        located
    }
}

impl Packed {
    /// Waits until they are stored. Errors: `NoRoom`; `Unavailable` once the node cannot go on.
    pub(crate) async fn is_put(&self) -> Result<()> {
        let mut answer = Ok(());
        for put in &self.put {
            let put = put
                .clone()
                .wait_for(Option::is_some)
                .await
                .map(|put| put.clone().expect("waited for"));
            // Waits for all of them, even after an error: a clean-up must not run beside writes
            // that are still on their way.
            answer =
                answer.and(put.unwrap_or_else(|_| Err(Error::unavailable("the engine stops"))));
        }
        answer
    }

    pub(crate) fn join(&mut self, gathering: &Gathering) {
        if !self
            .holds
            .iter()
            .any(|hold| Arc::ptr_eq(hold, &gathering.hold))
        {
            self.holds.push(Arc::clone(&gathering.hold));
            self.put.push(gathering.told.subscribe());
        }
    }
}
