//! The compactor: moves the live values of mostly dead packs, and of many small ones, into another
//! pack, and deletes the objects.
//!
//! ```text
//!  1  the directory, and the version item of every entry: an entry is live if its item still
//!     points here
//!  2  live values go into a pack like any other values, together with present writes
//!  3  each item is moved by a write on condition that it still points to the old position
//!  4  all of that is durable; then the object is deleted, and then the row
//! ```
//!
//! After a crash in 2, the new pack is larger than necessary until its dead bytes are counted.
//! After 3, some items are moved, and the next compaction of the pack does the rest. A reader that
//! read an item before 3 and finds no object after 4 reads the item again (`reading.rs`).
//!
//! After a crash the dead bytes are not known for certain, and objects may exist without rows. The
//! sweep therefore has every pack counted, including those that only a list of the dead node's
//! objects names. `ownership.rs` defines which node compacts these packs.
//!
//! **A node that was paused** in 3 may wake up much later and move an item into a pack that another
//! node compacts by now. For a pack of a dead node, that other node therefore moves every value
//! whose item does not point to a pack of its own, wherever the item points. The late move fails
//! after that, because its condition no longer holds. If the late move came first, the compaction
//! fails, and begins again with another pack. An item that has moved elsewhere stays there: no
//! position is used twice, so the late move fails too.
//!
//! Invariants
//! - No object is deleted while an item names it, or may still be moved into it, in any state to
//!   which the store may return: it is durable that none does.
//! - An item is moved conditionally, so that a version collected meanwhile does not reappear.
//! - A pack is put after the positions were read that its values are moved from. A late move could
//!   otherwise begin at a position that the item reached after another node had read it.
//! - Each value that was put again leaves one dead copy: the old one, or, if its item was not moved,
//!   the new one.
//!
//! From Rosenblum and Ousterhout's log-structured file system: cleaning by the live fraction of a
//! segment.

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use ports::{Monotonic, objects::ObjectStoreExt as _};

use crate::{
    Error, Result,
    broken::Broken,
    model::{Located, PackId},
    node::Node,
    packing::Packing,
    packs::{
        PackEntry, Packs,
        directory::{self, FOOTER_BYTES, Filed},
        rows,
    },
};

use super::find;

/// Items read, or moved, at a time.
pub(super) const ITEMS_AT_ONCE: usize = 16;
/// Packs read, or deleted, at a time.
const PACKS_AT_ONCE: usize = 16;
/// The interval of tries while an object store fails.
const AGAIN: Duration = Duration::from_secs(5);
/// The interval of checks whether a mostly dead pack is still held.
const LOOK_FOR_HOLDS: Duration = Duration::from_secs(1);

pub(super) struct Surveyed {
    filed: Filed,
    /// Where it lies in the pack.
    here: Located,
    /// Where its version item points; `None` if the version is gone.
    at: Option<Located>,
}

pub(super) struct Survey {
    /// The bytes of all its values.
    pub(super) bytes: u64,
    entries: Vec<Surveyed>,
}

impl Survey {
    /// The bytes of values whose items do not point here.
    pub(super) fn dead_bytes(&self) -> u64 {
        let is_dead = |entry: &&Surveyed| entry.at != Some(entry.here);
        let dead = self.entries.iter().filter(is_dead);
        dead.map(|entry| u64::from(entry.filed.bytes)).sum()
    }
}

struct Moving {
    filed: Filed,
    /// Where it lies in a pack that is compacted, and where its item points.
    here: Located,
    at: Located,
    value: Bytes,
}

/// Pauses compaction for [`AGAIN`]. Returns how long it has failed, if that is to be logged now.
fn pause(packs: &Packs, now: Monotonic, error: &Error) -> Option<Duration> {
    let mut state = packs.state();
    state.paused_until = now + AGAIN;
    state.outage.failed(now, &error.to_string())
}

impl Packing {
    /// When packs next need work; `None`: not before a value in one dies.
    pub(crate) fn packs_due(&self, node: &Node) -> Option<Duration> {
        if node.store.has_freed() {
            return Some(Duration::ZERO);
        }
        let now = self.context.clock.monotonic();
        let state = node.packs.state();
        let owed = state.table.owes().then(|| state.owed_until.since(now));
        if self.objects.is_none() {
            return owed;
        }
        if state.are_rows_due {
            return Some(Duration::ZERO);
        }
        let due = if state.table.next(self.ignores_holds()).is_empty() {
            state.table.has_work().then_some(LOOK_FOR_HOLDS)
        } else {
            Some(Duration::ZERO)
        };
        let due = due.map(|due| due.max(state.paused_until.since(now)));
        owed.into_iter().chain(due).min()
    }

    fn ignores_holds(&self) -> bool {
        self.context.breaks(Broken::CompactsHeldPacks)
    }

    /// Processes some packs. Returns false if there is nothing to do at the moment.
    pub(crate) async fn tidy_packs(self: &Arc<Self>, node: &Arc<Node>) -> Result<bool> {
        self.note_freed(node).await?;
        if self.objects.is_none() {
            return Ok(false);
        }
        self.read_rows(node).await?;
        if self.packs_due(node) != Some(Duration::ZERO) {
            return Ok(false);
        }
        let now = self.context.clock.monotonic();
        let packs = node.packs.state().table.next(self.ignores_holds());
        match self.compact(node, packs).await {
            Ok(()) => {
                if let Some(lasted) = node.packs.state().outage.ended(now) {
                    tracing::info!(?lasted, "packs are compacted again");
                }
                Ok(true)
            }
            Err(error) if node.store.is_fenced() => Err(error),
            // Collection continues whether or not the object store can be reached.
            Err(error) => {
                if let Some(lasts) = pause(&node.packs, now, &error) {
                    tracing::warn!(%error, ?lasts, "packs are not compacted at the moment");
                }
                Ok(false)
            }
        }
    }

    /// Compacts several packs, whose live values share new packs.
    async fn compact(self: &Arc<Self>, node: &Arc<Node>, packs: Vec<PackId>) -> Result<()> {
        let reads = packs.into_iter().map(|id| async move {
            let read = self.read_live(node, id).await;
            let read = read.or_else(|error| give_up_damaged(node, id, error).map(|()| None));
            read.map(|live| live.map(|live| (id, live)))
        });
        let mut reads = pin!(stream::iter(reads).buffered(PACKS_AT_ONCE));
        let (mut dead, mut packs, mut moving) = (Vec::new(), Vec::new(), Vec::new());
        let mut read_all = Ok(());
        while let Some(read) = reads.next().await {
            match read {
                Ok(Some((id, live))) if live.is_empty() => dead.push(id),
                Ok(Some((id, live))) => {
                    packs.push(id);
                    moving.extend(live);
                }
                Ok(None) => {}
                Err(error) => read_all = Err(error),
            }
        }
        // First, because that needs no space.
        let deleted = self.delete_packs(node, dead).await;
        let moved = self.move_away(node, packs, moving).await;
        deleted.and(moved).and(read_all)
    }

    /// Step 1, and the values to move; `None` if the pack is missing.
    async fn read_live(&self, node: &Arc<Node>, id: PackId) -> Result<Option<Vec<Moving>>> {
        let Some(survey) = self.survey(node, id).await? else {
            return self.forget_pack(node, id).await.map(|()| None);
        };
        let needed = survey.entries.into_iter().filter_map(|entry| {
            let Surveyed { filed, here, at } = entry;
            let at = at.filter(|at| self.is_needed(node, here, *at))?;
            let value = Bytes::new();
            Some(Moving {
                filed,
                here,
                at,
                value,
            })
        });
        let mut needed: Vec<_> = needed.collect();
        let (Some(first), Some(last)) = (needed.first(), needed.last()) else {
            return Ok(Some(needed));
        };
        let start = first.here.offset;
        let range = start..last.here.offset + u64::from(last.filed.bytes);
        let Some(bytes) = self.read_range(node, id, range).await? else {
            return self.forget_pack(node, id).await.map(|()| None);
        };
        for Moving {
            filed, here, value, ..
        } in &mut needed
        {
            let from = (here.offset - start) as usize;
            let found = bytes.get(from..from + filed.bytes as usize);
            let found = found.filter(|found| crc32fast::hash(found) == filed.crc);
            let damaged = || {
                let attempt = filed.attempt;
                Error::Corrupt(format!("a value of {attempt} is not what was written").into())
            };
            *value = bytes.slice_ref(found.ok_or_else(damaged)?);
        }
        Ok(Some(needed))
    }

    /// Whether the pack with a value at `here` must not be deleted while the item points to `at`.
    fn is_needed(&self, node: &Node, here: Located, at: Located) -> bool {
        // Its node was presumed dead, and may still move the item here from `at`.
        let may_come = here.pack.node != node.id
            && at.pack.node != node.id
            && !self.context.breaks(Broken::JudgesHalfMoved);
        at == here || may_come
    }

    /// Steps 2 to 4.
    async fn move_away(
        self: &Arc<Self>,
        node: &Arc<Node>,
        packs: Vec<PackId>,
        moving: Vec<Moving>,
    ) -> Result<()> {
        let deletes_first = Broken::DeletesPackBeforeMoving;
        if self.context.breaks(deletes_first) {
            for id in &packs {
                self.delete_object(node, *id).await?;
            }
        }
        let entries = moving.iter().map(|Moving { filed, value, .. }| PackEntry {
            key: filed.key.clone(),
            attempt: filed.attempt,
            write: filed.write,
            value: value.clone(),
        });
        let packed = self.pack(node, entries.collect());
        let (moving, packed, put) = (&moving, &packed, &packed.is_put().await);
        let moves = stream::iter(0..moving.len()).map(|place| async move {
            let (moving, to) = (&moving[place], packed.located[place]);
            let moved = match put {
                Ok(()) => self.move_item(node, moving, to).await,
                Err(error) => Err(error.clone()),
            };
            let dead = if moved == Ok(true) { moving.at } else { to };
            node.store.free(dead.pack, u64::from(moving.filed.bytes));
            moved.map(drop)
        });
        // Waits for all of them: none may be on its way once another batch begins.
        let moved: Vec<_> = moves.buffer_unordered(ITEMS_AT_ONCE).collect().await;
        moved.into_iter().collect::<Result<()>>()?;
        self.delete_packs(node, packs).await
    }

    /// Makes the item of a value point to `to`. Returns false if the version is gone, or lies
    /// elsewhere by now. Errors: it has just moved into the pack that is compacted.
    async fn move_item(&self, node: &Node, moving: &Moving, to: Located) -> Result<bool> {
        let Moving { filed, at, .. } = moving;
        let moved = node.store.move_version(&filed.key, filed.attempt, *at, to);
        if moved.await? {
            return Ok(true);
        }
        if self.place_of(node, filed).await? == Some(moving.here) {
            return Err(Error::unavailable("a value moved into a pack too late"));
        }
        Ok(false)
    }

    /// Deletes packs without live values.
    async fn delete_packs(&self, node: &Node, packs: Vec<PackId>) -> Result<()> {
        if packs.is_empty() {
            return Ok(());
        }
        // Their superseding commits may not be durable either: a store that returns to an earlier
        // state must not miss these values.
        node.store.externalize(node.store.basis()).await?;
        let deletions = stream::iter(packs).map(|id| async move {
            self.delete_object(node, id).await?;
            self.forget_pack(node, id).await?;
            self.context.counters.compacted();
            Ok(())
        });
        let deleted: Vec<Result<()>> = deletions.buffer_unordered(PACKS_AT_ONCE).collect().await;
        deleted.into_iter().collect()
    }

    pub(super) async fn forget_pack(&self, node: &Node, id: PackId) -> Result<()> {
        rows::delete(&node.store, id).await?;
        node.store.forget_freed(id);
        node.packs.state().table.remove(id);
        Ok(())
    }

    async fn delete_object(&self, node: &Node, id: PackId) -> Result<()> {
        let (objects, path) = (self.objects()?, id.path(self.home()?));
        let delete = || objects.delete(&path);
        find(&node.store, "delete", &path, delete).await.map(drop)
    }

    /// The entries of a pack, and where their items point; `None` if the pack is missing.
    pub(super) async fn survey(&self, node: &Arc<Node>, id: PackId) -> Result<Option<Survey>> {
        let Some(directory) = self.directory(node, id).await? else {
            return Ok(None);
        };
        let mut bytes = 0;
        let mut places = Vec::new();
        for filed in directory {
            let here = Located {
                pack: id,
                offset: bytes,
            };
            bytes += u64::from(filed.bytes);
            places.push((filed, here));
        }
        let looks = stream::iter(places).map(|(filed, here)| async move {
            let at = self.place_of(node, &filed).await?;
            Ok::<_, Error>(Surveyed { filed, here, at })
        });
        let entries = looks.buffered(ITEMS_AT_ONCE).try_collect().await?;
        Ok(Some(Survey { bytes, entries }))
    }

    /// Where the item of a value points; `None` if the version is gone.
    async fn place_of(&self, node: &Node, filed: &Filed) -> Result<Option<Located>> {
        let item = node.store.version(&filed.key, filed.attempt).await?;
        let item = item.filter(|item| item.write == filed.write);
        Ok(item.and_then(|item| item.packed))
    }

    async fn directory(&self, node: &Node, id: PackId) -> Result<Option<Vec<Filed>>> {
        let (objects, path) = (self.objects()?, id.path(self.home()?));
        let look = || objects.head(&path);
        let Some(meta) = find(&node.store, "look at", &path, look).await? else {
            return Ok(None);
        };
        let size = meta.size;
        let footer = size.saturating_sub(FOOTER_BYTES)..size;
        let Some(footer) = self.read_range(node, id, footer).await? else {
            return Ok(None);
        };
        let end = size.saturating_sub(directory::end_bytes(&footer)?)..size;
        let Some(end) = self.read_range(node, id, end).await? else {
            return Ok(None);
        };
        directory::decode_end(&end).map(Some)
    }
}

/// A pack that does not decode stays as it is, so that an operator can look at it; other packs
/// continue.
pub(super) fn give_up_damaged(node: &Node, id: PackId, error: Error) -> Result<()> {
    if !matches!(error, Error::Corrupt(_)) {
        return Err(error);
    }
    tracing::error!(%error, node = id.node.0, pack = id.number, "a pack is damaged and is left unchanged");
    node.packs.state().table.give_up(id);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Config,
        model::{Key, NodeId, TransactionId},
        storage::records::{Place, Write},
    };

    /// T9. The log reports that a failure lasts, and not each try.
    #[test]
    fn that_packs_are_not_compacted_is_said_ever_more_seldom() {
        let packs = Packs::new(&Config::default());
        let error = Error::unavailable("the directory is read-only");
        let tries = (0..720).map(|turn| Monotonic(turn * AGAIN));
        let said = tries.filter(|now| {
            let is_said = pause(&packs, *now, &error).is_some();
            assert_eq!(
                packs.state().paused_until,
                *now + AGAIN,
                "it is tried as often as before"
            );
            is_said
        });
        let said: Vec<u64> = said.take(6).map(|now| now.0.as_secs()).collect();
        assert_eq!(said, [0, 5, 10, 20, 40, 75]);
    }

    /// T5. A value that another node has moved stays there; if it has moved into the pack that is
    /// compacted, that pack stays too.
    #[test]
    fn a_value_that_moves_during_a_compaction_is_not_lost() {
        simulated::run(async {
            let world = simulated::World::new(1);
            let parts = crate::Parts {
                key_value: world.key_value(),
                clock: world.clock(),
                entropy: world.entropy(),
            };
            let builder = crate::Service::builder(parts).objects(world.objects());
            let service = builder.build(Config::default());
            service.start().await.expect("a calm world");
            let engine = service.engine();
            let node = engine.calls.serving.node().expect("it has started");
            let attempt = node.next_attempt();
            let id = TransactionId::new("one").expect("short");
            let of = |node, number| Located {
                pack: PackId {
                    node: NodeId(node),
                    number,
                },
                offset: 0,
            };
            let (here, at, to) = (of(77, 7), of(77, 1), of(node.id.0, 9));
            for (number, now, may_go) in [(1, of(78, 3), true), (2, here, false)] {
                let key = Key::new(format!("k{number}")).expect("short");
                let place = Place::Packed { bytes: 1, crc: 2 };
                let write = Write {
                    key: key.clone(),
                    write: 1,
                    place,
                };
                let put = node
                    .store
                    .put_version(&id, attempt, &write, None, Some(now));
                put.await.expect("a calm world");
                let filed = Filed {
                    key: key.clone(),
                    attempt,
                    write: 1,
                    bytes: 1,
                    crc: 2,
                };
                let value = Bytes::from_static(b"v");
                let moving = Moving {
                    filed,
                    here,
                    at,
                    value,
                };
                let moved = engine.calls.packing.move_item(&node, &moving, to).await;
                let item = node.store.version(&key, attempt).await;
                let item = item.expect("a calm world").expect("it is there");
                assert_eq!((moved.is_ok(), item.packed), (may_go, Some(now)));
            }
        });
    }
}
