//! Events of objects: noted with the change, delivered at least once.

use async_trait::async_trait;

use super::*;
use crate::events::{Event, Kind, Subscribers};

/// Wants keys of `in/`, and fails to take them over while it `is_away`.
#[derive(Debug, Default)]
struct Recorder {
    taken: Mutex<Vec<Event>>,
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
