use std::collections::BTreeMap;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;

const MINUTE: Duration = Duration::from_mins(1);

fn options() -> Options {
    Options {
        total: 3,
        cap: Cap {
            storage_bytes_max: 100,
            bytes_max: 120,
            requests_max: 4,
        },
        gc_interval: 10 * MINUTE,
        active_intervals: 2,
        degraded_intervals: 1,
        scaling: Scaling::Linear,
        groups_max: 8,
        pace: Pace {
            round: MINUTE,
            compaction_max: 4 * MINUTE,
            marks_max: 1000,
        },
    }
}

fn at(minutes: u32) -> Monotonic {
    Monotonic(minutes * MINUTE)
}

#[derive(Debug)]
struct Seeded(Mutex<fastrand::Rng>);

impl Seeded {
    fn new(seed: u64) -> Self {
        Self(Mutex::new(fastrand::Rng::with_seed(seed)))
    }
}

impl Entropy for Seeded {
    fn next_u64(&self) -> u64 {
        self.0.lock().u64(..)
    }
}

fn counts(changes: u64, storage_bytes: u64) -> Counts {
    Counts {
        changes,
        storage_bytes,
        ..Counts::default()
    }
}

fn chunk(fragment: u32) -> ChunkName {
    ChunkName {
        segment: 1,
        fragment,
        index: 0,
    }
}

fn function(group: u64, index: u8) -> FunctionId {
    FunctionId {
        group: GroupId(group),
        index,
    }
}

impl Window {
    fn put(&mut self, bytes: u64) -> (Vec<Placement>, Changes) {
        let (placed, changes) = self.place(&[(0, bytes), (1, bytes), (2, bytes)]);
        (placed.expect("there is room"), changes)
    }

    /// Puts an object whose chunks are at once in memory and durable.
    fn put_whole(&mut self, bytes: u64) -> Vec<Placement> {
        let (placed, _) = self.put(bytes);
        for placement in &placed {
            let used = self.used(placement.function);
            let changes = self.changes(placement.function);
            self.settled(*placement, Some(counts(changes + 1, used)));
            self.persisted(*placement);
        }
        placed
    }

    fn used(&mut self, id: FunctionId) -> u64 {
        let (group, _) = self.find(id.group).expect("it is there");
        group.functions[usize::from(id.index)].used_bytes()
    }

    fn changes(&mut self, id: FunctionId) -> u64 {
        let (group, _) = self.find(id.group).expect("it is there");
        group.functions[usize::from(id.index)].reported_changes()
    }

    fn check(&self) {
        let mut seen = Vec::new();
        for (bucket, is_latest) in self
            .buckets
            .iter()
            .rev()
            .zip(iter::once(true).chain(iter::repeat(false)))
        {
            for group in &bucket.groups {
                assert!(
                    is_latest || !group.is_open,
                    "an open group in an old bucket"
                );
                seen.push(group.id);
            }
        }
        seen.extend(self.leaving.iter().map(|group| group.id));
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count, "a group is in two buckets");
        assert!(count <= self.options.groups_max);
        assert!(self.buckets.len() <= self.intervals() as usize);
    }
}

fn groups_of(placed: &[Placement]) -> Vec<u64> {
    placed
        .iter()
        .map(|placement| placement.function.group.0)
        .collect()
}

#[test]
fn chunks_of_an_object_go_to_the_functions_of_their_indices() {
    let mut window = Window::new(options(), at(0));
    let (placed, changes) = window.put(10);
    let functions: Vec<_> = placed.iter().map(|placement| placement.function).collect();
    assert_eq!(functions, [function(0, 0), function(0, 1), function(0, 2)]);
    assert_eq!(changes.added, [GroupId(0)]);
}

#[test]
fn the_oldest_open_group_is_first_and_a_full_function_seals_its_group() {
    let mut window = Window::new(options(), at(0));
    window.put_whole(60);
    // Chunk 0 does not fit: the whole group is sealed.
    let (placed, changes) = window.place(&[(0, 50), (1, 10)]);
    assert_eq!(groups_of(&placed.expect("there is room")), [1, 1]);
    assert_eq!(changes.added, [GroupId(1)]);
    // A group with a full queue is passed over, and stays open.
    for _ in 0..3 {
        window.place(&[(0, 1)]).0.expect("there is room");
    }
    assert_eq!(groups_of(&window.put(1).0), [2, 1, 1]);
}

#[test]
fn the_cap_holds_for_chunks_whose_replies_are_on_their_way() {
    let mut window = Window::new(options(), at(0));
    let (first, _) = window.put(60);
    assert_eq!(groups_of(&window.put(60).0), [1, 1, 1]);
    // A failed chunk gives its space back.
    window.settled(first[0], None);
    assert_eq!(window.used(function(0, 0)), 0);
}

#[test]
fn a_late_reply_never_replaces_newer_counts() {
    let mut window = Window::new(options(), at(0));
    let placed: Vec<_> = (0..3)
        .map(|_| window.place(&[(0, 10)]).0.expect("room")[0])
        .collect();
    window.settled(placed[1], Some(counts(2, 20)));
    window.settled(placed[0], Some(counts(1, 10)));
    assert_eq!(window.used(function(0, 0)), 20 + 10);
    window.settled(placed[2], Some(counts(3, 30)));
    assert_eq!(window.used(function(0, 0)), 30);
}

#[test]
fn chunks_that_come_back_count_before_they_have_arrived() {
    let mut window = Window::new(options(), at(0));
    let old = window.put_whole(60)[0];
    assert_eq!(window.failed(old.function), Failed::Restart);
    let expected = window.expect(old.function, 60).expect("it is there");
    let (placed, _) = window.put(41);
    assert_eq!(placed[0].function, function(1, 0), "60 + 41 exceed the cap");
    window.returned(
        Placement {
            bytes: 20,
            ..expected
        },
        counts(2, 20),
    );
    assert_eq!(window.used(old.function), 20 + 40);
    window.returned(
        Placement {
            bytes: 40,
            ..expected
        },
        counts(4, 60),
    );
    assert_eq!(window.used(old.function), 60);
    // A second failure ends the wait for the chunks of the first one.
    assert_eq!(window.failed(old.function), Failed::Restart);
    window.returned(expected, counts(9, 60));
    assert_eq!(window.used(old.function), 0);
}

fn thirds(bytes: u64) -> [(u8, u64); 3] {
    [(0, bytes), (1, bytes), (2, bytes)]
}

impl Window {
    /// Caches an object whose chunks are at once in memory.
    fn cache_whole(&mut self, bytes: u64) -> (Vec<u64>, Changes) {
        let (placed, changes) = self.place_in_cache(&thirds(bytes));
        let placed = placed.expect("there is room");
        for placement in &placed {
            let storage_bytes = self.used(placement.function);
            let counts = Counts {
                cache_bytes: bytes,
                ..counts(self.changes(placement.function) + 1, storage_bytes)
            };
            self.settled(*placement, Some(counts));
            self.persisted(*placement);
        }
        (groups_of(&placed), changes)
    }
}

/// Section 5.4.
#[test]
fn cached_chunks_seal_no_group_and_take_no_space_from_storage() {
    let mut window = Window::new(options(), at(0));
    window.put_whole(60);
    assert_eq!(window.cache_whole(60).0, [0, 0, 0]);
    assert_eq!(window.used(function(0, 0)), 60);
    let (placed, _) = window.put(40);
    assert_eq!(
        groups_of(&placed),
        [0, 0, 0],
        "storage takes all up to HARDCAP"
    );
    assert_eq!(
        window.cache_whole(20).0,
        [0, 0, 0],
        "the rest is for the cache"
    );
    let (placed, changes) = window.place_in_cache(&thirds(21));
    assert_eq!(groups_of(&placed.expect("there is room")), [1, 1, 1]);
    assert_eq!(changes.added, [GroupId(1)]);
    let too_large = window.place_in_cache(&thirds(121)).0;
    assert_eq!(too_large, Err(Unplaced::TooLarge));
}

/// Reads of cold objects replace each other. They release one group at most, and never add two.
#[test]
fn the_cache_stays_in_open_groups_and_grows_only_without_one() {
    let mut window = Window::new(options(), at(0));
    for _ in 0..8 {
        window.put_whole(100);
    }
    // It seals the latest group.
    window.put_whole(1);
    for _ in 0..20 {
        assert_eq!(window.cache_whole(100).1, Changes::default());
    }
    // Free space comes first, and a sealed group takes nothing.
    window.seal(GroupId(8));
    let (groups, changes) = window.cache_whole(100);
    assert_eq!(
        (groups, changes.released),
        (vec![9, 9, 9], vec![GroupId(1)])
    );
}

/// Section 5.3.3.
#[test]
fn further_copies_go_to_a_group_that_is_not_busy_and_release_none() {
    let mut window = Window::new(options(), at(0));
    window.put_whole(10);
    let copies = window.place_copies(&thirds(10), |_| false).0;
    assert_eq!(groups_of(&copies.expect("there is room")), [0, 0, 0]);
    for group in 1..8 {
        let (copies, changes) = window.place_copies(&thirds(10), |busy| busy.0 < group);
        assert_eq!(groups_of(&copies.expect("there is room")), [group; 3]);
        assert_eq!(changes.added, [GroupId(group)]);
    }
    let (copies, changes) = window.place_copies(&thirds(10), |_| true);
    assert_eq!((copies, changes), (Err(Unplaced::Full), Changes::default()));
}

#[test]
fn a_reply_of_an_earlier_instance_counts_for_nothing() {
    let mut window = Window::new(options(), at(0));
    let (old, _) = window.put(60);
    assert_eq!(window.failed(function(0, 0)), Failed::Restart);
    assert_eq!(window.used(function(0, 0)), 0);
    let (new, _) = window.put(30);
    assert_eq!(new[0].function, function(0, 0));
    window.settled(old[0], Some(counts(9, 90)));
    assert_eq!(window.used(function(0, 0)), 30);
}

#[test]
fn nothing_of_an_object_is_counted_that_is_not_placed_whole() {
    let groups_max = 1;
    let mut window = Window::new(
        Options {
            groups_max,
            ..options()
        },
        at(0),
    );
    window.put(10);
    let (placed, _) = window.place(&[(0, 10), (1, 95)]);
    assert_eq!(placed.expect_err("no room"), Unplaced::Full);
    assert_eq!(window.used(function(0, 0)), 10);
    for chunk in [(0, 101), (3, 1)] {
        let (placed, changes) = window.place(&[chunk]);
        assert_eq!(placed.expect_err("too large"), Unplaced::TooLarge);
        assert_eq!(changes, Changes::default());
    }
}

#[test]
fn the_doubling_policy_adds_as_many_groups_as_are_open() {
    let scaling = Scaling::Doubling;
    let mut window = Window::new(
        Options {
            scaling,
            ..options()
        },
        at(0),
    );
    let mut added = Vec::new();
    for _ in 0..=4 * 4 {
        let (_, changes) = window.place(&[(0, 1)]);
        added.extend((!changes.added.is_empty()).then_some(changes.added.len()));
    }
    // Full queues let it grow from 1 to 2, 4 and 8.
    assert_eq!(added, [1, 1, 2, 4]);
    assert_eq!(window.groups_count(), 8, "the bound");
}

/// Figure 4.
#[test]
fn buckets_are_active_then_degraded_then_released() {
    let mut window = Window::new(options(), at(0));
    window.put_whole(60);
    // This one seals group 0.
    window.put_whole(60);
    assert_eq!(window.phase(function(0, 0)), Some(Phase::Active));
    assert_eq!(window.collect(at(9)), Changes::default());
    for (minute, phase) in [(10, Phase::Active), (20, Phase::Degraded)] {
        assert_eq!(window.collect(at(minute)), Changes::default());
        assert_eq!(window.phase(function(0, 0)), Some(phase), "{minute}");
        window.put_whole(1);
    }
    assert_eq!(window.collect(at(30)).released, [GroupId(0)]);
    assert_eq!(window.phase(function(0, 0)), None);
    // The open group was carried over each time.
    assert_eq!(window.phase(function(1, 0)), Some(Phase::Active));
    assert_eq!(window.groups_count(), 1);
}

#[test]
fn an_open_group_that_was_carried_over_starts_anew() {
    let mut window = Window::new(options(), at(0));
    window.put_whole(60);
    window.collect(at(10));
    // It is sealed in the second bucket.
    window.put_whole(60);
    for minute in [20, 30] {
        assert_eq!(window.collect(at(minute)), Changes::default(), "{minute}");
        assert!(window.phase(function(0, 0)).is_some());
    }
    assert_eq!(window.collect(at(40)).released, [GroupId(0)]);
}

#[test]
fn without_puts_and_gets_all_memory_is_released() {
    let mut window = Window::new(options(), at(0));
    window.put_whole(10);
    // Its last use is in the first interval: it is carried over twice, then ages in a bucket.
    let released: Vec<_> = (1..=7)
        .map(|interval| window.collect(at(10 * interval)).released.len())
        .collect();
    assert_eq!(released.iter().sum::<usize>(), 1, "{released:?}");
    assert_eq!(window.groups_count(), 0);
    // A late call makes up for all intervals that it missed.
    window.put_whole(10);
    assert_eq!(window.collect(at(1000)).released.len(), 1);
    assert_eq!(window.groups_count(), 0);
}

#[test]
fn a_group_is_released_once_its_chunks_are_durable_and_its_requests_have_ended() {
    let mut window = Window::new(options(), at(0));
    let (placed, _) = window.put(60);
    window.put_whole(60);
    for placement in &placed[1..] {
        window.settled(*placement, Some(counts(1, 60)));
        window.persisted(*placement);
    }
    assert!(window.collect(at(100)).released.iter().all(|id| id.0 != 0));
    window.settled(placed[0], Some(counts(1, 60)));
    assert_eq!(window.collect(at(101)).released, [], "it is not durable");
    window.persisted(placed[0]);
    assert_eq!(window.collect(at(102)).released, [GroupId(0)]);
}

#[test]
fn a_read_of_a_degraded_chunk_moves_it_once() {
    let mut window = Window::new(options(), at(0));
    window.put_whole(60);
    window.put_whole(60);
    let access =
        |window: &mut Window, minute| window.accessed(chunk(1), function(0, 0), at(minute));
    assert_eq!(access(&mut window, 1), Accessed::Kept);
    assert_eq!(
        window.compact(at(5), &Seeded::new(1)),
        [],
        "it is in the latest bucket"
    );
    window.collect(at(20));
    assert_eq!(access(&mut window, 20), Accessed::Move);
    assert_eq!(access(&mut window, 20), Accessed::Kept, "it is on its way");
    window.moved(chunk(1));
    assert_eq!(access(&mut window, 21), Accessed::Move);
    window.moved(chunk(1));
    assert_eq!(window.failed(function(0, 1)), Failed::Dropped);
    let read = window.accessed(chunk(2), function(0, 1), at(21));
    assert_eq!(read, Accessed::Gone);
    window.collect(at(30));
    assert_eq!(access(&mut window, 30), Accessed::Gone);
}

#[test]
fn marked_chunks_move_by_halves_and_all_before_the_bound() {
    let mut window = Window::new(options(), at(0));
    window.put_whole(60);
    window.put_whole(60);
    window.collect(at(10));
    for fragment in 0..100 {
        let read = window.accessed(chunk(fragment), function(0, 0), at(10));
        assert_eq!(read, Accessed::Kept);
    }
    let entropy = Seeded::new(3);
    assert_eq!(window.compact(at(10), &entropy), [], "no round yet");
    let mut moved = Vec::new();
    let mut sizes = Vec::new();
    for minute in 11..=14 {
        let round = window.compact(at(minute), &entropy);
        assert_eq!(
            window.compact(at(minute), &entropy),
            [],
            "one round a minute"
        );
        sizes.push(round.len());
        moved.extend(round.iter().map(|item| item.chunk));
        // A chunk on its way is not marked again.
        for item in &round {
            window.accessed(item.chunk, item.from, at(minute));
        }
    }
    assert_eq!(sizes, [50, 25, 13, 12], "the last round takes the rest");
    let first: Vec<_> = (0..50).map(chunk).collect();
    assert_ne!(moved[..50], first, "a random half");
    moved.sort_unstable();
    moved.dedup();
    assert_eq!(moved.len(), 100, "each once");
    assert_eq!(window.compact(at(99), &entropy), []);
}

#[test]
fn a_group_with_marked_chunks_is_released_after_they_have_moved() {
    let mut window = Window::new(options(), at(0));
    window.put_whole(60);
    window.put_whole(60);
    window.collect(at(10));
    for fragment in 0..4 {
        window.accessed(chunk(fragment), function(0, 0), at(10));
    }
    assert_eq!(window.collect(at(30)), Changes::default());
    // All of a leaving group's chunks are urgent.
    assert_eq!(window.compact(at(30), &Seeded::new(1)).len(), 4);
    assert_eq!(window.collect(at(30)).released, [GroupId(0)]);
}

#[test]
fn marks_are_bounded() {
    let mut options = options();
    options.pace.marks_max = 3;
    let mut window = Window::new(options, at(0));
    window.put_whole(60);
    window.put_whole(60);
    window.collect(at(10));
    for fragment in 0..10 {
        window.accessed(chunk(fragment), function(0, 0), at(10));
    }
    assert_eq!(window.compact(at(99), &Seeded::new(1)).len(), 3);
}

#[test]
fn at_the_bound_the_oldest_sealed_group_is_released_early() {
    let groups_max = 3;
    let mut window = Window::new(
        Options {
            groups_max,
            ..options()
        },
        at(0),
    );
    window.put_whole(60);
    window.collect(at(10));
    window.put_whole(60);
    window.put_whole(60);
    assert_eq!(window.groups_count(), 3);
    let (placed, changes) = window.put(60);
    assert_eq!(
        (changes.released, changes.added),
        (vec![GroupId(0)], vec![GroupId(3)])
    );
    window.put_whole(60);
    // Groups 2 and 4 may go. Group 3 may not, because its chunks are not durable.
    for _ in 0..2 {
        assert!(window.place(&[(0, 60)]).0.is_ok());
    }
    assert_eq!(window.place(&[(0, 60)]).0, Err(Unplaced::Full));
    assert!(window.phase(placed[0].function).is_some());
}

#[derive(Debug, Clone)]
enum Step {
    Put(Vec<u64>),
    Settle(usize, bool),
    Persist(usize),
    Read(usize),
    Fail(u64, u8),
    Wait(u32),
    Compact(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => prop::collection::vec(0..70_u64, 1..=3).prop_map(Step::Put),
        6 => (any::<usize>(), prop::bool::weighted(0.9)).prop_map(|(which, ok)| Step::Settle(which, ok)),
        5 => any::<usize>().prop_map(Step::Persist),
        3 => any::<usize>().prop_map(Step::Read),
        1 => (0..12_u64, 0..3_u8).prop_map(|(group, index)| Step::Fail(group, index)),
        2 => (1..15_u32).prop_map(Step::Wait),
        1 => any::<u64>().prop_map(Step::Compact),
    ];
    prop::collection::vec(step, 1..150)
}

/// The placed chunks as a caller knows them.
#[derive(Debug, Default)]
struct Model {
    placed: Vec<Known>,
    reported: BTreeMap<(FunctionId, u32), Counts>,
    minute: u32,
}

#[derive(Debug, Clone)]
struct Known {
    placement: Placement,
    object: usize,
    is_settled: bool,
    is_persisted: bool,
}

impl Model {
    /// One of the chunks that `of` selects.
    fn one(&mut self, which: usize, of: impl Fn(&Known) -> bool) -> Option<&mut Known> {
        let mut known: Vec<_> = self.placed.iter_mut().filter(|known| of(known)).collect();
        let count = known.len();
        (count > 0).then(|| known.swap_remove(which % count))
    }

    fn apply(&mut self, window: &mut Window, step: Step, object: usize) {
        let now = at(self.minute);
        let mut changes = Changes::default();
        match step {
            Step::Put(sizes) => {
                let chunks: Vec<_> = (0..).zip(sizes).collect();
                let (placed, changed) = window.place(&chunks);
                // An early release frees none of the new chunks, either.
                changes = changed;
                self.placed
                    .extend(placed.into_iter().flatten().map(|placement| Known {
                        placement,
                        object,
                        is_settled: false,
                        is_persisted: false,
                    }));
            }
            Step::Settle(which, is_there) => self.settle(window, which, is_there),
            Step::Persist(which) => {
                if let Some(known) =
                    self.one(which, |known| known.is_settled && !known.is_persisted)
                {
                    known.is_persisted = true;
                    window.persisted(known.placement);
                }
            }
            Step::Read(which) => {
                if let Some(known) = self.one(which, |known| known.is_settled) {
                    window.accessed(chunk(which as u32 % 50), known.placement.function, now);
                }
            }
            Step::Fail(group, index) => {
                let failed = function(group, index);
                window.failed(failed);
                self.placed
                    .retain(|known| known.placement.function != failed);
            }
            Step::Wait(minutes) => {
                self.minute += minutes;
                changes = window.collect(at(self.minute));
            }
            Step::Compact(seed) => {
                for item in window.compact(now, &Seeded::new(seed)) {
                    assert!(
                        window.find(item.from.group).is_some(),
                        "it is in the window"
                    );
                    window.moved(item.chunk);
                }
            }
        }
        self.release(&changes);
        self.check(window);
    }

    fn settle(&mut self, window: &mut Window, which: usize, is_there: bool) {
        let Some(known) = self.one(which, |known| !known.is_settled) else {
            return;
        };
        let (placement, object) = (known.placement, known.object);
        if is_there {
            known.is_settled = true;
            let key = (placement.function, placement.generation);
            let counts = self.reported.entry(key).or_default();
            counts.changes += 1;
            counts.storage_bytes += placement.bytes;
            window.settled(placement, Some(*counts));
        } else {
            let is_it = |known: &Known| (known.object, known.placement) == (object, placement);
            self.placed.retain(|known| !is_it(known));
            window.settled(placement, None);
        }
    }

    /// A released group holds nothing that is not persisted.
    fn release(&mut self, changes: &Changes) {
        let is_released =
            |known: &Known| changes.released.contains(&known.placement.function.group);
        for known in self.placed.iter().filter(|known| is_released(known)) {
            assert!(known.is_settled && known.is_persisted, "{known:?}");
        }
        self.placed.retain(|known| !is_released(known));
    }

    fn check(&self, window: &mut Window) {
        window.check();
        let mut functions = BTreeMap::new();
        for known in &self.placed {
            let key = (known.object, known.placement.function);
            let other = functions.insert(key, known);
            assert!(
                other.is_none(),
                "two chunks of an object: {known:?} {other:?}"
            );
            assert!(window.used(known.placement.function) <= 100);
        }
    }
}

proptest! {
    /// No two chunks of an object are on one function. No function exceeds its cap. A released
    /// function holds nothing that is not persisted. Only the latest bucket has open groups.
    #[test]
    fn the_invariants_hold_after_each_step(steps in steps(), is_doubling in any::<bool>()) {
        let scaling = if is_doubling { Scaling::Doubling } else { Scaling::Linear };
        let mut window = Window::new(Options { scaling, ..options() }, at(0));
        let mut model = Model::default();
        for (object, step) in steps.into_iter().enumerate() {
            model.apply(&mut window, step, object);
        }
    }
}
