//! The bounds of a peer's queues here, over TCP: requests that it sent, and answers that it does
//! not read.

use std::{io::Result, time::Duration};

use zookeeper_frontend::Config;

use crate::{
    counting_allocator::live_bytes,
    fixture::{Fixture, get, set},
};

/// The size of a value here: many fit into each bound, and each is sent with its request.
const VALUE_BYTES: usize = 100_000;
const TIMEOUT_MS: i32 = 40_000;

/// The bounds in `docs/coordination.md`.
const REQUEST_BYTES_MAX: usize = 4 << 20;
const ANSWER_BYTES_MAX: usize = 2 << 20;

fn config() -> Config {
    Config::new(([127, 0, 0, 1], 0).into())
}

fn taken(fixture: &Fixture) -> usize {
    fixture.statistics.requests.get() as usize
}

#[tokio::test]
async fn no_more_requests_are_read_than_may_be_in_flight() -> Result<()> {
    const IN_FLIGHT: usize = 10;
    const SENT: i32 = 500;
    let config = Config {
        requests_in_flight_max: IN_FLIGHT,
        ..config()
    };
    let fixture = Fixture::new(config, coordination::Config::default()).await?;
    let mut client = fixture.client_with_a_znode(TIMEOUT_MS, VALUE_BYTES).await?;
    let held_up = fixture.hold_the_writer_up().await;
    let before = taken(&fixture);
    let requests: Vec<u8> = (1..=SENT).flat_map(|xid| set(xid, 1)).collect();
    assert_eq!(
        fixture.press(&client.peer, &requests).await?,
        requests.len()
    );
    assert_eq!(taken(&fixture) - before, IN_FLIGHT);
    drop(held_up);
    client.peer.replies(&[], 1..=SENT).await?;
    Ok(())
}

#[tokio::test]
async fn no_more_bytes_of_requests_are_read_than_may_wait() -> Result<()> {
    const SENT: i32 = 60;
    let fixture = Fixture::with_defaults().await?;
    let mut client = fixture.client_with_a_znode(TIMEOUT_MS, VALUE_BYTES).await?;
    let held_up = fixture.hold_the_writer_up().await;
    let before = taken(&fixture);
    let requests: Vec<u8> = (1..=SENT).flat_map(|xid| set(xid, VALUE_BYTES)).collect();
    let sent = fixture.press(&client.peer, &requests).await?;
    let taken = taken(&fixture) - before;
    assert_eq!(
        taken,
        REQUEST_BYTES_MAX.div_ceil(VALUE_BYTES),
        "as many as fit and one more"
    );
    drop(held_up);
    client.peer.replies(&requests[sent..], 1..=SENT).await?;
    Ok(())
}

#[tokio::test]
async fn no_more_answers_are_computed_than_may_be_unread() -> Result<()> {
    const SENT: i32 = 900;
    let fixture = Fixture::with_defaults().await?;
    let mut deaf = fixture.client_with_a_znode(TIMEOUT_MS, VALUE_BYTES).await?;
    let (read_before, sent_before) = (fixture.reads(), fixture.statistics.bytes_sent.get());
    let requests: Vec<u8> = (1..=SENT).flat_map(get).collect();
    assert_eq!(fixture.press(&deaf.peer, &requests).await?, requests.len());
    let made = (fixture.reads() - read_before) * VALUE_BYTES;
    let sent = (fixture.statistics.bytes_sent.get() - sent_before) as usize;
    assert!(
        made - sent <= ANSWER_BYTES_MAX + VALUE_BYTES,
        "{} bytes wait",
        made - sent
    );
    deaf.peer.replies(&[], 1..=SENT).await?;
    Ok(())
}

#[tokio::test]
async fn a_peer_that_reads_nothing_for_its_timeout_is_disconnected() -> Result<()> {
    let shortest = Duration::from_millis(400);
    let coordination = coordination::Config {
        session_timeout_min: shortest,
        ..Default::default()
    };
    let fixture = Fixture::new(config(), coordination).await?;
    // Only its requests have to be sent within so short a session.
    drop(fixture.client_with_a_znode(TIMEOUT_MS, VALUE_BYTES).await?);
    let deaf = fixture.client(shortest.as_millis() as i32).await?;
    let requests: Vec<u8> = (1..=900).flat_map(get).collect();
    // It may be disconnected before all are sent.
    let _ = fixture.press(&deaf.peer, &requests).await;
    fixture.all_gone().await;
    assert!(
        fixture.statistics.bytes_sent.get() < 900 * VALUE_BYTES as u64,
        "the server did not wait for it"
    );
    Ok(())
}

/// Most sessions are idle, so their number must not multiply the buffers of busy ones.
#[tokio::test]
async fn an_idle_session_keeps_no_buffer_of_its_traffic() -> Result<()> {
    const SESSIONS: usize = 50;
    /// Most of it are the rows of the session in the simulated world, and both ends of TCP.
    const SESSION_BYTES_MAX: usize = 9 << 10;
    let fixture = Fixture::with_defaults().await?;
    let first = fixture.client_with_a_znode(TIMEOUT_MS, VALUE_BYTES).await?;
    let (mut idle, before) = (Vec::with_capacity(SESSIONS), live_bytes());
    for _ in 0..SESSIONS {
        let mut client = fixture.client(TIMEOUT_MS).await?;
        client.peer.replies(&get(1), 1..=1).await?;
        idle.push(client);
    }
    fixture.press(&first.peer, &[]).await?;
    let each = (live_bytes() - before) / SESSIONS;
    assert!(each <= SESSION_BYTES_MAX, "{each} bytes for each session");
    Ok(())
}
