//! T13: the real program, killed while it commits and sends.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use embedded::Embedded;
use ports::queue::QueueOptions;
use transactions::effects::queue_name;

use crate::process::{Server, serve};

const QUEUE: &str = "orders";
const EFFECTS: usize = 3;
const CLIENTS: usize = 6;
/// Commits acknowledged before the program is killed, each time.
const COMMITS: usize = 60;
const KILLS: usize = 4;
const ANSWER_MAX: Duration = Duration::from_mins(1);

/// A client's knowledge about a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Committed,
    Aborted,
    Nothing,
}

/// Sends a request and returns the status of its response; none if the connection broke.
pub(crate) fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    content: &str,
) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(ANSWER_MAX))
        .expect("a timeout");
    let length = content.len();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{content}"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer))
}

/// One transaction, of a write and its effects; every fifth is aborted.
fn transact(address: SocketAddr, number: usize) -> Option<Told> {
    let path = format!("/v1/transactions/t{number}");
    let expect = |method: &str, below: &str, content: &str, expected: u16| {
        let (status, answer) = ask(address, method, &format!("{path}{below}"), content)?;
        assert_eq!(status, expected, "{answer}");
        Some(())
    };
    let (status, answer) = ask(
        address,
        "POST",
        "/v1/transactions",
        &format!(r#"{{"id":"t{number}"}}"#),
    )?;
    assert_eq!(status, 201, "{answer}");
    expect("PUT", &format!("/keys/k{number}"), "v", 204)?;
    for place in 0..EFFECTS {
        let below = format!("/messages/{QUEUE}?group=g{}", number % 10);
        expect("POST", &below, &format!("t{number}/{place}"), 204)?;
    }
    if number.is_multiple_of(5) {
        expect("DELETE", "", "", 204)?;
        return Some(Told::Aborted);
    }
    expect("POST", "/commit", "", 200)?;
    Some(Told::Committed)
}

/// Runs clients until enough commits are acknowledged; then kills the program under them.
fn work_and_kill(server: Server, first: usize, told: &Mutex<BTreeMap<usize, Told>>) -> usize {
    let (next, committed) = (AtomicUsize::new(first), AtomicUsize::new(0));
    let address = server.address("http");
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    let answer = transact(address, number);
                    told.lock()
                        .expect("no panic")
                        .insert(number, answer.unwrap_or(Told::Nothing));
                    match answer {
                        Some(Told::Committed) => drop(committed.fetch_add(1, Ordering::SeqCst)),
                        Some(_) => {}
                        None => return,
                    }
                }
            });
        }
        scope.spawn(|| {
            while committed.load(Ordering::SeqCst) < COMMITS {
                thread::yield_now();
            }
            // Dropped without a warning: SIGKILL.
            drop(server);
        });
    });
    next.load(Ordering::SeqCst)
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(work)
}

/// Opens the store in `directory`, which no server may have open.
async fn open(directory: &Path) -> Embedded {
    let store = Embedded::open(embedded::Config::new(directory.join("landfast-data"))).await;
    store.expect("the store opens")
}

/// Makes a client's queue.
pub(crate) async fn make_queue(directory: &Path, queue: &str) {
    let store = open(directory).await;
    let created = store
        .queue()
        .create(&queue_name(queue), QueueOptions::default())
        .await;
    store
        .queue()
        .externalize(created.expect("a queue").point)
        .await
        .expect("it is durable");
    store.close().await;
}

/// Stops the server once all effects of commits have been sent.
pub(crate) fn stop_when_sent(server: Server) {
    while !server
        .get("/v1/status")
        .expect("a status")
        .contains(r#""effects_unsent":0,"#)
    {
        thread::yield_now();
    }
    server.signal("TERM");
    assert!(server.ended().status.success());
}

/// Every message of a client's queue, in order of receipt: id and body.
pub(crate) async fn receive_all(directory: &Path, queue: &str) -> Vec<(String, String)> {
    let store = open(directory).await;
    let (queue, name) = (store.queue(), queue_name(queue));
    let mut received = Vec::new();
    loop {
        let batch = queue.receive(&name, 100).await.expect("the queue answers");
        if batch.is_empty() {
            store.close().await;
            return received;
        }
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        for delivery in batch {
            let id = delivery.deduplication.expect("every effect has an id");
            received.push((text(&id), text(&delivery.body)));
            queue
                .acknowledge(&name, &[delivery.handle])
                .await
                .expect("the queue answers");
        }
    }
}

/// T13.
#[test]
fn effects_of_commits_survive_kill_9_and_those_of_others_never_leave() {
    let directory = tempfile::tempdir().expect("a directory");
    block_on(make_queue(directory.path(), QUEUE));
    let told = Mutex::default();
    let mut next = 1;
    for _ in 0..KILLS {
        let server = Server::start(&mut serve(directory.path(), &["--zookeeper", "off"]));
        next = work_and_kill(server, next, &told);
    }
    let server = Server::start(&mut serve(directory.path(), &["--zookeeper", "off"]));
    let mut told = told.into_inner().expect("no panic");
    for (number, told) in told.iter_mut().filter(|(_, told)| **told == Told::Nothing) {
        let (_, answer) = ask(
            server.address("http"),
            "GET",
            &format!("/v1/transactions/t{number}"),
            "",
        )
        .expect("an answer");
        *told = if answer.contains(r#""status":"committed""#) {
            Told::Committed
        } else {
            Told::Aborted
        };
    }
    stop_when_sent(server);

    let received = block_on(receive_all(directory.path(), QUEUE));
    let mut by_id: BTreeMap<&str, &str> = BTreeMap::new();
    for (id, body) in &received {
        assert_eq!(
            *by_id.entry(id).or_insert(body),
            body,
            "an id stands for one effect"
        );
    }
    for (number, told) in &told {
        for place in 0..EFFECTS {
            let id = format!("t{number}/{place}");
            let expected = (*told == Told::Committed).then_some(&*id);
            assert_eq!(by_id.remove(&*id), expected, "{id}: {told:?}");
        }
    }
    assert!(by_id.is_empty(), "of nobody: {by_id:?}");
    assert!(told.len() >= KILLS * COMMITS);
}
