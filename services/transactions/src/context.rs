//! The dependencies of every part of the engine: the store, time, randomness, settings, counters
//! and tasks.
//!
//! A begin of a client id, a commit, a load and a clean-up run as tasks of the engine, never in the
//! caller's future. A caller that disconnects drops its future, and half a commit must not depend
//! on that. The tasks end with the last handle of the engine.

use std::{
    future::Future,
    panic::resume_unwind,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use ports::{Clock, Entropy, key_value::SharedKeyValue, objects::ObjectStore};
use tokio::{sync::oneshot, task::JoinSet};

use crate::{Config, Error, Result, broken::Broken, figures::Counters, storage::node_log::Bounds};

/// An object store.
pub type SharedObjects = Arc<dyn ObjectStore>;

/// The state that all parts of the engine share. It holds no state of the protocol.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) key_value: SharedKeyValue,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    /// Where volumes keep large values; `None`: in their rows.
    pub(crate) volume_objects: Option<SharedObjects>,
    /// Whether no other node shares the store.
    pub(crate) is_alone: bool,
    pub(crate) tasks: Weak<Tasks>,
}

/// The running tasks of the engine. Open attempts, and attempts with unsent effects, bound their
/// number.
#[derive(Debug, Default)]
pub(crate) struct Tasks(Mutex<JoinSet<()>>);

impl Context {
    /// Checks for space on the store's disk before a value or a client's id is accepted. Deletions
    /// and commits may use the store's reserve (rule P6).
    ///
    /// Errors: `NoRoom`.
    pub(crate) fn check_room(&self) -> Result<()> {
        if self.key_value.has_room() {
            Ok(())
        } else {
            Err(Error::NoRoom)
        }
    }

    /// A slot must fit an item, with space for what a large last entry adds.
    pub(crate) fn slot_bytes_max(&self) -> usize {
        self.config
            .slot_bytes_max
            .min(self.key_value.limits().item_bytes_max / 2)
    }

    /// Writes beside a slot must fit a transaction of the store, if it has such over all its
    /// partitions.
    pub(crate) fn slot_bounds(&self) -> Bounds {
        let limits = self.key_value.limits();
        let items = if limits.transact_across_partitions {
            limits.transact_items_max
        } else {
            0
        };
        Bounds {
            slot_bytes: self.slot_bytes_max(),
            group_items: self.config.group_items_max.min(items),
        }
    }

    /// Whether a test broke this rule.
    pub(crate) fn breaks(&self, rule: Broken) -> bool {
        self.config.mutant.breaks(rule)
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Waits before a retry.
    pub(crate) async fn pause(&self, delays: &mut primitives::Delays) {
        self.clock
            .sleep(delays.next_delay(&*self.entropy).unwrap_or_default())
            .await;
    }

    /// Runs `task` as a task of the engine. Does nothing if the engine is being dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Some(tasks) = self.tasks.upgrade() else {
            return;
        };
        let mut running = tasks.0.lock();
        running.spawn(task);
        while let Some(ended) = running.try_join_next() {
            if let Err(error) = ended
                && error.is_panic()
            {
                resume_unwind(error.into_panic());
            }
        }
    }

    /// Runs `task` as a task of the engine, and waits for its result. The task continues if the
    /// caller is dropped.
    pub(crate) async fn spawn_and_wait<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (send, receive) = oneshot::channel();
        self.spawn(async move {
            // The caller may be gone; the task's work stays done.
            let _ = send.send(task.await);
        });
        receive
            .await
            .unwrap_or_else(|_| Err(Error::unavailable("the engine stops")))
    }
}
