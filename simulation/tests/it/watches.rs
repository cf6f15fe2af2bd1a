//! C4: watches that are set again while their znodes change.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use coordination::{
    Config,
    broken::Broken,
    model::{EventKind, Lifetime, Output, Request, Watched},
};
use ports::faults::{Calm, Fault, FaultSchedule};
use simulated::{Options, World};

use crate::single_service::{connect, create, following, is_answered, set, shown, without};

/// How long each read of a znode takes.
const LOOK: Duration = Duration::from_millis(100);

/// Longer than any bounded number of reads.
const FOR_EVER: Duration = Duration::from_mins(10);

/// Delays the reads that begin while it is switched on.
#[derive(Debug)]
pub(crate) struct SlowReads {
    delay: Duration,
    is_on: AtomicBool,
}

impl FaultSchedule for SlowReads {
    fn next(&self, operation: &'static str) -> Fault {
        match operation {
            "key_value.get" if self.is_on.load(Ordering::Relaxed) => Fault::Delay(self.delay),
            _ => Fault::None,
        }
    }
}

impl SlowReads {
    /// Delays each read by `delay`.
    pub(crate) fn of(delay: Duration) -> Self {
        Self {
            delay,
            is_on: AtomicBool::new(false),
        }
    }

    /// Runs `work`, and delays only its reads.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            self.is_on.store(true, Ordering::Relaxed);
            let polled = work.as_mut().poll(context);
            self.is_on.store(false, Ordering::Relaxed);
            polled
        })
        .await
    }
}

/// A client sets its watches of `/a` and `/b` again, which are read in this order. Both change
/// after the read of `/a`, so `/b` changes during its read. Returns the received events, sorted.
async fn told_of(broken: Option<Broken>) -> Vec<(String, EventKind)> {
    let (world, slow) = (World::new(1), Arc::new(SlowReads::of(LOOK)));
    let service = following(&world, slow.clone(), without(broken)).await;
    let (gateway, clock) = (service.gateway(), world.clock());
    let mut other = connect(&gateway).await.expect("a session");
    for path in ["/a", "/b"] {
        assert!(is_answered(&mut other, create(path, Lifetime::Persistent)).await);
    }
    let relative = gateway.applied();
    let mut client = connect(&gateway).await.expect("a session");
    let watches = ["/a", "/b"].map(|path| (Watched::Data, path.to_owned()));
    let again = Request::SetWatches {
        relative,
        watches: watches.into(),
    };
    let setting = slow.during(shown(&mut client, again));
    let changing = async {
        clock.sleep(LOOK * 3 / 2).await;
        for path in ["/b", "/a"] {
            assert!(is_answered(&mut other, set(path)).await);
        }
    };
    let (shown, ()) = tokio::join!(setting, changing);
    let mut told: Vec<_> = shown
        .expect("a calm world")
        .into_iter()
        .filter_map(|output| match output {
            Output::Event { path, kind, .. } => Some((path, kind)),
            Output::Reply { .. } => None,
        })
        .collect();
    told.sort_unstable();
    told
}

/// C4: each change fires once, however often the znodes are read.
#[test]
fn watches_that_are_set_again_amid_changes_fire_once() {
    let changed = |path: &str| (path.to_owned(), EventKind::NodeDataChanged);
    assert_eq!(
        simulated::run(told_of(None)),
        [changed("/a"), changed("/b")]
    );
}

/// C4, broken.
#[test]
fn forgetting_which_watches_are_set_is_caught() {
    assert_eq!(
        simulated::run(told_of(Some(Broken::ForgetsRestoredWatches))).len(),
        3
    );
}

/// C4: for any number of znodes that change at any moment, each watch fires once, for a missed
/// change or the next one, or stays armed.
#[test]
fn many_watches_are_set_again_amid_changes_that_never_pause() {
    const ZNODES: usize = 20;
    simulated::run(async {
        let (world, slow) = (World::new(1), Arc::new(SlowReads::of(LOOK)));
        let service = following(&world, slow.clone(), Config::default()).await;
        let (gateway, clock) = (service.gateway(), world.clock());
        let mut other = connect(&gateway).await.expect("a session");
        let paths: Vec<String> = (0..ZNODES).map(|number| format!("/{number}")).collect();
        for path in &paths {
            assert!(is_answered(&mut other, create(path, Lifetime::Persistent)).await);
        }
        let relative = gateway.applied();
        let mut client = connect(&gateway).await.expect("a session");
        let watches = paths.iter().map(|path| (Watched::Data, path.clone()));
        let again = Request::SetWatches {
            relative,
            watches: watches.collect(),
        };
        let changing = async {
            // Each of them changes every ten reads, and one during every read.
            for path in paths.iter().cycle() {
                clock.sleep(LOOK / 2).await;
                assert!(is_answered(&mut other, set(path)).await);
            }
        };
        let shown = tokio::select! {
            biased;
            shown = slow.during(shown(&mut client, again)) => shown.expect("a calm world"),
            () = changing => unreachable!("it goes on for ever"),
            () = clock.sleep(FOR_EVER) => panic!("it waits for ever"),
        };
        let mut told: Vec<String> = shown.into_iter().filter_map(path_of_event).collect();
        told.sort_unstable();
        let told_count = told.len();
        told.dedup();
        assert_eq!(told.len(), told_count, "each fires once");
        assert_eq!(
            told_count + gateway.counts().1,
            ZNODES,
            "and the others are watched"
        );
    });
}

/// C3, C5: the reply gives the zxid at which the watches are set, even if none of them fires.
#[test]
fn setting_watches_again_is_answered_at_the_zxid_it_read() {
    const FSYNC: Duration = Duration::from_secs(1);
    simulated::run(async {
        let world = World::with_options(
            1,
            Options {
                fsync: FSYNC..=FSYNC,
                ..Options::default()
            },
        );
        let service = following(&world, Arc::new(Calm), Config::default()).await;
        let gateway = service.gateway();
        let mut other = connect(&gateway).await.expect("a session");
        let mut client = connect(&gateway).await.expect("a session");
        assert!(is_answered(&mut other, create("/a", Lifetime::Persistent)).await);
        let relative = gateway.applied();
        let zxid = async |client, request| match shown(client, request).await.as_deref() {
            Some([Output::Reply { zxid, .. }]) => *zxid,
            other => panic!("{other:?}"),
        };
        let setting = async {
            // It is applied, and will be durable in a second.
            world.clock().sleep(LOOK).await;
            let again = Request::SetWatches {
                relative,
                watches: vec![(Watched::Existence, "/a".into())],
            };
            zxid(&mut client, again).await
        };
        let delete = Request::Delete {
            path: "/a".into(),
            version: -1,
        };
        let (deleted, set) = tokio::join!(zxid(&mut other, delete), setting);
        assert!(
            set >= deleted,
            "set at {set:?}, and what was seen is of {deleted:?}"
        );
    });
}

fn path_of_event(output: Output) -> Option<String> {
    match output {
        Output::Event { path, .. } => Some(path),
        Output::Reply { .. } => None,
    }
}

/// C4: a znode that changes during every single read is watched again nevertheless.
#[test]
fn watches_are_set_again_although_every_read_is_outdated() {
    simulated::run(async {
        let (world, slow) = (World::new(1), Arc::new(SlowReads::of(LOOK)));
        let service = following(&world, slow.clone(), Config::default()).await;
        let (gateway, clock) = (service.gateway(), world.clock());
        let mut other = connect(&gateway).await.expect("a session");
        for path in ["/a", "/b"] {
            assert!(is_answered(&mut other, create(path, Lifetime::Persistent)).await);
        }
        let relative = gateway.applied();
        let mut client = connect(&gateway).await.expect("a session");
        let watches = ["/b", "/a"].map(|path| (Watched::Data, path.to_owned()));
        let again = Request::SetWatches {
            relative,
            watches: watches.into(),
        };
        let changing = async {
            loop {
                clock.sleep(LOOK / 2).await;
                assert!(is_answered(&mut other, set("/a")).await);
                assert!(is_answered(&mut other, set("/b")).await);
            }
        };
        let shown = tokio::select! {
            biased;
            shown = slow.during(shown(&mut client, again)) => shown.expect("a calm world"),
            () = changing => unreachable!("it goes on for ever"),
            () = clock.sleep(FOR_EVER) => panic!("it waits for ever"),
        };
        let told: Vec<String> = shown.into_iter().filter_map(path_of_event).collect();
        assert_eq!(
            told,
            ["/b", "/a"],
            "in the order in which they were asked for"
        );
    });
}
