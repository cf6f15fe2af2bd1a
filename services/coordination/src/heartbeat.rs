//! The heartbeat: ends sessions whose leases are not renewed, and disarms itself when there are
//! none.
//!
//! A scheduled function. Every connect arms it, and only the heartbeat itself disarms it (rule
//! C-6). When it finds no row, it sends itself an event. That run disarms the timer and scans
//! again, so that a session opened in between either arms the timer again or is found. If the run
//! dies between the two steps, the event is delivered again; the timer alone would never fire
//! again. Each run checks all client sessions ([`crate::heartbeat::failure_detector`]) against the
//! last heartbeats seen before ([`crate::heartbeat::last_heartbeat`]). Silence counts only while
//! heartbeats run to observe it, so after a stall or a restart sessions get their full timeout.
//!
//! Observations are kept twice. A warm instance continues with its own and stores them every few
//! runs. A cold instance reads the stored ones. Sessions therefore end also on platforms that keep
//! no instance warm, and a warm instance makes no calls beyond its scan. Without sessions nothing
//! is stored.
//!
//! From FaaSKeeper, section 4.6. There the function probes each client; here clients renew a lease,
//! because many clients have no address to probe.

pub(crate) mod failure_detector;
pub mod last_heartbeat;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    Clock, Event, Functions, Handler, Incarnation, Key, KeyValue, Queue, Result, Update,
    functions::Failure, key_value::Value,
};
use primitives::Mutant;

use self::{
    failure_detector::FailureDetector,
    last_heartbeat::{LastHeartbeats, Moment, StoredHeartbeats, Timing},
};
use crate::{
    broken::Broken,
    config::Config,
    dependency::Dependency,
    queue_names,
    records::{decode, encode},
    storage::{
        session::{CLIENT_SHARDS, Sessions},
        temporary::Temporaries,
    },
};

/// Heartbeats per shortest session timeout.
const BEATS_PER_TIMEOUT_MIN: u32 = 4;

/// The attribute of the heartbeat's row that holds its observations.
const HEARTBEATS: &str = "notes";

/// The most bytes that one session takes in the stored observations. Sessions beyond the largest
/// item are left out.
const HEARTBEAT_BYTES_PER_SESSION: usize = 32;

// A session that was silent for one renewal when a stall began has part of its timeout left after
// it.
const _: () = assert!(last_heartbeat::UNWITNESSED_PERIODS_MAX + 2 <= BEATS_PER_TIMEOUT_MIN);

/// The heartbeat's message to itself when it finds no session.
const RETIRE: &[u8] = b"retire";

/// The heartbeat's message to itself when temporary objects are due for a sweep.
const SWEEP: &[u8] = b"sweep";

/// How often the heartbeat runs while there are sessions.
pub fn period(config: &Config) -> Duration {
    config.session_timeout_min / BEATS_PER_TIMEOUT_MIN
}

/// The ports that the heartbeat needs.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The store of the session rows and of the heartbeat's row.
    pub system: Arc<dyn KeyValue>,
    /// The queue to the writer.
    pub queue: Arc<dyn Queue>,
    /// The service with the heartbeat's timer.
    pub functions: Arc<dyn Functions>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// The heartbeat function.
#[derive(Debug)]
pub struct Heartbeat {
    parts: Parts,
    detector: FailureDetector,
    temporaries: Temporaries,
    timing: Timing,
    sweep_period: Duration,
    mutant: Mutant<Broken>,
    /// The observations of a warm instance's last completed run; none before the first.
    own: Mutex<Option<Arc<LastHeartbeats>>>,
}

impl Heartbeat {
    /// A heartbeat for the sessions of a system store.
    pub fn new(parts: Parts, temporaries: Temporaries, config: &Config) -> Self {
        // Each machine's clock may be off by the drift allowance of the locks.
        let clocks_apart_max = config.locks.drift_allowance * 2;
        let detector = FailureDetector {
            sessions: Sessions::new(parts.system.clone()),
            queue: parts.queue.clone(),
            clock: parts.clock.clone(),
            mutant: config.mutant,
        };
        Self {
            detector,
            parts,
            temporaries,
            timing: Timing {
                period: period(config),
                clocks_apart_max,
            },
            sweep_period: config.temporary_sweep_period,
            mutant: config.mutant,
            own: Mutex::default(),
        }
    }

    /// One run: checks every session, and retires if there is none.
    async fn run(&self) -> Result<()> {
        let mut dependency = Dependency::now(&*self.parts.system);
        let before = self.load(self.detector.moment(), &mut dependency).await?;
        let mut heartbeats = before.next(self.detector.moment());
        self.check_all(&before, &mut heartbeats, &mut dependency)
            .await?;
        if heartbeats.session_count() == 0 {
            return self.send_to_self(RETIRE).await;
        }
        let sweep_is_due = heartbeats.sweep_is_due(self.sweep_period);
        self.store(heartbeats, &mut dependency).await?;
        // In a run of its own, so that failure detection does not wait for objects.
        if sweep_is_due && self.send_to_self(SWEEP).await.is_err() {
            // On a full disk the message cannot be sent, and sweeping frees space.
            self.sweep().await;
        }
        Ok(())
    }

    /// Sends a command to the heartbeat itself, which runs at least once for it.
    async fn send_to_self(&self, command: &'static [u8]) -> Result<()> {
        self.parts
            .functions
            .send(queue_names::HEARTBEAT, None, Bytes::from_static(command))
            .await
            .map(|_| ())
    }

    /// Disarms the timer, and arms it again if a session was opened meanwhile.
    async fn retire(&self) -> Result<()> {
        self.forget().await?;
        self.parts
            .functions
            .disarm_timer(queue_names::HEARTBEAT)
            .await?;
        if self.any_session().await? {
            return self
                .parts
                .functions
                .arm_timer(queue_names::HEARTBEAT, self.timing.period)
                .await;
        }
        self.sweep().await;
        Ok(())
    }

    /// Whether any client session exists.
    pub async fn any_session(&self) -> Result<bool> {
        let mut dependency = Dependency::default();
        for shard in CLIENT_SHARDS {
            let mut pages = self.detector.sessions.rows(shard);
            while let Some(rows) = pages.next_page(&mut dependency).await? {
                if !rows.is_empty() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Deletes the stored observations: every session's timeout starts again.
    pub async fn forget(&self) -> Result<()> {
        self.parts
            .system
            .update(Update::delete(heartbeats_key()))
            .await
            .map(|_| ())
    }

    /// The observations of the run before: this instance's own if they are fresh, otherwise the
    /// stored ones.
    ///
    /// Only observations from the same incarnation of the store count. A store that rolled back may
    /// have lost renewals, and counts the next ones with the same numbers.
    async fn load(&self, now: Moment, dependency: &mut Dependency) -> Result<Arc<LastHeartbeats>> {
        let own = self
            .own
            .lock()
            .expect("no panic while it is locked")
            .clone();
        let first = || Arc::new(LastHeartbeats::first(now, dependency.incarnation()));
        if self.mutant.breaks(Broken::KeepsSilenceInTheInstance) {
            return Ok(own.unwrap_or_else(first));
        }
        let is_forgetful = !self.mutant.breaks(Broken::CountsLostSilence);
        let is_current = |noted: Incarnation, dependency: &Dependency| {
            noted == dependency.incarnation() || !is_forgetful
        };
        let is_of_this_start =
            |own: &Arc<LastHeartbeats>| is_current(own.incarnation(), dependency);
        if let Some(own) =
            own.filter(|own| is_of_this_start(own) && own.are_fresh(now, self.timing))
        {
            return Ok(own);
        }
        let row = dependency
            .get(&*self.parts.system, &heartbeats_key())
            .await?;
        let first = || Arc::new(LastHeartbeats::first(now, dependency.incarnation()));
        let Some(stored) = row.as_ref().and_then(|row| row.bytes(HEARTBEATS)) else {
            return Ok(first());
        };
        Ok(
            match decode::<StoredHeartbeats>(stored, "the heartbeat's observations") {
                Ok(stored) if is_current(stored.incarnation, dependency) => {
                    Arc::new(LastHeartbeats::from_stored(stored, now, self.timing))
                }
                Ok(_) => first(),
                Err(error) => {
                    tracing::warn!(%error, "cannot read the stored heartbeats; counting every session's silence from zero");
                    first()
                }
            },
        )
    }

    async fn store(
        &self,
        mut heartbeats: LastHeartbeats,
        dependency: &mut Dependency,
    ) -> Result<()> {
        let sessions_max = self.parts.system.limits().item_bytes_max / HEARTBEAT_BYTES_PER_SESSION;
        let stored = heartbeats.to_store(self.timing, sessions_max);
        if let Some(stored) = stored
            && !self.mutant.breaks(Broken::KeepsSilenceInTheInstance)
        {
            let update = Update::put(
                heartbeats_key(),
                vec![(HEARTBEATS.into(), Value::Bytes(encode(&stored)))],
            );
            dependency
                .update(&*self.parts.system, update.transient())
                .await?;
        }
        *self.own.lock().expect("no panic while it is locked") = Some(Arc::new(heartbeats));
        Ok(())
    }

    async fn check_all(
        &self,
        before: &LastHeartbeats,
        heartbeats: &mut LastHeartbeats,
        dependency: &mut Dependency,
    ) -> Result<()> {
        for shard in CLIENT_SHARDS {
            self.detector
                .check_shard(shard, before, heartbeats, dependency)
                .await?;
        }
        Ok(())
    }

    /// Removes temporary objects. A failure is left to the next sweep, because sessions must not
    /// depend on it.
    async fn sweep(&self) {
        match self.temporaries.sweep().await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "removed unneeded temporary objects"),
            Err(error) => {
                tracing::warn!(%error, "could not sweep temporary objects; the next sweep retries");
            }
        }
    }
}

fn heartbeats_key() -> Key {
    Key::new("heartbeat", [])
}

#[async_trait]
impl Handler for Heartbeat {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        match event {
            Event::Timer => self.run().await?,
            Event::Call { payload, .. } if payload == RETIRE => self.retire().await?,
            Event::Call { payload, .. } if payload == SWEEP => self.sweep().await,
            _ => {
                return Err(Failure::new(
                    "the heartbeat accepts only its timer and its own commands",
                ));
            }
        }
        Ok(Bytes::new())
    }
}
