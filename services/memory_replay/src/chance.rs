//! Random numbers from a seed. The same seed gives the same numbers on every machine.

use std::sync::atomic::{AtomicU64, Ordering};

use ports::Entropy;

/// SplitMix64: short, and its output is fixed by its definition.
#[derive(Debug)]
pub struct Chance(AtomicU64);

impl Entropy for Chance {
    fn next_u64(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let state = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Chance {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// From 0 to below 1.
    pub fn unit(&self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Whether an event of this probability happens.
    pub fn happens(&self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Exponential.
    pub fn exponential(&self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Lognormal, by the median and the deviation of the logarithm.
    pub fn lognormal(&self, median: f64, deviation: f64) -> f64 {
        // Box and Muller.
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.unit()).cos();
        median * (deviation * normal).exp()
    }

    /// Pareto between two bounds.
    pub fn pareto(&self, exponent: f64, least: f64, most: f64) -> f64 {
        let rest = 1.0 - (least / most).powf(exponent);
        least * (1.0 - self.unit() * rest).powf(-1.0 / exponent)
    }
}
