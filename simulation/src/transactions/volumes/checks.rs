//! V1 to V6 over a history, and over the proposals that have committed in the end.
//!
//! The proposals of one slot have an order that no answer tells. The check follows all orders, and
//! keeps each state that is possible.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ports::DurabilityPoint;
use transactions::serializable::{
    contract::Oracle,
    model::{Key, KeyRange, Predicate, ProposalId, Slot, Verdict, number_in},
};

use super::history::{History, Look, Saw, Sent, Transaction};

/// The most states that are possible at once.
const STATES_MAX: usize = 10_000;
/// How long a snapshot is readable after the last call that named it, less the time of a call.
const IDLE_MAX: Duration = Duration::from_secs(55);
/// How long it is readable in all, less the time of a call.
const LIFE_MAX: Duration = Duration::from_mins(14);

/// The content of a volume.
type State = BTreeMap<Key, Vec<u8>>;

/// A proposal that has committed in the end.
#[derive(Debug)]
pub struct Survivor {
    /// Its place in the history.
    pub place: usize,
    /// Its slot.
    pub slot: Slot,
    /// Where its appends went.
    pub appended_at: Vec<u64>,
}

/// A finished run.
pub struct Evidence<'run> {
    /// The answers that the clients received.
    pub history: &'run History,
    /// The transactions that have committed, at or before the last read.
    pub survivors: &'run [Survivor],
    /// Whether the store has a point.
    pub is_durable: &'run dyn Fn(DurabilityPoint) -> bool,
}

impl Evidence<'_> {
    /// All violations.
    pub fn violations(&self) -> Vec<String> {
        let found = [
            ("error", self.history.errors.clone()),
            ("V1", self.contradictions()),
            ("V1 real time", self.out_of_time()),
            ("V2", self.changed_snapshots()),
            ("V2 too old", self.too_old()),
            ("V3", self.decided_twice()),
            ("V4", self.readers_in_conflict()),
            ("V5", self.blind_in_conflict()),
            ("V6", self.lost_points()),
        ];
        let said = |(rule, found): (&str, Vec<String>)| {
            let found = found.into_iter();
            found
                .map(|one| format!("{rule}: {one}"))
                .collect::<Vec<_>>()
        };
        found.into_iter().flat_map(said).collect()
    }

    fn transaction(&self, survivor: &Survivor) -> &Transaction {
        &self.history.transactions[survivor.place]
    }

    /// The reads that the store has not lost.
    fn kept_looks(&self) -> impl Iterator<Item = &Look> {
        let looks = self.history.looks.iter();
        looks.filter(|look| (self.is_durable)(look.point))
    }

    /// V1: the commits are not equivalent to an execution in the order of slots, or a read saw
    /// another state than that of its slot.
    fn contradictions(&self) -> Vec<String> {
        let mut slots = BTreeMap::<Slot, (Vec<&Survivor>, Vec<&Look>)>::new();
        for survivor in self.survivors {
            slots.entry(survivor.slot).or_default().0.push(survivor);
        }
        for look in self.kept_looks() {
            slots.entry(look.slot).or_default().1.push(look);
        }
        let mut states = BTreeSet::from([State::new()]);
        for (slot, (commits, looks)) in slots {
            let mut after = BTreeSet::new();
            for state in &states {
                self.execute(state, &commits, &mut after);
            }
            if after.is_empty() {
                let commits: Vec<_> = commits.iter().map(|one| self.transaction(one)).collect();
                return vec![format!(
                    "no order of the commits of {slot:?} explains {commits:#?} from {states:?}"
                )];
            }
            states = after;
            for look in looks {
                let before = states.clone();
                states.retain(|state| look.saw.iter().all(|saw| is_seen(state, saw)));
                if states.is_empty() {
                    return vec![format!("{look:?} saw none of {before:?}")];
                }
            }
            assert!(states.len() < STATES_MAX, "too many orders are possible");
        }
        Vec::new()
    }

    /// Adds the states after `commits` in each order that explains them.
    fn execute(&self, state: &State, commits: &[&Survivor], after: &mut BTreeSet<State>) {
        if commits.is_empty() {
            after.insert(state.clone());
        }
        for (place, first) in commits.iter().enumerate() {
            let transaction = self.transaction(first);
            if first.slot <= transaction.proposal.at || !holds(state, transaction) {
                continue;
            }
            let mut oracle = Oracle(state.clone());
            let writes = transaction.writes.iter();
            let positions: Vec<u64> = writes.filter_map(|write| oracle.write(write)).collect();
            if positions != first.appended_at {
                continue;
            }
            let mut rest = commits.to_vec();
            rest.remove(place);
            self.execute(&oracle.0, &rest, after);
        }
    }

    /// V1: a read or a commit is before one that had ended when it began.
    fn out_of_time(&self) -> Vec<String> {
        /// When something was asked or answered, its slot, and the least slot that it may have.
        enum Event {
            Asked(Slot, u64, String),
            Answered(Slot),
        }
        let mut events = Vec::new();
        for look in self.kept_looks().filter(|look| look.is_tail) {
            let name = format!("{look:?}");
            events.push((look.span.asked, Event::Asked(look.slot, 0, name)));
            events.push((look.span.answered, Event::Answered(look.slot)));
        }
        for survivor in self.survivors {
            let transaction = self.transaction(survivor);
            let sent = transaction.sent.iter();
            let Some(asked) = sent.clone().map(|sent| sent.asked).min() else {
                continue;
            };
            let name = format!("{:?}", transaction.proposal.id);
            events.push((asked, Event::Asked(survivor.slot, 1, name)));
            let answers = sent.filter(|sent| slot_of(sent) == Some(survivor.slot));
            let answers = answers.filter_map(|sent| sent.answer.as_ref());
            if let Some((answered, ..)) = answers.min_by_key(|(answered, ..)| *answered) {
                events.push((*answered, Event::Answered(survivor.slot)));
            }
        }
        events.sort_by_key(|(at, _)| *at);
        let (mut last, mut found) = (Slot(0), Vec::new());
        for (_, event) in events {
            match event {
                Event::Answered(slot) => last = last.max(slot),
                Event::Asked(slot, more, name) if slot.0 < last.0 + more => {
                    found.push(format!("{name} is at {slot:?}, after {last:?} had ended"));
                }
                Event::Asked(..) => {}
            }
        }
        found
    }

    /// V2: two reads at one slot differ, even if the store has lost that slot.
    fn changed_snapshots(&self) -> Vec<String> {
        let mut values = BTreeMap::new();
        let mut names = BTreeMap::new();
        let mut found = Vec::new();
        for look in &self.history.looks {
            for saw in &look.saw {
                let is_same = match saw {
                    Saw::Value(key, value) => {
                        values.entry((look.slot, key)).or_insert(value) == &value
                    }
                    Saw::Names(range, entries) => {
                        names.entry((look.slot, range)).or_insert(entries) == &entries
                    }
                };
                if !is_same {
                    found.push(format!("{look:?} differs from a read before"));
                }
            }
        }
        found
    }

    /// V2: a snapshot that the store has not lost went too early.
    fn too_old(&self) -> Vec<String> {
        let mut found = Vec::new();
        for refused in &self.history.too_old {
            let looks = self.kept_looks();
            let looks = looks.filter(|look| look.slot == refused.slot);
            let named = looks.map(|look| look.span.answered);
            let named = named.filter(|named| *named < refused.asked);
            let (first, last) = named.fold((None, None), |(first, _), at| {
                (first.or(Some(at)), Some(at))
            });
            let is_young = |since: Option<Duration>, most: Duration| {
                since.is_some_and(|since| refused.asked < since + most)
            };
            let is_pinned = first.is_some() && self.history.pinned.contains(&refused.slot);
            if is_pinned || is_young(first, LIFE_MAX) && is_young(last, IDLE_MAX) {
                found.push(format!("{refused:?} was named at {last:?}"));
            }
        }
        found
    }

    /// V3, V6: an answer that the store has not lost differs from the last one, or a commit is
    /// gone.
    fn decided_twice(&self) -> Vec<String> {
        let survivors: BTreeMap<usize, &Survivor> = self
            .survivors
            .iter()
            .map(|survivor| (survivor.place, survivor))
            .collect();
        let mut found = Vec::new();
        let mut ids = BTreeMap::<&ProposalId, Slot>::new();
        for (place, transaction) in self.history.transactions.iter().enumerate() {
            if transaction.writes.is_empty() {
                continue;
            }
            let id = &transaction.proposal.id;
            if let Some(survivor) = survivors.get(&place)
                && let Some(other) = ids.insert(id, survivor.slot)
            {
                found.push(format!("{id:?} is in {other:?} and in {:?}", survivor.slot));
            }
            let last = survivors.get(&place).map(|survivor| survivor.slot);
            for sent in &transaction.sent {
                let Some((_, verdict, point)) = &sent.answer else {
                    continue;
                };
                if (self.is_durable)(*point) && slot_of(sent) != last {
                    found.push(format!("{id:?} was {verdict:?}, and is in {last:?}"));
                }
            }
        }
        found
    }

    /// V4: a proposal that writes nothing did not commit.
    fn readers_in_conflict(&self) -> Vec<String> {
        self.answers(|transaction| transaction.writes.is_empty())
            .filter(|(_, verdict)| {
                !matches!(verdict, Verdict::Committed { .. } | Verdict::SnapshotTooOld)
            })
            .map(|(id, verdict)| format!("{id:?} only read, and was {verdict:?}"))
            .collect()
    }

    /// V5: a proposal without reads and predicates conflicted.
    fn blind_in_conflict(&self) -> Vec<String> {
        self.answers(Transaction::is_blind)
            .filter(|(_, verdict)| matches!(verdict, Verdict::Conflict { .. }))
            .map(|(id, verdict)| format!("{id:?} only wrote, and was {verdict:?}"))
            .collect()
    }

    /// V6: a point was externalized, and is lost.
    fn lost_points(&self) -> Vec<String> {
        let points = self.history.externalized.iter();
        points
            .filter(|point| !(self.is_durable)(**point))
            .map(|point| format!("{point:?} was durable, and is lost"))
            .collect()
    }

    fn answers(
        &self,
        of: impl Fn(&Transaction) -> bool,
    ) -> impl Iterator<Item = (&ProposalId, &Verdict)> {
        let transactions = self.history.transactions.iter();
        transactions
            .filter(move |transaction| of(transaction))
            .flat_map(|transaction| {
                let answers = transaction.sent.iter();
                let answers = answers.filter_map(|sent| sent.answer.as_ref());
                answers.map(|(_, verdict, _)| (&transaction.proposal.id, verdict))
            })
    }
}

/// Gives each read from leased memory the last slot that was answered before it. So the other
/// checks find it if a commit has replaced the value by then.
pub fn place_leased(
    history: &mut History,
    survivors: &[Survivor],
    is_durable: &dyn Fn(DurabilityPoint) -> bool,
) {
    let looks = history.looks.iter();
    let looks = looks.filter(|look| look.is_tail && !look.is_leased && is_durable(look.point));
    let mut answered: Vec<(Duration, Slot)> =
        looks.map(|look| (look.span.answered, look.slot)).collect();
    for survivor in survivors {
        let sent = history.transactions[survivor.place].sent.iter();
        let answers = sent.filter(|sent| slot_of(sent) == Some(survivor.slot));
        let answers = answers.filter_map(|sent| sent.answer.as_ref());
        answered.extend(answers.map(|(answered, ..)| (*answered, survivor.slot)));
    }
    let leased = history.looks.iter_mut();
    for look in leased.filter(|look| look.is_leased && is_durable(look.point)) {
        let before = answered.iter().filter(|(at, _)| *at < look.span.asked);
        let last = before.map(|(_, slot)| *slot).max().unwrap_or_default();
        look.slot = look.slot.max(last);
    }
}

/// The slot in which an answer says that the proposal committed.
pub fn slot_of(sent: &Sent) -> Option<Slot> {
    match &sent.answer {
        Some((_, Verdict::Committed { slot, .. }, _)) => Some(*slot),
        _ => None,
    }
}

/// Whether a transaction would have read the same from `state`, and its predicates hold there.
fn holds(state: &State, transaction: &Transaction) -> bool {
    let compares = |predicate: &Predicate| match predicate {
        Predicate::Number { key, is } => {
            let value = state.get(key).map(|value| value.clone().into());
            number_in(value.as_ref()).is_some_and(|number| is.holds(number))
        }
        Predicate::Untouched(_) | Predicate::LockFree(_) => true,
    };
    transaction.saw.iter().all(|saw| is_seen(state, saw))
        && transaction.proposal.predicates.iter().all(compares)
}

fn is_seen(state: &State, saw: &Saw) -> bool {
    match saw {
        Saw::Value(key, value) => state.get(key).map(|value| &value[..]) == value.as_deref(),
        Saw::Names(range, entries) => {
            let entries = entries.iter().map(|(name, value)| (&name[..], &value[..]));
            in_range(state, range).eq(entries)
        }
    }
}

fn in_range<'s>(
    state: &'s State,
    range: &'s KeyRange,
) -> impl Iterator<Item = (&'s [u8], &'s [u8])> {
    let inside = state.iter().filter(|(key, _)| range.contains(key));
    inside.map(|(key, value)| (&key.name()[..], &value[..]))
}
