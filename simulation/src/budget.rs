//! What a seed may cost, so that thousands of them stay quick.
//!
//! Every test that plays [`seeds`](crate::scenario::seeds) spends from a budget. One that plays a single world by hand costs what
//! its question does: once, whatever `SEEDS` says.

/// The most port calls one seed may make: everything in it, faults, recovery and the checks at the end included. A scenario
/// whose unluckiest seeds make more is too large; smaller ones under more seeds find as much.
pub const PORT_CALLS_MAX: u64 = 2_400;

/// What the seeds of one test have made.
#[derive(Debug, Default)]
pub struct Budget {
    /// How many they are.
    seeds: u64,
    /// The most that one made, and which.
    most: (u64, u64),
}

impl Budget {
    /// Panics if `seed` made more than it may.
    pub fn spend(&mut self, seed: u64, port_calls: u64) {
        assert!(
            port_calls <= PORT_CALLS_MAX,
            "seed {seed} made {port_calls} port calls, where {PORT_CALLS_MAX} are allowed"
        );
        self.seeds += 1;
        self.most = self.most.max((port_calls, seed));
    }

    /// Says what the test came to, for whoever wonders how much larger it may become.
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
