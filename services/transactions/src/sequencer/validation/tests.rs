use super::*;

const KEYS: usize = 8;

fn key(number: usize) -> Key {
    Key::new(format!("k{number}")).expect("short")
}

fn traces(keys: &[usize]) -> Vec<Trace> {
    keys.iter().map(|number| Trace::of(&key(*number))).collect()
}

fn some_keys(random: &mut fastrand::Rng) -> Vec<usize> {
    (0..random.usize(0..3))
        .map(|_| random.usize(..KEYS))
        .collect()
}

/// All writes by slot: a model that forgets nothing.
#[derive(Default)]
struct Everything(Vec<(u64, Vec<usize>)>);

impl Everything {
    fn is_written_after(&self, at: u64, keys: &[usize]) -> bool {
        let later = self.0.iter().filter(|(slot, _)| *slot > at);
        later
            .flat_map(|(_, written)| written)
            .any(|written| keys.contains(written))
    }
}

/// T11: a transaction passes exactly if its reads were not written since. Reads at forgotten slots
/// never pass.
#[test]
fn whoever_read_what_was_written_since_conflicts() {
    let mut random = fastrand::Rng::with_seed(8);
    let mut verdicts = BTreeMap::new();
    for _ in 0..400 {
        let mut table = LastWriters::new(3, random.usize(1..30));
        let mut everything = Everything::default();
        let mut slot = 3;
        for _ in 0..60 {
            // Slots may be skipped: empty ones and seals.
            slot += random.u64(1..3);
            let (mut batch, mut members) = (table.batch(), Vec::new());
            for _ in 0..random.usize(0..4) {
                let (at, read, written) = (
                    random.u64(0..slot),
                    some_keys(&mut random),
                    some_keys(&mut random),
                );
                let is_blind = random.u8(..4) == 0;
                let observed = (!is_blind).then(|| Observed {
                    at,
                    keys: traces(&read),
                });
                let verdict = batch.validate(observed.as_ref());
                let in_batch = read.iter().any(|key| members.contains(key));
                let is_written = in_batch || everything.is_written_after(at, &read);
                let expected = match () {
                    () if !is_blind && at < table.oldest => Verdict::TooOld,
                    () if !is_blind && is_written => Verdict::Conflicts,
                    () => Verdict::Passes,
                };
                assert_eq!(verdict, expected, "{read:?} at {at} of {slot}");
                *verdicts.entry(format!("{verdict:?}")).or_insert(0) += 1;
                if verdict == Verdict::Passes {
                    batch.admit(traces(&written));
                    members.extend(written);
                }
            }
            let written = batch.into_written();
            table.note(slot, written);
            everything.0.push((slot, members));
        }
    }
    assert!(
        verdicts.len() == 3 && verdicts.values().all(|count| *count > 1_000),
        "{verdicts:?}"
    );
}

/// T9: the table stays bounded under any writes, and forgets from its oldest end.
#[test]
fn the_table_of_last_writers_is_bounded() {
    let mut table = LastWriters::new(0, 10);
    for slot in 1..=1_000 {
        table.note(slot, traces(&[slot as usize, 0]).into_iter().collect());
        assert!(table.weight <= 10 && table.last.len() <= 10 && table.slots.len() <= 10);
        assert!(table.oldest >= slot.saturating_sub(5) && table.oldest < slot);
    }
    let hot = Observed {
        at: 999,
        keys: traces(&[0]),
    };
    assert_eq!(table.batch().validate(Some(&hot)), Verdict::Conflicts);
    let large = (0..20).collect::<Vec<_>>();
    table.note(1_001, traces(&large).into_iter().collect());
    assert_eq!(
        table.oldest, 1_000,
        "one slot is kept, however much it wrote"
    );
}
