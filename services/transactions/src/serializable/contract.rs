//! The behaviour of every [`VolumeStore`]: one suite for all implementations.
//!
//! Clients of a random history interleave. Afterwards a sequential oracle, a map of keys to bytes,
//! executes the committed proposals in the order of their slots. It must see the
//! values that the clients saw.
//!
//! Other crates reach it with the feature `contract`, in their tests alone.

pub mod model_volume;
pub mod model_volumes;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures_util::future::{Either, join, select};

use crate::serializable::{
    model::{
        At, Changed, Groups, Is, Key, KeyRange, PageLimits, Patch, PinName, Predicate, Proposal,
        ProposalId, Refusal, SessionId, Slot, StageId, Verdict, Write, Writes, encode_part,
        number_in,
    },
    volume_store::VolumeStore,
};

/// The block size of appends here: small, so that they cross blocks.
const BLOCK_BYTES: u32 = 4;

/// Names and values, in order.
type Names = Vec<(Bytes, Vec<u8>)>;

/// An empty volume for each call.
pub type Open<'a> = &'a dyn Fn() -> Arc<dyn VolumeStore>;

/// A key.
pub fn key(group: &'static str, name: &'static str) -> Key {
    Key::new(group, name).expect("short")
}

/// The id of attempt `attempt` of transaction `number`.
pub fn id(number: u64, attempt: u64) -> ProposalId {
    ProposalId::new(number.to_be_bytes().to_vec(), attempt).expect("short")
}

/// Puts `value` at `key`.
pub fn put(key: &Key, value: impl Into<Bytes>) -> Write {
    Write::Put {
        key: key.clone(),
        value: value.into(),
    }
}

/// A proposal that read nothing.
pub fn blind(at: Slot, number: u64, writes: Vec<Write>) -> Proposal {
    Proposal {
        at,
        id: id(number, 0),
        reads: Vec::new(),
        predicates: Vec::new(),
        writes: Writes::Inline(writes),
    }
}

/// Commits at the tail, and returns the verdict.
pub async fn commit(volume: &dyn VolumeStore, proposal: Proposal) -> Verdict {
    volume.commit(proposal).await.expect("a verdict").value
}

/// Commits, and returns the slot and the positions.
pub async fn committed(volume: &dyn VolumeStore, proposal: Proposal) -> (Slot, Vec<u64>) {
    match commit(volume, proposal).await {
        Verdict::Committed { slot, appended_at } => (slot, appended_at),
        other => panic!("{other:?}"),
    }
}

/// The value at the tail.
pub async fn value(volume: &dyn VolumeStore, key: &Key) -> Option<Bytes> {
    let found = volume.get_many(At::Tail, std::slice::from_ref(key)).await;
    found.expect("a read").value.found.remove(0)
}

/// The oracle: executes one proposal after the other.
#[derive(Debug, Default)]
pub struct Oracle(
    /// The values.
    pub BTreeMap<Key, Vec<u8>>,
);

impl Oracle {
    fn number(&self, key: &Key) -> Option<u64> {
        number_in(self.0.get(key).map(|value| value.clone().into()).as_ref())
    }

    fn patch(&mut self, key: Key, offset: usize, data: &[u8]) {
        let value = self.0.entry(key).or_default();
        let end = offset + data.len();
        value.resize(value.len().max(end), 0);
        value[offset..end].copy_from_slice(data);
    }

    /// Executes a write; returns where an append went.
    pub fn write(&mut self, write: &Write) -> Option<u64> {
        match write.clone() {
            Write::Put { key, value } => drop(self.0.insert(key, value.to_vec())),
            Write::Delete { key } => drop(self.0.remove(&key)),
            Write::Patch { key, offset, data } => {
                let data = match data {
                    Patch::Bytes(bytes) => bytes.to_vec(),
                    Patch::Zeros(count) => vec![0; count as usize],
                };
                self.patch(key, offset as usize, &data);
            }
            Write::Add { key, delta } => {
                let sum = self.number(&key).expect("a number");
                let sum = sum.checked_add_signed(delta).expect("in range");
                self.0.insert(key, sum.to_be_bytes().to_vec());
            }
            Write::Max { key, value } => {
                if self.number(&key).expect("a number") < value {
                    self.0.insert(key, value.to_be_bytes().to_vec());
                }
            }
            Write::Append {
                length,
                blocks,
                block_bytes,
                data,
            } => {
                let start = self.number(&length).expect("a number");
                for (position, byte) in (start..).zip(data) {
                    let (block, offset) = (
                        position / u64::from(block_bytes),
                        position % u64::from(block_bytes),
                    );
                    let block = blocks.block(block).expect("short");
                    self.patch(block, offset as usize, &[byte]);
                    let end = position + 1;
                    self.0.insert(length.clone(), end.to_be_bytes().to_vec());
                }
                return Some(start);
            }
        }
        None
    }

    fn in_range(&self, range: &KeyRange) -> Names {
        let inside = self.0.iter().filter(|(key, _)| range.contains(key));
        inside
            .map(|(key, value)| (key.name().clone(), value.clone()))
            .collect()
    }
}

/// A transaction of a random history.
#[derive(Debug)]
struct Client {
    proposal: Proposal,
    writes: Vec<Write>,
    saw: Vec<(Key, Option<Bytes>)>,
    scanned: Vec<(KeyRange, Names)>,
    /// The last slot that was committed before it began.
    after: Slot,
    committed: Option<(Slot, Vec<u64>)>,
}

/// The keys of random histories: numbers, values, and the blocks of an append.
pub fn some_key(random: &mut fastrand::Rng) -> Key {
    match random.u8(..4) {
        0 => some_number(random),
        1 => {
            let blocks = key("b", "");
            blocks.block(random.u64(0..3)).expect("short")
        }
        _ => key("d", ["a", "b", "c", "d"][random.usize(..4)]),
    }
}

/// A key of a number.
pub fn some_number(random: &mut fastrand::Rng) -> Key {
    key("i", ["n", "s"][random.usize(..2)])
}

/// A write that no state refuses.
pub fn some_write(random: &mut fastrand::Rng) -> Write {
    let bytes = |random: &mut fastrand::Rng| {
        let count = random.usize(0..7);
        std::iter::repeat_with(|| random.u8(1..))
            .take(count)
            .collect::<Bytes>()
    };
    let name = ["a", "b", "c", "d"][random.usize(..4)];
    match random.u8(..7) {
        0 => put(&key("d", name), bytes(random)),
        1 => put(
            &some_number(random),
            random.u64(0..20).to_be_bytes().to_vec(),
        ),
        2 => Write::Delete {
            key: some_key(random),
        },
        3 => Write::Patch {
            key: key("d", name),
            offset: random.u32(0..6),
            data: if random.bool() {
                Patch::Bytes(bytes(random))
            } else {
                Patch::Zeros(random.u32(0..5))
            },
        },
        4 => Write::Add {
            key: some_number(random),
            delta: random.i64(0..3),
        },
        5 => Write::Max {
            key: some_number(random),
            value: random.u64(0..20),
        },
        _ => Write::Append {
            length: key("i", "s"),
            blocks: key("b", ""),
            block_bytes: BLOCK_BYTES,
            data: bytes(random),
        },
    }
}

/// A range of values.
pub fn some_range(random: &mut fastrand::Rng) -> KeyRange {
    let names = ["", "a", "b", "c"];
    let (from, until) = (random.usize(..4), random.usize(..4));
    let until = random.bool().then(|| Bytes::from(names[until]));
    KeyRange::new("d", names[from], until).expect("short")
}

/// V1, V4, V5: the committed transactions are equivalent to a sequential execution in the order of
/// slots. No transaction precedes another that had ended when it began.
pub async fn histories_are_strictly_serializable(open: Open<'_>, seeds: u64) {
    let mut counts = [0; 2];
    for seed in 0..seeds {
        let (volume, random) = (open(), &mut fastrand::Rng::with_seed(seed));
        let (mut clients, mut ended) = (Vec::<Client>::new(), Vec::<Client>::new());
        let mut last = Slot(0);
        for number in 0..80 {
            if clients.len() < 4 {
                clients.push(begin(&*volume, number, last).await);
            }
            let place = random.usize(..clients.len());
            if random.u8(..4) > 0 {
                step(&*volume, random, &mut clients[place]).await;
                continue;
            }
            let mut client = clients.swap_remove(place);
            let verdict = commit(&*volume, client.proposal.clone()).await;
            counts[usize::from(matches!(verdict, Verdict::Committed { .. }))] += 1;
            if let Verdict::Committed { slot, appended_at } = verdict {
                client.committed = Some((slot, appended_at));
                last = last.max(slot);
                ended.push(client);
            } else {
                let is_blind = client.proposal.reads.is_empty();
                let is_blind = is_blind && client.proposal.predicates.is_empty();
                assert!(!is_blind, "seed {seed}: {verdict:?} {client:?}");
            }
        }
        let state = check(seed, ended);
        for (key, expected) in &state.0 {
            let found = value(&*volume, key).await;
            assert_eq!(
                found.as_deref(),
                Some(&expected[..]),
                "seed {seed}: {key:?}"
            );
        }
        let whole = KeyRange::all("d").expect("short");
        let limits = PageLimits::default();
        let page = volume.scan(At::Tail, &whole, limits).await.expect("a page");
        let count = page.value.entries.len();
        assert_eq!(count, state.in_range(&whole).len(), "seed {seed}");
    }
    assert!(counts.iter().all(|count| *count > seeds), "{counts:?}");
}

async fn begin(volume: &dyn VolumeStore, number: u64, after: Slot) -> Client {
    let at = volume.snapshot().await.expect("a snapshot").value.slot;
    Client {
        proposal: blind(at, number, Vec::new()),
        writes: Vec::new(),
        saw: Vec::new(),
        scanned: Vec::new(),
        after,
        committed: None,
    }
}

/// One read, scan, comparison or write.
async fn step(volume: &dyn VolumeStore, random: &mut fastrand::Rng, client: &mut Client) {
    let Proposal {
        at,
        reads,
        predicates,
        writes,
        ..
    } = &mut client.proposal;
    match random.u8(..6) {
        0 => {
            let key = some_key(random);
            let found = volume
                .get_many(At::Slot(*at), std::slice::from_ref(&key))
                .await;
            let found = found.expect("a snapshot").value.found.remove(0);
            reads.push(key.clone());
            client.saw.push((key, found));
        }
        1 => {
            let range = some_range(random);
            let limits = PageLimits::default();
            let page = volume.scan(At::Slot(*at), &range, limits).await;
            let entries = page.expect("a snapshot").value.entries;
            let entries = entries.into_iter();
            let found = entries.map(|entry| (entry.name, entry.value.to_vec()));
            predicates.push(Predicate::Untouched(range.clone()));
            client.scanned.push((range, found.collect()));
        }
        2 => {
            let key = some_number(random);
            let found = volume
                .get_many(At::Slot(*at), std::slice::from_ref(&key))
                .await;
            let found = found.expect("a snapshot").value.found.remove(0);
            let number = number_in(found.as_ref()).expect("only numbers are written there");
            let is = match random.u8(..3) {
                0 => Is::AtLeast(number.saturating_sub(random.u64(0..4))),
                1 => Is::AtMost(number + random.u64(0..4)),
                _ => Is::Equals(number),
            };
            predicates.push(Predicate::Number { key, is });
        }
        _ => {
            client.writes.push(some_write(random));
            *writes = Writes::Inline(client.writes.clone());
        }
    }
}

/// Executes the transactions in the order of their slots; a reader follows the writer of its slot.
fn check(seed: u64, mut ended: Vec<Client>) -> Oracle {
    let slot = |client: &Client| client.committed.as_ref().map(|(slot, _)| *slot);
    ended.sort_by_key(|client| (slot(client), client.writes.is_empty()));
    let mut oracle = Oracle::default();
    for client in ended {
        let (slot, appended_at) = client.committed.as_ref().expect("it has committed");
        let is_first_write = !client.writes.is_empty() && *slot > client.proposal.at;
        assert!(
            *slot >= client.after && (is_first_write || *slot == client.proposal.at),
            "seed {seed}: {client:?}"
        );
        for (key, seen) in &client.saw {
            let expected = oracle.0.get(key).map(|value| &value[..]);
            assert_eq!(seen.as_deref(), expected, "seed {seed}: {key:?} {client:?}");
        }
        for (range, seen) in &client.scanned {
            assert_eq!(*seen, oracle.in_range(range), "seed {seed}: {client:?}");
        }
        for predicate in &client.proposal.predicates {
            if let Predicate::Number { key, is } = predicate {
                let number = oracle.number(key).expect("a number");
                assert!(is.holds(number), "seed {seed}: {number} {client:?}");
            }
        }
        let positions: Vec<u64> = client
            .writes
            .iter()
            .filter_map(|write| oracle.write(write))
            .collect();
        assert_eq!(*appended_at, positions, "seed {seed}: {client:?}");
    }
    oracle
}

/// V3: a proposal commits once, and its late copies never do.
pub async fn a_proposal_commits_at_most_once(open: Open<'_>) {
    let (volume, counter) = (open(), key("i", "n"));
    let add = |number, attempt, at| Proposal {
        id: id(number, attempt),
        ..blind(
            at,
            number,
            vec![Write::Add {
                key: key("i", "n"),
                delta: 1,
            }],
        )
    };
    let first = commit(&*volume, add(1, 0, Slot(0))).await;
    assert_eq!(commit(&*volume, add(1, 0, Slot(0))).await, first);
    let Verdict::Committed { slot, .. } = first else {
        panic!("{first:?}");
    };
    assert_eq!(commit(&*volume, add(1, 1, slot)).await, first);
    assert_eq!(
        value(&*volume, &counter).await.as_deref(),
        Some(&1u64.to_be_bytes()[..])
    );
    // A comparison that fails now could hold later: a late copy still conflicts.
    let compared = |attempt| Proposal {
        predicates: vec![Predicate::Number {
            key: key("i", "n"),
            is: Is::AtLeast(2),
        }],
        ..add(2, attempt, slot)
    };
    let conflict = Verdict::Conflict {
        key: counter.clone(),
    };
    assert_eq!(commit(&*volume, compared(1)).await, conflict);
    committed(&*volume, add(3, 0, slot)).await;
    assert_eq!(commit(&*volume, compared(1)).await, conflict);
    let superseded = Verdict::Refused(Refusal::Superseded);
    assert_eq!(commit(&*volume, compared(0)).await, superseded);
    committed(&*volume, compared(2)).await;
    assert_eq!(
        value(&*volume, &counter).await.as_deref(),
        Some(&3u64.to_be_bytes()[..])
    );
}

/// Numbers that do not exist are zero, and a value that is no number is refused.
pub async fn numbers_have_their_range(open: Open<'_>) {
    let volume = open();
    let (text, number) = (key("d", "a"), key("i", "n"));
    let (at, _) = committed(&*volume, blind(Slot(0), 1, vec![put(&text, "text")])).await;
    let add = |key: &Key, delta| Write::Add {
        key: key.clone(),
        delta,
    };
    let verdict = commit(&*volume, blind(at, 2, vec![add(&text, 1)])).await;
    assert_eq!(verdict, Verdict::Refused(Refusal::NoNumber(text.clone())));
    let verdict = commit(&*volume, blind(at, 3, vec![add(&number, -1)])).await;
    let refused = Verdict::Refused(Refusal::OutOfRange(number.clone()));
    assert_eq!(verdict, refused);
    let writes = vec![add(&number, i64::MAX), add(&number, -3), add(&number, 1)];
    committed(&*volume, blind(at, 4, writes)).await;
    let sum = value(&*volume, &number).await;
    assert_eq!(number_in(sum.as_ref()), Some(i64::MAX as u64 - 2));
    let is_text = Proposal {
        predicates: vec![Predicate::Number {
            key: text.clone(),
            is: Is::AtLeast(0),
        }],
        ..blind(at, 5, vec![put(&text, "")])
    };
    let verdict = commit(&*volume, is_text).await;
    assert_eq!(verdict, Verdict::Conflict { key: text });
}

/// A large write set takes effect as a whole, and only if it is complete.
pub async fn a_stage_takes_effect_as_a_whole(open: Open<'_>) {
    let (volume, stage) = (open(), StageId([7; 16]));
    let blocks: Vec<Key> = (0..3)
        .map(|number| key("b", "").block(number).expect("short"))
        .collect();
    let parts = blocks.iter().map(|key| encode_part(&[put(key, "block")]));
    let parts: Vec<Bytes> = parts.collect();
    let whole = parts.concat();
    let proposal = |number, crc| Proposal {
        writes: Writes::Staged {
            stage,
            parts: 3,
            bytes: whole.len() as u64,
            crc,
        },
        ..blind(Slot(0), number, Vec::new())
    };
    let refused = Verdict::Refused(Refusal::Stage);
    for (number, part) in (0..).zip(&parts) {
        let verdict = commit(
            &*volume,
            proposal(u64::from(number), crc32fast::hash(&whole)),
        );
        assert_eq!(verdict.await, refused);
        let stored = volume.stage(stage, number, part.clone());
        stored.await.expect("room");
    }
    let verdict = commit(&*volume, proposal(8, crc32fast::hash(&whole) + 1)).await;
    assert_eq!(verdict, refused, "another checksum");
    committed(&*volume, proposal(9, crc32fast::hash(&whole))).await;
    for block in &blocks {
        assert_eq!(value(&*volume, block).await.as_deref(), Some(&b"block"[..]));
    }
}

/// V2: every page of a scan names one state, in order, however small the pages are.
pub async fn pages_at_one_slot_are_one_state(open: Open<'_>) {
    let volume = open();
    let names = ["a", "b", "c", "d"];
    let all = names.map(|name| put(&key("d", name), name));
    let (slot, _) = committed(&*volume, blind(Slot(0), 1, all.to_vec())).await;
    let (mut range, mut found) = (KeyRange::all("d").expect("short"), Vec::new());
    let limits = PageLimits {
        keys_max: 1,
        bytes_max: 1,
    };
    for number in 2.. {
        let page = volume.scan(At::Slot(slot), &range, limits).await;
        let page = page.expect("a snapshot").value;
        found.extend(page.entries.into_iter().map(|entry| entry.name));
        let writes = vec![
            Write::Delete { key: key("d", "c") },
            put(&key("d", "z"), ""),
        ];
        committed(&*volume, blind(slot, number, writes)).await;
        let Some(next) = page.next else { break };
        range = range.starting_at(next).expect("short");
    }
    assert_eq!(found, names);
}

/// A client that asks again from the returned slot misses no key.
pub async fn changes_are_listed_once(open: Open<'_>) {
    let volume = open();
    let (first, second) = (key("d", "a"), key("i", "n"));
    let (slot, _) = committed(&*volume, blind(Slot(0), 1, vec![put(&first, "1")])).await;
    let writes = vec![put(&second, "2"), put(&first, "3")];
    let (to, _) = committed(&*volume, blind(slot, 2, writes)).await;
    let changed = async |from, groups| {
        let changed = volume.changed_since(from, &groups).await;
        changed.expect("an answer").value
    };
    let of = |keys: &[&Key]| Changed::Keys {
        to,
        keys: keys.iter().map(|key| (*key).clone()).collect(),
    };
    assert_eq!(changed(Slot(0), Groups::All).await, of(&[&first, &second]));
    assert_eq!(changed(slot, Groups::All).await, of(&[&first, &second]));
    assert_eq!(changed(to, Groups::All).await, of(&[]));
    let groups = Groups::Of(vec![Bytes::from("i")]);
    assert_eq!(changed(Slot(0), groups).await, of(&[&second]));
}

/// Pins keep a state, and other names do not end them.
pub async fn a_pinned_state_stays_readable(open: Open<'_>) -> Arc<dyn VolumeStore> {
    let (volume, key) = (open(), key("d", "a"));
    let (old, _) = committed(&*volume, blind(Slot(0), 1, vec![put(&key, "old")])).await;
    let name = |text: &str| PinName::new(text).expect("short");
    volume.pin(name("run"), old).await.expect("a pin");
    volume.pin(name("other"), old).await.expect("a pin");
    volume.unpin(&name("other")).await.expect("unpinned");
    let pins = volume.pins().await.expect("pins");
    assert_eq!(pins, [(name("run"), old)]);
    let (new, _) = committed(&*volume, blind(old, 2, vec![put(&key, "new")])).await;
    committed(&*volume, blind(new, 3, vec![Write::Delete { key }])).await;
    volume
}

/// V7. A volume that grants no leases passes.
pub async fn a_lease_is_recalled_before_a_commit(open: Open<'_>) {
    let (volume, session, key) = (open(), SessionId(7), key("d", "a"));
    let Ok(told) = volume.recalled(session, 0).await else {
        return;
    };
    assert!(told.value.has_lapsed, "it had none");
    committed(&*volume, blind(Slot(0), 1, vec![put(&key, "1")])).await;
    let granted = async {
        for _ in 0..100 {
            let keys = std::slice::from_ref(&key);
            let leased = volume.get_leased(session, keys).await;
            let leased = leased.expect("an answer").value;
            assert_eq!(leased.values.found, [Some("1".into())]);
            if !leased.groups.is_empty() {
                return leased.groups;
            }
        }
        panic!("no lease is granted");
    };
    let acknowledges = volume.recalled(session, told.value.number);
    let (idle, groups) = join(acknowledges, granted).await;
    assert_eq!(groups, [key.group()]);
    let idle = idle.expect("an answer").value;
    assert!(idle.groups.is_empty() && !idle.has_lapsed, "{idle:?}");
    let other = self::key("i", "a");
    committed(&*volume, blind(Slot(0), 2, vec![put(&other, "1")])).await;
    let own = volume.commit_leased(session, blind(Slot(0), 3, vec![put(&key, "3")]));
    own.await.expect("a verdict");
    let waits = volume.recalled(session, idle.number);
    let proposal = blind(Slot(0), 4, vec![put(&key, "4")]);
    let (told, commits) = match select(waits, volume.commit(proposal)).await {
        Either::Left((told, commits)) => (told.expect("an answer").value, commits),
        Either::Right(_) => panic!("it did not wait for the lease"),
    };
    assert_eq!(told.groups, [key.group()]);
    assert_eq!(value(&*volume, &key).await, Some("3".into()), "not yet");
    let acknowledges = volume.recalled(session, told.number);
    let (verdict, told) = join(commits, acknowledges).await;
    let verdict = verdict.expect("a verdict").value;
    assert!(matches!(verdict, Verdict::Committed { .. }), "{verdict:?}");
    assert!(told.expect("an answer").value.groups.is_empty());
    assert_eq!(value(&*volume, &key).await, Some("4".into()));
}
