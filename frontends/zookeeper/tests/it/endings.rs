//! How a connection ends, over TCP: what came before its end is answered, and who is to blame for it.

use std::io::Result;

use coordination::model::Request;
use tokio::io::AsyncWriteExt;
use zookeeper_frontend::Config;

use crate::{
    house::{House, connect_request, get, set},
    requests::{encode, int},
};

const TIMEOUT_MS: i32 = 40_000;
/// Two hundred of these are more than sockets hold.
const LARGE: usize = 100_000;

/// What no packet can be read behind.
fn bad_ends() -> [Vec<u8>; 2] {
    [int(-1), [int(2), vec![0; 2]].concat()]
}

/// Whether the last answer is already on its way or waits for room when the connection is over.
#[tokio::test]
async fn what_is_asked_before_a_bad_length_is_answered_however_late_it_is_read() -> Result<()> {
    const ASKED: i32 = 200;
    let of_default = Config::new(([127, 0, 0, 1], 0).into());
    let for_all = 2 * LARGE * ASKED as usize;
    for unsent_bytes_max in [of_default.unsent_bytes_max, for_all] {
        for bad in bad_ends() {
            let config = Config {
                unsent_bytes_max,
                ..of_default.clone()
            };
            let house = House::new(config, coordination::Config::default()).await?;
            let mut client = house.client_with_a_znode(TIMEOUT_MS, LARGE).await?;
            let mut requests: Vec<u8> = (1..=ASKED).flat_map(get).collect();
            requests.extend(bad);
            assert_eq!(house.press(&client.peer, &requests).await?, requests.len());
            client.peer.replies(&[], 1..=ASKED).await?;
            assert_eq!(client.peer.rest().await?, b"");
            assert_eq!(house.statistics.malformed(), 1);
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_is_asked_before_a_bad_length_is_answered_however_long_it_takes() -> Result<()> {
    for bad in bad_ends() {
        let house = House::with_defaults().await?;
        let mut client = house.client_with_a_znode(TIMEOUT_MS, 1).await?;
        let held_up = house.hold_the_writer_up().await;
        // What is behind it is not read: a request would be answered too.
        let requests = [set(1, 1), set(2, 1), bad, set(3, 1)].concat();
        assert_eq!(house.press(&client.peer, &requests).await?, requests.len());
        assert_eq!(house.statistics.connections_open(), 1, "it owes answers");
        drop(held_up);
        client.peer.replies(&[], 1..=2).await?;
        assert_eq!(client.peer.rest().await?, b"");
        assert_eq!(house.statistics.malformed(), 1);
    }
    Ok(())
}

#[tokio::test]
async fn who_sends_more_than_is_read_hears_the_last_answer() -> Result<()> {
    let house = House::with_defaults().await?;
    let mut client = house.client_with_a_znode(TIMEOUT_MS, 1).await?;
    let requests = [encode(1, &Request::Close, false), get(2).repeat(5_000)].concat();
    assert_eq!(house.press(&client.peer, &requests).await?, requests.len());
    client.peer.replies(&[], 1..=1).await?;
    assert_eq!(client.peer.rest().await?, b"");
    Ok(())
}

/// How a peer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It says that nothing more comes.
    InOrder,
    /// Its connection is reset, as by a network that breaks.
    Reset,
}

/// How much is taken for malformed when a peer goes in the middle of a packet; a deaf one leaves answers unread besides.
async fn malformed_by_going(way: Way, asked: &[u8], packet: &[u8]) -> Result<u64> {
    let house = House::with_defaults().await?;
    let client = house.client_with_a_znode(TIMEOUT_MS, LARGE).await?;
    let sent = [asked, &packet[..packet.len() / 2]].concat();
    assert_eq!(house.press(&client.peer, &sent).await?, sent.len());
    if way == Way::Reset {
        client.peer.stream.set_zero_linger()?;
    }
    drop(client.peer);
    house.all_gone().await;
    Ok(house.statistics.malformed())
}

#[tokio::test]
async fn who_closes_in_the_middle_of_a_packet_is_to_blame_and_who_is_reset_there_is_not()
-> Result<()> {
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
async fn who_is_reset_in_the_middle_of_its_first_packet_is_not_to_blame() -> Result<()> {
    for (way, malformed) in [(Way::Reset, 0), (Way::InOrder, 1)] {
        let house = House::with_defaults().await?;
        let mut peer = house.peer().await?;
        peer.stream
            .write_all(&connect_request(TIMEOUT_MS)[..20])
            .await?;
        house.press(&peer, &[]).await?;
        assert_eq!(house.statistics.connections_open(), 1);
        if way == Way::Reset {
            peer.stream.set_zero_linger()?;
        }
        drop(peer);
        house.all_gone().await;
        assert_eq!(house.statistics.malformed(), malformed, "{way:?}");
    }
    Ok(())
}

/// C6: also when it leaves in order or by a reset before it has read what it asked for: it does not wait for the timeout.
#[tokio::test]
async fn the_close_of_who_reads_nothing_and_goes_is_taken() -> Result<()> {
    for is_reset in [false, true] {
        let house = House::with_defaults().await?;
        let client = house.client_with_a_znode(TIMEOUT_MS, LARGE).await?;
        let mut requests: Vec<u8> = (1..=400).flat_map(get).collect();
        requests.extend(encode(401, &Request::Close, false));
        assert_eq!(house.press(&client.peer, &requests).await?, requests.len());
        if is_reset {
            client.peer.stream.set_zero_linger()?;
        }
        let session = client.session;
        drop(client.peer);
        house.all_gone().await;
        house.session_gone(session).await;
    }
    Ok(())
}
