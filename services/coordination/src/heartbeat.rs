//! The heartbeat: ends sessions that nobody renews, and itself when there are none.
//!
//! A scheduled function, armed by every connect and disarmed by itself alone (rule C-6): where it finds no row it sends
//! itself an event, and that run disarms and looks again, so that a session which counted itself in between arms it
//! anew or is found. An event that dies between the two is delivered again; the timer would never fire again.
//! Each run judges the sessions of all clients ([`crate::judge`]) by what was seen before ([`crate::silence`]). Silence
//! counts only as far as a heartbeat was there to witness it: after a stall or a restart, sessions get their time.
//!
//! What was seen is kept twice. An instance that stays warm goes on with what it knows and writes it down now and
//! then; one that was not there before reads what others have written. So sessions end on platforms that keep no
//! instance warm, and where one is kept a run makes no more calls than its scan. Without sessions nothing is kept.
//!
//! From FaaSKeeper, section 4.6. There the function asks each client whether it lives; here clients renew a
//! lease, because many have no address to be asked at.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    Clock, Event, Functions, Handler, Incarnation, Key, KeyValue, Queue, Result, Update,
    functions::Failure,
    key_value::{Read, Value},
};

use crate::{
    basis::Basis,
    broken::Broken,
    config::Config,
    judge::Judge,
    names,
    records::{decode, encode},
    session::{CLIENTS, Sessions},
    silence::{self, Moment, Notes, Pace, Stored},
    temporary::Temporaries,
};

/// Heartbeats per shortest session timeout.
const BEATS_PER_TIMEOUT_MIN: u32 = 4;

/// The attribute of the heartbeat's row that holds its notes.
const NOTES: &str = "notes";

/// What one session takes in the notes, at most; what is beyond the largest item is left out.
const NOTES_BYTES_PER_SESSION: usize = 32;

// Whoever was silent for one renewal when a stall began has a part of its timeout left after it.
const _: () = assert!(silence::UNWITNESSED_PERIODS_MAX + 2 <= BEATS_PER_TIMEOUT_MIN);

/// What it sends itself where it finds no session.
const RETIRE: &[u8] = b"retire";

/// What it sends itself where temporary objects have to be swept.
const SWEEP: &[u8] = b"sweep";

/// How often the heartbeat runs while there are sessions.
pub fn period(config: &Config) -> Duration {
    config.session_timeout_min / BEATS_PER_TIMEOUT_MIN
}

/// The ports that the heartbeat needs.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Where the sessions' rows are, and its own.
    pub system: Arc<dyn KeyValue>,
    /// To the writer.
    pub queue: Arc<dyn Queue>,
    /// Where its timer is.
    pub functions: Arc<dyn Functions>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// The heartbeat function.
#[derive(Debug)]
pub struct Heartbeat {
    parts: Parts,
    judge: Judge,
    temporaries: Temporaries,
    pace: Pace,
    sweep_period: Duration,
    broken: Option<Broken>,
    /// What a warm instance knows of its last run that came to its end; none before the first.
    own: Mutex<Option<Arc<Notes>>>,
}

impl Heartbeat {
    /// A heartbeat over the sessions of a system store.
    pub fn new(parts: Parts, temporaries: Temporaries, config: &Config) -> Self {
        // Each machine's clock may be wrong by as much as locks allow for.
        let clocks_apart_max = config.locks.drift_allowance * 2;
        let judge = Judge {
            sessions: Sessions::new(parts.system.clone()),
            queue: parts.queue.clone(),
            clock: parts.clock.clone(),
            broken: config.broken,
        };
        Self {
            judge,
            parts,
            temporaries,
            pace: Pace {
                period: period(config),
                clocks_apart_max,
            },
            sweep_period: config.temporary_sweep_period,
            broken: config.broken,
            own: Mutex::default(),
        }
    }

    /// One run: judges every session; retires if there is none.
    async fn beat(&self) -> Result<()> {
        let mut basis = Basis::now(&*self.parts.system);
        let before = self.recall(self.judge.moment(), &mut basis).await?;
        let mut notes = before.next(self.judge.moment());
        self.judge_all(&before, &mut notes, &mut basis).await?;
        if notes.session_count() == 0 {
            return self.ask(RETIRE).await;
        }
        let sweep_is_due = notes.sweep_is_due(self.sweep_period);
        self.remember(notes, &mut basis).await?;
        // Apart from this run: nobody's silence waits for objects, however long they take.
        if sweep_is_due && self.ask(SWEEP).await.is_err() {
            // A full disk has no room for the errand, and gets some by it.
            self.sweep().await;
        }
        Ok(())
    }

    /// Has itself run with an errand, at least once.
    async fn ask(&self, errand: &'static [u8]) -> Result<()> {
        self.parts
            .functions
            .send(names::HEARTBEAT, None, Bytes::from_static(errand))
            .await
            .map(|_| ())
    }

    /// The last run, when there is no session; or not the last, if there is one.
    async fn retire(&self) -> Result<()> {
        self.forget().await?;
        self.parts.functions.disarm_timer(names::HEARTBEAT).await?;
        if self.any_session().await? {
            return self
                .parts
                .functions
                .arm_timer(names::HEARTBEAT, self.pace.period)
                .await;
        }
        self.sweep().await;
        Ok(())
    }

    /// Whether there is any session at all.
    pub async fn any_session(&self) -> Result<bool> {
        let mut basis = Basis::default();
        for shard in CLIENTS {
            let mut pages = self.judge.sessions.rows(shard);
            while let Some(rows) = pages.next_page(&mut basis).await? {
                if !rows.is_empty() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Forgets who was silent: everybody's timeout starts afresh.
    pub async fn forget(&self) -> Result<()> {
        self.parts
            .system
            .update(Update::delete(notes_key()))
            .await
            .map(|_| ())
    }

    /// The notes of the run before: this instance's own, if it made it, or those in the store.
    ///
    /// Only those of the same start of the store count: one that has gone back may have lost renewals, and counts the
    /// next ones by the same numbers.
    async fn recall(&self, now: Moment, basis: &mut Basis) -> Result<Arc<Notes>> {
        let own = self.own.lock().expect("no panic while it is held").clone();
        let first = || Arc::new(Notes::first(now, basis.incarnation()));
        if self.broken == Some(Broken::RemembersSilenceInTheInstance) {
            return Ok(own.unwrap_or_else(first));
        }
        let is_forgetful = self.broken != Some(Broken::RemembersLostSilence);
        let counts =
            |noted: Incarnation, basis: &Basis| noted == basis.incarnation() || !is_forgetful;
        let is_of_this_start = |own: &Arc<Notes>| counts(own.incarnation(), basis);
        if let Some(own) = own.filter(|own| is_of_this_start(own) && own.are_fresh(now, self.pace))
        {
            return Ok(own);
        }
        let Read { value: row, point } = self.parts.system.get(&notes_key()).await?;
        basis.seen(point)?;
        let first = || Arc::new(Notes::first(now, basis.incarnation()));
        let Some(stored) = row.as_ref().and_then(|row| row.bytes(NOTES)) else {
            return Ok(first());
        };
        Ok(match decode::<Stored>(stored, "the heartbeat's notes") {
            Ok(stored) if counts(stored.incarnation, basis) => {
                Arc::new(Notes::taken_up(stored, now, self.pace))
            }
            Ok(_) => first(),
            Err(error) => {
                tracing::warn!(%error, "every session's silence is counted afresh");
                first()
            }
        })
    }

    async fn remember(&self, mut notes: Notes, basis: &mut Basis) -> Result<()> {
        let sessions_max = self.parts.system.limits().item_bytes_max / NOTES_BYTES_PER_SESSION;
        let stored = notes.to_store(self.pace, sessions_max);
        if let Some(stored) = stored
            && self.broken != Some(Broken::RemembersSilenceInTheInstance)
        {
            let update = Update::put(
                notes_key(),
                vec![(NOTES.into(), Value::Bytes(encode(&stored)))],
            );
            basis.seen(
                self.parts
                    .system
                    .update(update.transient().depends_on(basis.point()))
                    .await?
                    .receipt
                    .point,
            )?;
        }
        *self.own.lock().expect("no panic while it is held") = Some(Arc::new(notes));
        Ok(())
    }

    async fn judge_all(&self, before: &Notes, notes: &mut Notes, basis: &mut Basis) -> Result<()> {
        for shard in CLIENTS {
            self.judge.judge(shard, before, notes, basis).await?;
        }
        Ok(())
    }

    /// Sessions do not wait for objects that nobody needs: what fails here is done by the next sweep.
    async fn sweep(&self) {
        match self.temporaries.sweep().await {
            Ok(0) => {}
            Ok(count) => tracing::info!(
                count,
                "removed temporary objects that nobody needs any more"
            ),
            Err(error) => tracing::warn!(%error, "temporary objects are left for the next sweep"),
        }
    }
}

fn notes_key() -> Key {
    Key::new("heartbeat", [])
}

#[async_trait]
impl Handler for Heartbeat {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        match event {
            Event::Timer => self.beat().await?,
            Event::Call { payload, .. } if payload == RETIRE => self.retire().await?,
            Event::Call { payload, .. } if payload == SWEEP => self.sweep().await,
            _ => {
                return Err(Failure::new(
                    "the heartbeat takes its timer and its own errands only",
                ));
            }
        }
        Ok(Bytes::new())
    }
}
