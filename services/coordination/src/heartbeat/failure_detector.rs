//! The failure detector: decides which sessions have expired, and requests their end.
//!
//! The heartbeat checks client sessions, and processes check each other's sessions
//! ([`crate::member`]) by the same rules. The detector counts only silence that it observed
//! ([`crate::heartbeat::last_heartbeat`]), and expires a session only if no renewal came since
//! (rule C-6). The process of a client may receive messages for up to a renewal period before it
//! renews, and may die in between. A client session therefore gets one renewal period on top of its
//! timeout, unless its row says that the client was already silent. A member's session dies with
//! its process and gets nothing extra.
//!
//! If an end is decided but not applied for a whole timeout, the detector requests it again, so
//! that its writer pushes it again. No other request follows an end, and the message for it may be
//! lost.

use std::time::Duration;

use ports::{ErrorKind, Result};

use crate::{
    broken::Broken,
    dependency::TrackedStore,
    environment::Environment,
    heartbeat::last_heartbeat::{LastHeartbeats, Moment},
    queue_names,
    records::{Identities, Operation, Submitted, encode},
    storage::session::{self, RENEWALS_PER_TIMEOUT, Row, Rows, State, Transition},
};

/// Checks every session of a shard against the observations in `before`, and records the new ones
/// in `heartbeats`. Returns the rows.
pub(crate) async fn check_shard(
    env: &Environment,
    store: &mut TrackedStore,
    shard: u8,
    before: &LastHeartbeats,
    heartbeats: &mut LastHeartbeats,
) -> Result<Vec<Row>> {
    let mut checked = Vec::new();
    let mut pages = Rows::of(shard);
    while let Some(rows) = pages.next_page(store).await? {
        let seen_at = moment(env);
        for row in &rows {
            let silence = before.silence(row.session, row.renewals, heartbeats, seen_at);
            let has_expired = match has_expired(env, store, row, silence).await {
                // Its client could not have resumed it either, so its timeout starts again.
                Err(error) if error.kind() == ErrorKind::NoRoom => {
                    heartbeats.reset(row.session, moment(env));
                    false
                }
                checked => checked?,
            };
            if has_expired {
                end(env, row).await?;
                heartbeats.reset(row.session, moment(env));
            }
        }
        checked.extend(rows);
    }
    Ok(checked)
}

/// Whether the session's end must be requested. This holds in three cases: the session expires now;
/// it expired a whole timeout ago and the detector died before it requested the end; or its end is
/// decided and the store lost the message that would apply it.
async fn has_expired(
    env: &Environment,
    store: &mut TrackedStore,
    row: &Row,
    silence: Duration,
) -> Result<bool> {
    let is_rash = env.breaks(Broken::ExpiresAtFirstSilence);
    let is_silent = silence > silence_max(env, row) || is_rash && silence > Duration::ZERO;
    match row.state {
        State::Open if is_silent => {
            let mut condemned = session::expire(store, row.session, row.renewals).await?;
            if let Transition::Refused(Some(row)) = &condemned
                && env.breaks(Broken::ExpiresRenewedSessions)
            {
                condemned = session::expire(store, row.session, row.renewals).await?;
            }
            Ok(matches!(condemned, Transition::Done(_)))
        }
        State::Closed if env.breaks(Broken::PushesEndsOnce) => Ok(false),
        State::Closing | State::Closed => Ok(is_silent),
        State::Open => Ok(false),
    }
}

fn silence_max(env: &Environment, row: &Row) -> Duration {
    if row.session.is_members() {
        return row.timeout;
    }
    // The heartbeat's period follows the shortest timeout of today. A timeout that was granted
    // under a lower bound would be shorter than what a run counts without witness.
    let timeout = row.timeout.max(env.config.session_timeout_min);
    if row.state != State::Open || env.breaks(Broken::TreatsRowsAsExact) {
        return timeout;
    }
    match row.silent_before {
        Some(before) => timeout.saturating_sub(before),
        None => timeout + timeout / RENEWALS_PER_TIMEOUT,
    }
}

async fn end(env: &Environment, row: &Row) -> Result<()> {
    let session = row.session;
    tracing::info!(?session, "session expired");
    let submitted = Submitted {
        session,
        attach: row.attach,
        request: 0,
        identities: Identities::NONE,
        operation: Operation::Expire,
    };
    let group = queue_names::request_group(session);
    let body = encode(&submitted);
    let queue = &*env.parts.queue;
    queue_names::send(queue, queue_names::REQUEST_QUEUE, group, &[body]).await
}

pub(crate) fn moment(env: &Environment) -> Moment {
    let clock = &env.parts.clock;
    Moment {
        own_ms: clock.monotonic().0.as_millis() as i64,
        wall_ms: clock.now().0 as i64,
    }
}

#[cfg(test)]
mod tests {
    use simulated::Options;

    use super::*;
    use crate::{
        Config,
        tests::{Fixture, TIMEOUT},
    };

    /// C-6: a restart with a higher minimum lengthens the heartbeat's period.
    #[test]
    fn a_session_with_a_timeout_below_the_minimum_gets_the_minimum() {
        simulated::run(async {
            for (minimum, expected) in [(TIMEOUT / 4, TIMEOUT), (TIMEOUT * 4, TIMEOUT * 4)] {
                let config = Config {
                    session_timeout_min: minimum,
                    ..Config::default()
                };
                let fixture = Fixture::new(Options::default(), config).await;
                let session = fixture.open(1).await;
                let env = fixture.env(fixture.store());
                let mut row = fixture.row(session).await;
                let renewal = expected / RENEWALS_PER_TIMEOUT;
                assert_eq!(silence_max(&env, &row), expected + renewal);
                let before = Duration::from_secs(1);
                row.silent_before = Some(before);
                assert_eq!(silence_max(&env, &row) + before, expected);
                row.state = State::Closed;
                assert_eq!(silence_max(&env, &row), expected);
            }
        });
    }
}
