//! The budget of port calls per seed, which keeps thousands of seeds quick.
//!
//! Every test that plays [`seeds`](crate::scenario::seeds) spends from a budget. A test that plays
//! one world by hand costs the same regardless of `SEEDS`.

/// The most port calls of one seed, including faults, recovery and the final checks. If the worst
/// seeds of a scenario exceed it, the scenario is too large: smaller ones with more seeds find as
/// much.
pub const PORT_CALLS_MAX: u64 = 2_400;

/// The port calls that the seeds of one test made.
#[derive(Debug, Default)]
pub struct Budget {
    /// The number of seeds.
    seeds: u64,
    /// The most port calls of one seed, and that seed.
    most: (u64, u64),
}

impl Budget {
    /// Panics if `seed` made more port calls than allowed.
    pub fn spend(&mut self, seed: u64, port_calls: u64) {
        assert!(
            port_calls <= PORT_CALLS_MAX,
            "seed {seed} made {port_calls} port calls, where {PORT_CALLS_MAX} are allowed"
        );
        self.seeds += 1;
        self.most = self.most.max((port_calls, seed));
    }

    /// Prints the cost of the test, which shows how much larger it may become.
    pub fn report(self, test: &str) {
        let Self {
            seeds,
            most: (port_calls, seed),
        } = self;
        println!("{test}: {seeds} seeds, at most {port_calls} port calls, by seed {seed}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "seed 2 made 2401 port calls, where 2400 are allowed")]
    fn a_seed_that_makes_too_many_port_calls_fails_its_test() {
        let mut budget = Budget::default();
        budget.spend(1, PORT_CALLS_MAX);
        budget.spend(2, PORT_CALLS_MAX + 1);
    }
}
