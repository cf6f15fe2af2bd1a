use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    select,
};

use super::*;
use crate::Client;

const GONE: &str = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
const UNKNOWN: &str = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 30\r\n\r\n\
    {\"type\":\"no-such-transaction\"}";

/// A server that has heard of a begin and not answered it when that was dropped, and the id of that.
async fn dropped(begin: impl FnOnce(&Client) -> Begin) -> (TcpListener, Client, String) {
    let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let client = Client::connect([format!("http://{}", server.local_addr().expect("bound"))]).expect("a URL");
    let asked = begin(&client).into_future();
    let heard = select! {
        _ = asked => panic!("it was answered"),
        (_, heard) = heard(&server, "}") => heard,
    };
    let id = heard.split('"').nth(3).expect("the begin names its id").to_owned();
    (server, client, id)
}

/// The next request, which ends so, and its connection.
async fn heard(server: &TcpListener, end: &str) -> (TcpStream, String) {
    let (mut connection, _) = server.accept().await.expect("a connection");
    let mut heard = Vec::new();
    while !heard.ends_with(end.as_bytes()) {
        assert_ne!(connection.read_buf(&mut heard).await.expect("a request"), 0, "it hung up");
    }
    (connection, String::from_utf8(heard).expect("text"))
}

async fn answered(server: &TcpListener, answer: &str) -> String {
    let (mut connection, heard) = heard(server, "\r\n\r\n").await;
    connection.write_all(answer.as_bytes()).await.expect("it listens");
    heard
}

/// T7. The first abort overtakes the begin.
#[tokio::test]
async fn a_begin_that_is_dropped_leaves_no_transaction_open() {
    let (server, _client, id) = dropped(Client::transaction).await;
    for answer in [UNKNOWN, GONE] {
        let abort = answered(&server, answer).await;
        assert!(abort.starts_with(&format!("DELETE /v1/transactions/{id} ")), "{abort}");
        assert!(!abort.contains("landfast-attempt"), "it knows of none: {abort}");
    }
}

/// T8. Another attempt of the same work may be at work under that id.
#[tokio::test]
async fn a_begin_of_a_given_id_that_is_dropped_leaves_others_of_that_id_alone() {
    let (server, client, id) = dropped(|client| client.transaction().id("pay")).await;
    assert_eq!(id, "pay");
    let state = client.state();
    // An abort would be on its way first.
    tokio::task::yield_now().await;
    let (next, _) = tokio::join!(answered(&server, GONE), state.get("a"));
    assert!(next.starts_with("GET /v1/state/a "), "{next}");
}
