//! The engine without I/O, beside the reference: a validator, its slots, and the rows that they are
//! installed into, all encoded and decoded.

mod engine;

use std::sync::Arc;

use futures_util::FutureExt as _;

use self::engine::{Engine, EngineVolume};
use super::*;
use crate::serializable::{
    ModelVolume, VolumeStore,
    contract::{self, blind, id, key, put, some_key, some_number, some_range, some_write},
    lock_table::LockTable,
    model::{At, BlockBytes, Is, Predicate, Proposal, Refusal, Write, Writes, number_bytes},
    slots::SLOT_BYTES_MAX,
};

fn open() -> Arc<dyn VolumeStore> {
    Arc::new(EngineVolume::new(Limits::default()))
}

/// So small that most proposals need rows; one uses at most four numbers.
fn tight() -> Limits {
    Limits {
        keys_bytes_max: 2_000,
        ids_max: 4,
        numbers_max: 4,
    }
}

#[test]
fn histories_are_strictly_serializable() {
    simulated::run(contract::histories_are_strictly_serializable(&open, 200));
    let open = || -> Arc<dyn VolumeStore> { Arc::new(EngineVolume::new(tight())) };
    simulated::run(async move {
        contract::histories_are_strictly_serializable(&open, 200).await;
    });
}

#[test]
fn a_proposal_commits_at_most_once() {
    simulated::run(contract::a_proposal_commits_at_most_once(&open));
}

#[test]
fn numbers_have_their_range() {
    simulated::run(contract::numbers_have_their_range(&open));
}

#[test]
fn a_stage_takes_effect_as_a_whole() {
    simulated::run(contract::a_stage_takes_effect_as_a_whole(&open));
}

#[test]
fn pages_at_one_slot_are_one_state() {
    simulated::run(contract::pages_at_one_slot_are_one_state(&open));
}

#[test]
fn changes_are_listed_once() {
    simulated::run(contract::changes_are_listed_once(&open));
}

/// A random proposal; half of its snapshots are old.
fn some_proposal(random: &mut fastrand::Rng, number: u64) -> Proposal {
    let mut some = |count_max| 0..random.usize(0..=count_max);
    let (reads, ranges, numbers, writes) = (some(1), some(1), some(1), some(3));
    let reads = reads.map(|_| some_key(random)).collect();
    let ranges = ranges.map(|_| Predicate::Untouched(some_range(random)));
    let mut predicates: Vec<Predicate> = ranges.collect();
    predicates.extend(numbers.map(|_| {
        let bound = random.u64(0..20);
        Predicate::Number {
            key: some_number(random),
            is: [Is::AtLeast(bound), Is::AtMost(bound), Is::Equals(bound)][random.usize(..3)],
        }
    }));
    let writes = writes.map(|_| match random.u8(..16) {
        // May be no number, or none that has room below.
        0 => Write::Add {
            key: some_key(random),
            delta: -1,
        },
        _ => some_write(random),
    });
    let writes: Vec<Write> = writes.collect();
    Proposal {
        reads,
        predicates,
        ..blind(Slot(0), number, writes)
    }
}

fn is_same(one: &Verdict, other: &Verdict) -> bool {
    match (one, other) {
        (Verdict::Conflict { .. }, Verdict::Conflict { .. }) => true,
        (
            Verdict::Committed { appended_at, .. },
            Verdict::Committed {
                appended_at: others,
                ..
            },
        ) => appended_at == others,
        (Verdict::Refused(one), Verdict::Refused(other)) => one == other,
        _ => false,
    }
}

/// A proposal to the engine, and the same to the reference, whose slots differ.
type Pair = (Proposal, Proposal);

/// The next proposals: new ones at one of the last states, and some that were sent before.
fn some_pairs(
    random: &mut fastrand::Rng,
    number: u64,
    states: &[(Slot, Slot)],
    sent: &[Pair],
    is_tight: bool,
) -> Vec<Pair> {
    let batch = (0..random.u64(1..4)).map(|place| {
        if !sent.is_empty() && random.u8(..6) == 0 {
            let (mut mine, mut models) = sent[random.usize(..sent.len())].clone();
            if !is_tight {
                // A later attempt needs rows of outcomes if ids are forgotten.
                let attempt = random.u64(0..3);
                (mine.id, models.id) = (again(&mine.id, attempt), again(&models.id, attempt));
            }
            return (mine, models);
        }
        let oldest = states.len() - random.usize(1..=states.len().min(6));
        let (at, model_at) = states[oldest];
        let proposal = some_proposal(random, number * 8 + place);
        let models = Proposal {
            at: model_at,
            ..proposal.clone()
        };
        (Proposal { at, ..proposal }, models)
    });
    batch.collect()
}

/// Drives the engine, several proposals to a slot, and the reference, one by one.
fn compare(seed: u64, mutant: Mutant<Broken>) -> Result<BTreeMap<String, u64>, String> {
    let random = &mut fastrand::Rng::with_seed(seed);
    let is_tight = random.bool();
    let limits = if is_tight { tight() } else { Limits::default() };
    let mut engine = Engine::new(limits, mutant);
    let model = ModelVolume::new(BlockBytes::new(4096).expect("a power of two"));
    let (mut states, mut sent) = (vec![(Slot(0), Slot(0))], Vec::<Pair>::new());
    let mut counts = BTreeMap::new();
    for number in 0..40 {
        let batch = some_pairs(random, number, &states, &sent, is_tight);
        let mine: Vec<Proposal> = batch.iter().map(|(mine, _)| mine.clone()).collect();
        let verdicts = engine.decide(&mine);
        for ((proposal, models), verdict) in batch.iter().zip(&verdicts) {
            let expected = model.commit(models.clone()).now_or_never();
            let expected = expected.expect("at once").expect("in bounds").value;
            if !is_same(verdict, &expected) {
                return Err(format!("{verdict:?} is not {expected:?}: {proposal:?}"));
            }
            *counts.entry(kind(verdict)).or_default() += 1;
        }
        sent.extend(batch);
        let snapshot = model.snapshot().now_or_never().expect("at once");
        let model_slot = snapshot.expect("a snapshot").value.slot;
        states.push((engine.last(), model_slot));
        for key in engine.keys() {
            let found = model.get_many(At::Tail, std::slice::from_ref(&key));
            let found = found
                .now_or_never()
                .expect("at once")
                .expect("a read")
                .value;
            let value = engine.get(&key, engine.last());
            if found.found != [value.clone()] {
                return Err(format!("{key:?}: {value:?} is not {:?}", found.found));
            }
        }
        if random.u8(..8) == 0 {
            engine.take_over(random);
        }
    }
    *counts.entry("rows needed".to_owned()).or_default() += engine.outdated;
    *counts.entry("numbers loaded".to_owned()).or_default() += engine.loaded;
    Ok(counts)
}

fn kind(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Committed { .. } => "committed".to_owned(),
        Verdict::Conflict { .. } => "conflict".to_owned(),
        Verdict::SnapshotTooOld => "too old".to_owned(),
        Verdict::Refused(Refusal::NoNumber(_)) => "no number".to_owned(),
        Verdict::Refused(Refusal::OutOfRange(_)) => "out of range".to_owned(),
        Verdict::Refused(refusal) => format!("{refusal:?}"),
    }
}

fn again(id: &ProposalId, attempt: u64) -> ProposalId {
    ProposalId::new(id.id().clone(), attempt).expect("as long as before")
}

/// V1, V2, V3: slots of several proposals have the decisions and writes of one proposal after the
/// other. This also holds after a take-over, and if the validator has forgotten most of it.
#[test]
fn the_engine_decides_as_the_reference() {
    let mut counts = BTreeMap::<String, u64>::new();
    for seed in 0..300 {
        let seen = compare(seed, Mutant::NONE);
        let seen = seen.unwrap_or_else(|difference| panic!("seed {seed}: {difference}"));
        for (kind, count) in seen {
            *counts.entry(kind).or_default() += count;
        }
    }
    let kinds: Vec<&str> = counts.keys().map(String::as_str).collect();
    let expected = [
        "Superseded",
        "committed",
        "conflict",
        "no number",
        "numbers loaded",
        "out of range",
        "rows needed",
    ];
    assert_eq!(kinds, expected);
    assert!(counts.values().all(|count| *count > 50), "{counts:?}");
}

/// Each rule is one that the comparison checks.
#[test]
fn a_validator_that_breaks_a_rule_is_found() {
    for rule in [
        Broken::ForgetsRanges,
        Broken::ComparesNumbersAtSnapshot,
        Broken::ForgetsProposalIds,
    ] {
        let found = (0..50).any(|seed| compare(seed, Mutant::of(rule)).is_err());
        assert!(found, "{rule:?}");
    }
}

/// Writes that are as long as they may be.
fn large(number: u64, random: &mut fastrand::Rng) -> Proposal {
    let name = |random: &mut fastrand::Rng| vec![random.u8(..); 480];
    let (group, mut writes, mut left) = (vec![9; 16], Vec::new(), 64 << 10);
    loop {
        let key = Key::new(group.clone(), name(random)).expect("in bounds");
        let append = Write::Append {
            length: Key::new("i", name(random)).expect("in bounds"),
            blocks: Key::new(group.clone(), vec![random.u8(..); 472]).expect("in bounds"),
            block_bytes: random.u32(1..9),
            data: vec![1; random.usize(..40)].into(),
        };
        let write = match random.u8(..3) {
            0 => put(&key, vec![1; random.usize(..9_000)]),
            1 => Write::Delete { key },
            _ => append,
        };
        let Some(rest) = usize::checked_sub(left, write.bytes_len()) else {
            break;
        };
        left = rest;
        writes.push(write);
    }
    let id = ProposalId::new([&number.to_be_bytes()[..], &[7; 120]].concat(), 0);
    Proposal {
        id: id.expect("in bounds"),
        ..blind(Slot(0), number, writes)
    }
}

/// T9: a slot that is full fits one item of every store.
#[test]
fn no_slot_is_longer_than_its_bound() {
    let random = &mut fastrand::Rng::with_seed(6);
    let mut longest = 0;
    for _ in 0..100 {
        let mut validator = Validator::new(Slot(0), Limits::default());
        let proposals: Vec<Proposal> = (0..40).map(|number| large(number, random)).collect();
        for key in proposals
            .iter()
            .flat_map(|proposal| match &proposal.writes {
                Writes::Inline(writes) => crate::serializable::apply::numbers_of(writes),
                Writes::Staged { .. } => panic!("not staged"),
            })
        {
            assert!(validator.learn(key, Slot(0), None));
        }
        let mut draft = validator.draft();
        for proposal in &proposals {
            proposal.check().expect("in bounds");
            let candidate = Candidate::inline(proposal);
            if !draft.is_empty() && !draft.has_room_for(&candidate) {
                break;
            }
            let decision = draft.decide(&candidate, &LockTable::default());
            assert!(matches!(decision, Decision::AfterSlot(_)), "{decision:?}");
        }
        let (slot, _) = draft.finish(0, crate::model::NodeId(1));
        let bytes = slot.encode().len();
        longest = longest.max(bytes);
        assert!(bytes <= SLOT_BYTES_MAX, "{bytes}");
    }
    assert!(longest > 150 << 10, "{longest}");
}

/// A number that was written while it was loaded is not believed.
#[test]
fn a_value_that_was_written_since_it_was_read_is_not_learned() {
    let (mut engine, number) = (Engine::new(Limits::default(), Mutant::NONE), key("i", "n"));
    let zero = number_bytes(0);
    engine.decide(&[blind(Slot(0), 1, vec![put(&number, zero.clone())])]);
    assert!(!engine.validator.learn(&number, Slot(0), None));
    assert!(engine.validator.learn(&number, Slot(1), Some(&zero)));
    let add = Write::Add {
        key: number.clone(),
        delta: 5,
    };
    engine.decide(&[blind(Slot(0), 2, vec![add])]);
    assert!(!engine.validator.learn(&number, Slot(1), Some(&zero)));
    assert_eq!(engine.get(&number, Slot(2)), Some(number_bytes(5)));
}

/// T-5: a begin closes earlier attempts, and only those.
#[test]
fn a_closed_attempt_never_commits() {
    let (mut engine, number) = (Engine::new(Limits::default(), Mutant::NONE), key("i", "n"));
    let attempt = |attempt| Proposal {
        id: id(1, attempt),
        ..blind(Slot(0), 1, vec![put(&number, "")])
    };
    let refused = Verdict::Refused(Refusal::Superseded);
    assert_eq!(engine.close(&id(1, 4)), refused);
    assert_eq!(
        engine.decide(&[attempt(3), attempt(4)]),
        [refused.clone(), refused]
    );
    let verdicts = engine.decide(&[attempt(5), attempt(5)]);
    assert!(matches!(verdicts[0], Verdict::Committed { .. }));
    assert_eq!(verdicts[0], verdicts[1]);
    assert_eq!(engine.close(&id(1, 9)), verdicts[0]);
}

/// T9: the validator stays bounded under any proposals.
#[test]
fn memory_is_bounded() {
    let limits = tight();
    let mut engine = Engine::new(limits, Mutant::NONE);
    for number in 0..500u64 {
        let name = number.to_be_bytes().to_vec();
        let number_key = Key::new("i", name).expect("short");
        let add = Write::Add {
            key: number_key,
            delta: 1,
        };
        let at = engine.last();
        engine.decide(&[blind(at, number, vec![add])]);
        let validator = &engine.validator;
        assert!(validator.ids.len() <= limits.ids_max);
        assert!(validator.numbers.len() <= 2 * limits.numbers_max);
        assert!(validator.oldest().0 + 10 >= validator.last().0);
    }
}
