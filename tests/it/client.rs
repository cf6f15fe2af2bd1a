//! The Rust client and the real program: responses lost at a chosen moment, kill -9, dead nodes,
//! every refusal.

mod conditions;
mod effects;
mod kept;
mod refusals;
mod relay;

use std::{path::Path, sync::Arc, time::Duration};

use landfast_client::{Client, ErrorKind, Result, Transaction};
use relay::{Loss, Relay};

use crate::process::{self, Server};

/// No wait takes longer, unless something is broken.
const WAIT_MAX: Duration = Duration::from_mins(2);
/// The time of a call that gets no answer, or one at once.
const SHORT: Duration = Duration::from_secs(5);

/// A server, a relay before it, and a client of the relay.
struct House {
    directory: tempfile::TempDir,
    server: Option<Server>,
    relay: Relay,
    client: Client,
}

impl House {
    async fn open() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let server = start(directory.path());
        let relay = Relay::to(Some(server.address("http"))).await;
        let client = Client::connect([relay.url()]).expect("an address");
        Self {
            directory,
            server: Some(server),
            relay,
            client,
        }
    }

    /// Once a response has been lost, kills the server and starts it again.
    async fn kill_and_restart_at_the_loss(&mut self) {
        self.relay.has_lost_one().await;
        // Dropping it is a kill -9.
        self.server = None;
        let server = start(self.directory.path());
        self.relay.connect(server.address("http"));
        self.server = Some(server);
    }

    async fn count(&self) -> u64 {
        count(&self.client).await
    }
}

fn start(directory: &Path) -> Server {
    Server::start(&mut process::serve(directory, &["--zookeeper", "off"]))
}

async fn count(client: &Client) -> u64 {
    number(
        client
            .state()
            .get("count")
            .await
            .expect("a read")
            .as_deref(),
    )
}

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |text| {
        std::str::from_utf8(text)
            .expect("text")
            .parse()
            .expect("a number")
    })
}

async fn increment(t: &Transaction) -> Result<u64> {
    let count = number(t.get("count").await?.as_deref()) + 1;
    t.put("count", count.to_string()).await?;
    Ok(count)
}

/// T4, T5. Under a generated id and a client id.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_died_with_the_server_is_repeated_and_takes_effect_once() {
    let mut house = House::open().await;
    for (begin, expected) in [
        (house.client.transaction(), 1),
        (house.client.transaction().id("order"), 2),
    ] {
        house.relay.lose("/commit HTTP", Loss::Once);
        let paying = tokio::spawn(begin.transact(|t| async move { increment(&t).await }));
        house.kill_and_restart_at_the_loss().await;
        assert_eq!(
            paying.await.expect("no panic").expect("it committed"),
            Some(expected)
        );
        assert_eq!(house.count().await, expected);
    }
    assert_eq!(
        house.relay.requests("/commit HTTP").len(),
        4,
        "each commit was asked for twice"
    );
    let again = house
        .client
        .transaction()
        .id("order")
        .transact(|t| async move { increment(&t).await });
    assert_eq!(again.await.expect("an answer"), None);
    assert_eq!(house.count().await, 2);
}

/// T4, T7. A value of 64 MiB whose response was lost when the server was killed: its transaction
/// begins again, and all of the value is there, or none of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_value_whose_server_died_is_written_again_and_read_whole() {
    let mut house = House::open().await;
    let value: Vec<u8> = (0..64 << 20)
        .map(|place: u32| (place ^ (place >> 9)) as u8)
        .collect();
    house
        .client
        .state()
        .put("k", "before")
        .await
        .expect("written");
    house.relay.lose("PUT /v1/transactions/", Loss::Once);
    let (client, expected) = (house.client.clone(), value.clone());
    let writing = tokio::spawn(async move {
        let write = |t: Transaction| {
            let value = value.clone();
            async move { t.put("k", value).await }
        };
        client.transaction().id("large").transact(write).await
    });
    house.kill_and_restart_at_the_loss().await;
    writing
        .await
        .expect("no panic")
        .expect("it committed")
        .expect("by this one");
    let read = house
        .client
        .state()
        .get("k")
        .await
        .expect("a read")
        .expect("a value");
    assert!(read[..] == expected[..], "{} bytes", read.len());
}

/// T4, T7. A transaction that was open when the server died begins again under its id.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_whose_server_died_before_the_commit_runs_again_and_takes_effect_once() {
    let mut house = House::open().await;
    house.relay.lose("PUT /v1/transactions/", Loss::Once);
    let client = house.client.clone();
    let paying = tokio::spawn(async move {
        let mut ids = Vec::new();
        let paid = client
            .transact(|t| {
                ids.push(t.id().to_owned());
                async move { increment(&t).await }
            })
            .await;
        (paid, ids)
    });
    house.kill_and_restart_at_the_loss().await;
    let (paid, ids) = paying.await.expect("no panic");
    assert_eq!(paid.expect("it committed"), Some(1));
    assert_eq!((ids.len(), &ids[0]), (2, &ids[1]), "twice, under one id");
    assert_eq!(house.count().await, 1);
}

/// T4.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_outcome_is_unknown_may_be_asked_for_again() {
    let house = House::open().await;
    let client = house.client.clone().with_timeout(SHORT);
    let t = client.transaction().await.expect("begun");
    increment(&t).await.expect("written");
    house.relay.lose("/commit HTTP", Loss::Always);
    let error = t.commit().await.expect_err("no answer ever comes");
    assert_eq!(
        (error.kind(), error.may_have_happened()),
        (ErrorKind::OutcomeUnknown, true)
    );
    assert_eq!(error.transaction(), Some(t.id()));
    let error = t
        .put("count", "7")
        .await
        .expect_err("it may have committed");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    house.relay.heal();
    t.commit().await.expect("the same again");
    t.commit().await.expect("and again");
    assert_eq!(house.count().await, 1);
    assert!(t.after().is_some());
}

/// T4. The body does not run again while its commit may have taken effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_not_run_again_while_its_commit_is_unknown() {
    let house = House::open().await;
    let client = house.client.clone().with_timeout(SHORT);
    house.relay.lose("/commit HTTP", Loss::Always);
    let mut runs = 0;
    let body = |t| {
        runs += 1;
        async move { increment(&t).await }
    };
    let error = client
        .transaction()
        .id("order")
        .transact(body)
        .await
        .expect_err("no answer ever comes");
    assert_eq!((error.kind(), runs), (ErrorKind::OutcomeUnknown, 1));
    house.relay.heal();
    let again = client
        .transaction()
        .id("order")
        .transact(|t| async move { increment(&t).await });
    assert_eq!(again.await.expect("an answer"), None);
    assert_eq!(house.count().await, 1);
}

/// A client moves on at the first sign, once, and stays there.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_node_is_asked_at_the_first_reset() {
    let house = House::open().await;
    let resets = Relay::to(None).await;
    let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let gone_url = format!("http://{}", gone.local_addr().expect("an address"));
    drop(gone);
    let client = Client::connect([resets.url(), gone_url, house.relay.url()]).expect("addresses");
    for expected in 1..=3 {
        let paid = client
            .transact(|t| async move { increment(&t).await })
            .await;
        assert_eq!(paid.expect("the third serves"), Some(expected));
    }
    assert_eq!(resets.requests("HTTP/1.1").len(), 1);
    assert_eq!(count(&client).await, 3);
}

/// T4. A write that the caller no longer awaits may or may not have arrived: such an attempt never
/// commits.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_with_a_cancelled_write_never_commits() {
    let house = House::open().await;
    let t = house.client.transaction().await.expect("begun");
    t.put("count", "1").await.expect("written");
    house.relay.lose("PUT /v1/transactions/", Loss::Silence);
    tokio::select! {
        biased;
        written = t.put("count", "2") => panic!("it was answered: {written:?}"),
        () = house.relay.has_lost_one() => {}
    }
    let error = t.commit().await.expect_err("torn");
    assert!(error.body_may_run_again(), "{error}");
    assert_eq!(house.relay.requests("/commit HTTP").len(), 0);
}

/// T7. The server learns of it at once instead of by the time-out.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_dropped_is_aborted() {
    let house = House::open().await;
    let t = house
        .client
        .transaction()
        .id("dropped")
        .await
        .expect("begun");
    increment(&t).await.expect("written");
    let other = house.client.transaction().id("other").await.expect("begun");
    assert_eq!(t.status().await.expect("an answer"), "open");
    drop(t);
    let aborted = async {
        while house
            .relay
            .requests("DELETE /v1/transactions/dropped HTTP")
            .is_empty()
        {
            other.status().await.expect("an answer");
        }
        // It has arrived; the server responds at no fixed time, but soon.
        while house
            .client
            .transaction()
            .id("dropped")
            .await
            .expect("begun anew")
            .commit()
            .await
            .is_err()
        {}
    };
    tokio::time::timeout(WAIT_MAX, aborted)
        .await
        .expect("it was aborted");
    assert_eq!(house.count().await, 0);
}

/// T5. So that the next transaction sees it on every node.
#[tokio::test(flavor = "multi_thread")]
async fn each_client_carries_its_last_commit_to_its_next_begin() {
    let house = House::open().await;
    let (one, other) = (house.client.clone(), house.client.clone());
    let t = one.transaction().await.expect("begun");
    t.put("a", "1").await.expect("written");
    t.commit().await.expect("committed");
    let token = t.after().expect("a commit answers it");
    one.transaction().id("carries").await.expect("begun");
    other.transaction().id("does-not").await.expect("begun");
    one.clone()
        .transaction()
        .id("inherits")
        .await
        .expect("begun");
    other
        .transaction()
        .id("told")
        .after(&token)
        .await
        .expect("begun");
    one.state().put("a", "2").await.expect("written");
    one.transaction().id("later").await.expect("begun");
    let carried = |id: &str| {
        let head = house
            .relay
            .requests(&format!("{{\"id\":\"{id}\"}}"))
            .pop()
            .expect("it was asked for");
        let found = head
            .lines()
            .find_map(|line| line.strip_prefix("landfast-after: ").map(str::to_owned));
        found.unwrap_or_default()
    };
    assert_eq!(
        [carried("carries"), carried("inherits"), carried("told")],
        [&*token, &*token, &*token]
    );
    assert_eq!(carried("does-not"), "");
    assert!(!carried("later").is_empty() && carried("later") != token);
}

/// T1, T3. For any bytes of the key and the value.
#[tokio::test(flavor = "multi_thread")]
async fn every_key_and_value_comes_back_as_it_was() {
    let house = House::open().await;
    let state = house.client.state();
    let keys: [&[u8]; 6] = [b"a/b?c#d%", "ü".as_bytes(), b"\x00\xff/", b".", b"..", b""];
    let values = [&b""[..], b"text", &[0, 255, 10]];
    for (key, value) in keys.into_iter().zip(values.into_iter().cycle()) {
        let t = house
            .client
            .transaction()
            .id("id/ü ..")
            .await
            .expect("begun");
        t.put(key, value.to_vec()).await.expect("written");
        assert_eq!(t.get(key).await.expect("a read").as_deref(), Some(value));
        assert_eq!(state.get(key).await.expect("a read"), None);
        t.abort().await.expect("aborted");
        t.abort().await.expect("it is over");
        state.put(key, value.to_vec()).await.expect("written");
        assert_eq!(
            state.get(key).await.expect("a read").as_deref(),
            Some(value)
        );
        let t = house.client.transaction().await.expect("begun");
        t.delete(key).await.expect("deleted");
        assert_eq!(t.get(key).await.expect("a read"), None);
        t.commit().await.expect("committed");
        assert_eq!(state.get(key).await.expect("a read"), None);
    }
}

/// A body's own error is returned unchanged, and none of the body's writes stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_fails_by_itself_is_aborted_and_not_run_again() {
    let house = House::open().await;
    let mut runs = 0;
    let failed: anyhow::Result<Option<()>> = house
        .client
        .transaction()
        .id("poor")
        .transact(|t| {
            runs += 1;
            async move {
                increment(&t).await?;
                anyhow::bail!("not enough money")
            }
        })
        .await;
    let aborts = house.relay.requests("DELETE /v1/transactions/poor HTTP");
    assert_eq!(aborts.len(), 1, "it is over when transact returns");
    assert_eq!(
        failed.expect_err("it fails").to_string(),
        "not enough money"
    );
    assert_eq!((runs, house.count().await), (1, 0));
    let t = house
        .client
        .transaction()
        .id("poor")
        .await
        .expect("it can be begun anew");
    assert_eq!(t.status().await.expect("an answer"), "open");
}

/// T4. Many tasks, each with a clone; every id by two of them.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_race_for_an_id_pay_it_once() {
    const IDS: u64 = 20;
    let house = House::open().await;
    let client = Arc::new(house.client.clone());
    let pay = |turn: u64| {
        let client = Client::clone(&client);
        tokio::spawn(async move {
            let key = format!("paid/{}", turn % IDS);
            let begin = client.transaction().id(format!("pay/{}", turn % IDS));
            begin
                .transact(|t| {
                    let key = &key;
                    async move {
                        let paid = number(t.get(key).await?.as_deref()) + 1;
                        t.put(key, paid.to_string()).await
                    }
                })
                .await
        })
    };
    let racing: Vec<_> = (0..2 * IDS).map(pay).collect();
    for task in racing {
        match task.await.expect("no panic") {
            Ok(_) => {}
            // The other one began the same id anew.
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::TransactionFinished(_)),
                "{error}"
            ),
        }
    }
    for number in 0..IDS {
        let paid = house
            .client
            .state()
            .get(format!("paid/{number}"))
            .await
            .expect("a read");
        assert_eq!(paid.as_deref(), Some(&b"1"[..]), "{number}");
    }
}
