//! Updates of one item: K1 to K4.

use bytes::Bytes;

use super::{Subject, key, refusal};
use crate::{
    Condition, ErrorKind, Item, Key, Update,
    contract::{WRITERS, pause},
    key_value::{
        Action, Change, Name, Outcome, Scan, Test, Value, Version,
        evaluate::{Evaluated, Stored, evaluate, holds},
    },
};

/// K1.
pub(super) async fn written_values_are_read_back(subject: Subject) {
    let place = key("written", "item");
    assert_eq!(subject.get(&place).await, None);
    let elements = vec![Bytes::from_static(b"x"), Bytes::from_static(b"y")];
    let made = subject
        .kept(Update::modify(
            place.clone(),
            vec![
                Action::set("bytes", &b"\x00\xff"[..]),
                Action::set_integer("integer", i64::MIN),
                Action::Append("list".into(), elements.clone()),
            ],
        ))
        .await;
    assert_eq!(
        made.bytes("bytes").map(|bytes| &bytes[..]),
        Some(&b"\x00\xff"[..])
    );
    assert_eq!(
        (made.integer("integer"), made.list("list")),
        (Some(i64::MIN), &elements[..])
    );
    assert_eq!(subject.get(&place).await, Some(made.clone()));
    let page = subject.pages(Scan::partition("written", 10)).await.concat();
    assert_eq!(page, vec![(Bytes::from_static(b"item"), made.clone())]);

    subject
        .done(Update::modify(place.clone(), vec![Action::unset("bytes")]))
        .await;
    let changed = subject.get(&place).await.expect("the item is there");
    assert_eq!(
        (changed.attribute("bytes"), changed.integer("integer")),
        (None, Some(i64::MIN))
    );

    let put = subject
        .kept(Update::put(
            place.clone(),
            vec![("only".into(), Value::Integer(1))],
        ))
        .await;
    assert_eq!(put.attributes(), &[(Name::from("only"), Value::Integer(1))]);
    assert_eq!(subject.get(&place).await, Some(put));

    assert_eq!(subject.done(Update::delete(place.clone())).await, None);
    assert_eq!(subject.get(&place).await, None);
    assert_eq!(
        subject.done(Update::delete(place.clone())).await,
        None,
        "deleting nothing is done"
    );
    subject
        .conflict(Update::modify(place, vec![]).when(Condition::Exists))
        .await;
}

fn conditions(version: Version) -> Vec<Condition> {
    let tests = [
        ("integer", Test::Exists),
        ("missing", Test::Exists),
        ("integer", Test::Absent),
        ("missing", Test::Absent),
        ("bytes", Test::is(&b"b"[..])),
        ("bytes", Test::is(&b"c"[..])),
        ("integer", Test::is_integer(5)),
        ("bytes", Test::is_integer(5)),
        ("missing", Test::is_integer(5)),
        ("integer", Test::Differs(Value::Integer(5))),
        ("integer", Test::Differs(Value::Integer(6))),
        ("missing", Test::Differs(Value::Integer(6))),
        ("integer", Test::Below(5)),
        ("integer", Test::Below(6)),
        ("missing", Test::Below(6)),
        ("bytes", Test::Below(6)),
        ("integer", Test::Above(5)),
        ("integer", Test::Above(4)),
        ("integer", Test::Above(-7)),
        ("list", Test::ShorterThan(2)),
        ("list", Test::ShorterThan(3)),
        ("missing", Test::ShorterThan(1)),
        ("missing", Test::ShorterThan(0)),
        ("integer", Test::ShorterThan(9)),
    ];
    let mut conditions: Vec<Condition> = tests
        .into_iter()
        .map(|(name, test)| Condition::attribute(name, test))
        .collect();
    let (no, yes) = (conditions[1].clone(), conditions[3].clone());
    conditions.extend([
        Condition::Always,
        Condition::Exists,
        Condition::Absent,
        Condition::VersionIs(version),
        Condition::VersionIs(Version(version.0 + 1)),
        Condition::VersionIs(Version(0)),
        Condition::All(vec![]),
        Condition::Any(vec![]),
        Condition::All(vec![yes.clone(), Condition::Exists]),
        Condition::All(vec![yes.clone(), no.clone()]),
        Condition::Any(vec![no.clone(), Condition::Absent]),
        Condition::Any(vec![
            no.clone(),
            Condition::All(vec![yes, Condition::Exists]),
        ]),
        Condition::Any(vec![no.clone(), no]),
    ]);
    conditions
}

/// K1: a condition sees every update that was done before it.
pub(super) async fn every_condition_means_what_evaluate_says(subject: Subject) {
    let present = key("conditions", "present");
    let item = subject
        .kept(Update::modify(
            present.clone(),
            vec![
                Action::set("bytes", &b"b"[..]),
                Action::set_integer("integer", 5),
                Action::Append(
                    "list".into(),
                    vec![Bytes::from_static(b"x"), Bytes::from_static(b"y")],
                ),
            ],
        ))
        .await;
    for (place, item) in [
        (present, Some(item.clone())),
        (key("conditions", "absent"), None),
    ] {
        for condition in conditions(Version(1)) {
            let expected = if holds(&condition, item.as_deref()) {
                Outcome::Done(item.clone())
            } else {
                Outcome::Conflict(item.clone())
            };
            let outcome = subject
                .update(Update::check(place.clone(), condition.clone()))
                .await;
            assert_eq!(outcome, expected, "{condition:?} over {place:?}");
        }
        assert_eq!(subject.get(&place).await, item, "a check changes nothing");
    }
}

/// A small generator, so that the long run is the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn name(&mut self) -> Name {
        Name::from(["a", "b", "c"][self.roll(3) as usize])
    }

    fn element(&mut self) -> Bytes {
        Bytes::copy_from_slice(&[b'p' + self.roll(3) as u8])
    }

    fn action(&mut self) -> Action {
        let name = self.name();
        match self.roll(8) {
            0 => Action::Set(name, Value::Bytes(self.element())),
            1 => Action::Set(name, Value::Integer(self.roll(9) as i64)),
            2 | 3 => Action::Add(name, self.roll(9) as i64 - 4),
            4 => Action::Append(name, vec![self.element(), self.element()]),
            5 => Action::RemoveFirst(name, self.roll(3) as usize),
            6 => Action::RemoveElements(name, vec![self.element()]),
            _ => Action::Unset(name),
        }
    }

    fn change(&mut self) -> Change {
        match self.roll(10) {
            0 => Change::Delete,
            1 => Change::Keep,
            2 => Change::Put(vec![(self.name(), Value::Integer(self.roll(9) as i64))]),
            _ => Change::Modify((0..=self.roll(3)).map(|_| self.action()).collect()),
        }
    }

    fn condition(&mut self) -> Condition {
        match self.roll(8) {
            0 => Condition::Exists,
            1 => Condition::Absent,
            2 => Condition::attribute(self.name(), Test::Above(0)),
            3 => Condition::attribute(self.name(), Test::ShorterThan(4)),
            _ => Condition::Always,
        }
    }
}

/// K1: each update sees the result of all updates before it, as `evaluate` defines it.
pub(super) async fn a_long_run_of_updates_leaves_what_evaluate_says(subject: Subject) {
    let mut dice = Dice(7);
    let places: Vec<Key> = ["a", "b", "c"].map(|sort| key("model", sort)).into();
    let mut model = vec![Stored::default(); places.len()];
    let limits = *subject.store.limits();
    for step in 0..400 {
        let index = dice.roll(3) as usize;
        let (change, condition) = (dice.change(), dice.condition());
        let update = Update::of(places[index].clone(), change).when(condition);
        let expected = evaluate(&model[index], &update, &limits);
        let answer = subject
            .store
            .update(update.clone())
            .await
            .map(|updated| updated.outcome);
        let (was_done, item) = match (expected, answer) {
            (Ok(Evaluated::Changed(stored)), Ok(Outcome::Done(item))) => {
                model[index] = stored;
                (true, item)
            }
            (Ok(Evaluated::Unchanged), Ok(Outcome::Done(item))) => (true, item),
            (Ok(Evaluated::Refused), Ok(Outcome::Conflict(item))) => (false, item),
            (Err(expected), Err(error)) => {
                assert_eq!(error.kind(), expected.kind(), "step {step}: {update:?}");
                (false, subject.get(&places[index]).await)
            }
            (expected, answer) => {
                panic!("step {step}: {update:?}: {answer:?} instead of {expected:?}")
            }
        };
        let attributes = item.as_deref().map(Item::attributes);
        let expected = model[index].item.as_deref().map(Item::attributes);
        assert_eq!(
            attributes, expected,
            "step {step}: {update:?}, done: {was_done}"
        );
    }
}

/// K1: and the points of replies say so (rule P4).
pub(super) async fn a_read_stands_at_or_after_the_updates_it_saw(subject: Subject) {
    let place = key("points", "item");
    let mut last = subject.store.point();
    for _ in 0..10 {
        let update = Update::modify(place.clone(), vec![Action::Add("n".into(), 1)]);
        let written = subject
            .store
            .update(update)
            .await
            .expect("update answers")
            .receipt
            .point;
        let read = subject.store.get(&place).await.expect("get answers").point;
        let scanned = subject
            .store
            .scan(&Scan::partition("points", 1))
            .await
            .expect("scan answers")
            .point;
        assert!(
            last <= written && written <= read && read <= scanned,
            "{written:?} {read:?} {scanned:?}"
        );
        assert!(scanned <= subject.store.point());
        last = scanned;
    }
}

/// K2.
pub(super) async fn the_loser_receives_the_present_item(subject: Subject) {
    let place = key("loser", "item");
    let create = |n| {
        Update::modify(place.clone(), vec![Action::set_integer("n", n)]).when(Condition::Absent)
    };
    assert_eq!(
        subject
            .conflict(Update::modify(place.clone(), vec![]).when(Condition::Exists))
            .await,
        None,
        "there is no item to be given"
    );
    let made = subject.kept(create(1)).await;
    assert_eq!(subject.conflict(create(2)).await, Some(made.clone()));
    assert_eq!(
        subject
            .conflict(Update::delete(place.clone()).when(Condition::Absent))
            .await,
        Some(made.clone())
    );
    assert_eq!(
        subject
            .conflict(Update::put(place.clone(), vec![]).when(Condition::VersionIs(Version(99))))
            .await,
        Some(made.clone())
    );
    assert_eq!(subject.get(&place).await, Some(made));
}

/// K2.
pub(super) async fn only_one_of_many_conditional_creates_wins(subject: Subject) {
    let outcomes = race(&subject, Condition::Absent, &key("race", "create")).await;
    one_winner(&subject, &key("race", "create"), outcomes).await;
}

/// K2.
pub(super) async fn only_one_of_many_updates_of_one_version_wins(subject: Subject) {
    let place = key("race", "version");
    let made = subject.kept(Update::put(place.clone(), vec![])).await;
    let outcomes = race(&subject, Condition::VersionIs(made.version), &place).await;
    one_winner(&subject, &place, outcomes).await;
}

async fn race(subject: &Subject, condition: Condition, place: &Key) -> Vec<Outcome> {
    subject
        .together((0..WRITERS).map(|writer| {
            let (subject, condition, place) = (subject.clone(), condition.clone(), place.clone());
            async move {
                pause().await;
                let change = vec![Action::set_integer("winner", writer as i64)];
                subject
                    .update(Update::modify(place, change).when(condition))
                    .await
            }
        }))
        .await
}

async fn one_winner(subject: &Subject, place: &Key, outcomes: Vec<Outcome>) {
    let present = subject.get(place).await.expect("one writer won");
    let mut winners = Vec::new();
    for (writer, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Outcome::Done(item) => {
                assert_eq!(item.as_ref(), Some(&present));
                winners.push(writer as i64);
            }
            Outcome::Conflict(item) => assert_eq!(item.as_ref(), Some(&present), "writer {writer}"),
        }
    }
    assert_eq!(
        winners,
        vec![present.integer("winner").expect("the winner set it")]
    );
}

/// K3.
pub(super) async fn an_update_beyond_a_limit_is_refused_and_changes_nothing(subject: Subject) {
    let limits = *subject.store.limits();
    let long = Key::new("limits", vec![b'k'; limits.key_bytes_max + 1]);
    let update = Update::put(long.clone(), vec![]);
    assert_eq!(
        refusal(subject.store.update(update.clone()).await),
        ErrorKind::Invalid
    );
    assert_eq!(
        refusal(subject.store.transact(vec![update]).await),
        ErrorKind::Invalid
    );
    assert!(
        subject
            .pages(Scan::partition("limits", 10))
            .await
            .concat()
            .is_empty()
    );

    let place = key("limits", "item");
    let half = Bytes::from(vec![b'x'; limits.item_bytes_max / 2]);
    let made = subject
        .kept(Update::modify(
            place.clone(),
            vec![Action::set("a", half.clone())],
        ))
        .await;
    let grow = Update::modify(
        place.clone(),
        vec![Action::set("b", half.clone()), Action::set("c", half)],
    );
    assert_eq!(
        refusal(subject.store.update(grow).await),
        ErrorKind::Invalid
    );
    assert_eq!(subject.get(&place).await, Some(made));
}

/// K3.
pub(super) async fn an_action_that_does_not_fit_is_refused_and_changes_nothing(subject: Subject) {
    let place = key("types", "item");
    let made = subject
        .kept(Update::modify(
            place.clone(),
            vec![
                Action::set("bytes", &b"b"[..]),
                Action::set_integer("integer", i64::MAX),
                Action::Append("list".into(), vec![Bytes::from_static(b"x")]),
            ],
        ))
        .await;
    let element = vec![Bytes::from_static(b"y")];
    let misfits = [
        Action::Add("bytes".into(), 1),
        Action::Add("list".into(), 1),
        Action::Add("integer".into(), 1),
        Action::Append("bytes".into(), element.clone()),
        Action::Append("integer".into(), element.clone()),
        Action::RemoveFirst("integer".into(), 1),
        Action::RemoveElements("bytes".into(), element),
    ];
    for misfit in misfits {
        let update = Update::modify(
            place.clone(),
            vec![Action::set_integer("other", 1), misfit.clone()],
        );
        assert_eq!(
            refusal(subject.store.update(update).await),
            ErrorKind::Invalid,
            "{misfit:?}"
        );
        assert_eq!(subject.get(&place).await, Some(made.clone()), "{misfit:?}");
    }
}

/// K4: exact counters under 64 concurrent writers.
pub(super) async fn sixty_four_writers_count_exactly(subject: Subject) {
    const ROUNDS: i64 = 16;
    let place = key("counter", "item");
    let seen = subject
        .together((0..WRITERS).map(|_| {
            let (subject, place) = (subject.clone(), place.clone());
            async move {
                let mut seen = Vec::new();
                for _ in 0..ROUNDS {
                    let add = Update::modify(place.clone(), vec![Action::Add("n".into(), 1)]);
                    seen.push(
                        subject
                            .kept(add)
                            .await
                            .integer("n")
                            .expect("it is a counter"),
                    );
                    pause().await;
                }
                assert!(seen.is_sorted(), "a writer sees the counter grow: {seen:?}");
                seen
            }
        }))
        .await;
    let total = ROUNDS * WRITERS as i64;
    assert_eq!(subject.integer(&place, "n").await, Some(total));
    let mut seen = seen.concat();
    seen.sort_unstable();
    assert_eq!(
        seen,
        (1..=total).collect::<Vec<_>>(),
        "each addition is seen by itself"
    );
}

/// K4.
pub(super) async fn a_counter_with_a_ceiling_is_never_pushed_past_it(subject: Subject) {
    let place = key("ceiling", "item");
    subject
        .done(Update::modify(
            place.clone(),
            vec![Action::set_integer("n", 0)],
        ))
        .await;
    let outcomes = subject
        .together((0..WRITERS).map(|_| {
            let (subject, place) = (subject.clone(), place.clone());
            async move {
                pause().await;
                let add = Update::modify(place, vec![Action::Add("n".into(), 1)]);
                subject
                    .update(add.when(Condition::attribute("n", Test::Below(10))))
                    .await
            }
        }))
        .await;
    let done = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Outcome::Done(_)))
        .count();
    assert_eq!((done, subject.integer(&place, "n").await), (10, Some(10)));
}

/// K4.
pub(super) async fn appends_and_removals_of_concurrent_writers_all_count(subject: Subject) {
    let place = key("list", "item");
    subject
        .together((0..WRITERS).map(|writer| {
            let (subject, place) = (subject.clone(), place.clone());
            async move {
                let element = Bytes::copy_from_slice(&writer.to_be_bytes());
                let append = Action::Append("list".into(), vec![element.clone()]);
                subject
                    .done(Update::modify(place.clone(), vec![append]))
                    .await;
                pause().await;
                if writer % 2 == 0 {
                    let remove = Action::RemoveElements("list".into(), vec![element]);
                    subject.done(Update::modify(place, vec![remove])).await;
                }
            }
        }))
        .await;
    let item = subject.get(&place).await.expect("the list is there");
    let mut left = item.list("list").to_vec();
    left.sort_unstable();
    let odd = (0..WRITERS).filter(|writer| writer % 2 == 1);
    assert_eq!(
        left,
        odd.map(|writer| Bytes::copy_from_slice(&writer.to_be_bytes()))
            .collect::<Vec<_>>()
    );
}

/// K4.
pub(super) async fn concurrent_removals_of_the_first_take_one_each(subject: Subject) {
    let place = key("first", "item");
    let elements: Vec<Bytes> = (0..WRITERS)
        .map(|n| Bytes::copy_from_slice(&n.to_be_bytes()))
        .collect();
    subject
        .done(Update::modify(
            place.clone(),
            vec![Action::Append("list".into(), elements.clone())],
        ))
        .await;
    let half = WRITERS as usize / 2;
    subject
        .together((0..half).map(|_| {
            let (subject, place) = (subject.clone(), place.clone());
            async move {
                pause().await;
                subject
                    .done(Update::modify(
                        place,
                        vec![Action::RemoveFirst("list".into(), 1)],
                    ))
                    .await;
            }
        }))
        .await;
    let item = subject.get(&place).await.expect("the list is there");
    assert_eq!(
        item.list("list"),
        &elements[half..],
        "the rest keeps its order"
    );
}
