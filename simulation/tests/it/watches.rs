//! C4: watches that are set again while what they watch is changing.

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
    model::{EventKind, Lifetime, Output, Request},
};
use ports::faults::{Fault, FaultSchedule};
use simulated::World;

use crate::alone::{connect, create, follow, is_answered, set, shown, started};

/// How long each look at a znode takes.
const LOOK: Duration = Duration::from_millis(100);

/// Delays the reads that are begun while it is switched on.
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
    /// By `delay` each.
    pub(crate) fn of(delay: Duration) -> Self {
        Self { delay, is_on: AtomicBool::new(false) }
    }

    /// Runs `work`, and delays its reads alone.
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

/// A client sets its watches of `/a` and `/b` again. `/b` changes when only `/a` has been looked at, and `/a`
/// when both are looked at anew. Returns what it was told of, sorted.
async fn told_of(broken: Option<Broken>) -> Vec<(String, EventKind)> {
    let (world, slow) = (World::new(1), Arc::new(SlowReads::of(LOOK)));
    let service = started(&world, slow.clone(), Config { broken, ..Config::default() }).await;
    follow(&service);
    let (gateway, clock) = (service.gateway(), world.clock());
    let mut other = connect(&gateway).await.expect("a session");
    for path in ["/a", "/b"] {
        assert!(is_answered(&mut other, create(path, Lifetime::Persistent)).await);
    }
    let relative = gateway.applied();
    let mut client = connect(&gateway).await.expect("a session");
    let data = vec!["/a".into(), "/b".into()];
    let again = Request::SetWatches { relative, data, exists: vec![], children: vec![] };
    let setting = slow.during(shown(&mut client, again));
    let changing = async {
        clock.sleep(LOOK * 3 / 2).await;
        assert!(is_answered(&mut other, set("/b")).await);
        clock.sleep(LOOK * 2).await;
        assert!(is_answered(&mut other, set("/a")).await);
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

/// C4: each change is told of once, however often the znodes have to be looked at.
#[test]
fn watches_that_are_set_again_amid_changes_fire_once() {
    let changed = |path: &str| (path.to_owned(), EventKind::NodeDataChanged);
    assert_eq!(simulated::run(told_of(None)), [changed("/a"), changed("/b")]);
}

/// C4, broken.
#[test]
fn arming_watches_one_by_one_is_caught() {
    assert_eq!(simulated::run(told_of(Some(Broken::ArmsWatchesOneByOne))).len(), 3);
}

/// C4: watches that are set again on znodes that change all the time cannot all be armed in one moment. Whoever asks is
/// told to come again instead of waiting for ever, however often it says that it is there.
#[test]
fn setting_watches_again_amid_endless_changes_ends() {
    /// Longer than any number of looks that could be called bounded.
    const FOR_EVER: Duration = Duration::from_mins(10);
    simulated::run(async {
        let (world, slow) = (World::new(1), Arc::new(SlowReads::of(LOOK)));
        let service = started(&world, slow.clone(), Config::default()).await;
        follow(&service);
        let (gateway, clock) = (service.gateway(), world.clock());
        let mut other = connect(&gateway).await.expect("a session");
        for path in ["/a", "/b"] {
            assert!(is_answered(&mut other, create(path, Lifetime::Persistent)).await);
        }
        let relative = gateway.applied();
        let mut client = connect(&gateway).await.expect("a session");
        let data = vec!["/a".into(), "/b".into()];
        client.submit(1, Request::SetWatches { relative, data, exists: vec![], children: vec![] });
        let setting = slow.during(async {
            let mut outputs = Vec::new();
            while client.pump(&mut outputs).await.is_ok() {
                assert!(outputs.is_empty(), "{outputs:?} came of changes that never pause");
                client.wait().await;
                client.submit(2, Request::Ping);
            }
        });
        let changing = async {
            loop {
                clock.sleep(LOOK / 2).await;
                assert!(is_answered(&mut other, set("/a")).await);
                assert!(is_answered(&mut other, set("/b")).await);
            }
        };
        tokio::select! {
            biased;
            () = setting => {}
            () = changing => unreachable!("it goes on for ever"),
            () = clock.sleep(FOR_EVER) => panic!("it waits for ever"),
        }
    });
}
