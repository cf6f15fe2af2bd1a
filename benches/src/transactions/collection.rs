//! The cost of collection: the same overwrites with collection and without, in turns, on a fresh
//! store each.
//!
//! A store that does not collect fills with versions, and its checkpoints cost more the more
//! versions there are. A long run would therefore measure checkpoints, not collection. So turns are
//! short, and all keys are equally popular: no key has more than a few dozen versions by the end of
//! a turn. The halves of the turns show whether the turns were short enough.
//!
//! The first comparison runs at full speed, the second at 70 % of the rate that both sustain.
//! Outcomes are kept for a fraction of a turn, so that rows and slots are deleted within it as
//! well. The bytes stored in the long run are the subject of [`super::overwrites`].

use std::{path::Path, time::Duration};

use anyhow::Result;
use serde::Serialize;
use simulation::transactions::workload::Mix;
use transactions::{Config, Engine};

use super::{
    engine::{embedded, start},
    run::{Amount, Clients, Figures, Measured, Watching},
    target::Target,
};
use crate::server::own_cpu;

/// The fraction of the highest rate that both sustain, at which they are compared again.
const STEADY: f64 = 0.7;
/// The fraction of a turn before the measurement.
const WARM_UP: f64 = 0.25;
/// The fraction of a turn for which outcomes are kept.
const WINDOW: f64 = 0.2;

/// Whether unneeded versions are collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Collecting {
    /// They are.
    On,
    /// They are not.
    Off,
}

impl Collecting {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// All turns with collection, or all without.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    /// Which side.
    pub collecting: Collecting,
    /// Transactions per second of each turn.
    pub turns_per_second: Vec<f64>,
    /// The figures of all turns together.
    pub figures: Figures,
    /// Transactions per second in the first halves of the turns, and in the second.
    pub halves_per_second: [f64; 2],
    /// CPU time per transaction, in microseconds, of engine and generator together.
    pub cpu_us: f64,
    /// Versions collected.
    pub collected_versions: u64,
}

impl Side {
    /// Transactions per second in the median turn.
    pub fn median_per_second(&self) -> f64 {
        median(&self.turns_per_second)
    }

    /// Ratio of the throughput of the second halves to that of the first halves.
    pub fn second_half_to_first(&self) -> f64 {
        self.halves_per_second[1] / self.halves_per_second[0]
    }
}

/// Both sides under one load.
#[derive(Debug, Clone, Serialize)]
pub struct Compared {
    /// Without collection.
    pub off: Side,
    /// With it.
    pub on: Side,
}

/// The cost of collection.
#[derive(Debug, Clone, Serialize)]
pub struct Collection {
    /// Length of the measurement of one turn.
    pub turn_seconds: f64,
    /// At full speed.
    pub saturated: Compared,
    /// Offered transactions per second in the second comparison.
    pub offered_per_second: f64,
    /// At that rate.
    pub steady: Compared,
}

/// Measures `mix` with and without collection, in `rounds` rounds of turns that last `turn`, on
/// stores at `data`.
pub async fn measure(
    data: &Path,
    mix: Mix,
    rounds: u32,
    turn: Duration,
    seed: u64,
) -> Result<Collection> {
    let house = House {
        data,
        mix: Mix { zipf: 0.0, ..mix },
        rounds,
        turn,
        seed,
    };
    let saturated = house.compare(Duration::ZERO).await?;
    let both_bear = saturated
        .off
        .median_per_second()
        .min(saturated.on.median_per_second());
    let offered_per_second = both_bear * STEADY;
    let every = Duration::from_secs_f64(mix.clients as f64 / offered_per_second);
    let steady = house.compare(every).await?;
    Ok(Collection {
        turn_seconds: turn.as_secs_f64(),
        saturated,
        offered_per_second,
        steady,
    })
}

struct House<'a> {
    data: &'a Path,
    mix: Mix,
    rounds: u32,
    turn: Duration,
    seed: u64,
}

impl House<'_> {
    async fn compare(&self, every: Duration) -> Result<Compared> {
        let (mut off, mut on) = (Vec::new(), Vec::new());
        for round in 0..self.rounds.max(1) {
            let seed = self.seed.wrapping_add(u64::from(round) * 1_000_000);
            // The second of one round is the first of the next.
            for is_on in [round % 2 == 0, round % 2 != 0] {
                let collecting = if is_on {
                    Collecting::On
                } else {
                    Collecting::Off
                };
                let turn = self.turn(collecting, every, seed).await?;
                eprintln!(
                    "collection {}: {:.0} per second",
                    collecting.name(),
                    turn.all()?.figures().per_second
                );
                if is_on { on.push(turn) } else { off.push(turn) }
            }
        }
        Ok(Compared {
            off: side(Collecting::Off, &off)?,
            on: side(Collecting::On, &on)?,
        })
    }

    async fn turn(&self, collecting: Collecting, every: Duration, seed: u64) -> Result<Turn> {
        let config = Config {
            collects: collecting == Collecting::On,
            retry_window: self.turn.mul_f64(WINDOW),
            ..Config::default()
        };
        let store = embedded(self.data).await?;
        let (engine, background) = start(store.key_value(), config).await?;
        let targets = (0..self.mix.clients)
            .map(|_| Target::engine(&engine))
            .collect();
        let mut clients = Clients::prepare(targets, self.mix, Watching::Times, seed).await?;
        clients
            .run_paced(Amount::Time(self.turn.mul_f64(WARM_UP)), every)
            .await?;
        let (cpu, collected) = (own_cpu()?, collected_versions(&engine));
        let first = clients
            .run_paced(Amount::Time(self.turn / 2), every)
            .await?;
        let second = clients
            .run_paced(Amount::Time(self.turn / 2), every)
            .await?;
        let turn = Turn {
            halves: [first, second],
            cpu: own_cpu()?.saturating_sub(cpu),
            collected_versions: collected_versions(&engine) - collected,
        };
        drop((clients, engine, background));
        store.close().await;
        Ok(turn)
    }
}

struct Turn {
    halves: [Measured; 2],
    cpu: Duration,
    collected_versions: u64,
}

impl Turn {
    fn all(&self) -> Result<Measured> {
        sum(&self.halves)
    }
}

fn side(collecting: Collecting, turns: &[Turn]) -> Result<Side> {
    let all = turns.iter().map(Turn::all).collect::<Result<Vec<_>>>()?;
    let figures = sum(&all)?.figures();
    let half = |number: usize| -> Result<f64> {
        let halves: Vec<_> = turns
            .iter()
            .map(|turn| turn.halves[number].clone())
            .collect();
        Ok(sum(&halves)?.figures().per_second)
    };
    let cpu: Duration = turns.iter().map(|turn| turn.cpu).sum();
    Ok(Side {
        collecting,
        turns_per_second: all.iter().map(|turn| turn.figures().per_second).collect(),
        figures,
        halves_per_second: [half(0)?, half(1)?],
        cpu_us: cpu.as_secs_f64() * 1e6 / figures.transactions.max(1) as f64,
        collected_versions: turns.iter().map(|turn| turn.collected_versions).sum(),
    })
}

fn sum(parts: &[Measured]) -> Result<Measured> {
    let (first, others) = parts
        .split_first()
        .expect("a comparison has a round, and a turn has halves");
    others.iter().try_fold(first.clone(), |mut sum, other| {
        sum.add(other)?;
        Ok(sum)
    })
}

fn collected_versions(engine: &Engine) -> u64 {
    engine.figures().collected_versions
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    } else {
        sorted[middle]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T9: one side collects and the other does not, under the same load.
    #[tokio::test(flavor = "multi_thread")]
    async fn one_side_collects_and_the_other_does_not() {
        let data = std::env::temp_dir().join(format!("landfast-collection-{}", std::process::id()));
        let mix = Mix {
            clients: 4,
            keys: 20,
            value_bytes: 256,
            ..Mix::default()
        };
        let collection = measure(&data, mix, 2, Duration::from_millis(400), 1)
            .await
            .expect("measured");
        for Compared { off, on } in [&collection.saturated, &collection.steady] {
            assert_eq!(
                (off.collecting, off.collected_versions),
                (Collecting::Off, 0)
            );
            assert_eq!(on.collecting, Collecting::On);
            assert!(on.collected_versions > on.figures.transactions, "{on:?}");
            assert_eq!(
                (off.turns_per_second.len(), on.turns_per_second.len()),
                (2, 2)
            );
        }
        let both_bear = collection
            .saturated
            .on
            .median_per_second()
            .min(collection.saturated.off.median_per_second());
        assert!(
            (collection.offered_per_second / both_bear - STEADY).abs() < 1e-9,
            "{collection:?}"
        );
        std::fs::remove_dir_all(&data).expect("removed");
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        let medians = [median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0])];
        assert_eq!(medians.map(|median| median.to_string()), ["2", "2.5"]);
    }
}
