//! The end of a connection, over TCP: earlier requests are answered, and the peer is blamed only
//! for violations.

use std::io::Result;

use coordination::model::Request;
use tokio::io::AsyncWriteExt;
use zookeeper_frontend::Config;

use crate::{
    fixture::{Fixture, connect_request, get, set},
    requests::{encode, int},
};

const TIMEOUT_MS: i32 = 40_000;
/// Two hundred values of this size exceed the socket buffers.
const LARGE: usize = 100_000;

/// Bytes after which no packet can be read.
fn bad_ends() -> [Vec<u8>; 2] {
    [int(-1), [int(2), vec![0; 2]].concat()]
}

/// The last answer may be sent already or wait for room when the connection is over.
#[tokio::test]
async fn requests_before_a_bad_length_are_answered_even_if_read_late() -> Result<()> {
    const ASKED: i32 = 200;
    let of_default = Config::new(([127, 0, 0, 1], 0).into());
    let for_all = 2 * LARGE * ASKED as usize;
    for unsent_bytes_max in [of_default.unsent_bytes_max, for_all] {
        for bad in bad_ends() {
            let config = Config {
                unsent_bytes_max,
                ..of_default.clone()
            };
            let fixture = Fixture::new(config, coordination::Config::default()).await?;
            let mut client = fixture.client_with_a_znode(TIMEOUT_MS, LARGE).await?;
            let mut requests: Vec<u8> = (1..=ASKED).flat_map(get).collect();
            requests.extend(bad);
            assert_eq!(
                fixture.press(&client.peer, &requests).await?,
                requests.len()
            );
            client.peer.replies(&[], 1..=ASKED).await?;
            assert_eq!(client.peer.rest().await?, b"");
            assert_eq!(fixture.statistics.malformed.get(), 1);
        }
    }
    Ok(())
}

#[tokio::test]
async fn requests_before_a_bad_length_are_answered_even_if_slow() -> Result<()> {
    for bad in bad_ends() {
        let fixture = Fixture::with_defaults().await?;
        let mut client = fixture.client_with_a_znode(TIMEOUT_MS, 1).await?;
        let held_up = fixture.hold_the_writer_up().await;
        // Bytes after the bad length are not read: a request among them would be answered too.
        let requests = [set(1, 1), set(2, 1), bad, set(3, 1)].concat();
        assert_eq!(
            fixture.press(&client.peer, &requests).await?,
            requests.len()
        );
        assert_eq!(fixture.statistics.connections_open(), 1, "it owes answers");
        drop(held_up);
        client.peer.replies(&[], 1..=2).await?;
        assert_eq!(client.peer.rest().await?, b"");
        assert_eq!(fixture.statistics.malformed.get(), 1);
    }
    Ok(())
}

#[tokio::test]
async fn a_peer_that_sends_too_much_receives_the_last_answer() -> Result<()> {
    let fixture = Fixture::with_defaults().await?;
    let mut client = fixture.client_with_a_znode(TIMEOUT_MS, 1).await?;
    let requests = [encode(1, &Request::Close, false), get(2).repeat(5_000)].concat();
    assert_eq!(
        fixture.press(&client.peer, &requests).await?,
        requests.len()
    );
    client.peer.replies(&[], 1..=1).await?;
    assert_eq!(client.peer.rest().await?, b"");
    Ok(())
}

/// How a peer disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It closes its side.
    InOrder,
    /// Its connection is reset, as by a broken network.
    Reset,
}

/// The number of malformed messages counted when a peer disconnects in the middle of a packet. A
/// deaf peer also leaves answers unread.
async fn malformed_by_going(way: Way, asked: &[u8], packet: &[u8]) -> Result<u64> {
    let fixture = Fixture::with_defaults().await?;
    let client = fixture.client_with_a_znode(TIMEOUT_MS, LARGE).await?;
    let sent = [asked, &packet[..packet.len() / 2]].concat();
    assert_eq!(fixture.press(&client.peer, &sent).await?, sent.len());
    if way == Way::Reset {
        client.peer.stream.set_zero_linger()?;
    }
    drop(client.peer);
    fixture.all_gone().await;
    Ok(fixture.statistics.malformed.get())
}

#[tokio::test]
async fn a_close_in_the_middle_of_a_packet_is_malformed_and_a_reset_is_not() -> Result<()> {
    for asked in [Vec::new(), (1..=200).flat_map(get).collect()] {
        assert_eq!(
            malformed_by_going(Way::Reset, &asked, &set(201, 100)).await?,
            0,
            "{} bytes",
            asked.len()
        );
    }
    assert_eq!(
        malformed_by_going(Way::InOrder, &[], &set(1, 100)).await?,
        1
    );
    assert_eq!(
        malformed_by_going(Way::InOrder, &[], &[]).await?,
        0,
        "there is no packet"
    );
    Ok(())
}

#[tokio::test]
async fn a_reset_in_the_middle_of_the_first_packet_is_not_malformed() -> Result<()> {
    for (way, malformed) in [(Way::Reset, 0), (Way::InOrder, 1)] {
        let fixture = Fixture::with_defaults().await?;
        let mut peer = fixture.peer().await?;
        peer.stream
            .write_all(&connect_request(TIMEOUT_MS)[..20])
            .await?;
        fixture.press(&peer, &[]).await?;
        assert_eq!(fixture.statistics.connections_open(), 1);
        if way == Way::Reset {
            peer.stream.set_zero_linger()?;
        }
        drop(peer);
        fixture.all_gone().await;
        assert_eq!(fixture.statistics.malformed.get(), malformed, "{way:?}");
    }
    Ok(())
}

/// C6: this also holds if the peer closes or resets the connection before it reads its answers. Its
/// session does not wait for the timeout.
#[tokio::test]
async fn a_close_is_executed_although_its_peer_disconnects() -> Result<()> {
    for is_reset in [false, true] {
        let fixture = Fixture::with_defaults().await?;
        let client = fixture.client_with_a_znode(TIMEOUT_MS, LARGE).await?;
        let mut requests: Vec<u8> = (1..=400).flat_map(get).collect();
        requests.extend(encode(401, &Request::Close, false));
        assert_eq!(
            fixture.press(&client.peer, &requests).await?,
            requests.len()
        );
        if is_reset {
            client.peer.stream.set_zero_linger()?;
        }
        let session = client.session;
        drop(client.peer);
        fixture.all_gone().await;
        fixture.session_gone(session).await;
    }
    Ok(())
}
