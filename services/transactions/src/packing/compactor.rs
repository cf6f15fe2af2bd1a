//! The compactor: moves the live values of mostly dead packs, and of many small ones, into another
//! pack, and deletes the objects.
//!
//! ```text
//!  1  the directory, and the version item of every entry: an entry is live if its item still
//!     points here
//!  2  the row is marked as moving; then live values go into a pack like any other values, together
//!     with present writes
//!  3  each item is moved by a write on condition that it still points to the old position
//!  4  all of that is durable; then the row is marked as retired
//!  5  a minute later the object is deleted, then the row
//! ```
//!
//! After a crash in 2, the new pack is larger than necessary until its dead bytes are counted.
//! After 3, some items are moved, and the next compaction of the pack does the rest. After 4 and 5
//! the row leads to the same. A reader that read an item before 3 and finds no object after 5 reads
//! the item again (`reading.rs`).
//!
//! After a crash the dead bytes are not known for certain, and objects may exist without rows. The
//! sweep therefore has every pack counted, including those that only a list of the dead node's
//! objects names. `ownership.rs` defines which node owns these packs, and the purpose of the mark
//! in 2.
//!
//! Invariants
//! - No object is deleted while an item names it, in any state to which the store may return: it is
//!   durable that none does.
//! - An item is moved conditionally, so that a version collected meanwhile does not reappear.
//! - No value is on its way into a marked pack.
//!
//! From Rosenblum and Ousterhout's log-structured file system: cleaning by the live fraction of a
//! segment.

use std::{ops::Range, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{
    StreamExt, TryStreamExt,
    future::{join, join_all},
    stream,
};
use ports::{
    Monotonic,
    objects::{self, ObjectError, ObjectStoreExt as _},
};

use crate::{
    Error, Result,
    broken::Broken,
    model::{Located, PackId},
    node::Node,
    packing::Packing,
    packs::{
        PackEntry, Packs,
        directory::{self, FOOTER_BYTES, Filed},
        rows::{self, Marked},
        table::{Why, Work},
    },
};

/// Items read, or moved, at a time.
pub(super) const ITEMS_AT_ONCE: usize = 16;
/// Packs read, or their objects deleted, at a time.
const PACKS_AT_ONCE: usize = 8;
/// The interval of tries while an object store fails.
const AGAIN: Duration = Duration::from_secs(5);
/// The interval of checks whether a mostly dead pack is still held.
const LOOK_FOR_HOLDS: Duration = Duration::from_secs(1);

/// A value to move.
struct Moving {
    from: Located,
    filed: Filed,
    value: Bytes,
}

/// The contents of a pack.
pub(super) struct Survey {
    /// The bytes of all its values.
    pub(super) bytes: u64,
    live: Vec<(Filed, Range<u64>)>,
}

impl Survey {
    pub(super) fn live_bytes(&self) -> u64 {
        self.live
            .iter()
            .map(|(filed, _)| u64::from(filed.bytes))
            .sum()
    }
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
        let owed = (!state.owed.is_empty()).then(|| state.owed_until.since(now));
        if self.objects.is_none() {
            return owed;
        }
        if state.is_take_over_due || state.is_look_due {
            return Some(Duration::ZERO);
        }
        let retired = state.table.next_retired(now);
        let waiting = if state.table.next(self.ignores_holds(), 1).packs.is_empty() {
            state.table.is_waiting().then_some(LOOK_FOR_HOLDS)
        } else {
            Some(Duration::ZERO)
        };
        let due = retired.into_iter().chain(waiting).min();
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
        self.look_after_rows(node).await?;
        if self.packs_due(node) != Some(Duration::ZERO) {
            return Ok(false);
        }
        let now = self.context.clock.monotonic();
        let (kept, work) = {
            let table = &node.packs.state().table;
            (
                table.kept_long_enough(now, PACKS_AT_ONCE),
                table.next(self.ignores_holds(), PACKS_AT_ONCE),
            )
        };
        let buried = join_all(kept.into_iter().map(|id| self.bury(node, id)));
        let (buried, compacted) = join(buried, self.compact(node, work)).await;
        let done = buried
            .into_iter()
            .chain([compacted])
            .collect::<Result<()>>();
        match done {
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

    /// Steps 1 to 4 for several packs, whose live values share new packs.
    async fn compact(self: &Arc<Self>, node: &Arc<Node>, work: Work) -> Result<()> {
        let why = work.why;
        let reads = work.packs.into_iter().map(|id| async move {
            let read = self.read_live(node, id, why).await;
            let left = read.or_else(|error| give_up_damaged(node, id, error).map(|()| None));
            left.map(|live| live.map(|live| (id, live)))
        });
        let mut reads = pin!(stream::iter(reads).buffered(PACKS_AT_ONCE));
        let (mut packs, mut moving, mut read_all) = (Vec::new(), Vec::new(), Ok(()));
        while let Some(read) = reads.next().await {
            match read {
                Ok(Some((id, live))) => {
                    packs.push(id);
                    moving.extend(live);
                }
                Ok(None) => {}
                Err(error) => read_all = Err(error),
            }
        }
        if !packs.is_empty() {
            self.move_away(node, packs, moving).await?;
        }
        read_all
    }

    /// Step 1, and the values to move; `None` if the pack is missing, or no longer worth it.
    async fn read_live(
        &self,
        node: &Arc<Node>,
        id: PackId,
        why: Why,
    ) -> Result<Option<Vec<Moving>>> {
        let Some(survey) = self.survey(node, id).await? else {
            return self.forget_pack(node, id).await.map(|()| None);
        };
        let (live, dead) = (survey.live_bytes(), survey.bytes - survey.live_bytes());
        if live >= dead && why == Why::Dead {
            return self.count_pack(node, id).await.map(|()| None);
        }
        let places: Vec<_> = survey.live.iter().map(|(_, range)| range.clone()).collect();
        let Some(values) = self.read_places(node, id, &places).await? else {
            return self.forget_pack(node, id).await.map(|()| None);
        };
        let live = survey
            .live
            .into_iter()
            .zip(values)
            .map(|((filed, range), value)| {
                if crc32fast::hash(&value) == filed.crc {
                    return Ok(Moving {
                        from: Located {
                            pack: id,
                            offset: range.start,
                        },
                        filed,
                        value,
                    });
                }
                Err(Error::Corrupt(
                    format!("a value of {} is not what was written", filed.attempt).into(),
                ))
            });
        live.collect::<Result<Vec<_>>>().map(Some)
    }

    /// Steps 2 to 4.
    async fn move_away(
        self: &Arc<Self>,
        node: &Arc<Node>,
        packs: Vec<PackId>,
        moving: Vec<Moving>,
    ) -> Result<()> {
        if self.context.breaks(Broken::DeletesPackBeforeMoving) {
            for id in &packs {
                self.delete_object(node, *id).await?;
            }
        }
        let (packs, moving) = self.mark(node, packs, moving).await?;
        let entries = moving.iter().map(|Moving { filed, value, .. }| {
            let Filed {
                key,
                attempt,
                write,
                ..
            } = filed.clone();
            PackEntry {
                key,
                attempt,
                write,
                value: value.clone(),
            }
        });
        let packed = self.pack(node, entries.collect());
        packed.is_put().await?;
        let moves = stream::iter(0..moving.len()).map(|place| {
            let (Moving { from, filed, .. }, to) = (&moving[place], packed.located[place]);
            async move {
                if !node
                    .store
                    .move_version(&filed.key, filed.attempt, *from, to)
                    .await?
                {
                    node.store.free(to.pack, u64::from(filed.bytes));
                }
                Ok::<_, Error>(())
            }
        });
        // Waits for all of them: none may be on its way once another batch begins.
        let moved: Vec<_> = moves.buffer_unordered(ITEMS_AT_ONCE).collect().await;
        moved.into_iter().collect::<Result<()>>()?;
        // Their superseding commits may not be durable either: a store that returns to an earlier
        // state must not miss these values.
        node.store.externalize(node.store.basis()).await?;
        for id in packs {
            rows::retire(&node.store, id).await?;
            let kept = self.context.clock.monotonic() + self.context.config.pack_kept;
            node.packs.state().table.retire(id, kept);
            self.context.counters.compacted();
        }
        Ok(())
    }

    /// The values that remain to be moved, with their packs, once the rows permit it: another node
    /// may have been faster.
    async fn mark(
        &self,
        node: &Node,
        packs: Vec<PackId>,
        mut moving: Vec<Moving>,
    ) -> Result<(Vec<PackId>, Vec<Moving>)> {
        let mut left = Vec::new();
        for id in packs {
            // A completely dead pack needs no mark.
            let moves = moving.iter().any(|moving| moving.from.pack == id);
            let marked = if moves {
                rows::mark_moving(&node.store, id, node.id).await?
            } else {
                Marked::Moving
            };
            let kept = self.context.clock.monotonic() + self.context.config.pack_kept;
            match marked {
                Marked::Moving => left.push(id),
                Marked::Retired => node.packs.state().table.retire(id, kept),
                Marked::Gone => node.packs.state().table.remove(id),
            }
        }
        moving.retain(|moving| left.contains(&moving.from.pack));
        Ok((left, moving))
    }

    /// Step 5.
    async fn bury(&self, node: &Node, id: PackId) -> Result<()> {
        self.delete_object(node, id).await?;
        self.forget_pack(node, id).await
    }

    pub(super) async fn forget_pack(&self, node: &Node, id: PackId) -> Result<()> {
        rows::delete(&node.store, id).await?;
        node.packs.state().table.remove(id);
        Ok(())
    }

    async fn delete_object(&self, node: &Node, id: PackId) -> Result<()> {
        let (objects, path) = (self.objects()?, id.path(self.home()?));
        let delete = || async {
            match objects.delete(&path).await {
                Ok(()) | Err(ObjectError::NotFound { .. }) => Ok(()),
                Err(error) => Err(objects::failed(format!("delete {path}"), error)),
            }
        };
        node.store.again(delete).await
    }

    /// The entries of a pack, and the live ones among them; `None` if the pack is missing.
    pub(super) async fn survey(&self, node: &Arc<Node>, id: PackId) -> Result<Option<Survey>> {
        let Some(directory) = self.directory(node, id).await? else {
            return Ok(None);
        };
        let mut bytes = 0;
        let places: Vec<_> = directory
            .into_iter()
            .map(|filed| {
                let range = bytes..bytes + u64::from(filed.bytes);
                bytes = range.end;
                (filed, range)
            })
            .collect();
        let looks = stream::iter(places).map(|(filed, range)| async move {
            let item = node.store.version(&filed.key, filed.attempt).await?;
            let here = Located {
                pack: id,
                offset: range.start,
            };
            let is_live =
                item.is_some_and(|item| item.write == filed.write && item.packed == Some(here));
            Ok::<_, Error>(is_live.then_some((filed, range)))
        });
        let live: Vec<_> = looks.buffered(ITEMS_AT_ONCE).try_collect().await?;
        Ok(Some(Survey {
            bytes,
            live: live.into_iter().flatten().collect(),
        }))
    }

    async fn directory(&self, node: &Node, id: PackId) -> Result<Option<Vec<Filed>>> {
        let (objects, path) = (self.objects()?, id.path(self.home()?));
        let look = || async {
            match objects.head(&path).await {
                Ok(meta) => Ok(Some(meta.size)),
                Err(ObjectError::NotFound { .. }) => Ok(None),
                Err(error) => Err(objects::failed(format!("look at {path}"), error)),
            }
        };
        let Some(size) = node.store.again(look).await? else {
            return Ok(None);
        };
        let footer = size.saturating_sub(FOOTER_BYTES)..size;
        let Some(footer) = self.read_range(node, id, footer).await? else {
            return Ok(None);
        };
        let end = directory::end_bytes(&footer)?;
        let Some(end) = self
            .read_range(node, id, size.saturating_sub(end)..size)
            .await?
        else {
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
    use crate::config::Config;

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
}
