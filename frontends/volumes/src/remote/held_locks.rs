//! The locks that this process has, so that it can reclaim them from another start of the server.

use std::collections::BTreeMap;

use transactions::serializable::model::{
    Key, Lock, LockBytes, LockFamily, LockMode, Owner, SessionId, Wait,
};

use crate::wire::VolumeNumber;

/// A lock of one volume, as a call asks for it.
#[derive(Debug, Clone)]
pub(super) struct Ticket {
    pub(super) volume: VolumeNumber,
    pub(super) owner: Owner,
    pub(super) lock: Lock,
}

/// A part of a file that an owner has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) bytes: LockBytes,
    mode: LockMode,
    pid: u32,
}

type Place = (VolumeNumber, Owner, Key, LockFamily);

/// All locks of this process.
#[derive(Debug, Default)]
pub(super) struct HeldLocks(BTreeMap<Place, Vec<Piece>>);

impl Ticket {
    fn place(&self) -> Place {
        let Lock { key, family, .. } = &self.lock;
        (self.volume, self.owner, key.clone(), *family)
    }

    /// The same owner's lock on other bytes. It does not wait.
    pub(super) fn with(&self, piece: Piece) -> Self {
        let lock = Lock {
            bytes: piece.bytes,
            mode: piece.mode,
            pid: piece.pid,
            wait: Wait::Never,
            ..self.lock.clone()
        };
        Self {
            lock,
            ..self.clone()
        }
    }

    /// An unlock of these bytes.
    pub(super) fn unlocking(&self, bytes: LockBytes) -> Self {
        self.with(Piece {
            bytes,
            mode: LockMode::Unlocked,
            pid: self.lock.pid,
        })
    }

    fn piece(&self) -> Piece {
        let Lock {
            bytes, mode, pid, ..
        } = self.lock;
        Piece { bytes, mode, pid }
    }
}

impl HeldLocks {
    /// Notes that `ticket` was granted. Returns the owner's earlier locks on these bytes.
    pub(super) fn take(&mut self, ticket: &Ticket) -> Vec<Piece> {
        let (place, new) = (ticket.place(), ticket.piece());
        if new.bytes.first > new.bytes.last {
            return Vec::new();
        }
        let held = self.0.remove(&place).unwrap_or_default();
        let before = inside(&held, new.bytes);
        let rest = held.into_iter().flat_map(|piece| outside(piece, new.bytes));
        let is_locked = new.mode != LockMode::Unlocked;
        let pieces: Vec<Piece> = rest.chain(is_locked.then_some(new)).collect();
        if !pieces.is_empty() {
            self.0.insert(place, pieces);
        }
        before
    }

    /// The locks that the owner of `ticket` has on its bytes.
    pub(super) fn on(&self, ticket: &Ticket) -> Vec<Piece> {
        let held = self.0.get(&ticket.place()).map_or(&[][..], Vec::as_slice);
        inside(held, ticket.lock.bytes)
    }

    /// All of them, as calls that take them again.
    pub(super) fn all(&self) -> Vec<Ticket> {
        let tickets = self
            .0
            .iter()
            .flat_map(|((volume, owner, key, family), pieces)| {
                pieces.iter().map(|piece| Ticket {
                    volume: *volume,
                    owner: *owner,
                    lock: Lock {
                        key: key.clone(),
                        family: *family,
                        bytes: piece.bytes,
                        mode: piece.mode,
                        pid: piece.pid,
                        wait: Wait::Never,
                    },
                })
            });
        tickets.collect()
    }

    /// Forgets the locks of a session.
    pub(super) fn end_session(&mut self, volume: VolumeNumber, session: SessionId) {
        self.0
            .retain(|(of, owner, ..), _| (*of, owner.session) != (volume, session));
    }

    /// Forgets the locks of a volume.
    pub(super) fn close(&mut self, volume: VolumeNumber) {
        self.0.retain(|(of, ..), _| *of != volume);
    }
}

/// The parts of `held` within `bytes`.
fn inside(held: &[Piece], bytes: LockBytes) -> Vec<Piece> {
    let overlapping = held.iter().filter(|piece| piece.bytes.overlaps(bytes));
    let parts = overlapping.map(|piece| Piece {
        bytes: LockBytes {
            first: piece.bytes.first.max(bytes.first),
            last: piece.bytes.last.min(bytes.last),
        },
        ..*piece
    });
    parts.collect()
}

/// The parts of `piece` outside `bytes`.
fn outside(piece: Piece, bytes: LockBytes) -> impl Iterator<Item = Piece> {
    let LockBytes { first, last } = piece.bytes;
    let part = move |first, last| Piece {
        bytes: LockBytes { first, last },
        ..piece
    };
    if !piece.bytes.overlaps(bytes) {
        return [Some(piece), None].into_iter().flatten();
    }
    let before = (first < bytes.first).then(|| part(first, bytes.first - 1));
    let after = (bytes.last < last).then(|| part(bytes.last + 1, last));
    [before, after].into_iter().flatten()
}

/// The parts of `bytes` outside all of `pieces`.
pub(super) fn gaps(bytes: LockBytes, pieces: &[Piece]) -> Vec<LockBytes> {
    let whole = Piece {
        bytes,
        mode: LockMode::Unlocked,
        pid: 0,
    };
    let mut gaps = vec![whole];
    for piece in pieces {
        gaps = gaps
            .into_iter()
            .flat_map(|gap| outside(gap, piece.bytes))
            .collect();
    }
    gaps.into_iter().map(|gap| gap.bytes).collect()
}

#[cfg(test)]
mod tests {
    use transactions::serializable::{
        lock_table::LockTable,
        model::{Granted, Slot},
    };

    use super::*;

    fn ticket(owner: u64, bytes: LockBytes, mode: LockMode) -> Ticket {
        Ticket {
            volume: VolumeNumber(1),
            owner: Owner {
                session: SessionId(1),
                id: owner,
            },
            lock: Lock {
                key: Key::new("g", "n").expect("short"),
                family: LockFamily::Posix,
                bytes,
                mode,
                pid: 1,
                wait: Wait::Never,
            },
        }
    }

    fn some(random: &mut fastrand::Rng) -> Ticket {
        let modes = [LockMode::Shared, LockMode::Exclusive, LockMode::Unlocked];
        let first = random.u64(..8);
        let last = if random.u8(..8) == 0 {
            u64::MAX
        } else {
            random.u64(..8)
        };
        let bytes = LockBytes { first, last };
        ticket(random.u64(..2), bytes, modes[random.usize(..3)])
    }

    /// Whether each byte could be locked by another owner.
    fn seen(table: &LockTable) -> Vec<bool> {
        let places = (0..9).chain([u64::MAX]);
        let tests = places.flat_map(|place| {
            [LockMode::Shared, LockMode::Exclusive].map(|mode| {
                let bytes = LockBytes {
                    first: place,
                    last: place,
                };
                let other = ticket(9, bytes, mode);
                table.test(other.owner, &other.lock) == Granted::Yes
            })
        });
        tests.collect()
    }

    fn reclaimed(held: &HeldLocks) -> LockTable {
        let mut table = LockTable::default();
        for ticket in held.all() {
            let granted = table.take(ticket.owner, &ticket.lock, Slot(0));
            assert_eq!(granted, Granted::Yes, "{ticket:?}");
        }
        table
    }

    #[test]
    fn what_is_reclaimed_is_what_the_server_had_granted() {
        for seed in 0..300 {
            let random = &mut fastrand::Rng::with_seed(seed);
            let (mut table, mut held) = (LockTable::default(), HeldLocks::default());
            for _ in 0..20 {
                let ticket = some(random);
                if table.take(ticket.owner, &ticket.lock, Slot(0)) == Granted::Yes {
                    held.take(&ticket);
                }
                assert_eq!(
                    seen(&reclaimed(&held)),
                    seen(&table),
                    "seed {seed}: {ticket:?}"
                );
            }
        }
    }

    #[test]
    fn a_grant_that_is_undone_leaves_what_was_before() {
        for seed in 0..300 {
            let random = &mut fastrand::Rng::with_seed(seed);
            let (mut table, mut held) = (LockTable::default(), HeldLocks::default());
            for _ in 0..20 {
                let (ticket, before) = (some(random), seen(&table));
                if table.take(ticket.owner, &ticket.lock, Slot(0)) != Granted::Yes {
                    continue;
                }
                let kept = held.take(&ticket);
                if ticket.lock.bytes.first > ticket.lock.bytes.last || random.bool() {
                    continue;
                }
                let gaps = gaps(ticket.lock.bytes, &kept);
                let freed = gaps.into_iter().map(|bytes| ticket.unlocking(bytes));
                for back in kept
                    .into_iter()
                    .map(|piece| ticket.with(piece))
                    .chain(freed)
                {
                    table.take(back.owner, &back.lock, Slot(0));
                    held.take(&back);
                }
                assert_eq!(seen(&table), before, "seed {seed}: {ticket:?}");
                assert_eq!(seen(&reclaimed(&held)), before, "seed {seed}: {ticket:?}");
            }
        }
    }
}
