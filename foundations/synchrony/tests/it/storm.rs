//! E1 to E5, E9, E10: deaths at any moment, of the instance, of either store's process, and of the
//! near store permanently. Calls fail, are late, arrive twice or are never answered. Owners
//! continue after they were deposed.

mod checks;
mod workload;

use std::{
    convert::Infallible,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ports::{Entropy, ErrorKind, key_value::SharedKeyValue};
use simulated::{World, percent, seeds};
use synchrony::{Broken, Mode, Options, Synchrony};
use tokio::task::JoinHandle;

use crate::{
    Pair, SHARD, ms,
    way::{Call, Fate, Way},
};
use checks::{Far, Start};
use workload::{Shared, WORKERS, Worker};

/// The duration of a lease.
const LEASE: Duration = Duration::from_millis(400);

/// One seed's run.
struct Storm {
    pair: Pair,
    options: Options,
    entropy: Arc<dyn Entropy>,
    shared: Shared,
    /// Instances, with their workers, that do not know that another owner has their shard.
    zombies: Vec<(Synchrony, Vec<JoinHandle<()>>)>,
}

/// How one start of the owner ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    Instance,
    NearRestarts,
    NearIsLost,
    /// The instance continues beside its successor.
    Paused,
}

impl Storm {
    fn new(seed: u64, broken: Option<Broken>) -> Self {
        let near = simulated::Options {
            latency: Some(Duration::ZERO..=ms(1)),
            fsync: ms(1)..=ms(6),
            ..simulated::Options::default()
        };
        let far = simulated::Options {
            latency: Some(ms(1)..=ms(12)),
            ..simulated::Options::default()
        };
        let pair = Pair::with(seed, near, far);
        let entropy = pair.near.entropy();
        let options = Options {
            mode: if entropy.below(6) == 0 {
                Mode::Serial
            } else {
                Mode::External
            },
            near_bytes_max: if entropy.below(2) == 0 {
                3_000
            } else {
                1_000_000
            },
            lane_batches_max: 1 + entropy.below(4) as usize,
            linger_bytes_max: 1_000,
            batch_bytes_max: 1_500,
            pending_bytes_max: 8_000,
            lease: LEASE,
            backoff_max: ms(100),
            mutant: broken.into(),
            ..Options::default()
        };
        Self {
            pair,
            options,
            entropy,
            shared: Shared::default(),
            zombies: Vec::new(),
        }
    }

    /// The far store as one start reaches it. Claims and signs of life are the only single updates,
    /// so a muted path drops those.
    fn far(&self, is_muted: &Arc<AtomicBool>) -> SharedKeyValue {
        let (entropy, is_muted) = (self.pair.far.entropy(), Arc::clone(is_muted));
        Way::to(
            self.pair.far.key_value(),
            self.pair.far.clock(),
            move |call| match call {
                Call::Update if is_muted.load(Ordering::SeqCst) => {
                    Fate::Refuse(ErrorKind::Unavailable {
                        retry_after_ms: None,
                    })
                }
                Call::Transact(_) if entropy.below(5) == 0 => Fate::Twice(ms(entropy.below(500))),
                _ => Fate::Pass,
            },
        )
    }

    fn blow(&self) {
        let far = self.pair.far.faults();
        far.refuse(percent(self.entropy.below(15) as u32));
        far.lose_answer(percent(self.entropy.below(15) as u32));
        far.delay(percent(20), Duration::ZERO..=ms(60));
        let near = self.pair.near.faults();
        near.refuse(percent(self.entropy.below(4) as u32));
        near.lose_answer(percent(self.entropy.below(6) as u32));
        near.delay(percent(10), Duration::ZERO..=ms(3));
    }

    fn calm(&self) {
        self.pair.far.faults().calm();
        self.pair.near.faults().calm();
    }

    fn employ(
        &self,
        synchrony: &Synchrony,
        start: &Start,
        is_deposed: &Arc<AtomicBool>,
    ) -> Vec<JoinHandle<()>> {
        let worker = |number| Worker {
            number,
            lane: synchrony.lane().expect("there are lanes"),
            epoch: synchrony.epoch(),
            known: std::array::from_fn(|of| if of == number { start.known[of] } else { 0 }),
            shared: self.shared.clone(),
            entropy: self.pair.near.entropy(),
            clock: self.pair.near.clock(),
            is_deposed: Arc::clone(is_deposed),
        };
        (0..WORKERS)
            .map(|number| tokio::spawn(worker(number).work()))
            .collect()
    }

    async fn look_far(&self) -> Far {
        let far = Far::look(&*self.pair.far.key_value(), &SHARD).await;
        let wrong = far.check(&self.shared.truth());
        self.shared.truth().violations.extend(wrong);
        far
    }

    /// One start: opened, checked, used, ended. Returns whether the near store keeps all
    /// acknowledged writes.
    async fn live(&mut self, keeps_everything: bool, is_last: bool) -> bool {
        let clock = self.pair.near.clock();
        let far = self.look_far().await;
        let (is_deposed, is_muted) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let synchrony = self.pair.open_over(self.far(&is_muted), self.options).await;
        let lane = synchrony.lane().expect("there are lanes");
        let start = Start::read(&lane).await;
        start.check(&self.shared, &far.entries, keeps_everything);
        {
            let mut truth = self.shared.truth();
            truth.acknowledged = start.entries;
            truth.shared.clone_from(&start.shared);
        }
        drop(lane);
        self.blow();
        let workers = self.employ(&synchrony, &start, &is_deposed);
        clock.sleep(ms(20 + self.entropy.below(200))).await;
        let death = match self.entropy.below(8) {
            _ if is_last => Death::Instance,
            0..=2 => Death::Instance,
            3..=5 => Death::NearRestarts,
            6 => Death::NearIsLost,
            _ => Death::Paused,
        };
        if death != Death::Paused {
            workers.iter().for_each(JoinHandle::abort);
        }
        if is_last {
            self.calm();
            drain(&synchrony, &self.shared).await;
        }
        self.die(death, synchrony, workers, (&is_deposed, &is_muted))
            .await;
        death == Death::Instance
    }

    async fn die(
        &mut self,
        death: Death,
        synchrony: Synchrony,
        workers: Vec<JoinHandle<()>>,
        told: (&AtomicBool, &AtomicBool),
    ) {
        match death {
            Death::Instance => drop(synchrony),
            Death::NearRestarts => {
                drop(synchrony);
                self.pair.near.crash_keeping_some();
            }
            Death::NearIsLost => {
                drop(synchrony);
                self.pair.near = self.another_near();
            }
            Death::Paused => {
                // It continues over its own near store until its successor has the shard, and
                // beyond.
                self.pair.near = self.another_near();
                self.depose(synchrony, workers, told).await;
            }
        }
        if self.entropy.below(3) == 0 {
            self.pair.far.crash();
        }
        self.calm();
        // Calls under way arrive or are lost.
        self.pair
            .near
            .clock()
            .sleep(ms(self.entropy.below(100)))
            .await;
    }

    /// A successor claims the shard while its predecessor continues.
    async fn depose(
        &mut self,
        synchrony: Synchrony,
        workers: Vec<JoinHandle<()>>,
        (is_deposed, is_muted): (&AtomicBool, &AtomicBool),
    ) {
        let far = self.far(&Arc::default());
        let successor = tokio::select! {
            biased;
            successor = self.pair.open_over(far, self.options) => successor,
            never = self.falter(is_muted) => match never {},
        };
        is_muted.store(false, Ordering::SeqCst);
        is_deposed.store(true, Ordering::SeqCst);
        let before = Far::look(&*self.pair.far.key_value(), &SHARD).await.entries;
        self.pair.near.clock().sleep(ms(300)).await;
        let after = Far::look(&*self.pair.far.key_value(), &SHARD).await.entries;
        if before != after {
            self.shared.violated(format!(
                "E10: {before:?} became {after:?}, written by a deposed owner"
            ));
        }
        self.zombies.push((synchrony, workers));
        drop(successor);
    }

    /// An owner that works gives signs of life, and keeps the shard while they arrive. By chance a
    /// whole lease without them would be rare. So the path is muted at times, and a waiting
    /// successor starts its wait again, or claims the shard just then.
    async fn falter(&self, is_muted: &AtomicBool) -> Infallible {
        let (clock, lease_ms) = (self.pair.near.clock(), LEASE.as_millis() as u64);
        loop {
            is_muted.store(true, Ordering::SeqCst);
            clock
                .sleep(LEASE + ms(self.entropy.below(2 * lease_ms)))
                .await;
            is_muted.store(false, Ordering::SeqCst);
            clock.sleep(ms(self.entropy.below(lease_ms / 4))).await;
        }
    }

    fn another_near(&self) -> World {
        World::with_options(
            self.entropy.next_u64(),
            simulated::Options {
                latency: Some(Duration::ZERO..=ms(1)),
                ..simulated::Options::default()
            },
        )
    }
}

async fn drain(synchrony: &Synchrony, shared: &Shared) {
    if let Err(error) = synchrony.drain().await {
        shared.violated(format!(
            "E6: nothing fails for good, but draining ends in {error}"
        ));
        return;
    }
    let mut truth = shared.truth();
    truth.externalized = truth.acknowledged;
}

/// The violations of one seed, and its counts of writes and barriers.
fn play(seed: u64, broken: Option<Broken>) -> (Vec<String>, usize, usize) {
    simulated::run(async {
        let mut storm = Storm::new(seed, broken);
        let starts = 3 + storm.entropy.below(3);
        let mut keeps_everything = true;
        for start in 0..starts {
            keeps_everything = storm.live(keeps_everything, start + 1 == starts).await;
            if !storm.shared.truth().violations.is_empty() {
                break;
            }
        }
        storm.look_far().await;
        let truth = storm.shared.truth();
        (truth.violations.clone(), truth.writes, truth.barriers)
    })
}

/// E1, E2, E3, E4, E5, E9, E10.
#[test]
fn through_deaths_and_failures_the_far_store_has_a_causal_prefix_with_all_externalized_writes() {
    let (mut writes, mut barriers) = (0, 0);
    for seed in seeds(300) {
        let (violations, written, passed) = play(seed, None);
        assert!(
            violations.is_empty(),
            "LANDFAST_SEED={seed}: {violations:#?}"
        );
        (writes, barriers) = (writes + written, barriers + passed);
    }
    assert!(
        writes > 0 && barriers > 0,
        "{writes} writes and {barriers} barriers prove nothing"
    );
}

/// One seed, one run.
#[test]
fn a_seed_reproduces_its_run() {
    for seed in 0..5 {
        assert_eq!(play(seed, None), play(seed, None));
    }
}

/// Asserts that some seed shows that a rule is broken.
fn catches(broken: Broken, promise: &str) {
    catches_among(0..300, broken, promise);
}

fn catches_among(mut seeds: Range<u64>, broken: Broken, promise: &str) {
    let caught = seeds.find_map(|seed| {
        let (violations, _, _) = play(seed, Some(broken));
        violations
            .into_iter()
            .find(|violation| violation.starts_with(promise))
    });
    assert!(caught.is_some(), "{broken:?} is never caught");
}

/// E1. The near store has to crash between two of its syncs: one seed in several hundred does.
#[test]
fn sending_before_near_is_durable_is_caught() {
    catches_among(700..1_000, Broken::SendsBeforeNearIsDurable, "E1");
}

/// E2.
#[test]
fn sending_past_a_failure_is_caught() {
    catches(Broken::SendsPastAFailure, "E2");
}

/// E2.
#[test]
fn ignoring_dependencies_is_caught() {
    catches(Broken::IgnoresDependencies, "E2");
}

/// E3.
#[test]
fn a_barrier_that_forgets_reads_is_caught() {
    catches(Broken::ForgetsWhatWasRead, "E3");
}

/// E5.
#[test]
fn filling_over_a_write_is_caught() {
    catches(Broken::FillsOverAWrite, "E5");
}

/// E5.
#[test]
fn evicting_dirty_rows_is_caught() {
    catches(Broken::EvictsDirty, "E5");
}

/// E9.
#[test]
fn forgetting_the_tail_is_caught() {
    catches(Broken::ForgetsTheTail, "");
}

/// E10.
#[test]
fn a_deposed_owner_that_writes_on_is_caught() {
    catches(Broken::DeposedWritesOn, "E10");
}
