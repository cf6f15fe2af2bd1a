//! The journal thread: group commit.
//!
//! The thread takes all changes since the last group under the lock. It writes them as one frame
//! and syncs once for all waiting callers, both outside the lock. The next group gathers during the
//! sync. A group whose changes undid each other is empty. It is not written, and its end is not a
//! durable point. If a caller waits for that end, or the store closes in order, a record without
//! entries states it.
//!
//! If a write or sync fails, the state in memory is ahead of the state that can become durable. The thread
//! then drops that state, rebuilds the durable state and serves it as a new incarnation. Callers
//! that wait for lost points receive `Lost`.

use std::{io, sync::Arc, time::Duration};

use ports::DurabilityPoint;

use super::{Engine, checkpoint::Job};
use crate::{
    durability::Work,
    journal::{
        direct::FrameBuffer,
        frame::{self, Header},
        recovery::TrustedEnd,
        spare::Allocated,
        writer::Journal,
    },
    records::overlay::{Generation, Group},
    status::Health,
    store::Store,
};

/// The buffer capacity kept between groups. A larger buffer is freed: the next group then pays for
/// each of its pages again, so that groups of bulk writes are below the bound.
const BUFFER_BYTES_KEPT: usize = 16 << 20;

/// A group of at most this many records is that of a lone caller.
const RECORDS_OF_A_LONE_CALLER: usize = 8;

/// From this many commits for a lone caller on, the thread polls for the next one. Under load small
/// groups come singly, and polling would take the core from the callers.
const LONE_COMMITS: u32 = 8;

/// The pause before a failed return to the durable state is repeated: the first pause and the
/// longest.
const FALL_BACK_RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Runs until told to stop.
pub(crate) fn run(engine: &Arc<Engine>, mut journal: Journal) {
    let mut buffer = FrameBuffer::default();
    // How many commits in a row were for a lone caller that asked soon.
    let mut lone = 0_u32;
    loop {
        let polls = lone >= LONE_COMMITS;
        let (work, is_soon) = engine.parts.durability.wait_for_work(polls);
        if work == Work::Abandon {
            return;
        }
        match commit(engine, &mut journal, &mut buffer, work) {
            Ok(records) if is_soon && records <= RECORDS_OF_A_LONE_CALLER => {
                lone = lone.saturating_add(1);
            }
            Ok(_) => lone = 0,
            Err(error) => match fall_back(engine, &journal, &error) {
                Some(reloaded) => journal = reloaded,
                None => return,
            },
        }
        if work == Work::Finish {
            return;
        }
    }
}

/// The work of one commit, taken under the lock.
struct Taken {
    group: Group,
    /// An upper bound of its frame, in bytes.
    bound: u64,
    /// Whether a record is written, with or without entries.
    is_written: bool,
    /// The last mutation in it.
    end: DurabilityPoint,
    /// The spare that becomes the segment of this group, if the current one has no room.
    spare: Option<Allocated>,
    frozen: Option<Arc<Generation>>,
    /// Whether a checkpoint would free much memory.
    has_many_records: bool,
}

/// Commits a group. Returns the number of its records.
fn commit(
    engine: &Engine,
    journal: &mut Journal,
    buffer: &mut FrameBuffer,
    work: Work,
) -> io::Result<usize> {
    let taken = take(engine, journal, work)?;
    let is_rotated = taken.spare.is_some();
    if let Some(spare) = taken.spare {
        journal.rotate(spare, taken.end.incarnation.0)?;
    }
    if taken.is_written {
        let header = Header {
            sequence: journal.sequence + 1,
            incarnation: taken.end.incarnation.0,
            end_position: taken.end.position.0,
        };
        journal.encode(header, &taken.group, taken.bound, buffer);
        write(engine, journal, buffer, header.end_position)?;
    }
    if is_rotated {
        engine.parts.remove_folded();
        engine.parts.ballast.refill();
        journal.spare.grow(0);
    }
    {
        let mut state = engine.state();
        state.store.tail_room = journal.room();
        state.store.spare_room = journal.spare.room();
        if is_rotated && journal.spare.is_short() {
            // The disk is nearly full, and only a checkpoint can free the earlier segments.
            state.store.checkpoint_wanted = true;
            engine.parts.durability.force();
        }
    }
    if taken.has_many_records {
        engine.checkpoints.watch_rest();
    }
    if let Some(generation) = taken.frozen {
        let job = Job::new(generation, taken.end, journal.usage.whole());
        engine.checkpoints.submit(job);
    } else if engine.checkpoints.is_due_again() {
        engine.state().store.checkpoint_wanted = true;
        engine.parts.durability.force();
    }
    Ok(taken.group.len())
}

/// Writes and syncs one frame that ends at position `end`.
fn write(
    engine: &Engine,
    journal: &mut Journal,
    buffer: &mut FrameBuffer,
    end: u64,
) -> io::Result<()> {
    journal.write(buffer)?;
    if engine.parts.config.acknowledge_before_sync {
        engine.parts.durability.advance(end);
    }
    journal.sync(buffer)?;
    buffer.shrink_to(BUFFER_BYTES_KEPT);
    engine.parts.durability.advance(end);
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
    let is_written =
        !group.is_empty() || engine.parts.durability.needs_marker(store.position, work);
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
    let is_due = journal.bytes_since_checkpoint >= engine.parts.config.checkpoint_bytes
        || store.checkpoint_wanted
        // After this spare is taken, the next one is not allocated yet.
        || (spare.is_none() && is_due_early(store, journal));
    let mut frozen = None;
    if is_due && store.overlay.frozen().is_some() {
        // The running checkpoint asks for the next one at its end; no later change may come.
        store.checkpoint_wanted = true;
    } else if is_due {
        store.checkpoint_wanted = false;
        journal.bytes_since_checkpoint = 0;
        frozen = Some(store.overlay.freeze());
    }
    Ok(Taken {
        group,
        bound,
        is_written,
        end: store.point(),
        spare,
        frozen,
        has_many_records: store.overlay.journaled_len() >= engine.parts.config.records_at_rest_max,
    })
}

/// Whether the journal runs out of room on a disk without space for another whole segment. Records
/// that a checkpoint covers by then need no space beside another segment.
fn is_due_early(store: &Store, journal: &Journal) -> bool {
    let spare = &journal.spare;
    let is_short = store.spare_room < spare.whole_room();
    is_short
        && store.tail_room < spare.whole_room() / 2
        && journal.bytes_since_checkpoint >= spare.reserve_bytes()
}

/// Returns to the durable state, with retries; none if the thread was told to stop meanwhile.
fn fall_back(engine: &Engine, journal: &Journal, error: &io::Error) -> Option<Journal> {
    engine.fail_from(engine.state(), &format!("write the journal: {error}"));
    let trusted = TrustedEnd {
        segment: journal.current.number,
        offset: journal.current.end,
    };
    let (mut pause, longest) = FALL_BACK_RETRY;
    loop {
        match engine.reload(trusted) {
            Ok(journal) => return Some(journal),
            Err(error) => {
                tracing::error!(%error, "the return to the durable state failed and is retried");
            }
        }
        if engine.parts.durability.is_stopped_within(pause) {
            return None;
        }
        pause = (pause * 2).min(longest);
    }
}
