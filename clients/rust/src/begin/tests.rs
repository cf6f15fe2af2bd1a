use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    select,
    time::{advance, timeout},
};

use super::*;
use crate::{
    Client,
    limits::{ASIDE_CALL_MAX, ASIDE_MAX, CONNECTIONS_MAX},
};

const HEARD_MAX: Duration = Duration::from_mins(2);
const GONE: &str = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
const BEGUN: &str =
    "HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 15\r\n\r\n{\"attempt\":\"7\"}";
const UNKNOWN: &str = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 30\r\n\r\n\
    {\"type\":\"no-such-transaction\"}";

async fn server() -> (TcpListener, Client) {
    let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let client = Client::connect([format!("http://{}", server.local_addr().expect("bound"))])
        .expect("a URL");
    (server, client)
}

/// Sends `begin` and drops it before its response. Returns its id.
async fn dropped(server: &TcpListener, begin: Begin) -> String {
    let heard = select! {
        _ = begin.into_future() => panic!("it was answered"),
        (_, heard) = heard(server, "}") => heard,
    };
    heard
        .split('"')
        .nth(3)
        .expect("the begin names its id")
        .to_owned()
}

/// The next request, read up to `end`, and its connection.
async fn heard(server: &TcpListener, end: &str) -> (TcpStream, String) {
    let (mut connection, _) = timeout(HEARD_MAX, server.accept())
        .await
        .expect("a client connects")
        .expect("a connection");
    let mut heard = Vec::new();
    while !heard.ends_with(end.as_bytes()) {
        assert_ne!(
            connection.read_buf(&mut heard).await.expect("a request"),
            0,
            "it hung up"
        );
    }
    (connection, String::from_utf8(heard).expect("text"))
}

async fn answered(server: &TcpListener, answer: &str) -> String {
    let (mut connection, heard) = heard(server, "\r\n\r\n").await;
    connection
        .write_all(answer.as_bytes())
        .await
        .expect("it listens");
    heard
}

/// T7. The first abort overtakes the begin.
#[tokio::test]
async fn a_begin_that_is_dropped_leaves_no_transaction_open() {
    let (server, client) = server().await;
    let id = dropped(&server, client.transaction()).await;
    for answer in [UNKNOWN, GONE] {
        let abort = answered(&server, answer).await;
        assert!(
            abort.starts_with(&format!("DELETE /v1/transactions/{id} ")),
            "{abort}"
        );
        assert!(
            !abort.contains("landfast-attempt"),
            "it knows of none: {abort}"
        );
    }
}

/// T8. Another attempt of the same work may be running under that id.
#[tokio::test]
async fn a_begin_of_a_given_id_that_is_dropped_leaves_others_of_that_id_alone() {
    let (server, client) = server().await;
    assert_eq!(
        dropped(&server, client.transaction().id("pay")).await,
        "pay"
    );
    let state = client.state();
    // An abort would be sent before this.
    tokio::task::yield_now().await;
    let (next, _) = tokio::join!(answered(&server, GONE), state.get("a"));
    assert!(next.starts_with("GET /v1/state/a "), "{next}");
}

/// T7. An abort undoes no commit.
#[tokio::test]
async fn a_transaction_whose_commit_is_dropped_is_aborted_once_nobody_has_it() {
    let (server, client) = server().await;
    let begun = client.transaction().id("pay").into_future();
    let (transaction, ()) = tokio::join!(begun, async {
        let (mut connection, _) = heard(&server, "}").await;
        connection
            .write_all(BEGUN.as_bytes())
            .await
            .expect("it listens");
    });
    let transaction = transaction.expect("it has begun");
    select! {
        _ = transaction.commit() => panic!("it was answered"),
        (_, commit) = heard(&server, "\r\n\r\n") => assert!(commit.starts_with("POST "), "{commit}"),
    }
    drop(transaction);
    let abort = answered(&server, GONE).await;
    assert!(
        abort.starts_with("DELETE /v1/transactions/pay ") && abort.contains("landfast-attempt: 7"),
        "{abort}"
    );
}

/// T15. There are many such begins under load, and an abort of each would add to that load.
#[tokio::test]
async fn a_begin_that_is_dropped_before_it_has_a_connection_asks_for_nothing() {
    let (_server, client) = server().await;
    let state = client.state();
    let mut slow: Vec<_> = (0..CONNECTIONS_MAX)
        .map(|_| Box::pin(state.get("slow")))
        .collect();
    for slow in &mut slow {
        assert!(is_pending(slow).await);
    }
    let begin = client.transaction();
    let core = begin.core.clone();
    let mut begin = begin.into_future();
    assert!(is_pending(&mut begin).await);
    drop(begin);
    assert_eq!(core.aside.available_permits(), ASIDE_MAX);
}

/// T15. Transactions beyond the bound stay open until their time-out.
#[tokio::test]
async fn what_is_done_aside_is_bounded() {
    let (server, client) = server().await;
    let core = client.transaction().core;
    let others = core
        .aside
        .try_acquire_many(ASIDE_MAX.try_into().expect("few"))
        .expect("nothing is done aside");
    dropped(&server, client.transaction()).await;
    // An abort would be sent before this.
    tokio::task::yield_now().await;
    let state = client.state();
    let (next, _) = tokio::join!(answered(&server, GONE), state.get("a"));
    assert!(next.starts_with("GET /v1/state/a "), "{next}");
    drop(others);
    dropped(&server, client.transaction()).await;
    assert_eq!(core.aside.available_permits(), ASIDE_MAX - 1);
}

/// T15. The ten seconds include the waits for a connection, for a response, and between repeats.
#[tokio::test(start_paused = true)]
async fn what_is_done_aside_is_dropped_after_ten_seconds_in_all() {
    let core = Client::connect(["http://127.0.0.1:1"])
        .expect("a URL")
        .transaction()
        .core;
    core.spawn_aside(std::future::pending());
    tokio::task::yield_now().await;
    advance(ASIDE_CALL_MAX / 2).await;
    assert_eq!(core.aside.available_permits(), ASIDE_MAX - 1);
    advance(ASIDE_CALL_MAX / 2 + Duration::from_millis(1)).await;
    tokio::task::yield_now().await;
    assert_eq!(core.aside.available_permits(), ASIDE_MAX);
}

async fn is_pending(mut future: impl Future + Unpin) -> bool {
    select! {
        biased;
        _ = &mut future => false,
        () = std::future::ready(()) => true,
    }
}

/// T4. Without the attempt, a server that has forgotten the id would report that it never began.
#[tokio::test]
async fn the_status_of_an_id_that_is_drawn_says_of_which_attempt() {
    const STATUS: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 20\r\n\r\n{\"status\":\"expired\"}";
    let (server, client) = server().await;
    for (begin, says) in [
        (client.transaction(), true),
        (client.transaction().id("chosen"), false),
    ] {
        let begun = tokio::spawn(begin.into_future());
        let (mut connection, _) = heard(&server, "}").await;
        connection
            .write_all(BEGUN.as_bytes())
            .await
            .expect("it listens");
        let transaction = begun.await.expect("it ran").expect("it has begun");
        let asked = tokio::spawn({
            let transaction = transaction.clone();
            async move { transaction.status().await }
        });
        let heard = answered(&server, STATUS).await;
        assert_eq!(heard.contains("landfast-attempt: 7\r\n"), says, "{heard}");
        assert_eq!(
            asked.await.expect("it ran").expect("it is answered"),
            "expired"
        );
        drop(transaction);
        answered(&server, GONE).await;
    }
}
