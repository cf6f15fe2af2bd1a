//! The journal thread: group commit.
//!
//! It takes all that changed since the last group, under the lock; encodes and writes it as one frame, and
//! syncs once for everybody who waits, outside of it. While a sync runs the next group gathers. A group whose
//! changes undid each other is empty: nothing is written of it, and its end is no durable point. Where somebody
//! waits for that, or the store is closed in order, a record without entries says how far it went.
//!
//! If a write or sync fails, the state in memory is ahead of what can be made durable. The thread then drops
//! it, builds the durable state anew and serves that as a new incarnation; waiters of lost points hear so.

use std::{io, sync::Arc, time::Duration};

use super::{Engine, checkpoint::Job};
use crate::{
    checkpoint_store::CheckpointEnd,
    durability::Work,
    journal::{
        frame::{self, Header},
        recovery::TrustedEnd,
        spare::Allocated,
        writer::Journal,
    },
    records::overlay::{Generation, Group},
    status::Health,
    store::Store,
};

/// The buffer kept between groups; a larger one is given back.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// How long a failed return to the durable state waits before the next attempt, at first and at most.
const FALL_BACK_RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Runs until told to stop.
pub(crate) fn run(engine: &Arc<Engine>, mut journal: Journal) {
    let mut buffer = Vec::new();
    loop {
        let work = engine.durability.wait_for_work();
        if work == Work::Abandon {
            return;
        }
        if let Err(error) = commit(engine, &mut journal, &mut buffer, work) {
            match fall_back(engine, &journal, &error) {
                Some(reloaded) => journal = reloaded,
                None => return,
            }
        }
        if work == Work::Finish {
            return;
        }
    }
}

/// What was taken under the lock.
struct Taken {
    group: Group,
    /// There is something to write: entries, or that there are none.
    is_written: bool,
    incarnation: u64,
    /// The last mutation in it.
    end: u64,
    /// It goes to a new segment, made of this.
    spare: Option<Allocated>,
    frozen: Option<Arc<Generation>>,
}

fn commit(
    engine: &Engine,
    journal: &mut Journal,
    buffer: &mut Vec<u8>,
    work: Work,
) -> io::Result<()> {
    let taken = take(engine, journal, work)?;
    let is_rotated = taken.spare.is_some();
    if let Some(spare) = taken.spare {
        journal.rotate(spare, taken.incarnation)?;
    }
    if taken.is_written {
        let header = Header {
            sequence: journal.sequence + 1,
            incarnation: taken.incarnation,
            end_position: taken.end,
        };
        frame::encode(header, &taken.group, journal.salt, buffer);
        write(engine, journal, buffer, taken.end)?;
    }
    if is_rotated {
        if let Err(error) = journal
            .usage
            .remove_folded(journal.spare.directory(), &*engine.config.storage)
        {
            tracing::warn!(%error, "a journal segment could not be removed; the next checkpoint tries again");
        }
        engine.ballast.refill();
        journal.spare.grow(0);
    }
    {
        let mut state = engine.state();
        state.store.tail_room = journal.room();
        state.store.spare_room = journal.spare.room();
        if is_rotated && journal.spare.is_short() {
            // The disk is nearly full, and the segments behind are what can be given back.
            state.store.checkpoint_wanted = true;
            engine.durability.force();
        }
    }
    if let Some(generation) = taken.frozen {
        let folded = journal.usage.whole();
        let checkpoint_end = CheckpointEnd {
            position: taken.end,
            sequence: folded.sequence,
            incarnation: taken.incarnation,
        };
        engine.checkpoints.submit(Job {
            generation,
            checkpoint_end,
            journal: folded,
        });
    } else if engine.checkpoints.is_due_again() {
        engine.state().store.checkpoint_wanted = true;
        engine.durability.force();
    }
    Ok(())
}

/// Writes and syncs one frame, which ends at position `end`.
fn write(engine: &Engine, journal: &mut Journal, buffer: &mut Vec<u8>, end: u64) -> io::Result<()> {
    journal.write(buffer)?;
    if engine.config.acknowledge_before_sync {
        engine.durability.advance(end);
    }
    journal.sync(buffer.len())?;
    buffer.shrink_to(BUFFER_BYTES_KEPT);
    engine.durability.advance(end);
    Ok(())
}

fn take(engine: &Engine, journal: &mut Journal, work: Work) -> io::Result<Taken> {
    let mut state = engine.state();
    if let Health::FallingBack(reason) = &state.health {
        return Err(io::Error::other(reason.clone()));
    }
    let store = &mut state.store;
    store.announced = false;
    let bound = frame::frame_bound(store.overlay.pending_bytes());
    let group = store.overlay.take_group();
    let is_written = !group.is_empty() || engine.durability.is_owed(store.position, work);
    let mut spare = None;
    let is_wanted = std::mem::take(&mut store.rotation_wanted) && bound <= store.spare_room;
    if is_wanted || (is_written && bound > store.tail_room) {
        spare = Some(
            journal
                .spare
                .take()
                .expect("room in the spare was reserved"),
        );
        store.tail_room = std::mem::take(&mut store.spare_room);
    }
    if is_written {
        store.tail_room = store
            .tail_room
            .checked_sub(bound)
            .expect("room was reserved before each change");
        journal.bytes_since_checkpoint += bound;
    }
    let is_due = journal.bytes_since_checkpoint >= engine.config.checkpoint_bytes
        || store.checkpoint_wanted
        // Of the spare after the one that is taken here nothing is known yet.
        || (spare.is_none() && is_due_early(store, journal));
    let mut frozen = None;
    if is_due && store.overlay.frozen().is_none() {
        store.checkpoint_wanted = false;
        journal.bytes_since_checkpoint = 0;
        frozen = Some(store.overlay.freeze());
    }
    let (incarnation, end) = (store.incarnation, store.position);
    Ok(Taken {
        group,
        is_written,
        incarnation,
        end,
        spare,
        frozen,
    })
}

/// Whether the journal is running out of room on a disk that has none for another whole segment: what a checkpoint takes in
/// before it has run out, another segment need not leave room for.
fn is_due_early(store: &Store, journal: &Journal) -> bool {
    let spare = &journal.spare;
    let is_short = store.spare_room < spare.whole_room();
    is_short
        && store.tail_room < spare.whole_room() / 2
        && journal.bytes_since_checkpoint >= spare.reserve_bytes()
}

/// Returns to the durable state, however long it takes; none if told to stop meanwhile.
fn fall_back(engine: &Engine, journal: &Journal, error: &io::Error) -> Option<Journal> {
    engine.fail(&format!("write the journal: {error}"));
    let trusted = TrustedEnd {
        segment: journal.current.number,
        offset: journal.current.end,
    };
    let (mut pause, longest) = FALL_BACK_RETRY;
    loop {
        match engine.reload(trusted) {
            Ok(journal) => return Some(journal),
            Err(error) => tracing::error!(%error, "the durable state is out of reach"),
        }
        if engine.durability.is_stopped_within(pause) {
            return None;
        }
        pause = (pause * 2).min(longest);
    }
}
