//! The keys of all rows. A workflow has one partition, so a transaction within a partition
//! suffices.
//!
//! | sort key | row |
//! | --- | --- |
//! | `r` run | the run: its status and outcome |
//! | `i` run | its input and definition |
//! | `a` run | none: the run is active |
//! | `f` end, run | none: the run ended at this time |
//! | `x` run | how the run failed, if the far store has permanently refused its own rows |
//! | `j` run, 0, path | a step that has committed, or is about to |
//!
//! One more partition lists the workflows that have rows. Two further partitions exist near: one
//! lists the far stores of each workflow, the other the runs that a process is asked to end. A
//! shard has two more: functions' state, and the numbered rows of the outbox.

use bytes::Bytes;
use ports::{Key, key_value::Scan};
use sha2::{Digest, Sha256};
use transactions::model::TransactionId;

use crate::model::StepAddress;

/// The partition that lists workflows.
const WORKFLOWS: &[u8] = b"w";
/// The prefix of the partitions of workflows.
const PARTITION: &[u8] = b"w/";
/// The partition that lists the far stores of each workflow.
const FAR_STORES: &[u8] = b"h";
/// The partition of the store's identity.
const IDENTITY: &[u8] = b"m";
/// The partition that lists the runs that a node is asked to end.
const CANCELS: &[u8] = b"c";
/// In a shard: functions' state.
const STATE: &[u8] = b"s";
/// In a shard: messages of committed steps that are not sent yet.
const OUTBOX: &[u8] = b"o";

const RUN: u8 = b'r';
const GIVEN: u8 = b'i';
const ACTIVE: u8 = b'a';
const FINISHED: u8 = b'f';
const JOURNAL: u8 = b'j';
const REFUSED: u8 = b'x';

/// Rows in one page of a scan.
const PAGE_ROWS: usize = 200;
/// The longest run id, in bytes.
pub(crate) const RUN_ID_BYTES_MAX: usize = 128;

fn partition(workflow: &str) -> Bytes {
    [PARTITION, workflow.as_bytes()].concat().into()
}

fn key(workflow: &str, kind: u8, parts: &[&[u8]]) -> Key {
    Key::new(partition(workflow), [&[kind], &parts.concat()[..]].concat())
}

/// The keys of a partition that begin with `prefix`.
fn scan(partition: Bytes, prefix: &[u8], items_max: usize) -> Scan {
    let kept = prefix.iter().rposition(|byte| *byte < u8::MAX);
    let until = kept.map(|kept| {
        let mut until = prefix[..=kept].to_vec();
        until[kept] += 1;
        until.into()
    });
    Scan {
        partition,
        from: Bytes::copy_from_slice(prefix),
        until,
        items_max,
    }
}

fn scan_kind(workflow: &str, kind: u8) -> Scan {
    scan(partition(workflow), &[kind], PAGE_ROWS)
}

/// The entry of a workflow that has rows.
pub(crate) fn listed(workflow: &str) -> Key {
    Key::new(WORKFLOWS, workflow.as_bytes())
}

pub(crate) fn all_listed() -> Scan {
    Scan::partition(WORKFLOWS, PAGE_ROWS)
}

/// The identity of a store; see [`placement`](crate::placement).
pub(crate) fn store_identity() -> Key {
    Key::new(IDENTITY, IDENTITY)
}

/// The entry of the far store at `place` for a workflow.
pub(crate) fn far_store(workflow: &str, place: &str) -> Key {
    let sort = [workflow.as_bytes(), &[0], place.as_bytes()].concat();
    Key::new(FAR_STORES, sort)
}

pub(crate) fn all_far_stores() -> Scan {
    Scan::partition(FAR_STORES, PAGE_ROWS)
}

pub(crate) fn far_stores_of(workflow: &str) -> Scan {
    let prefix = [workflow.as_bytes(), &[0]].concat();
    scan(Bytes::from_static(FAR_STORES), &prefix, PAGE_ROWS)
}

/// The workflow in such a row's key.
pub(crate) fn workflow_of(sort: &[u8]) -> Option<String> {
    let end = sort.iter().position(|byte| *byte == 0)?;
    String::from_utf8(sort[..end].to_vec()).ok()
}

/// Asks the node with this number to end a run.
pub(crate) fn cancel(node: u32, workflow: &str, run: &str) -> Key {
    let (node, workflow, run) = (node.to_be_bytes(), workflow.as_bytes(), run.as_bytes());
    Key::new(CANCELS, [&node, workflow, &[0], run].concat())
}

/// All runs that a node is asked to end.
pub(crate) fn cancels(node: u32) -> Scan {
    let partition = Bytes::from_static(CANCELS);
    scan(partition, &node.to_be_bytes(), PAGE_ROWS)
}

/// The workflow and the run in such a row's key.
pub(crate) fn cancelled_of(sort: &[u8]) -> Option<(String, String)> {
    let names = sort.get(4..)?;
    let workflow = workflow_of(names)?;
    let run = names.get(workflow.len() + 1..)?.to_vec();
    Some((workflow, String::from_utf8(run).ok()?))
}

pub(crate) fn given(workflow: &str, run: &str) -> Key {
    key(workflow, GIVEN, &[run.as_bytes()])
}

pub(crate) fn run(workflow: &str, run: &str) -> Key {
    key(workflow, RUN, &[run.as_bytes()])
}

/// The runs of a workflow after `after`.
pub(crate) fn runs(workflow: &str, after: Option<&str>, items_max: usize) -> Scan {
    let mut scan = scan(partition(workflow), &[RUN], items_max);
    if let Some(after) = after {
        scan.from = [&[RUN], after.as_bytes(), &[0]].concat().into();
    }
    scan
}

pub(crate) fn active(workflow: &str, run: &str) -> Key {
    key(workflow, ACTIVE, &[run.as_bytes()])
}

pub(crate) fn all_active(workflow: &str) -> Scan {
    scan_kind(workflow, ACTIVE)
}

pub(crate) fn finished(workflow: &str, ended_ms: u64, run: &str) -> Key {
    let ended = ended_ms.to_be_bytes();
    key(workflow, FINISHED, &[&ended, run.as_bytes()])
}

pub(crate) fn all_finished(workflow: &str) -> Scan {
    scan_kind(workflow, FINISHED)
}

pub(crate) fn refused(workflow: &str, run: &str) -> Key {
    key(workflow, REFUSED, &[run.as_bytes()])
}

/// The end and the id in the key of an ended run.
pub(crate) fn finished_of(sort: &[u8]) -> Option<(u64, String)> {
    let (ended, run) = sort.get(1..)?.split_first_chunk::<8>()?;
    let run = String::from_utf8(run.to_vec()).ok()?;
    Some((u64::from_be_bytes(*ended), run))
}

/// The id in the key of a run or of an active run.
pub(crate) fn run_of(sort: &[u8]) -> Option<String> {
    String::from_utf8(sort.get(1..)?.to_vec()).ok()
}

pub(crate) fn step(step: StepAddress<'_>) -> Key {
    let (run, path) = (step.run.as_bytes(), step.path.as_bytes());
    key(step.workflow, JOURNAL, &[run, &[0], path])
}

pub(crate) fn steps(workflow: &str, run: &str) -> Scan {
    let prefix = [&[JOURNAL], run.as_bytes(), &[0]].concat();
    scan(partition(workflow), &prefix, PAGE_ROWS)
}

/// The key of a row of a workflow that a scan has found.
pub(crate) fn found(workflow: &str, sort: &[u8]) -> Key {
    Key::new(partition(workflow), sort)
}

/// The path in the key of a step.
pub(crate) fn path_of(run: &str, sort: &[u8]) -> Option<String> {
    String::from_utf8(sort.get(run.len() + 2..)?.to_vec()).ok()
}

/// In a shard: the item of a key of functions' state.
pub(crate) fn state(name: &[u8]) -> Key {
    Key::new(STATE, name)
}

/// In a shard: one row of the outbox.
pub(crate) fn unsent(number: u64) -> Key {
    Key::new(OUTBOX, Bytes::copy_from_slice(&number.to_be_bytes()))
}

pub(crate) fn all_unsent(items_max: usize) -> Scan {
    Scan::partition(OUTBOX, items_max)
}

/// The number in the key of such a row.
pub(crate) fn unsent_of(sort: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(sort.try_into().ok()?))
}

/// In a shard: the keys of functions' state that begin with `prefix`, after `after`.
pub(crate) fn state_keys(prefix: &Bytes, after: Option<&Bytes>, items_max: usize) -> Scan {
    let mut scan = scan(Bytes::from_static(STATE), prefix, items_max);
    let after = after.map(|after| Bytes::from([after, &[0][..]].concat()));
    scan.from = after.map_or(prefix.clone(), |after| after.max(prefix.clone()));
    scan
}

/// A digest of a step's address. The time of the begin is part of it: a run may begin again under
/// the id of a forgotten run, and names of transactions are remembered for longer.
fn digest(step: StepAddress<'_>) -> String {
    let mut hash = Sha256::new();
    for part in [step.workflow, step.run, step.path] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.update(step.began_ms.to_be_bytes());
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    hash.finalize()
        .iter()
        .take(16)
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

/// The prefix of the names of transactions in which steps commit. Clients may not use it.
pub const RESERVED_NAMES: &str = "workflow-";

/// The transaction in which a step commits; with the empty path, that of a whole atomic run.
pub(crate) fn transaction(step: StepAddress<'_>) -> TransactionId {
    let name = [RESERVED_NAMES, &digest(step)].concat();
    TransactionId::new(name).expect("short and plain")
}

/// The id prefix of messages that one attempt commits ahead of its step. The next attempt may send
/// other messages in their positions.
pub(crate) fn ahead(step: StepAddress<'_>, attempt: u64) -> TransactionId {
    let path = &format!("{} {attempt:x}", step.path);
    transaction(StepAddress { path, ..step })
}

/// The id that all attempts of a step show their function. Ids that its code derives from it stay
/// the same.
pub(crate) fn request_id(step: StepAddress<'_>) -> String {
    let digits = digest(step);
    // In the form of a random UUID (RFC 9562, version 4).
    let variant = char::from(b"89ab"[usize::from(digits.as_bytes()[16]) & 3]);
    format!(
        "{}-{}-4{}-{variant}{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[13..16],
        &digits[17..20],
        &digits[20..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<'a>(run: &'a str, began_ms: u64, path: &'a str) -> StepAddress<'a> {
        StepAddress {
            workflow: "w",
            run,
            began_ms,
            driver: None,
            path,
        }
    }

    #[test]
    fn keys_are_decoded_and_belong_to_one_run() {
        assert_eq!(
            path_of("run", &step(at("run", 1, "0.1")).sort()),
            Some("0.1".to_owned())
        );
        assert_eq!(
            finished_of(&finished("w", 7, "run").sort()),
            Some((7, "run".to_owned()))
        );
        assert_eq!(run_of(&run("w", "run").sort()), Some("run".to_owned()));
        assert_eq!(
            workflow_of(&far_store("w", "redis://host").sort()),
            Some("w".to_owned())
        );
        assert_eq!(unsent_of(&unsent(7).sort()), Some(7));
        assert_eq!(
            cancelled_of(&cancel(7, "w", "run").sort()),
            Some(("w".to_owned(), "run".to_owned()))
        );
        let is_its = |key: Key| {
            let Scan { from, until, .. } = far_stores_of("w");
            key.sort() >= from && Some(key.sort()) < until
        };
        assert!(is_its(far_store("w", "redis://host")) && !is_its(far_store("w2", "redis://host")));
        let Scan { from, until, .. } = steps("w", "run");
        let is_within = |key: Key| key.sort() >= from && Some(key.sort()) < until;
        assert!(is_within(step(at("run", 1, "9"))) && !is_within(step(at("run2", 1, "0"))));
        assert!(!is_within(step(at("ru", 1, "n0"))));
    }

    #[test]
    fn a_scan_of_a_prefix_has_its_keys_and_no_others() {
        let keys: Vec<Bytes> = ["", "a", "a\0", "ab", "b"]
            .map(|key| Bytes::from(key.to_owned()))
            .into();
        let all = keys.iter().cloned().chain([
            Bytes::from_static(b"\xff"),
            Bytes::from_static(b"\xff\xffz"),
        ]);
        let all: Vec<Bytes> = all.collect();
        for prefix in &all {
            for after in [None].into_iter().chain(all.iter().map(Some)) {
                let Scan { from, until, .. } = state_keys(prefix, after, 1);
                for key in &all {
                    let is_within = *key >= from && until.as_ref().is_none_or(|until| key < until);
                    let is_asked = key.starts_with(prefix) && after.is_none_or(|after| key > after);
                    // After all keys of a prefix the range is empty, wherever it begins.
                    let is_empty = until.as_ref().is_some_and(|until| *until <= from);
                    assert_eq!(
                        is_within && !is_empty,
                        is_asked,
                        "{prefix:?} {after:?} {key:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn ids_are_unique_and_stable() {
        let id = request_id(at("run", 1, "0"));
        assert_eq!((id.len(), &id[14..15]), (36, "4"));
        assert_eq!(id, request_id(at("run", 1, "0")));
        let other = StepAddress {
            workflow: "wr",
            ..at("un", 1, "0")
        };
        assert_ne!(id, request_id(other));
        assert_ne!(
            transaction(at("run", 1, "0")),
            transaction(at("run", 1, "1"))
        );
        assert_ne!(
            transaction(at("run", 1, "0")),
            transaction(at("run", 2, "0")),
            "begun again"
        );
        assert_ne!(
            ahead(at("run", 1, "0"), 7),
            transaction(at("run", 1, "0")),
            "commits with its step"
        );
        assert_ne!(
            ahead(at("run", 1, "0"), 7),
            ahead(at("run", 1, "0"), 8),
            "another attempt"
        );
    }
}
