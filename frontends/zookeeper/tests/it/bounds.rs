//! What one peer may have waiting here, over TCP: the requests it has sent, and the answers it does not read.

use std::{io::Result, time::Duration};

use zookeeper_frontend::{Config, jute::Operation};

use crate::house::{House, get, set};

/// What a value has here: many fit into each bound, and none is sent apart from its request.
const VALUE_BYTES: usize = 100_000;
const TIMEOUT_MS: i32 = 40_000;

/// As `docs/coordination.md` has them.
const REQUEST_BYTES_MAX: usize = 4 << 20;
const ANSWER_BYTES_MAX: usize = 2 << 20;

fn config() -> Config {
    Config::new(([127, 0, 0, 1], 0).into())
}

fn taken(house: &House, operation: Operation) -> usize {
    let of_operation = house
        .statistics
        .requests()
        .find(|(each, _)| *each == operation);
    of_operation.map_or(0, |(_, count)| count as usize)
}

#[tokio::test]
async fn no_more_requests_are_taken_than_may_be_in_flight() -> Result<()> {
    const IN_FLIGHT: usize = 10;
    const SENT: i32 = 500;
    let config = Config {
        requests_in_flight_max: IN_FLIGHT,
        ..config()
    };
    let house = House::new(config, coordination::Config::default()).await?;
    let mut client = house.client_with_a_znode(TIMEOUT_MS, VALUE_BYTES).await?;
    let held_up = house.hold_the_writer_up().await;
    let requests: Vec<u8> = (1..=SENT).flat_map(|xid| set(xid, 1)).collect();
    assert_eq!(house.press(&client.peer, &requests).await?, requests.len());
    assert_eq!(taken(&house, Operation::SetData), IN_FLIGHT);
    drop(held_up);
    client.peer.replies(&[], 1..=SENT).await?;
    Ok(())
}

#[tokio::test]
async fn no_more_bytes_of_requests_are_taken_than_may_wait() -> Result<()> {
    const SENT: i32 = 60;
    let house = House::with_defaults().await?;
    let mut client = house.client_with_a_znode(TIMEOUT_MS, VALUE_BYTES).await?;
    let held_up = house.hold_the_writer_up().await;
    let requests: Vec<u8> = (1..=SENT).flat_map(|xid| set(xid, VALUE_BYTES)).collect();
    let sent = house.press(&client.peer, &requests).await?;
    let taken = taken(&house, Operation::SetData);
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
async fn no_more_answers_are_made_than_may_be_unread() -> Result<()> {
    const SENT: i32 = 900;
    let house = House::with_defaults().await?;
    let mut deaf = house.client_with_a_znode(TIMEOUT_MS, VALUE_BYTES).await?;
    let (read_before, sent_before) = (house.reads(), house.statistics.bytes_sent());
    let requests: Vec<u8> = (1..=SENT).flat_map(get).collect();
    assert_eq!(house.press(&deaf.peer, &requests).await?, requests.len());
    let made = (house.reads() - read_before) * VALUE_BYTES;
    let sent = (house.statistics.bytes_sent() - sent_before) as usize;
    assert!(
        made - sent <= ANSWER_BYTES_MAX + VALUE_BYTES,
        "{} bytes wait",
        made - sent
    );
    deaf.peer.replies(&[], 1..=SENT).await?;
    Ok(())
}

#[tokio::test]
async fn who_takes_nothing_for_its_timeout_is_cut_off() -> Result<()> {
    let shortest = Duration::from_millis(400);
    let coordination = coordination::Config {
        session_timeout_min: shortest,
        ..Default::default()
    };
    let house = House::new(config(), coordination).await?;
    let deaf = house
        .client_with_a_znode(shortest.as_millis() as i32, VALUE_BYTES)
        .await?;
    let requests: Vec<u8> = (1..=900).flat_map(get).collect();
    house.press(&deaf.peer, &requests).await?;
    house.all_gone().await;
    assert!(
        house.statistics.bytes_sent() < 900 * VALUE_BYTES as u64,
        "it was not waited for"
    );
    Ok(())
}
