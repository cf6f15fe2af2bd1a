//! The sizes of a decision: in its session's row, as a message, and as an entry of a slot.
//!
//! A row, a message and a slot each fit into one item. A decision that does not would be refused by
//! the store at every attempt, and would block its session, or the distributor, for ever. A multi
//! and the end of a session can be of any size, so they are measured before they are decided. An
//! entry holds the ACL of each changed znode, for the watches that may see the change.

use std::collections::BTreeMap;

use super::Batch;
use crate::{
    path,
    records::{Decided, Effect, NodeState, Touched},
};

/// What a state or an answer takes beside its path and ACL, in bytes.
const FIXED_BYTES: usize = 96;

/// What an event or a deleted znode takes beside its path and ACL, in bytes.
const SHORT_BYTES: usize = 32;

impl Batch<'_> {
    /// Whether the next request with this plan needs more than `bytes_max` anywhere.
    pub(in crate::writer) fn is_too_large(
        &self,
        (effect, touched): &(Effect, Vec<Touched>),
        bytes_max: usize,
    ) -> bool {
        let decided = touched_len(touched) + effect_len(effect);
        let mut acls = BTreeMap::new();
        decided.max(self.entry_len(effect, &mut acls)) > bytes_max
    }

    /// Whether the next refusal touches more than `bytes_max`.
    pub(in crate::writer) fn is_refusal_too_large(&self, bytes_max: usize) -> bool {
        touched_len(&self.touched_by_refusal(self.next_id())) > bytes_max
    }

    /// The answers and events of an effect. `acls` has the lengths of the ACLs of created znodes.
    fn entry_len<'effect>(
        &self,
        effect: &'effect Effect,
        acls: &mut BTreeMap<&'effect str, usize>,
    ) -> usize {
        match effect {
            Effect::Create { path, acl, .. } => {
                acls.insert(path, acl.len());
                FIXED_BYTES + 2 * path.len() + self.events_len(path, acls)
            }
            Effect::Delete { paths } | Effect::Close { paths } => {
                paths.iter().map(|path| self.events_len(path, acls)).sum()
            }
            Effect::SetData { path, .. } | Effect::SetAcl { path, .. } => {
                FIXED_BYTES + path.len() + self.acl_len(path, acls)
            }
            Effect::Multi(parts) => parts
                .iter()
                .map(|part| self.entry_len(&part.effect, acls))
                .sum(),
            Effect::Check | Effect::MultiFailed { .. } | Effect::Attach => FIXED_BYTES,
        }
    }

    /// The events of a znode that comes or goes, and of its parent.
    fn events_len(&self, path: &str, acls: &BTreeMap<&str, usize>) -> usize {
        let parent = path::split(path).map_or("/", |(parent, _)| parent);
        let of_acls = self.acl_len(path, acls) + self.acl_len(parent, acls);
        2 * (SHORT_BYTES + path.len()) + of_acls
    }

    fn acl_len(&self, path: &str, acls: &BTreeMap<&str, usize>) -> usize {
        let len = |state: &Option<NodeState>| state.as_ref().map_or(0, |state| state.acl.len());
        let held = self.held.get(path);
        let held = held.map_or(0, |held| len(&held.found).max(len(&held.becomes)));
        held.max(acls.get(path).copied().unwrap_or_default())
    }
}

/// The encoded length of an outcome.
pub(super) fn decided_len(decided: &Decided) -> usize {
    let effect = decided.outcome.as_ref().map_or(0, effect_len);
    FIXED_BYTES + effect + touched_len(&decided.touched)
}

fn touched_len(touched: &[Touched]) -> usize {
    let of_state = |state: &NodeState| FIXED_BYTES + state.acl.len();
    let of_one = |one: &Touched| one.becomes.as_ref().map_or(SHORT_BYTES, of_state);
    touched.iter().map(|one| one.path.len() + of_one(one)).sum()
}

fn effect_len(effect: &Effect) -> usize {
    match effect {
        Effect::Create { path, data, acl } => path.len() + data.inline_len() + acl.len(),
        Effect::SetData { path, data } => path.len() + data.inline_len(),
        Effect::SetAcl { path, acl } => path.len() + acl.len(),
        Effect::Delete { paths } | Effect::Close { paths } => {
            paths.iter().map(|path| 4 + path.len()).sum()
        }
        Effect::Multi(parts) => parts
            .iter()
            .map(|part| effect_len(&part.effect) + touched_len(&part.touched))
            .sum(),
        Effect::Check | Effect::MultiFailed { .. } | Effect::Attach => 0,
    }
}
