//! Events of objects: noted with the change, delivered at least once.

use async_trait::async_trait;

use super::*;
use crate::events::{Event, Kind, Subscribers};

/// Wants keys of `in/`, and fails to take them over while it `is_away`.
#[derive(Debug, Default)]
struct Recorder {
    taken: Mutex<Vec<Event>>,
    /// A delivery takes a second then.
    clock: Option<Arc<dyn Clock>>,
    in_work: AtomicUsize,
    in_work_most: AtomicUsize,
    /// Fails the first delivery of a PUT of this key.
    fails_once: Mutex<Option<&'static str>>,
    attempts: AtomicUsize,
    is_away: std::sync::atomic::AtomicBool,
}

#[async_trait]
impl Subscribers for Recorder {
    fn want(&self, bucket: &str, key: &str, _: Kind) -> bool {
        bucket == "b" && key.starts_with("in/")
    }

    async fn deliver(&self, event: &Event) -> ports::Result<()> {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        if self.is_away.load(Ordering::SeqCst) {
            return Err(ports::Error::unavailable("deliver"));
        }
        let fails = event.kind == Kind::Put
            && self
                .fails_once
                .lock()
                .take_if(|key| **key == event.key)
                .is_some();
        if fails {
            return Err(ports::Error::unavailable("deliver"));
        }
        if let Some(clock) = &self.clock {
            let in_work = 1 + self.in_work.fetch_add(1, Ordering::SeqCst);
            self.in_work_most.fetch_max(in_work, Ordering::SeqCst);
            clock.sleep(Duration::from_secs(1)).await;
            self.in_work.fetch_sub(1, Ordering::SeqCst);
        }
        self.taken.lock().push(event.clone());
        Ok(())
    }
}

impl Recorder {
    fn taken(&self) -> Vec<(Kind, String)> {
        let taken = self.taken.lock();
        taken
            .iter()
            .map(|one| (one.kind, one.key.clone()))
            .collect()
    }
}

async fn notes(world: &World) -> usize {
    let scan = ports::key_value::Scan::partition(&b"memory/e"[..], 10);
    let page = world.key_value().scan(&scan).await.expect("read");
    page.value.items.len()
}

#[test]
fn changes_are_delivered_in_turn_and_leave_no_note() {
    run(async {
        let world = World::new(31);
        let started = started(&world).await;
        let recorder = Arc::<Recorder>::default();
        started.service.subscribe(Arc::clone(&recorder) as Arc<_>);
        let object = put(&started.service, "in/a", &content(1, 100)).await;
        put(&started.service, "out/a", &content(1, 100)).await;
        let none = Conditions::default();
        let deleted = started.service.delete("b", "in/a", &none);
        deleted.await.expect("deleted");
        let again = started.service.delete("b", "in/a", &none);
        again.await.expect("nothing to delete");
        until(&world, || async { recorder.taken().len() == 2 }).await;
        let made = [
            (Kind::Put, "in/a".to_owned()),
            (Kind::Deleted, "in/a".to_owned()),
        ];
        assert_eq!(recorder.taken(), made);
        let first = recorder.taken.lock()[0].clone();
        assert_eq!((first.etag, first.bytes), (object.etag, 100));
        until(&world, || async { notes(&world).await == 0 }).await;
    });
}

#[test]
fn a_change_that_was_not_delivered_before_a_crash_is_delivered_after_it() {
    run(async {
        let world = World::new(32);
        let first = started(&world).await;
        let recorder = Arc::<Recorder>::default();
        recorder.is_away.store(true, Ordering::SeqCst);
        first.service.subscribe(Arc::clone(&recorder) as Arc<_>);
        put(&first.service, "in/a", &content(1, 100)).await;
        until(&world, || async {
            recorder.attempts.load(Ordering::SeqCst) > 0
        })
        .await;
        drop(first);
        recorder.is_away.store(false, Ordering::SeqCst);
        let second = start(&world);
        second.service.subscribe(Arc::clone(&recorder) as Arc<_>);
        until(&world, || async { !recorder.taken().is_empty() }).await;
        assert_eq!(recorder.taken(), [(Kind::Put, "in/a".to_owned())]);
    });
}

#[test]
fn events_of_many_objects_are_delivered_side_by_side_and_their_notes_removed_together() {
    run(async {
        let world = World::new(34);
        let started = started(&world).await;
        let recorder = Arc::new(Recorder {
            clock: Some(world.clock()),
            is_away: true.into(),
            ..Recorder::default()
        });
        started.service.subscribe(Arc::clone(&recorder) as Arc<_>);
        for key in 0..40 {
            put(&started.service, &format!("in/{key}"), &content(1, 100)).await;
        }
        let before = world.port_calls();
        recorder.is_away.store(false, Ordering::SeqCst);
        world.clock().sleep(Duration::from_secs(5)).await;
        assert_eq!(recorder.taken().len(), 40);
        assert_eq!(recorder.in_work_most.load(Ordering::SeqCst), 16);
        let calls = world.port_calls() - before;
        assert!(calls < 10, "{calls}");
        assert_eq!(notes(&world).await, 0);
    });
}

#[test]
fn a_change_waits_for_an_earlier_one_of_its_object_that_could_not_be_delivered() {
    run(async {
        let world = World::new(35);
        let started = started(&world).await;
        let recorder = Arc::<Recorder>::default();
        recorder.is_away.store(true, Ordering::SeqCst);
        started.service.subscribe(Arc::clone(&recorder) as Arc<_>);
        for key in ["in/a", "in/b"] {
            put(&started.service, key, &content(1, 100)).await;
            // Ids within a millisecond have no order.
            world.clock().sleep(Duration::from_millis(2)).await;
            let none = Conditions::default();
            let deleted = started.service.delete("b", key, &none);
            deleted.await.expect("deleted");
        }
        *recorder.fails_once.lock() = Some("in/a");
        recorder.is_away.store(false, Ordering::SeqCst);
        until(&world, || async { recorder.taken().len() == 4 }).await;
        let kinds = [Kind::Put, Kind::Deleted, Kind::Put, Kind::Deleted];
        let keys = ["in/b", "in/b", "in/a", "in/a"];
        let expected: Vec<_> = kinds.into_iter().zip(keys.map(str::to_owned)).collect();
        assert_eq!(recorder.taken(), expected);
    });
}

#[test]
fn a_change_that_no_subscriber_wants_costs_no_note() {
    run(async {
        let world = World::new(33);
        let started = started(&world).await;
        put(&started.service, "in/a", &content(1, 100)).await;
        assert_eq!(notes(&world).await, 0, "no subscriber");
        let recorder = Arc::<Recorder>::default();
        started.service.subscribe(recorder);
        put(&started.service, "out/a", &content(1, 100)).await;
        assert_eq!(notes(&world).await, 0);
    });
}
