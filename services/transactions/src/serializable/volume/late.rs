//! Queries of change rows: verdicts on proposals that are older than the validator's memory, and
//! keys that were written since a slot.

use ports::key_value::Scan;

use super::Volume;
use crate::{
    Error, Result,
    serializable::{
        model::{Proposal, Slot, Verdict},
        registry::record,
        rows::{self, ChangeRow, LateCheck},
    },
};

/// Change rows in one page.
const PAGE_CHANGES: usize = 256;

impl Volume {
    /// The verdict on `proposal` that the change rows up to `until` tell, which are all installed.
    pub(super) async fn late_verdict(
        &self,
        proposal: &Proposal,
        until: Slot,
    ) -> Result<Option<Verdict>> {
        let mut check = LateCheck::new(proposal);
        self.each_change(proposal.at, until, |row| {
            check.add(&row);
            true
        })
        .await?;
        let verdict = check.verdict();
        // Checked after they are read: rows may have been collected meanwhile.
        if verdict.is_none() && proposal.at < self.state().installed.changes_from {
            return Ok(Some(Verdict::SnapshotTooOld));
        }
        Ok(verdict)
    }

    /// Calls `take` with the change rows after `after` and up to `until`, until it returns false.
    /// Returns whether it saw all of them.
    pub(super) async fn each_change(
        &self,
        after: Slot,
        until: Slot,
        mut take: impl FnMut(ChangeRow) -> bool,
    ) -> Result<bool> {
        if after >= until {
            return Ok(true);
        }
        let sort = |slot: Slot| rows::change(self.keyspace, Slot(slot.0 + 1), 0).sort();
        let mut scan = Scan {
            partition: rows::changes(self.keyspace),
            from: sort(after),
            until: Some(sort(until)),
            items_max: PAGE_CHANGES,
        };
        loop {
            let page = self.store.scan(&scan).await?.value;
            for (sort, item) in &page.items {
                if rows::change_slot(sort).is_none() {
                    return Err(Error::Corrupt("a change row of a volume".into()));
                }
                if !take(ChangeRow::decode(record(item)?)?) {
                    return Ok(false);
                }
            }
            match page.next {
                Some(next) => scan.from = next,
                None => return Ok(true),
            }
        }
    }
}
