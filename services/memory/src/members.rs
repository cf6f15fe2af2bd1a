//! The servers of one store, and the one that owns each key.
//!
//! Each server renews a row ([`BEAT`]). The others watch it by their own clocks, so no two clocks are
//! compared. A server whose row did not change for [`LEASE`] owns no key. After [`GONE`] it counts as
//! gone, and another server adopts its rows ([`crate::adoption`]).
//!
//! The owner of a key is the live server with the highest hash of its address and the key (rendezvous
//! hashing). A server that comes or goes moves its own keys alone. Two servers may take different
//! ones for the owner for a while: ownership brings the requests of a key to one memory, and nothing
//! that is promised depends on it (M1).

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use ports::Monotonic;

use crate::{
    Result,
    storage::{
        members,
        own::{MemberId, Own},
        rows::MemberRow,
        table::Table,
    },
};

/// The time between two renewals.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// How long a server owns keys after its last renewal.
const LEASE: Duration = Duration::from_secs(5);
/// When a server counts as gone after its last renewal.
const GONE: Duration = Duration::from_mins(1);

/// The servers as this one knows them.
#[derive(Debug)]
pub(crate) struct Members {
    table: Table,
    own: Arc<Own>,
    beats: AtomicU64,
    seen: Mutex<BTreeMap<MemberId, Seen>>,
}

#[derive(Debug)]
struct Seen {
    row: MemberRow,
    /// When this server saw the row change for the last time.
    changed: Monotonic,
}

impl Members {
    pub(crate) fn new(table: Table, own: Arc<Own>) -> Self {
        Self {
            table,
            own,
            beats: AtomicU64::new(0),
            seen: Mutex::default(),
        }
    }

    /// Becomes a member that others reach at `address`. The first call decides the address.
    pub(crate) async fn join(&self, address: String) -> Result<()> {
        let _ = self.own.address.set(address);
        self.renew().await?;
        self.watch().await
    }

    /// Renews this server's row and watches the others, until it is dropped.
    pub(crate) async fn run(&self) {
        loop {
            let renewed = self.renew().await;
            if let Err(error) = renewed.and(self.watch().await) {
                tracing::debug!(%error, "the servers of the store cannot be read yet");
            }
            self.table.clock.sleep(BEAT).await;
        }
    }

    async fn renew(&self) -> Result<()> {
        let row = MemberRow {
            address: self.own.address.get().cloned().unwrap_or_default(),
            beat: self.beats.fetch_add(1, Ordering::Relaxed),
        };
        if row.beat > 0 {
            if members::renew(&self.table, self.own.id(), &row).await? {
                return Ok(());
            }
            tracing::warn!(
                "other servers took this one for gone; uploads that were under way may fail"
            );
            self.own.set_id(MemberId(self.table.unique()));
        }
        members::begin(&self.table, self.own.id(), &row).await
    }

    async fn watch(&self) -> Result<()> {
        let rows = members::all(&self.table).await?;
        let now = self.table.clock.monotonic();
        let mut seen = self.seen.lock();
        let mut before = std::mem::take(&mut *seen);
        seen.extend(rows.into_iter().map(|(id, row)| {
            let same = before.remove(&id).filter(|one| one.row == row);
            let changed = same.map_or(now, |one| one.changed);
            (id, Seen { row, changed })
        }));
        Ok(())
    }

    /// The address of the server that owns the key; none: it is this one.
    pub(crate) fn owner(&self, bucket: &str, key: &str) -> Option<String> {
        let own = self.own.address.get()?;
        let now = self.table.clock.monotonic();
        let seen = self.seen.lock();
        let others = seen
            .values()
            .filter(|one| now.since(one.changed) < LEASE)
            .map(|one| &one.row.address);
        let owner = others
            .chain([own])
            .max_by_key(|address| (weight(address, bucket, key), *address))?;
        (owner != own).then(|| owner.clone())
    }

    /// Waits until the server at `address` does not renew its row any more.
    pub(crate) async fn lapsed(&self, address: &str) {
        loop {
            let now = self.table.clock.monotonic();
            let is_live = self
                .seen
                .lock()
                .values()
                .any(|one| one.row.address == address && now.since(one.changed) < LEASE);
            if !is_live {
                return;
            }
            self.table.clock.sleep(BEAT).await;
        }
    }

    /// The servers that are gone, for the first live server alone.
    pub(crate) fn gone(&self) -> Vec<MemberId> {
        let (now, own) = (self.table.clock.monotonic(), self.own.id());
        let seen = self.seen.lock();
        let live = |one: &Seen| now.since(one.changed) < LEASE;
        let first = seen.iter().find(|(_, one)| live(one));
        if first.is_none_or(|(id, _)| *id != own) {
            return Vec::new();
        }
        let gone = seen
            .iter()
            .filter(|(id, one)| **id != own && now.since(one.changed) >= GONE);
        gone.map(|(id, _)| *id).collect()
    }
}

/// The weight of a server for a key: FNV-1a, whose bits are mixed in the end.
fn weight(address: &str, bucket: &str, key: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in [address, bucket, key] {
        for byte in part.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner<'a>(servers: &[&'a str], key: &str) -> &'a str {
        let owner = servers.iter().max_by_key(|one| weight(one, "b", key));
        owner.expect("a server")
    }

    #[test]
    fn keys_are_spread_evenly_and_a_server_that_goes_moves_its_own_alone() {
        let all = ["10.0.0.1:7601", "10.0.0.2:7601", "10.0.0.3:7601"];
        let mut counts = BTreeMap::new();
        for number in 0..9000 {
            let key = format!("photos/{number}");
            let before = owner(&all, &key);
            *counts.entry(before).or_insert(0) += 1;
            let after = owner(&all[..2], &key);
            assert!(before == all[2] || before == after, "{key} moved");
        }
        assert!(
            counts.values().all(|count| (2700..3300).contains(count)),
            "{counts:?}"
        );
    }
}
