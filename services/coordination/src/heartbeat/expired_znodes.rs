//! Asks a writer to remove the containers and the znodes with a time to live that are due.
//!
//! The requests belong to a session of the service itself, which never ends, so that they are
//! decided like every other update (rule C-1). Its row is created with the first request. A request
//! has no number: the writer checks the znode each time, so a repeated request does nothing.
//!
//! While the requests of a check wait behind a slow writer, later checks request nothing. Otherwise
//! each would add a request per due znode to the queue. The last request of a check names a
//! marker: an index entry without a znode, which its writer removes like any other.
//! Requests are decided in order, so the others are decided once the marker is gone.

use bytes::Bytes;
use ports::{Incarnation, Result, key_value::Version};

use crate::{
    broken::Broken,
    environment::Environment,
    model::{Identity, Password, SessionId},
    queue_names,
    records::{Identities, Operation, Submitted, encode},
    storage::{expiring, session},
    writer,
};

/// The most znodes that one check removes; the next one continues. It is ZooKeeper's
/// `znode.container.maxPerMinute`, and a check runs once a minute by default.
const REMOVALS_PER_CHECK_MAX: usize = 10_000;

/// After this many check periods the requests of a check are taken for lost.
const WAITS_FOR_CHECKS: u32 = 10;

/// Requests the removal of all znodes that are due, unless earlier requests wait. Returns the
/// number of requests.
pub(crate) async fn request_removals(env: &Environment) -> Result<usize> {
    let mut store = env.system();
    // A store that fell back may have lost the message of a decided removal. No client's later
    // request finishes it, as in other sessions.
    if let Some(row) = session::get(&mut store, SessionId::SYSTEM).await? {
        writer::finish_or_skip(&mut store, &*env.parts.queue, &row).await?;
    }
    let now_ms = env.parts.clock.now().0 as i64;
    let mut due = expiring::due(&mut store, now_ms, REMOVALS_PER_CHECK_MAX).await?;
    if due.is_empty() {
        return Ok(0);
    }
    let marker = marker(store.incarnation());
    let wait_ms = (env.config.container_check_period * WAITS_FOR_CHECKS).as_millis() as i64;
    let sent_ms = expiring::due_ms(&mut store, &marker).await?;
    let are_waiting = sent_ms.is_some_and(|sent_ms| (0..wait_ms).contains(&(now_ms - sent_ms)));
    if are_waiting && !env.breaks(Broken::RepeatsWaitingRemovals) {
        return Ok(0);
    }
    let entropy = &env.parts.entropy;
    let secret = u128::from(entropy.next_u64()) << 64 | u128::from(entropy.next_u64());
    let password = Password(secret.to_be_bytes());
    let timeout = env.config.session_timeout_max;
    session::create(&mut store, SessionId::SYSTEM, password, timeout).await?;
    expiring::add(&mut store, &marker, now_ms).await?;
    let version = expiring::version(&mut store, &marker).await?;
    due.extend(version.map(|version| (marker.clone(), version)));
    let requests: Vec<Bytes> = due
        .into_iter()
        .map(|(path, version)| encode(&removal(path, version)))
        .collect();
    let group = queue_names::request_group(SessionId::SYSTEM);
    let queue = &*env.parts.queue;
    let sent = queue_names::send(queue, queue_names::REQUEST_QUEUE, group, &requests).await;
    if let (Err(_), Some(version)) = (&sent, version) {
        // Otherwise later checks would wait for requests that were never sent. If this fails too,
        // they wait until the requests are taken for lost.
        let _ = expiring::replace(&mut store, &marker, version, None).await;
    }
    sent.map(|()| requests.len())
}

/// The path of the marker. A store that fell back may have lost the requests, and its next
/// incarnation has another marker.
fn marker(incarnation: Incarnation) -> String {
    format!("/zookeeper/removals-{}", incarnation.0)
}

fn removal(path: String, entry: Version) -> Submitted {
    let all_powerful = Identity {
        scheme: "super".to_owned(),
        id: String::new(),
    };
    Submitted {
        session: SessionId::SYSTEM,
        attach: 1,
        request: 0,
        identities: Identities::of(&[all_powerful]),
        operation: Operation::RemoveExpired { path, entry },
    }
}
