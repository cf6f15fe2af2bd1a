//! Every refusal that the real program can be made to give, by its kind.

use std::{fmt::Debug, path::Path, time::Duration};

use landfast_client::{Client, ErrorKind, Isolation, Outcome, Result};

use super::{House, SHORT, start};
use crate::process::{self, Server};

/// The longest value.
const VALUE_BYTES_MAX: usize = 64 << 20;
/// The bound of one server.
const TRANSACTIONS_MAX: usize = 10_000;
/// Tasks that begin them, so that it takes a second or two.
const BEGINNERS: usize = 50;

/// T15.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_served_as_it_is_is_refused_by_its_kind() {
    let house = House::open().await;
    let (client, state) = (&house.client, house.client.state());
    let invalid = (ErrorKind::InvalidRequest, "invalid-request");
    let long = "k".repeat(1025);
    refused(state.put(&long, "1").await, invalid);
    refused(state.get(&long).await, invalid);
    refused(client.transaction().id("i".repeat(129)).await, invalid);
    refused(client.transaction().after("nonsense").await, invalid);
    refused(
        client.transaction().id("").await,
        (ErrorKind::InvalidRequest, ""),
    );

    // The client refuses it, before it sends anything.
    let too_large = (ErrorKind::TooLarge, "");
    refused(
        state.put("a", vec![0; VALUE_BYTES_MAX + 1]).await,
        too_large,
    );
    let t = client
        .transaction()
        .isolation(Isolation::ReadAtomic)
        .await
        .expect("begun");
    refused(t.put("a", vec![0; VALUE_BYTES_MAX + 1]).await, too_large);
    t.put("a", vec![0; VALUE_BYTES_MAX])
        .await
        .expect("at the bound");
    t.commit()
        .await
        .expect("a refused write is as if it had not been");
}

/// T4, T8.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_says_how() {
    let house = House::open().await;
    let begin = |id: &str| house.client.transaction().id(id);
    let finished = |outcome| ErrorKind::TransactionFinished(outcome);

    let earlier = begin("a").await.expect("begun");
    let later = begin("a").await.expect("begun anew");
    let begun_anew = finished(Outcome::BegunAnew);
    refused(
        earlier.put("k", "1").await,
        (begun_anew, "transaction-finished"),
    );
    refused(earlier.commit().await, (begun_anew, ""));
    earlier.abort().await.expect("it is over");
    later.commit().await.expect("the abort did not hit it");

    refused(begin("a").await, (ErrorKind::AlreadyCommitted, ""));
    refused(later.get("k").await, (finished(Outcome::Committed), ""));
    refused(later.abort().await, (finished(Outcome::Committed), ""));

    let aborted = begin("b").await.expect("begun");
    aborted.abort().await.expect("aborted");
    refused(aborted.commit().await, (finished(Outcome::Aborted), ""));
}

/// T1, T15. For a server that has lost its data, the lost transactions never happened.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_another_server_is_unknown() {
    let mut house = House::open().await;
    let t = house.client.transaction().await.expect("begun");
    house.server = None;
    let elsewhere = tempfile::tempdir().expect("a directory");
    let server = start(elsewhere.path());
    house.relay.connect(server.address("http"));
    let error = refused(
        t.get("a").await,
        (ErrorKind::NoSuchTransaction, "no-such-transaction"),
    );
    assert!(error.body_may_run_again());
    refused(
        t.status().await,
        (ErrorKind::NoSuchTransaction, "no-such-transaction"),
    );
}

/// T2. A key that did not exist when the transaction began, written together with a key that it has
/// read since.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_would_be_fractured_has_its_own_kind_and_the_body_runs_again() {
    let house = House::open().await;
    let write = async |keys: &[&str]| {
        let t = house.client.transaction().await.expect("begun");
        for key in keys {
            t.put(key, "1").await.expect("written");
        }
        t.commit().await.expect("committed");
    };
    let mut runs = 0;
    let read = house
        .client
        .transact(|t| {
            runs += 1;
            let (run, write) = (runs, &write);
            async move {
                if run == 1 {
                    write(&["a"]).await;
                }
                t.get("a").await?;
                if run == 1 {
                    write(&["a", "b"]).await;
                    refused(
                        t.get("b").await,
                        (ErrorKind::NoValidVersion, "no-valid-version"),
                    );
                }
                t.get("b").await
            }
        })
        .await;
    assert_eq!(
        read.expect("the second run").flatten().as_deref(),
        Some(&b"1"[..])
    );
    assert_eq!(runs, 2);
}

/// T11, T12. Another client writes a key that the body has read: the body runs again if it writes,
/// and succeeds if it only reads.
#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_has_its_own_kind_and_the_body_runs_again() {
    let house = House::open().await;
    let state = house.client.state();
    let serializable = || {
        house
            .client
            .transaction()
            .isolation(Isolation::Serializable)
    };
    let mut runs = 0;
    let written = serializable().transact(|t| {
        runs += 1;
        let (run, state) = (runs, &state);
        async move {
            let read = t.get("k").await?;
            if run == 1 {
                state.put("k", "theirs").await?;
            }
            t.put("k", "mine").await?;
            if run == 1 {
                refused(t.commit().await, (ErrorKind::Conflict, "conflict"));
            }
            Ok::<_, landfast_client::Error>(read)
        }
    });
    let read = written.await.expect("the second run").flatten();
    assert_eq!((read.as_deref(), runs), (Some(&b"theirs"[..]), 2));
    assert_eq!(
        state.get("k").await.expect("read").as_deref(),
        Some(&b"mine"[..])
    );

    let reader = serializable().await.expect("begun");
    assert_eq!(
        reader.get("k").await.expect("read").as_deref(),
        Some(&b"mine"[..])
    );
    state.put("l", "new").await.expect("written");
    assert_eq!(
        reader.get("l").await.expect("read"),
        None,
        "it was not there when it began"
    );
    state.put("k", "theirs").await.expect("written");
    reader.commit().await.expect("it only read");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_tls_is_reached_by_clients_that_trust_its_authority() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/testdata/tls");
    let file = |name: &str| format!("{folder}/{name}.pem");
    let (certificate, key) = (file("server"), file("server-key"));
    let options = ["--tls-cert", &certificate, "--tls-key", &key];
    let server = Server::start(&mut process::serve(directory.path(), &options));
    let url = format!("https://{}", server.address("http"));
    let client = Client::connect([&url]).expect("an address");
    let client = client.with_timeout(Duration::from_secs(5));
    let trusting = client
        .clone()
        .with_ca(Path::new(&file("ca")))
        .expect("a file");
    let state = trusting.state();
    state.put("k", "v").await.expect("it is reached");
    assert_eq!(
        state.get("k").await.expect("again").as_deref(),
        Some(&b"v"[..])
    );
    let wary = client
        .with_ca(Path::new(&file("other-ca")))
        .expect("a file");
    let error = wary.state().get("k").await.expect_err("it is not trusted");
    assert!(error.to_string().contains("certificate"), "{error}");
    let nothing = trusting
        .with_ca(Path::new(&file("server-key")))
        .expect_err("no certificate");
    assert!(
        nothing.to_string().contains("it holds no certificate"),
        "{nothing}"
    );
}

/// T15.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_name_and_a_wrong_token_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut serve = process::serve(directory.path(), &["--zookeeper", "off", "--insecure"]);
    let open = Server::start(
        serve
            .env("LANDFAST_HTTP", "0.0.0.0:0")
            .env("LANDFAST_TOKEN", "right"),
    );
    let port = open.address("http").port();
    let client =
        |host: &str| Client::connect([format!("http://{host}:{port}")]).expect("an address");
    refused(
        client("127.0.0.1").state().get("a").await,
        (ErrorKind::Refused, "unauthorized"),
    );
    let wrong = client("127.0.0.1").with_token("wrong").expect("a token");
    refused(
        wrong.state().get("a").await,
        (ErrorKind::Refused, "unauthorized"),
    );
    let right = client("127.0.0.1").with_token("right").expect("a token");
    assert_eq!(right.state().get("a").await.expect("it may"), None);
    assert!(
        !format!("{right:?}").contains("right"),
        "a token is not for logs"
    );
    client("127.0.0.1")
        .with_token("\n")
        .expect_err("no header carries it");

    let directory = tempfile::tempdir().expect("a directory");
    let closed = start(directory.path());
    let port = closed.address("http").port();
    let other_name = Client::connect([format!("http://0.0.0.0:{port}")]).expect("an address");
    refused(
        other_name.state().get("a").await,
        (ErrorKind::Refused, "unknown-host"),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_unavailable_and_nothing_happened() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", taken.local_addr().expect("an address"));
    drop(taken);
    let client = Client::connect([url])
        .expect("an address")
        .with_timeout(SHORT);
    let error = refused(
        client.state().put("a", "1").await,
        (ErrorKind::Unavailable, ""),
    );
    assert!(!error.may_have_happened());
    let mut runs = 0;
    let error = client.transact(|_| {
        runs += 1;
        std::future::ready(Result::Ok(()))
    });
    let error = refused(error.await, (ErrorKind::Unavailable, ""));
    assert!(
        error.to_string().contains("is `landfast serve` running"),
        "{error}"
    );
    assert_eq!(runs, 0);
}

/// T15. The client waits for capacity, and names the limit when its time is over; dropped
/// transactions free capacity.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_open_transactions_are_waited_for_and_then_named() {
    let house = House::open().await;
    let begin_many = || {
        let client = house.client.clone();
        tokio::spawn(async move {
            let mut open = Vec::new();
            for _ in 0..TRANSACTIONS_MAX / BEGINNERS {
                open.push(client.transaction().await.expect("there is room"));
            }
            open
        })
    };
    let beginners: Vec<_> = (0..BEGINNERS).map(|_| begin_many()).collect();
    let mut open = Vec::new();
    for beginner in beginners {
        open.extend(beginner.await.expect("no panic"));
    }
    let hasty = house.client.clone().with_timeout(SHORT);
    let error = refused(
        hasty.transaction().await,
        (ErrorKind::TooManyTransactions, "too-many-transactions"),
    );
    assert!(error.retry_after().is_some() && !error.may_have_happened());
    let waiting = tokio::spawn(house.client.transaction().into_future());
    open.pop()
        .expect("one of many")
        .abort()
        .await
        .expect("aborted");
    waiting.await.expect("no panic").expect("there is room now");
}

/// The error of a refused call; `problem` is the server's name for it, if the server refused.
#[track_caller]
fn refused<T: Debug>(
    result: Result<T>,
    (kind, problem): (ErrorKind, &str),
) -> landfast_client::Error {
    let error = result.expect_err("it is refused");
    assert_eq!(
        (error.kind(), error.problem().unwrap_or_default()),
        (kind, problem),
        "{error}"
    );
    error
}
