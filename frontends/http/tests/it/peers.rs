//! A node's replies to callers that pretend to be nodes of its store, from seeds, as at the other
//! edges.

use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use futures_util::future::BoxFuture;
use http_frontend::{HttpPeers, Limits, PeerStream, VolumePeers};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use transactions::{
    Config,
    broken::Broken,
    membership::Address,
    model::{Key, NodeId},
    peers::{MESSAGE_BYTES_MAX, NoAnswer, Peers, message_bytes_max, messages_of_a_stranger},
};

use crate::{Fixture, code, engine::Engine, problem};

/// The byte after the version of a reply: the node is not here, or the kind of the message is
/// unknown.
const NOT_HERE: u8 = 2;
const UNKNOWN: u8 = 3;
/// The kind of a call for a transaction.
const FORWARD: u8 = 3;

/// The reply to a node of the same store that calls the server's address.
async fn answer(server: &Fixture, message: Bytes) -> Result<Bytes, String> {
    let peers = HttpPeers::new(None, None).expect("no token");
    let answered = peers
        .call(&Address(server.address.to_string()), message)
        .await;
    answered.map_err(|error| error.to_string())
}

/// A message to the first node of a store, which is the running one, from another node.
fn messages() -> Vec<Bytes> {
    messages_of_a_stranger(NodeId(2), NodeId(1))
}

async fn tells_strangers(config: Config) -> Vec<u8> {
    let engine = Engine::among(config).await;
    let server = engine.serve().await;
    let mut said = Vec::new();
    for message in messages() {
        said.push(answer(&server, message).await.expect("an answer")[1]);
    }
    said
}

#[tokio::test]
async fn a_caller_without_the_stores_secret_is_no_node() {
    assert_eq!(tells_strangers(Config::default()).await, [NOT_HERE; 5]);
}

#[tokio::test]
async fn believing_strangers_is_caught() {
    let broken = Config {
        mutant: Broken::BelievesStrangers.into(),
        ..Config::default()
    };
    assert!(
        tells_strangers(broken)
            .await
            .iter()
            .all(|said| *said != NOT_HERE)
    );
}

#[tokio::test]
async fn messages_that_are_damaged_or_none_change_nothing() {
    let engine = Engine::among(Config::default()).await;
    let server = engine.serve().await;
    let key = Key::new("canary").expect("short");
    engine
        .put_now(key.clone(), Some("sings".into()))
        .await
        .expect("a write");
    let mut chance = Rng::with_seed(7);
    for _ in 0..300 {
        for message in messages() {
            let mut bytes = message.to_vec();
            for _ in 0..chance.usize(1..6) {
                let at = chance.usize(..bytes.len());
                bytes[at] = chance.u8(..);
            }
            bytes.truncate(chance.usize(1..=bytes.len()));
            let said = answer(&server, bytes.clone().into())
                .await
                .expect("an answer");
            assert!(
                [NOT_HERE, UNKNOWN].contains(&said[1]),
                "{bytes:?} was answered with {said:?}"
            );
        }
    }
    let canary = engine.get_now(&key).await.expect("a read");
    assert_eq!(canary.value.as_deref(), Some(b"sings".as_slice()));
    engine
        .put_now(key, None)
        .await
        .expect("its clock is where it was");
}

/// Sends back what arrives.
#[derive(Debug)]
struct Echo;

impl VolumePeers for Echo {
    fn serve(self: Arc<Self>, stream: PeerStream) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let (mut received, mut sent) = tokio::io::split(stream);
            let _ = tokio::io::copy(&mut received, &mut sent).await;
        })
    }
}

#[tokio::test]
async fn connections_for_volumes_are_passed_on_after_an_upgrade() {
    let engine = Engine::among(Config::default()).await;
    let peers = HttpPeers::new(None, None).expect("no token");
    let connect = async |server: &Fixture| {
        let address = Address(server.address.to_string());
        peers.connect_to_volumes(&address).await
    };
    let refused = connect(&engine.serve().await).await;
    let refused = refused.expect_err("it serves none").to_string();
    assert!(refused.contains("503"), "{refused}");
    let server = engine.serve_volume_peers(Arc::new(Echo)).await;
    let mut stream = connect(&server).await.expect("an upgrade");
    stream.write_all(b"once").await.expect("it is open");
    let mut echo = [0; 4];
    stream.read_exact(&mut echo).await.expect("it is open");
    assert_eq!(&echo, b"once");
    let mut stream = TcpStream::connect(server.address)
        .await
        .expect("it listens");
    let plain = b"GET /v1/peers/volumes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(plain).await.expect("it is open");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
}

#[tokio::test]
async fn a_message_is_as_long_as_its_kind_may_be() {
    let engine = Engine::among(Config::default()).await;
    let server = engine.serve().await;
    for kind in [1, 2, 77] {
        let longest = vec![kind; message_bytes_max(kind)];
        let said = answer(&server, longest.clone().into())
            .await
            .expect("an answer");
        assert!([NOT_HERE, UNKNOWN].contains(&said[1]), "{kind}: {said:?}");
        let longer = [longest, vec![kind]].concat();
        assert!(
            answer(&server, longer.into())
                .await
                .expect_err("too long")
                .contains("413"),
            "{kind}"
        );
    }
    assert_eq!(message_bytes_max(FORWARD), MESSAGE_BYTES_MAX);
    let announced = format!(
        "POST /v1/peers HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        MESSAGE_BYTES_MAX + 1
    );
    let mut stream = TcpStream::connect(server.address)
        .await
        .expect("the server accepts");
    stream.write_all(announced.as_bytes()).await.expect("sent");
    let mut refused = String::new();
    stream.read_to_string(&mut refused).await.expect("text");
    assert_eq!(problem(&refused), (413, "too-large".to_owned()));
}

#[tokio::test]
async fn an_address_without_a_listener_is_silent() {
    let gone = Fixture::showing(http_frontend::Status::default())
        .await
        .address;
    let peers = HttpPeers::new(None, None).expect("no token");
    for nowhere in [gone.to_string(), String::new(), "no address".to_owned()] {
        let called = peers
            .call(&Address(nowhere.clone()), messages().swap_remove(0))
            .await;
        assert!(
            matches!(called, Err(NoAnswer::Silence(_))),
            "{nowhere}: {called:?}"
        );
    }
}

/// T10. The refusal shows the caller that the node and its transactions are alive.
#[tokio::test]
async fn a_full_node_still_shows_that_it_is_alive() {
    let engine = Engine::among(Config::default()).await;
    let narrow = engine
        .serve_within(Limits {
            buffered_bytes_max: 0,
            ..Limits::default()
        })
        .await;
    let crowded = engine
        .serve_within(Limits {
            connections_max: 0,
            ..Limits::default()
        })
        .await;
    let peers = HttpPeers::new(None, None).expect("no token");
    let asked = async |server: &Fixture| {
        let address = Address(server.address.to_string());
        peers
            .call(&address, messages().swap_remove(0))
            .await
            .expect_err("no room")
    };
    assert_eq!(asked(&narrow).await, NoAnswer::TooMuchBuffered);
    let refused = asked(&crowded).await;
    assert!(matches!(refused, NoAnswer::Unavailable(_)), "{refused:?}");
}

/// T10. Connections that cannot even be refused at once wait until they are.
#[tokio::test]
async fn a_node_with_too_many_connections_to_refuse_at_once_still_answers_each() {
    let engine = Engine::among(Config::default()).await;
    let crowded = engine
        .serve_within(Limits {
            connections_max: 0,
            ..Limits::default()
        })
        .await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(
            TcpStream::connect(crowded.address)
                .await
                .expect("the server accepts"),
        );
    }
    let peers = HttpPeers::new(None, None).expect("no token");
    let address = Address(crowded.address.to_string());
    let refused = peers
        .call(&address, messages().swap_remove(0))
        .await
        .expect_err("no room");
    assert!(matches!(refused, NoAnswer::Unavailable(_)), "{refused:?}");
}

/// The result of a call to a process that sends `answer` to each call and ends the connection.
async fn call_of_a_process_that_sends(answer: String) -> NoAnswer {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = Address(listener.local_addr().expect("an address").to_string());
    let message = messages().swap_remove(0);
    let sent = message.clone();
    let saying = async {
        let (mut stream, _) = listener.accept().await.expect("somebody calls");
        let mut heard = Vec::new();
        while !heard.ends_with(&sent) {
            assert!(
                stream.read_buf(&mut heard).await.expect("it is sent") > 0,
                "all of it"
            );
        }
        stream
            .write_all(answer.as_bytes())
            .await
            .expect("it is taken");
    };
    let peers = HttpPeers::new(None, None).expect("no token");
    let (called, ()) = tokio::join!(peers.call(&address, message), saying);
    called.expect_err("that is no answer of a node")
}

/// T10. A process that responds is alive, with any status; so is one that has begun to.
#[tokio::test]
async fn an_answer_of_any_status_is_a_sign_of_life() {
    for status in [400, 401, 403, 404, 405, 413, 500, 503] {
        let said = call_of_a_process_that_sends(format!(
            "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"
        ))
        .await;
        assert!(
            matches!(said, NoAnswer::Unavailable(_)),
            "{status}: {said:?}"
        );
    }
    let half =
        call_of_a_process_that_sends("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf".to_owned())
            .await;
    assert!(matches!(half, NoAnswer::Unavailable(_)), "{half:?}");
    let nothing = call_of_a_process_that_sends(String::new()).await;
    assert!(matches!(nothing, NoAnswer::Silence(_)), "{nothing:?}");
}

/// A process that was just started at the address of another is not the node that was called.
#[tokio::test]
async fn a_process_that_only_begins_is_no_node() {
    let server = Fixture::showing(http_frontend::Status::default()).await;
    for message in messages() {
        assert_eq!(
            answer(&server, message).await.expect("an answer")[1],
            NOT_HERE
        );
    }
}

/// A page of another site cannot speak as a node, and beyond loopback a token is asked for.
#[tokio::test]
async fn a_node_passes_the_same_guard_as_everybody() {
    let engine = Engine::among(Config::default()).await;
    let server = engine.serve().await;
    let foreign = server
        .send("POST", "/v1/peers", "Origin: http://evil.example\r\n", "x")
        .await;
    assert_eq!(problem(&foreign), (403, "foreign-origin".to_owned()));
    let guarded = engine.serve_at("0.0.0.0:0", Some("right")).await;
    let address = Address(guarded.address.to_string());
    for (token, status) in [
        (None, Some("401")),
        (Some("wrong"), Some("401")),
        (Some("right"), None),
    ] {
        let peers = HttpPeers::new(token, None).expect("a token");
        let called = peers.call(&address, messages().swap_remove(0)).await;
        let refused = called.err().map(|error| error.to_string());
        assert_eq!(
            refused
                .as_ref()
                .map(|why| why.contains(status.unwrap_or_default())),
            status.map(|_| true)
        );
    }
    assert_eq!(code(&server.get("/v1/peers").await), 405);
}
