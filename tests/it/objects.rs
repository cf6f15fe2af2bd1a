//! T5, T17: the real program with values in packs, killed while it writes them.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use crate::{
    effects::ask,
    process::{Server, WAIT_MAX, run, serve, text},
};

const CLIENTS: usize = 8;
/// Writes acknowledged before the program is killed, each time.
const WRITES: usize = 80;
const KILLS: usize = 3;

/// A value that goes into a pack, and that no other value equals.
fn value(number: usize) -> String {
    format!("{number:08}").repeat(600)
}

fn write(address: SocketAddr, number: usize) -> bool {
    let path = format!("/v1/state/k{number}");
    ask(address, "PUT", &path, &value(number)).is_some_and(|(status, answer)| {
        assert_eq!(status, 204, "{answer}");
        true
    })
}

/// Has clients write until the program is killed under them. Returns the acknowledged writes.
fn write_until_killed(server: Server, next: &AtomicUsize) -> Vec<usize> {
    let (address, written) = (server.address("http"), Mutex::new(Vec::new()));
    let server = Mutex::new(Some(server));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if !write(address, number) {
                        return;
                    }
                    let mut written = written.lock().expect("no panic");
                    written.push(number);
                    if written.len() == WRITES {
                        // Killed, as with -9, with the other clients' requests in flight.
                        drop(server.lock().expect("no panic").take());
                    }
                }
            });
        }
    });
    written.into_inner().expect("no panic")
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(
            began.elapsed() < WAIT_MAX,
            "{what}: not within {WAIT_MAX:?}"
        );
        thread::yield_now();
    }
}

fn packs(objects: &Path) -> usize {
    let homes = fs::read_dir(objects.join("packs")).expect("it is there");
    let nodes =
        homes.flat_map(|home| fs::read_dir(home.expect("a folder").path()).expect("a folder"));
    let nodes = nodes
        .map(|node| node.expect("a folder").path())
        .filter(|node| node.is_dir());
    nodes
        .map(|node| fs::read_dir(node).expect("a folder").count())
        .sum()
}

#[test]
fn values_in_packs_survive_kill_9_and_are_missed_at_the_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let objects = directory.path().join("objects");
    let url = format!("file://{}", objects.display());
    let start = || Server::start(&mut serve(directory.path(), &["--objects", &url]));
    let (next, mut written) = (AtomicUsize::new(0), Vec::new());
    for _ in 0..KILLS {
        written.extend(write_until_killed(start(), &next));
    }
    let server = start();
    for number in &written {
        assert_eq!(
            server.get(&format!("/v1/state/k{number}")).as_ref(),
            Ok(&value(*number))
        );
    }
    assert!(written.len() >= KILLS * WRITES);
    let packs = packs(&objects);
    assert!(
        (1..=next.load(Ordering::Relaxed)).contains(&packs),
        "{packs} packs"
    );
    let metrics = server.get("/metrics").expect("metrics");
    assert!(metrics.contains("objects.get"), "{metrics}");
    drop(server);
    let elsewhere = format!("file://{}", directory.path().join("elsewhere").display());
    for (arguments, complaint) in [
        (&[][..], "none was given"),
        (&["--objects", &elsewhere][..], "not this store's"),
    ] {
        let refused = run(&mut serve(directory.path(), arguments));
        assert_eq!(refused.status.code(), Some(1));
        let said = text(&refused.stderr);
        assert!(
            said.contains(complaint) && said.contains("--objects"),
            "{said}"
        );
        assert!(!said.contains("damaged"), "{said}");
    }
    assert_eq!(start().get("/v1/state/k0").as_ref(), Ok(&value(0)));
}

/// T3, T5: if the directory of objects disappears as an unmounted one does, no write into its
/// replacement is acknowledged.
#[test]
fn values_wait_for_a_directory_of_objects_that_is_missing() {
    let directory = tempfile::tempdir().expect("a directory");
    let (objects, aside) = (
        directory.path().join("objects"),
        directory.path().join("aside"),
    );
    let url = format!("file://{}", objects.display());
    let server = Server::start(&mut serve(directory.path(), &["--objects", &url]));
    let address = server.address("http");
    assert!(write(address, 0));
    fs::rename(&objects, &aside).expect("renamed");
    fs::create_dir(&objects).expect("made");
    until("it is not ready", || server.get("/health/ready").is_err());
    let has_refused = || {
        !server
            .get("/metrics")
            .expect("metrics")
            .contains("port_failures_total{operation=\"objects.put\"} 0")
    };
    let written = thread::scope(|scope| {
        let writer = scope.spawn(|| write(address, 1));
        until("the put of its pack was refused", has_refused);
        // It is small, and is stored elsewhere.
        assert_eq!(
            ask(address, "PUT", "/v1/state/small", "1").map(|(status, _)| status),
            Some(204)
        );
        assert_eq!(fs::read_dir(&objects).expect("it lists").count(), 0);
        fs::remove_dir(&objects).expect("nothing is in it");
        fs::rename(&aside, &objects).expect("renamed");
        writer.join().expect("no panic")
    });
    assert!(written);
    until("it is ready", || server.get("/health/ready").is_ok());
    drop(server);
    let server = Server::start(&mut serve(directory.path(), &["--objects", &url]));
    for number in 0..2 {
        assert_eq!(
            server.get(&format!("/v1/state/k{number}")).as_ref(),
            Ok(&value(number))
        );
    }
}
