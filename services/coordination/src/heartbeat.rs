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
//! While no session exists but containers or TTL znodes wait to be removed, the timer runs with the
//! period of their checks ([`expired_znodes`]).
//!
//! Observations are kept twice. A warm instance continues with its own and stores them every few
//! runs. A cold instance reads the stored ones. Sessions therefore end also on platforms that keep
//! no instance warm, and a warm instance makes no calls beyond its scan. Without sessions nothing
//! is stored.
//!
//! From FaaSKeeper, section 4.6. There the function probes each client; here clients renew a lease,
//! because many clients have no address to probe.

mod expired_znodes;
pub(crate) mod failure_detector;
pub(crate) mod last_heartbeat;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    Event, Handler, Incarnation, Key, Result, Update, functions::Failure, key_value::Value,
};

use self::{
    failure_detector::{check_shard, moment},
    last_heartbeat::{LastHeartbeats, Moment, StoredHeartbeats, Timing},
};
use crate::{
    broken::Broken,
    config::Config,
    dependency::TrackedStore,
    environment::Environment,
    queue_names,
    records::{decode, encode},
    storage::{
        expiring,
        session::{CLIENT_SHARDS, Rows},
        temporary,
    },
};

const BEATS_PER_TIMEOUT_MIN: u32 = 4;

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

/// The heartbeat's message to itself when containers and times to live are due for a check.
const EXPIRE: &[u8] = b"expire";

fn period(config: &Config) -> Duration {
    config.session_timeout_min / BEATS_PER_TIMEOUT_MIN
}

pub(crate) async fn arm(env: &Environment) -> Result<()> {
    let functions = &env.parts.functions;
    functions
        .arm_timer(queue_names::HEARTBEAT, period(&env.config))
        .await
}

/// Arms the heartbeat if it has work.
pub(crate) async fn arm_if_needed(env: &Environment) -> Result<()> {
    if any_session(env).await? || expiring::any(&mut env.system()).await? {
        arm(env).await?;
    }
    Ok(())
}

async fn any_session(env: &Environment) -> Result<bool> {
    let mut store = env.system();
    for shard in CLIENT_SHARDS {
        let mut pages = Rows::of(shard);
        while let Some(rows) = pages.next_page(&mut store).await? {
            if !rows.is_empty() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Deletes the stored observations: every session's timeout starts again.
pub(crate) async fn forget(env: &Environment) -> Result<()> {
    let system = &env.parts.system;
    system
        .update(Update::delete(heartbeats_key()))
        .await
        .map(|_| ())
}

#[derive(Debug)]
pub(crate) struct Heartbeat {
    env: Arc<Environment>,
    timing: Timing,
    /// The observations of a warm instance's last completed run; none before the first.
    own: Mutex<Option<Arc<LastHeartbeats>>>,
}

impl Heartbeat {
    pub(crate) fn new(env: Arc<Environment>) -> Self {
        let timing = Timing {
            period: period(&env.config),
            // Each machine's clock may be off by the drift allowance of the locks.
            clocks_apart_max: env.config.locks.drift_allowance * 2,
        };
        Self {
            env,
            timing,
            own: Mutex::default(),
        }
    }

    /// One run: checks every session, and retires if there is none.
    async fn run(&self) -> Result<()> {
        let env = &self.env;
        let mut store = TrackedStore::now(env.parts.system.clone());
        let before = self.load(&mut store, moment(env)).await?;
        let mut heartbeats = before.next(moment(env));
        for shard in CLIENT_SHARDS {
            check_shard(env, &mut store, shard, &before, &mut heartbeats).await?;
        }
        if heartbeats.session_count() == 0 {
            return self.send_to_self(RETIRE).await;
        }
        let check_is_due = heartbeats.crosses(&before, env.config.container_check_period);
        let sweep_is_due = heartbeats.sweep_is_due(env.config.temporary_sweep_period);
        self.store(&mut store, heartbeats).await?;
        // In a run of its own, so that failure detection does not wait for objects.
        if sweep_is_due && self.send_to_self(SWEEP).await.is_err() {
            // On a full disk the message cannot be sent, and sweeping frees space.
            self.sweep().await;
        }
        if check_is_due && self.send_to_self(EXPIRE).await.is_err() {
            // Likewise.
            self.expire().await;
        }
        Ok(())
    }

    /// Sends a command to the heartbeat itself, which runs at least once for it.
    async fn send_to_self(&self, command: &'static [u8]) -> Result<()> {
        let functions = &self.env.parts.functions;
        functions
            .send(queue_names::HEARTBEAT, None, Bytes::from_static(command))
            .await
            .map(|_| ())
    }

    /// Disarms the timer, and arms it again if a session was opened meanwhile. While no session
    /// exists but znodes wait to expire, the timer runs with the period of their checks.
    async fn retire(&self) -> Result<()> {
        let env = &self.env;
        forget(env).await?;
        let functions = &env.parts.functions;
        functions.disarm_timer(queue_names::HEARTBEAT).await?;
        // In this order: a session that has ended by now leaves its entries.
        if any_session(env).await? {
            return arm(env).await;
        }
        if expiring::any(&mut env.system()).await? {
            let period = env.config.container_check_period;
            functions.arm_timer(queue_names::HEARTBEAT, period).await?;
            if any_session(env).await? {
                arm(env).await?;
            }
            self.expire().await;
        }
        self.sweep().await;
        Ok(())
    }

    /// The observations of the run before: this instance's own if they are fresh, otherwise the
    /// stored ones.
    ///
    /// Only observations from the same incarnation of the store count. A store that rolled back may
    /// have lost renewals, and counts the next ones with the same numbers.
    async fn load(&self, store: &mut TrackedStore, now: Moment) -> Result<Arc<LastHeartbeats>> {
        let own = self
            .own
            .lock()
            .expect("no panic while it is locked")
            .clone();
        let incarnation = store.incarnation();
        let first = || Arc::new(LastHeartbeats::first(now, incarnation));
        if self.env.breaks(Broken::KeepsSilenceInTheInstance) {
            return Ok(own.unwrap_or_else(first));
        }
        let is_current = |noted: Incarnation, incarnation| {
            noted == incarnation || self.env.breaks(Broken::CountsLostSilence)
        };
        if let Some(own) = own
            && is_current(own.incarnation, incarnation)
            && own.are_fresh(now, self.timing)
        {
            return Ok(own);
        }
        let row = store.get(&heartbeats_key()).await?;
        let incarnation = store.incarnation();
        let first = || Arc::new(LastHeartbeats::first(now, incarnation));
        let Some(stored) = row.as_ref().and_then(|row| row.bytes(HEARTBEATS)) else {
            return Ok(first());
        };
        match decode::<StoredHeartbeats>(stored, "the heartbeat's observations") {
            Ok(stored) if is_current(stored.incarnation, incarnation) => {
                let own = LastHeartbeats::from_stored(stored, now, self.timing);
                Ok(Arc::new(own))
            }
            Ok(_) => Ok(first()),
            Err(error) => {
                tracing::warn!(%error, "cannot read the stored heartbeats; counting every session's silence from zero");
                Ok(first())
            }
        }
    }

    async fn store(&self, store: &mut TrackedStore, mut heartbeats: LastHeartbeats) -> Result<()> {
        let item_bytes_max = store.store().limits().item_bytes_max;
        let stored =
            heartbeats.stored_if_due(self.timing, item_bytes_max / HEARTBEAT_BYTES_PER_SESSION);
        if let Some(stored) = stored
            && !self.env.breaks(Broken::KeepsSilenceInTheInstance)
        {
            let stored = Value::Bytes(encode(&stored));
            let update = Update::put(heartbeats_key(), vec![(HEARTBEATS.into(), stored)]);
            store.update(update.transient()).await?;
        }
        *self.own.lock().expect("no panic while it is locked") = Some(Arc::new(heartbeats));
        Ok(())
    }

    /// Has znodes removed that are due. A failure is left to the next check.
    async fn expire(&self) {
        match expired_znodes::request_removals(&self.env).await {
            Ok(0) => {}
            Ok(count) => tracing::debug!(count, "requested the removal of expired znodes"),
            Err(error) => {
                tracing::warn!(%error, "could not check for expired znodes; the next check retries");
            }
        }
    }

    /// Removes temporary objects. A failure is left to the next sweep, because sessions must not
    /// depend on it.
    async fn sweep(&self) {
        match temporary::sweep(&self.env.parts, self.env.config.mutant).await {
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
            Event::Call { payload, .. } if payload == EXPIRE => self.expire().await,
            _ => {
                return Err(Failure::new(
                    "the heartbeat accepts only its timer and its own commands",
                ));
            }
        }
        Ok(Bytes::new())
    }
}
