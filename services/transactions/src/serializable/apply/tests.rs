use super::*;
use crate::serializable::contract::{Oracle, key, put, some_key, some_write};

fn base(oracle: &Oracle) -> impl Fn(&Key) -> Base {
    |key| Base::of(oracle.0.get(key).map(|value| value.clone().into()).as_ref())
}

/// V1: resolved and folded changes have the effect of the writes, one after the other.
#[test]
fn changes_have_the_effect_of_the_writes() {
    for seed in 0..2_000 {
        let random = &mut fastrand::Rng::with_seed(seed);
        let (mut oracle, mut history) = (Oracle::default(), BTreeMap::<Key, Vec<Change>>::new());
        for _ in 0..random.usize(1..8) {
            let count = random.usize(1..8);
            let writes: Vec<Write> = (0..count).map(|_| some_write(random)).collect();
            let resolved = resolve(&writes, base(&oracle)).expect("numbers alone are added to");
            let positions: Vec<u64> = writes
                .iter()
                .filter_map(|write| oracle.write(write))
                .collect();
            assert_eq!(resolved.appended_at, positions, "seed {seed}");
            for (key, change) in resolved.changes {
                history.entry(key).or_default().push(change);
            }
        }
        let expected: BTreeMap<Key, Option<Bytes>> = history
            .keys()
            .map(|key| {
                let value = oracle.0.get(key).cloned();
                (key.clone(), value.map(Bytes::from))
            })
            .collect();
        assert!(oracle.0.keys().all(|key| expected.contains_key(key)));
        for (key, changes) in history {
            let mut fold = Fold::default();
            let mut newest_first = changes.iter().rev();
            let _ = newest_first.any(|change| fold.add(change.clone()));
            assert_eq!(
                fold.value(),
                expected[&key],
                "seed {seed}: {key:?} {changes:?}"
            );
            // Folding may begin anywhere: two changes and their sum are the same.
            let sum = changes.iter().cloned().reduce(Change::then).expect("one");
            assert_eq!(sum.apply(None), expected[&key], "seed {seed}: {key:?}");
            let number = changes
                .iter()
                .fold(Base::Short(None), |base, change| base.after(change));
            assert_eq!(
                number,
                Base::of(expected[&key].as_ref()),
                "seed {seed}: {key:?}"
            );
        }
    }
}

/// A value that is no number may become one, and the other way.
#[test]
fn a_number_is_a_value_of_eight_bytes_at_that_moment() {
    let number = key("i", "n");
    let patch = |offset, bytes: &'static [u8]| Write::Patch {
        key: key("i", "n"),
        offset,
        data: Patch::Bytes(bytes.into()),
    };
    let add = Write::Add {
        key: number.clone(),
        delta: 1,
    };
    let resolved = |writes: &[Write], base: &Base| {
        let resolved = resolve(writes, |_| base.clone());
        resolved.map(|resolved| resolved.changes[&number].clone())
    };
    let short = Base::of(Some(&"1234".into()));
    let nine = Change::Put(number_bytes(9));
    let becomes = [patch(0, &[0; 4]), patch(7, &[8]), add.clone()];
    assert_eq!(resolved(&becomes, &short), Ok(nine.clone()));
    let refused = Err(Refusal::NoNumber(number.clone()));
    assert_eq!(resolved(std::slice::from_ref(&add), &short), refused);
    assert_eq!(
        resolved(&[patch(8, &[0]), add.clone()], &Base::Short(None)),
        refused
    );
    assert_eq!(resolved(std::slice::from_ref(&add), &Base::Long), refused);
    let replaced = [put(&number, number_bytes(8)), add];
    assert_eq!(resolved(&replaced, &Base::Long), Ok(nine));
}

#[test]
fn an_append_that_has_no_end_is_refused() {
    let append = |data: &'static str| Write::Append {
        length: key("i", "s"),
        blocks: key("b", ""),
        block_bytes: 4096,
        data: data.into(),
    };
    let almost = Base::of(Some(&number_bytes(u64::MAX - 1)));
    let resolved = resolve(&[append("1")], |_| almost.clone()).expect("it ends in range");
    assert_eq!(resolved.appended_at, [u64::MAX - 1]);
    let refused = resolve(&[append("12")], |_| almost.clone());
    assert_eq!(refused, Err(Refusal::OutOfRange(key("i", "s"))));
    let nothing = resolve(&[append("")], |_| almost.clone()).expect("nothing is written");
    assert!(nothing.changes.is_empty());
}

/// Patching a large value many times costs no copy for each.
#[test]
fn many_patches_of_one_value_are_applied_once() {
    let random = &mut fastrand::Rng::with_seed(1);
    let block = some_key(random);
    let mut writes = vec![put(&block, vec![1; VALUE_BYTES_MAX])];
    writes.extend((0..200_000).map(|offset| Write::Patch {
        key: block.clone(),
        offset,
        data: Patch::Zeros(1),
    }));
    let mut drafts = Drafts {
        base: |_: &Key| Base::Long,
        keys: BTreeMap::new(),
    };
    let whole = Bytes::from(vec![1; VALUE_BYTES_MAX]);
    drafts.replace(&block, Change::Put(whole.clone()));
    for offset in 0..1_000 {
        let data = Patch::Zeros(1);
        drafts.patch(block.clone(), Piece { offset, data });
    }
    let draft = &drafts.keys[&block];
    assert_eq!(draft.pieces.len(), 1_000, "none is applied yet");
    let Some(Change::Put(kept)) = &draft.whole else {
        panic!("a whole value");
    };
    assert_eq!(kept.as_ptr(), whole.as_ptr(), "the value is not copied");
    let resolved = resolve(&writes, |_| Base::Long).expect("no numbers");
    let Change::Put(value) = &resolved.changes[&block] else {
        panic!("a whole value");
    };
    assert!(value[..200_000].iter().all(|byte| *byte == 0));
    assert!(value[200_000..].iter().all(|byte| *byte == 1));
}
