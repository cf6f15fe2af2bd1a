//! The faults of a world and their probabilities.
//!
//! A fault strikes at a port call, before or after it is performed. Probabilities can change during
//! a run; [`Faults::calm`] removes all faults. The world's seed decides whether a fault strikes.

use std::{collections::BTreeMap, ops::RangeInclusive, sync::Mutex, time::Duration};

use fastrand::Rng;

use crate::run::lock;

/// A probability, in parts per million.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Chance(u32);

/// A probability of `percent` in a hundred.
pub fn percent(percent: u32) -> Chance {
    Chance::per_million(percent * 10_000)
}

impl Chance {
    /// Never.
    pub const NEVER: Self = Self(0);
    /// Every time.
    pub const ALWAYS: Self = Self(1_000_000);

    /// `parts` in a million; higher values count as a million.
    pub fn per_million(parts: u32) -> Self {
        Self(parts.min(1_000_000))
    }

    pub(crate) fn strikes(self, random: &mut Rng) -> bool {
        self.0 > 0 && random.u32(..1_000_000) < self.0
    }
}

/// The faults of a world; none is enabled at first.
#[derive(Debug, Default)]
pub struct Faults(Mutex<Chances>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Chances {
    delay: Chance,
    delay_range: RangeInclusive<Duration>,
    refuse: Chance,
    lose_answer: Chance,
    deliver_twice: Chance,
    crash_store: Chance,
    crash_functions: Chance,
    crash_function: BTreeMap<String, Chance>,
    crash_once: BTreeMap<String, u32>,
    kill_instances: Chance,
}

impl Default for Chances {
    fn default() -> Self {
        Self {
            delay: Chance::NEVER,
            delay_range: Duration::ZERO..=Duration::ZERO,
            refuse: Chance::NEVER,
            lose_answer: Chance::NEVER,
            deliver_twice: Chance::NEVER,
            crash_store: Chance::NEVER,
            crash_functions: Chance::NEVER,
            crash_function: BTreeMap::new(),
            crash_once: BTreeMap::new(),
            kill_instances: Chance::NEVER,
        }
    }
}

/// The faults that strike one port call.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallFaults {
    pub(crate) any_enabled: bool,
    pub(crate) delay_before: Option<Duration>,
    pub(crate) delay_after: Option<Duration>,
    pub(crate) refused: bool,
    pub(crate) answer_lost: bool,
    pub(crate) caller_dies_before: bool,
    pub(crate) caller_dies_after: bool,
    pub(crate) store_crashes: bool,
}

impl Faults {
    /// Removes all faults.
    pub fn calm(&self) {
        *lock(&self.0) = Chances::default();
    }

    /// Delays a call or its answer by a duration within `range`. Below a millisecond, a delay only
    /// lets other tasks run first.
    pub fn delay(&self, chance: Chance, range: RangeInclusive<Duration>) {
        let mut chances = lock(&self.0);
        chances.delay = chance;
        chances.delay_range = range;
    }

    /// Refuses a call as unavailable before it changed anything.
    pub fn refuse(&self, chance: Chance) {
        lock(&self.0).refuse = chance;
    }

    /// Performs a call but loses its answer. The error is "outcome unknown" for a call that may
    /// have changed something, and "unavailable" for a read.
    pub fn lose_answer(&self, chance: Chance) {
        lock(&self.0).lose_answer = chance;
    }

    /// Forgets an acknowledgement after its answer, so that its messages are delivered again. It
    /// strikes only if the acknowledgement frees the group, so that the group's order holds (Q1),
    /// and once per message.
    pub fn deliver_twice(&self, chance: Chance) {
        lock(&self.0).deliver_twice = chance;
    }

    /// Crashes the store at a port call, like [`World::crash`](crate::World::crash). The call
    /// changes nothing.
    pub fn crash_store(&self, chance: Chance) {
        lock(&self.0).crash_store = chance;
    }

    /// Ends the invocation of any function before or after one of its port calls.
    pub fn crash_functions(&self, chance: Chance) {
        lock(&self.0).crash_functions = chance;
    }

    /// The same for one function, instead of the probability for all functions.
    pub fn crash_function(&self, function: &str, chance: Chance) {
        lock(&self.0)
            .crash_function
            .insert(function.to_owned(), chance);
    }

    /// Kills an [instance](crate::World::instances) as it gets a message.
    pub fn kill_instances(&self, chance: Chance) {
        lock(&self.0).kill_instances = chance;
    }

    /// Ends the next invocation of `function` that completes `calls` port calls, before its next
    /// call. This happens once. The values 0, 1, 2, ... visit every gap between two steps.
    pub fn crash_once_after(&self, function: &str, calls: u32) {
        lock(&self.0).crash_once.insert(function.to_owned(), calls);
    }

    /// Whether a crash ordered by [`Faults::crash_once_after`] has not happened yet. It never
    /// happens if no invocation makes that many calls.
    pub fn crash_is_pending(&self, function: &str) -> bool {
        lock(&self.0).crash_once.contains_key(function)
    }

    /// Draws the faults of a call. `caller` is the calling function and the number of its call,
    /// from zero.
    pub(crate) fn draw(&self, random: &mut Rng, caller: Option<(&str, u32)>) -> CallFaults {
        let mut chances = lock(&self.0);
        if *chances == Chances::default() {
            return CallFaults::default();
        }
        let mut faults = CallFaults {
            any_enabled: true,
            delay_before: chances.draw_delay(random),
            delay_after: chances.draw_delay(random),
            refused: chances.refuse.strikes(random),
            answer_lost: chances.lose_answer.strikes(random),
            store_crashes: chances.crash_store.strikes(random),
            ..CallFaults::default()
        };
        if let Some((function, call)) = caller {
            let chance = *chances
                .crash_function
                .get(function)
                .unwrap_or(&chances.crash_functions);
            if chance.strikes(random) {
                faults.caller_dies_before = random.bool();
                faults.caller_dies_after = !faults.caller_dies_before;
            }
            chances.draw_ordered_crash(function, call, &mut faults);
        }
        faults
    }

    pub(crate) fn draw_second_delivery(&self, random: &mut Rng) -> bool {
        lock(&self.0).deliver_twice.strikes(random)
    }

    pub(crate) fn draw_instance_death(&self, random: &mut Rng) -> bool {
        lock(&self.0).kill_instances.strikes(random)
    }

    pub(crate) fn are_calm(&self) -> bool {
        *lock(&self.0) == Chances::default()
    }
}

impl Chances {
    fn draw_delay(&self, random: &mut Rng) -> Option<Duration> {
        self.delay
            .strikes(random)
            .then(|| draw_within(&self.delay_range, random))
    }

    /// The ordered crash of `function`, if it is to strike at call number `call` (from zero).
    fn draw_ordered_crash(&mut self, function: &str, call: u32, faults: &mut CallFaults) {
        match self.crash_once.get(function) {
            Some(0) if call == 0 => faults.caller_dies_before = true,
            Some(calls) if *calls == call + 1 => faults.caller_dies_after = true,
            _ => return,
        }
        self.crash_once.remove(function);
    }
}

/// A duration within `range`, in whole microseconds.
pub(crate) fn draw_within(range: &RangeInclusive<Duration>, random: &mut Rng) -> Duration {
    let (least, most) = (
        range.start().as_micros() as u64,
        range.end().as_micros() as u64,
    );
    if least >= most {
        *range.start()
    } else {
        Duration::from_micros(random.u64(least..=most))
    }
}
