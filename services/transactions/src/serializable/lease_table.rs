//! Which sessions have leases on which groups, and which groups proposals under way write.
//!
//! A proposal is noted before it recalls leases, until it is decided. Meanwhile no session gets a
//! lease on a group that it writes. Until the first session asks for leases, proposals are only
//! counted.
//!
//! Invariants
//! - A session is granted nothing until it has acknowledged that it had no leases. So a client of
//!   an earlier table, or one whose leases were over, knows that before it has new ones.
//! - A session with a recall to acknowledge is granted nothing, and `get_leased` does not renew its
//!   leases. So its client counts a recalled lease as over at the latest when this table does.
//! - A group that was recalled is told until it is acknowledged.
//!
//! Pure: the caller passes the time.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use ports::Monotonic;
use primitives::{Epoch, Mutant};

use crate::{
    broken::Broken,
    serializable::model::{Key, LEASE, SessionId, Write},
};

/// The most leases of all sessions. Beyond it none is granted.
const LEASES_MAX: usize = 100_000;
/// The most sessions that may have leases. Beyond it a further one is granted none.
const SESSIONS_MAX: usize = 1_000;
/// How long a group is not granted after a recall, so that not each write of a shared group waits
/// for one.
const REST: Duration = Duration::from_secs(1);
/// Groups are noted by stripes. A group may rest because of another one of its stripe.
const STRIPES: usize = 4_096;

/// The leases of one volume.
#[derive(Debug)]
pub(crate) struct LeaseTable {
    /// Whether a session was ever known.
    is_used: bool,
    /// Proposals under way whose groups are not noted.
    unnoted: usize,
    /// Empty until a session is known.
    stripes: Vec<Stripe>,
    holders: BTreeMap<Bytes, BTreeSet<SessionId>>,
    sessions: BTreeMap<SessionId, Session>,
    leases: usize,
    /// The last number given out. Those of a later epoch are higher.
    number: u64,
    mutant: Mutant<Broken>,
}

#[derive(Debug, Clone, Default)]
struct Stripe {
    /// Proposals under way.
    writing: u32,
    /// Proposals that were ever noted; it wraps.
    begun: u32,
    leases: u32,
    recalled: Option<Monotonic>,
}

#[derive(Debug)]
struct Session {
    until: Monotonic,
    /// Granted nothing before this number is acknowledged.
    begun: u64,
    acknowledged: u64,
    leased: BTreeSet<Bytes>,
    /// To be dropped by the client, with the number to acknowledge.
    recalled: BTreeMap<Bytes, Recalled>,
}

#[derive(Debug, Clone, Copy)]
struct Recalled {
    number: u64,
    /// The lease is over then, whether or not it is acknowledged.
    until: Monotonic,
}

/// A lease that a proposal waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Held {
    session: SessionId,
    number: u64,
    /// It is over then at the latest.
    pub(crate) until: Monotonic,
}

/// The stripes that a proposal writes; `None`: they are not noted.
#[derive(Debug, Default)]
pub(crate) struct Noted(Option<Vec<u16>>);

/// Groups on which a session has leases, with the states of their stripes.
pub(crate) type Granted = BTreeMap<Bytes, u32>;

/// The recall that a session is told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// The number to acknowledge.
    pub(crate) number: u64,
    /// The groups to drop.
    pub(crate) groups: Vec<Bytes>,
    /// The session has no leases.
    pub(crate) has_lapsed: bool,
}

impl LeaseTable {
    /// The empty table of an epoch.
    pub(crate) fn new(epoch: Epoch, mutant: Mutant<Broken>) -> Self {
        Self {
            is_used: false,
            unnoted: 0,
            stripes: Vec::new(),
            holders: BTreeMap::new(),
            sessions: BTreeMap::new(),
            leases: 0,
            number: epoch.0 << 40,
            mutant,
        }
    }

    /// A proposal begins. Returns the leases of other sessions than `own` that it waits for.
    pub(crate) fn begin(
        &mut self,
        writes: &[Write],
        own: Option<SessionId>,
        now: Monotonic,
    ) -> (Noted, BTreeSet<Held>) {
        let mut held = BTreeSet::new();
        if !self.is_used {
            self.unnoted += 1;
            return (Noted(None), held);
        }
        let (mut noted, mut last) = (Vec::with_capacity(4), None);
        for group in writes.iter().flat_map(groups_of) {
            if last.replace(group) == Some(group) {
                continue;
            }
            let place = stripe_of(group);
            noted.push(place);
            let stripe = &mut self.stripes[usize::from(place)];
            stripe.writing += 1;
            stripe.begun = stripe.begun.wrapping_add(1);
            if stripe.leases > 0 {
                self.recall(group, own, now, &mut held);
            }
        }
        (Noted(Some(noted)), held)
    }

    /// Recalls the leases on a group of other sessions than `own`.
    fn recall(
        &mut self,
        group: &Bytes,
        own: Option<SessionId>,
        now: Monotonic,
        held: &mut BTreeSet<Held>,
    ) {
        let holders = self.holders.get(group).into_iter().flatten().copied();
        let others: Vec<SessionId> = holders.filter(|holder| Some(*holder) != own).collect();
        for session in others {
            self.end_if_over(session, now);
            let Some(known) = self.sessions.get_mut(&session) else {
                continue;
            };
            if let Some(group) = known.leased.take(group) {
                self.number += 1;
                self.stripes[usize::from(stripe_of(&group))].recalled = Some(now);
                let (number, until) = (self.number, known.until);
                known.recalled.insert(group, Recalled { number, until });
            }
            // An earlier proposal may have recalled it, and its client not dropped it yet.
            if let Some(Recalled { number, until }) = known.recalled.get(group).copied() {
                held.insert(Held {
                    session,
                    number,
                    until,
                });
            }
        }
    }

    /// A proposal is decided, or never will be.
    pub(crate) fn end(&mut self, noted: &Noted) {
        match &noted.0 {
            None => self.unnoted -= 1,
            Some(stripes) => {
                for place in stripes {
                    self.stripes[usize::from(*place)].writing -= 1;
                }
            }
        }
    }

    /// Whether a lease is not in the way any more.
    pub(crate) fn is_over(&self, held: &Held, now: Monotonic) -> bool {
        let known = self.sessions.get(&held.session);
        now >= held.until || known.is_none_or(|known| known.acknowledged >= held.number)
    }

    /// A session has dropped what was recalled up to `acknowledged`. Its leases are renewed, unless
    /// they are over. Returns whether it is known.
    pub(crate) fn renew(&mut self, session: SessionId, acknowledged: u64, now: Monotonic) -> bool {
        self.end_if_over(session, now);
        let Some(known) = self.sessions.get_mut(&session) else {
            return false;
        };
        known.until = now + LEASE;
        known.acknowledged = known.acknowledged.max(acknowledged.min(self.number));
        let dropped = known.acknowledged;
        let dropped = known
            .recalled
            .extract_if(.., |_, recalled| recalled.number <= dropped);
        let dropped: Vec<Bytes> = dropped.map(|(group, _)| group).collect();
        self.forget(session, dropped);
        true
    }

    /// Notes a session, which has no leases. Returns false if there are too many.
    pub(crate) fn register(&mut self, session: SessionId, now: Monotonic) -> bool {
        self.is_used = true;
        self.stripes.resize(STRIPES, Stripe::default());
        self.end_all_over(now);
        if !self.sessions.contains_key(&session) {
            if self.sessions.len() >= SESSIONS_MAX {
                return false;
            }
            self.number += 1;
            let known = Session {
                until: now + LEASE,
                begun: self.number,
                acknowledged: 0,
                leased: BTreeSet::new(),
                recalled: BTreeMap::new(),
            };
            self.sessions.insert(session, known);
        }
        true
    }

    /// What a session has to acknowledge, or the last number that it has.
    pub(crate) fn told(&self, session: SessionId) -> Told {
        let Some(known) = self.sessions.get(&session) else {
            return Told {
                number: 0,
                groups: Vec::new(),
                has_lapsed: true,
            };
        };
        let numbers = known.recalled.values().map(|recalled| recalled.number);
        let first = known.begun.max(known.acknowledged);
        Told {
            number: numbers.fold(first, u64::max),
            groups: known.recalled.keys().cloned().collect(),
            has_lapsed: known.acknowledged < known.begun,
        }
    }

    /// Renews the leases of a session, and grants the groups of `keys`. Returns those on which it
    /// has leases now.
    pub(crate) fn grant<'a>(
        &mut self,
        session: SessionId,
        keys: impl Iterator<Item = &'a Key>,
        now: Monotonic,
    ) -> Granted {
        let mut granted = Granted::new();
        if self.leases >= LEASES_MAX {
            self.end_all_over(now);
        }
        self.end_if_over(session, now);
        let Some(known) = self.sessions.get_mut(&session) else {
            return granted;
        };
        let is_told = known.acknowledged >= known.begun && known.recalled.is_empty();
        if !is_told || self.unnoted > 0 {
            return granted;
        }
        known.until = now + LEASE;
        let is_broken = self.mutant.breaks(Broken::GrantsDuringRecall);
        for group in keys.map(Key::group) {
            let stripe = &mut self.stripes[usize::from(stripe_of(group))];
            let rests = stripe.recalled.is_some_and(|at| now.since(at) < REST);
            if stripe.writing > 0 && !is_broken {
                continue;
            }
            if !known.leased.contains(group) {
                if rests && !is_broken || self.leases >= LEASES_MAX {
                    continue;
                }
                // A copy: the call's own bytes are part of its frame.
                let group = Bytes::copy_from_slice(group);
                known.leased.insert(group.clone());
                self.holders.entry(group).or_default().insert(session);
                stripe.leases += 1;
                self.leases += 1;
            }
            granted.insert(group.clone(), stripe.begun);
        }
        granted
    }

    /// Those of `granted` on which the session still has leases, and that no proposal has written
    /// since.
    pub(crate) fn still_held(&self, session: SessionId, granted: Granted) -> Vec<Bytes> {
        let Some(known) = self.sessions.get(&session) else {
            return Vec::new();
        };
        let is_broken = self.mutant.breaks(Broken::GrantsDuringRecall);
        let is_held = |group: &Bytes, begun: u32| {
            let stripe = &self.stripes[usize::from(stripe_of(group))];
            known.leased.contains(group) && (stripe.begun == begun || is_broken)
        };
        let held = granted.into_iter();
        let held = held.filter(|(group, begun)| is_held(group, *begun));
        held.map(|(group, _)| group).collect()
    }

    /// Ends all leases of a session.
    pub(crate) fn end_session(&mut self, session: SessionId) {
        if let Some(known) = self.sessions.remove(&session) {
            let groups = known.leased.into_iter();
            self.forget(session, groups.chain(known.recalled.into_keys()));
        }
    }

    fn end_if_over(&mut self, session: SessionId, now: Monotonic) {
        let known = self.sessions.get(&session);
        if known.is_some_and(|known| known.until <= now) {
            self.end_session(session);
        }
    }

    fn end_all_over(&mut self, now: Monotonic) {
        let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.end_if_over(session, now);
        }
    }

    /// The session holds these groups no more.
    fn forget(&mut self, session: SessionId, groups: impl IntoIterator<Item = Bytes>) {
        for group in groups {
            self.stripes[usize::from(stripe_of(&group))].leases -= 1;
            self.leases -= 1;
            if let Some(holders) = self.holders.get_mut(&group) {
                holders.remove(&session);
                if holders.is_empty() {
                    self.holders.remove(&group);
                }
            }
        }
    }
}

/// The groups that a write changes.
fn groups_of(write: &Write) -> impl Iterator<Item = &Bytes> {
    let (one, other) = match write {
        Write::Put { key, .. }
        | Write::Delete { key }
        | Write::Patch { key, .. }
        | Write::Add { key, .. }
        | Write::Max { key, .. } => (key, None),
        Write::Append { length, blocks, .. } => (length, Some(blocks)),
    };
    std::iter::once(one).chain(other).map(Key::group)
}

fn stripe_of(group: &Bytes) -> u16 {
    (crc32fast::hash(group) % STRIPES as u32) as u16
}
