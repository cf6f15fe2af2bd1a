//! The fault schedule of nodes and store during a scenario: deaths, starts, partitions, and the end
//! of all faults.

use std::time::Duration;

use fastrand::Rng;

use super::{
    cluster::{Among, Cluster},
    crashable::{Life, Side},
};

/// The most port calls of a process before its ordered death strikes.
const CALLS_UNTIL_DEATH_MAX: u64 = 60;

/// A process with an ordered death that makes no call dies after this time.
const IDLE_UNTIL_DEATH: Duration = Duration::from_millis(300);

/// A fault of whole processes or of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disaster {
    /// The node dies between two of its port calls; the store continues.
    Node,
    /// Node and store die: what was not durable is lost.
    Everything,
    /// The store alone dies: the node's data that was not durable is lost.
    Store,
    /// The node is considered dead and replaced, but runs on for a while.
    Replacement,
    /// The node is told to shut down, and may die before it has.
    Departure,
    /// One of several nodes dies between two of its port calls; after a while another process takes
    /// its place.
    OneOfMany,
    /// One of several nodes dies, and its successor is partitioned from all others for a while.
    JoinsApart,
    /// The link between two of several nodes is cut for a while.
    Partition,
    /// One of several nodes loses both the others and the membership service, for long enough to
    /// lose its membership.
    CutOff,
}

/// Deaths and starts of nodes.
pub(super) struct FaultSchedule<'scenario> {
    pub(super) disasters: &'scenario [Disaster],
    /// How long each waits for the one before at most, beyond what it waits by itself.
    pub(super) apart: Duration,
    /// By how much the clock of each start is behind that of the previous one.
    pub(super) clock_set_back: Duration,
    pub(super) cluster: &'scenario Cluster,
    pub(super) rng: Rng,
    pub(super) skew_ms: i64,
    /// The start count of each place.
    pub(super) skews: Vec<i64>,
}

impl FaultSchedule<'_> {
    /// Runs all disasters one after the other, then waits forever.
    pub(super) async fn strike(&mut self) {
        for disaster in self.disasters {
            let apart = self.apart.as_millis() as u64;
            if apart > 0 {
                let pause = Duration::from_millis(self.rng.u64(..apart));
                tokio::time::sleep(pause).await;
            }
            self.cluster.connect().await;
            match disaster {
                Disaster::Node => self.node_dies().await,
                Disaster::Everything => {
                    self.node_dies().await;
                    self.cluster.world().crash_keeping_some();
                }
                Disaster::Store => {
                    self.a_while().await;
                    self.cluster.world().crash_keeping_some();
                    continue;
                }
                Disaster::Replacement => {
                    self.a_while().await;
                    self.cluster.replace_while_running();
                }
                Disaster::Departure => {
                    self.a_while().await;
                    if let Some(life) = self.cluster.life().filter(|_| self.rng.bool()) {
                        self.order_death(&life);
                    }
                    self.cluster.leave().await;
                }
                Disaster::OneOfMany => {
                    self.one_dies().await;
                    continue;
                }
                Disaster::JoinsApart => {
                    self.one_joins_apart().await;
                    continue;
                }
                Disaster::Partition => {
                    self.partition().await;
                    continue;
                }
                Disaster::CutOff => {
                    self.cut_off().await;
                    continue;
                }
            }
            self.start().await;
        }
        std::future::pending::<()>().await;
    }

    async fn a_while(&mut self) {
        tokio::time::sleep(Duration::from_millis(self.rng.u64(1..300))).await;
    }

    /// Kills the present node at one of its next calls.
    async fn node_dies(&mut self) {
        let Some(life) = self.cluster.life() else {
            return;
        };
        self.order_death(&life);
        tokio::select! {
            biased;
            () = life.over() => {}
            () = tokio::time::sleep(IDLE_UNTIL_DEATH) => {}
        }
        self.cluster.kill();
    }

    /// Kills one of several nodes, and starts another process in its place.
    async fn one_dies(&mut self) {
        let place = self.rng.usize(..self.cluster.places());
        self.dies_at(place).await;
    }

    async fn one_joins_apart(&mut self) {
        let place = self.rng.usize(..self.cluster.places());
        self.cut(place);
        self.dies_at(place).await;
        let lasts = Duration::from_millis(self.rng.u64(3_000..8_000));
        tokio::time::sleep(lasts).await;
        if let Some(Among { network, .. }) = self.cluster.surroundings() {
            network.mend();
        }
    }

    /// Partitions a place from all others.
    fn cut(&self, place: usize) {
        let Some(Among { network, .. }) = self.cluster.surroundings() else {
            return;
        };
        for other in (0..self.cluster.places()).filter(|other| *other != place) {
            network.cut(&Among::address(place), &Among::address(other));
        }
    }

    async fn dies_at(&mut self, place: usize) {
        if let Some(life) = self.cluster.life_at(place) {
            self.order_death(&life);
            tokio::select! {
                biased;
                () = life.over() => {}
                () = tokio::time::sleep(IDLE_UNTIL_DEATH) => {}
            }
            self.cluster.kill_at(place);
        }
        let away = Duration::from_millis(self.rng.u64(..5_000));
        tokio::time::sleep(away).await;
        loop {
            let life = Life::default();
            if self.rng.usize(..4) == 0 {
                self.order_death(&life);
            }
            if self
                .cluster
                .boot_at(place, life.clone(), self.skews[place])
                .await
            {
                life.goes_on();
                return;
            }
        }
    }

    /// Two distinct places.
    fn two(&mut self) -> [usize; 2] {
        let places = self.cluster.places();
        let one = self.rng.usize(..places);
        [one, (one + self.rng.usize(1..places)) % places]
    }

    async fn partition(&mut self) {
        self.a_while().await;
        let [one, other] = self.two();
        let Some(Among { network, .. }) = self.cluster.surroundings() else {
            return;
        };
        network.cut(&Among::address(one), &Among::address(other));
        let lasts = Duration::from_millis(self.rng.u64(100..6_000));
        tokio::time::sleep(lasts).await;
        network.mend();
    }

    async fn cut_off(&mut self) {
        self.a_while().await;
        let place = self.rng.usize(..self.cluster.places());
        let Some(Among { network, .. }) = self.cluster.surroundings() else {
            return;
        };
        let Some(seat) = self.cluster.seat_at(place) else {
            return;
        };
        self.cut(place);
        seat.cut_off();
        let lasts = Duration::from_millis(self.rng.u64(500..15_000));
        tokio::time::sleep(lasts).await;
        network.mend();
        seat.reconnect();
    }

    fn order_death(&mut self, life: &Life) {
        let side = if self.rng.bool() {
            Side::Before
        } else {
            Side::After
        };
        life.ends_after(self.rng.u64(..CALLS_UNTIL_DEATH_MAX), side);
    }

    /// Starts a new process, which may die while it starts; then starts another one.
    async fn start(&mut self) {
        loop {
            let life = Life::default();
            if self.rng.usize(..3) == 0 {
                self.order_death(&life);
            }
            self.skew_ms -= self.clock_set_back.as_millis() as i64;
            if self.cluster.boot(life.clone(), self.skew_ms).await {
                life.goes_on();
                return;
            }
        }
    }

    /// Ends all faults, and ensures that a node serves.
    pub(super) async fn heal(&mut self) {
        self.cluster.world().faults().calm();
        self.cluster.kill_replaced();
        if let Some(Among { network, .. }) = self.cluster.surroundings() {
            network.calm();
            for (place, skew) in (0..).zip(self.skews.clone()) {
                if let Some(seat) = self.cluster.seat_at(place) {
                    seat.reconnect();
                }
                if let Some(life) = self.cluster.life_at(place) {
                    life.goes_on();
                }
                if self.cluster.serving_at(place).is_none() {
                    self.cluster.kill_at(place);
                    self.cluster.boot_at(place, Life::default(), skew).await;
                }
            }
            return;
        }
        if let Some(life) = self.cluster.life() {
            life.goes_on();
        }
        if self.cluster.serving().is_none() {
            self.cluster.boot(Life::default(), self.skew_ms).await;
        }
    }
}
