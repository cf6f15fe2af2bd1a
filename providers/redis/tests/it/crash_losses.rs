//! A crash of the server: which writes it loses, and that the store reports them (D1 to D3, rule
//! P3).

use std::{fs, path::PathBuf, sync::Arc};

use bytes::Bytes;
use ports::{
    DurabilityPoint, ErrorKind, KeyValue, Update,
    key_value::{Action, Outcome},
    queue::{Message, QueueOptions},
};
use redis_provider::{Acknowledged, Config};

use crate::{
    fixture::{block_on, count, key, open, value},
    server::{Persistence, Server},
};

const WRITES: i64 = 60;

async fn write(store: &Arc<dyn KeyValue>, name: &str, n: i64) -> DurabilityPoint {
    let update = Update::modify(key(name), vec![Action::set_integer("n", n)]);
    let updated = store.update(update).await.expect("update answers");
    assert!(matches!(updated.outcome, Outcome::Done(_)));
    updated.receipt.point
}

/// The append-only file of the server.
fn append_file(server: &Server) -> PathBuf {
    let files =
        fs::read_dir(server.directory().join("appendonlydir")).expect("the server has files");
    let mut paths = files.map(|file| file.expect("a file").path());
    paths
        .find(|path| path.to_string_lossy().ends_with(".incr.aof"))
        .expect("it appends to one")
}

/// Writes a series, and truncates the server's file to its length after the first half, as a loss
/// of power would. The server must write before it replies. Otherwise its file may lag behind its
/// replies, and the cut would remove more than intended.
async fn lose_half(server: &Server, store: &Arc<dyn KeyValue>) -> Vec<DurabilityPoint> {
    let (mut points, mut kept_bytes) = (Vec::new(), 0);
    for n in 0..WRITES {
        points.push(write(store, &n.to_string(), n).await);
        if n == WRITES / 2 {
            kept_bytes = fs::metadata(append_file(server))
                .expect("the file is there")
                .len();
        }
    }
    crash_back_to(server, kept_bytes);
    points
}

/// Kills the server, truncates its file to `kept_bytes`, and restarts it.
fn crash_back_to(server: &Server, kept_bytes: u64) {
    server.kill();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(append_file(server))
        .expect("the file opens");
    file.set_len(kept_bytes).expect("the file is cut");
    server.restart();
}

async fn assert_lost_is_said(store: &Arc<dyn KeyValue>, points: &[DurabilityPoint]) {
    for (n, point) in points.iter().enumerate() {
        let is_there = value(store, &n.to_string()).await.is_some();
        assert_eq!(is_there, n as i64 <= WRITES / 2, "item {n}");
        match store.externalize(*point).await {
            Ok(()) => assert!(
                is_there && store.is_durable(*point),
                "{point:?} of item {n}"
            ),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                assert!(
                    !is_there && !store.is_durable(*point),
                    "{point:?} of item {n}"
                );
            }
        }
    }
}

/// D3, P3: the store that had written them stays open, continues, and reports the lost points.
#[test]
fn an_open_store_reports_which_points_the_server_lost() {
    let server = Server::start(Persistence::Always);
    block_on(async {
        let config = Config {
            acknowledged: Acknowledged::InMemory,
            ..Config::single(server.url())
        };
        let store = open(&config).await.key_value();
        let points = lose_half(&server, &store).await;
        // New positions pass the lost ones before the test asks for any.
        until_connected(&store).await;
        for n in 0..2 * WRITES {
            let later = write(&store, "later", n).await;
            assert!(later > points[points.len() - 1], "{later:?}");
        }
        assert_lost_is_said(&store, &points).await;
    });
}

/// D3, P3: the same if another process was the first to write after the restart.
#[test]
fn a_store_that_missed_a_restart_is_not_misled_by_the_writes_of_another() {
    let server = Server::start(Persistence::Always);
    block_on(async {
        let config = Config {
            acknowledged: Acknowledged::InMemory,
            ..Config::single(server.url())
        };
        let (store, other) = (
            open(&config).await.key_value(),
            open(&config).await.key_value(),
        );
        write(&other, "other", 0).await;
        let points = lose_half(&server, &store).await;
        until_connected(&other).await;
        for n in 0..2 * WRITES {
            write(&other, "later", n).await;
        }
        until_connected(&store).await;
        assert_lost_is_said(&store, &points).await;
    });
}

/// Q6: the number of a lost message is not reused, so its handle matches no other message.
#[test]
fn a_handle_of_a_lost_message_acknowledges_nothing() {
    let server = Server::start(Persistence::Always);
    block_on(async {
        let config = Config {
            acknowledged: Acknowledged::InMemory,
            ..Config::single(server.url())
        };
        let queue = open(&config).await.queue();
        queue
            .create("queue", QueueOptions::default())
            .await
            .expect("create answers");
        let message = || Message {
            group: "g".into(),
            deduplication: None,
            body: Bytes::new(),
        };
        let kept_bytes = fs::metadata(append_file(&server))
            .expect("the file is there")
            .len();
        queue
            .send("queue", vec![message()])
            .await
            .expect("send answers");
        let lost = queue
            .receive("queue", 1)
            .await
            .expect("receive answers")
            .remove(0);
        crash_back_to(&server, kept_bytes);
        let queue = open(&config).await.queue();
        queue
            .send("queue", vec![message()])
            .await
            .expect("send answers");
        let present = queue
            .receive("queue", 1)
            .await
            .expect("receive answers")
            .remove(0);
        queue
            .acknowledge("queue", &[lost.handle])
            .await
            .expect("acknowledge answers");
        queue
            .release("queue", &present.handle, 0, "once more")
            .await
            .expect("release answers");
        assert_eq!(
            queue
                .receive("queue", 1)
                .await
                .expect("receive answers")
                .len(),
            1
        );
    });
}

/// The first call after a restart finds the broken connection. A read does so without side effects.
async fn until_connected(store: &Arc<dyn KeyValue>) {
    store
        .get(&key("nothing"))
        .await
        .expect("a read connects again");
}

/// D1: kill -9 under concurrent writers.
#[test]
fn externalized_writes_survive_the_servers_death_under_load() {
    const WRITERS: usize = 16;
    let server = Arc::new(Server::start(Persistence::Always));
    block_on(async {
        let config = Config::single(server.url());
        let store = open(&config).await.key_value();
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let store = Arc::clone(&store);
                tokio::spawn(async move { write_until_it_fails(&store, writer).await })
            })
            .collect();
        let name = |writer: usize| format!("writer {writer}");
        for writer in 0..WRITERS {
            while value(&store, &name(writer)).await.is_none_or(|n| n < 20) {
                tokio::task::yield_now().await;
            }
        }
        server.kill();
        let mut acknowledged = Vec::new();
        for writer in writers {
            acknowledged.push(writer.await.expect("the writer ends"));
        }
        server.restart();
        let store = open(&config).await.key_value();
        for (writer, acknowledged) in acknowledged.into_iter().enumerate() {
            let found = count(&store, &name(writer)).await;
            assert!(
                acknowledged >= 20 && (acknowledged..=acknowledged + 1).contains(&found),
                "{acknowledged} {found}"
            );
        }
    });
}

/// Counts up until the server is gone; returns the last durable count.
async fn write_until_it_fails(store: &Arc<dyn KeyValue>, writer: usize) -> i64 {
    for n in 1.. {
        let update = Update::modify(
            key(&format!("writer {writer}")),
            vec![Action::set_integer("n", n)],
        );
        let Ok(updated) = store.update(update).await else {
            return n - 1;
        };
        if store.externalize(updated.receipt.point).await.is_err() {
            return n - 1;
        }
    }
    unreachable!("it counts until it fails")
}

/// D3: a flushed script cache is no loss.
#[test]
fn a_server_whose_script_cache_was_flushed_has_lost_nothing() {
    let server = Server::start(Persistence::Always);
    block_on(async {
        let store = open(&Config::single(server.url())).await.key_value();
        let before = write(&store, "before", 1).await;
        server.tell::<()>(&["SCRIPT", "FLUSH"]);
        let after = write(&store, "after", 1).await;
        assert!(
            after.incarnation > before.incarnation,
            "{before:?} {after:?}"
        );
        store.externalize(before).await.expect("it is there");
        assert_eq!(value(&store, "before").await, Some(1));
    });
}

/// D3: an emptied server has lost everything.
#[test]
fn a_server_that_was_emptied_has_lost_every_point() {
    let server = Server::start(Persistence::Always);
    block_on(async {
        let store = open(&Config::single(server.url())).await.key_value();
        let before = write(&store, "before", 1).await;
        server.tell::<()>(&["FLUSHALL"]);
        let after = write(&store, "after", 1).await;
        assert!(after > before);
        let lost = store.externalize(before).await.expect_err("it is gone");
        assert_eq!(lost.kind(), ErrorKind::Lost);
    });
}
