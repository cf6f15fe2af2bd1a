//! C-3, C-4, P5: how distributors hand over to each other, step by step.

mod lost;
mod quotas;
mod seal;

use std::sync::Arc;

use ports::{Update, key_value::Action};
use simulated::Options;
use tokio::sync::Notify;

use super::*;
use crate::{
    config::{Config, DataPlacement, LockOptions},
    model::{Connection, Lifetime},
    records::{Operation, Payload, UpdateId},
    storage::temporary,
    tests::{Call, Fixture, Interrupted, Side, create, is_of_row, makes, set},
};

/// The error of a distributor that dies at a call.
fn death() -> ports::Error {
    ports::Error::unavailable("go on")
}

async fn in_objects() -> Fixture {
    let config = Config {
        placement: DataPlacement::Objects,
        ..Config::default()
    };
    Fixture::new(Options::default(), config).await
}

async fn in_items() -> Fixture {
    without(None).await
}

/// As [`in_items`], with a rule dropped.
async fn without(broken: Option<Broken>) -> Fixture {
    let config = Config {
        locks: LockOptions::locking(),
        mutant: broken.into(),
        ..Config::default()
    };
    Fixture::new(Options::default(), config).await
}

/// A distributor and its interruptible store.
struct Instance {
    store: Arc<Interrupted>,
    distributor: Arc<Distributor>,
}

impl Instance {
    fn on(fixture: &Fixture) -> Self {
        let store = fixture.store();
        Self {
            distributor: fixture.distributor(&store),
            store,
        }
    }

    /// An instance that holds the log, after it has numbered the first requests of its own session.
    async fn warm(fixture: &Fixture, number: u64) -> Self {
        let instance = Self::on(fixture);
        let session = fixture.open(number).await;
        let attached = fixture.decided(session, vec![Operation::Attach]).await;
        instance.handles(&attached).await;
        instance
    }

    async fn handles(&self, deliveries: &[Delivery]) {
        self.handle(deliveries).await.expect("no fault is injected");
    }

    async fn handle(&self, deliveries: &[Delivery]) -> Result<()> {
        self.distributor.handle_messages(deliveries).await
    }

    /// Lets `other` handle `deliveries` completely, right before or after the next matching call.
    fn overtaken(
        &self,
        side: Side,
        is_meant: impl Fn(&Call<'_>) -> bool + Send + 'static,
        (other, deliveries): (&Self, Vec<Delivery>),
    ) {
        let other = other.distributor.clone();
        self.store.once(side, is_meant, async move {
            other.handle_messages(&deliveries).await
        });
    }

    fn dies(&self, side: Side, is_meant: impl Fn(&Call<'_>) -> bool + Send + 'static) {
        self.store.once(side, is_meant, async { Err(death()) });
    }
}

fn id_of(delivery: &Delivery) -> UpdateId {
    let decided = decided(std::slice::from_ref(delivery)).expect("it was encoded");
    decided[0].id
}

/// The call before objects are put, which makes their decisions durable.
fn is_placing(call: &Call<'_>) -> bool {
    matches!(call, Call::Externalize)
}

fn is_append(call: &Call<'_>) -> bool {
    matches!(call, Call::Update(Update { key, .. }) if key.partition() == LOG_PARTITION.as_bytes())
}

/// The last step of a garbage collection.
fn is_collected(call: &Call<'_>) -> bool {
    makes(call, |action| matches!(action, Action::RemoveElements(..)))
}

/// A session creates a znode without data and sets its data twice. The first object is garbage once
/// the second is applied.
async fn set_twice(fixture: &Fixture, maker: &Instance) -> Vec<Delivery> {
    let session = fixture.open(1).await;
    let made = fixture
        .decided(session, vec![create("/a", Lifetime::Persistent)])
        .await;
    maker.handles(&made).await;
    fixture
        .decided(session, vec![set("/a", "late"), set("/a", "kept")])
        .await
}

/// Asserts that only the object of this update exists.
async fn assert_is_kept_alone(fixture: &Fixture, kept: &Delivery) {
    let UpdateId { session, sequence } = id_of(kept);
    assert_eq!(
        fixture.objects().await,
        [format!("znodes/{:016x}/{sequence:016x}", session.0)]
    );
}

/// P5: an instance put an object late and died, and another instance receives its messages.
#[test]
fn a_late_object_is_removed_with_the_message_of_its_update() {
    simulated::run(async {
        let fixture = in_objects().await;
        let late = Instance::warm(&fixture, 2).await;
        let sets = set_twice(&fixture, &late).await;
        let other = Instance::on(&fixture);
        late.overtaken(Side::Before, is_placing, (&other, sets.clone()));
        late.dies(Side::Before, is_append);
        late.handle(&sets[..1]).await.expect_err("it dies");
        assert_eq!(fixture.objects().await.len(), 2, "the late one is there");
        other.handles(&sets[..1]).await;
        assert_is_kept_alone(&fixture, &sets[1]).await;
    });
}

/// P5: like above, but the other instance learns that the update is numbered only from a takeover.
#[test]
fn a_late_object_is_removed_although_its_message_seemed_new() {
    simulated::run(async {
        let fixture = in_objects().await;
        let unaware = Instance::warm(&fixture, 2).await;
        let sets = set_twice(&fixture, &unaware).await;
        let late = Instance::warm(&fixture, 3).await;
        let stranger = fixture.open(4).await;
        let attach = fixture.decided(stranger, vec![Operation::Attach]).await;
        let other = Instance::on(&fixture);
        late.overtaken(
            Side::Before,
            is_placing,
            (&other, [sets.clone(), attach.clone()].concat()),
        );
        late.dies(Side::Before, is_append);
        late.handle(&sets[..1]).await.expect_err("it dies");
        assert_eq!(fixture.objects().await.len(), 2, "the late one is there");
        unaware.handles(&[sets[0].clone(), attach[0].clone()]).await;
        assert_is_kept_alone(&fixture, &sets[1]).await;
    });
}

/// P5: like above, but the instance survives, and the store has restarted since the decision, which
/// is found in its row.
#[test]
fn a_fenced_distributor_removes_its_object_of_an_earlier_incarnation() {
    simulated::run(async {
        let fixture = in_objects().await;
        let sets = set_twice(&fixture, &Instance::warm(&fixture, 2).await).await;
        fixture.restart().await;
        let (late, other) = (Instance::warm(&fixture, 3).await, Instance::on(&fixture));
        late.overtaken(Side::Before, is_placing, (&other, sets.clone()));
        late.handle(&sets[..1])
            .await
            .expect("it takes the log over again");
        assert!(late.store.is_through());
        assert_is_kept_alone(&fixture, &sets[1]).await;
    });
}

/// P5: an instance that checks for late objects while another collects garbage finds the update
/// applied.
#[test]
fn a_slot_is_recorded_as_applied_before_its_garbage_is_removed() {
    simulated::run(async {
        let fixture = in_objects().await;
        let sets = set_twice(&fixture, &Instance::warm(&fixture, 2).await).await;
        fixture.restart().await;
        let (late, other) = (Instance::warm(&fixture, 3).await, Instance::on(&fixture));
        let (is_late, goes_on, is_done) = (
            Arc::new(Notify::new()),
            Arc::new(Notify::new()),
            Arc::new(Notify::new()),
        );
        let (told, goes) = (is_late.clone(), goes_on.clone());
        late.store.once(Side::Before, is_placing, async move {
            told.notify_one();
            goes.notified().await;
            Ok(())
        });
        let (goes, done) = (goes_on.clone(), is_done.clone());
        other.store.once(Side::After, is_collected, async move {
            goes.notify_one();
            done.notified().await;
            Ok(())
        });
        let is_late_work = async {
            late.handle(&sets[..1])
                .await
                .expect("it takes the log over again");
            is_done.notify_one();
        };
        let other_work = async {
            is_late.notified().await;
            other.handles(&sets).await;
        };
        tokio::join!(is_late_work, other_work);
        assert!(late.store.is_through() && other.store.is_through());
        assert_is_kept_alone(&fixture, &sets[1]).await;
    });
}

/// P5: if two instances repeat a slot, either may put its objects last.
#[test]
fn a_distributor_that_repeats_a_slot_removes_its_late_objects() {
    simulated::run(async {
        let fixture = in_objects().await;
        let first = Instance::warm(&fixture, 2).await;
        let sets = set_twice(&fixture, &first).await;
        let stranger = fixture.open(3).await;
        let attach = fixture.decided(stranger, vec![Operation::Attach]).await;
        first.dies(Side::After, is_append);
        first.handle(&sets[..1]).await.expect_err("it dies");
        let (late, other) = (Instance::on(&fixture), Instance::on(&fixture));
        let session = id_of(&sets[0]).session;
        let is_found =
            move |call: &Call<'_>| matches!(call, Call::Get(_)) && is_of_row(call, session);
        late.overtaken(Side::After, is_found, (&other, sets.clone()));
        // It knows the slot only from the log.
        late.handle(&attach)
            .await
            .expect_err("the log is the other's");
        assert!(late.store.is_through());
        assert_is_kept_alone(&fixture, &sets[1]).await;
    });
}

/// P5: the temporary object of a request is removed once the request is applied, even if its
/// session lives on.
#[test]
fn the_temporary_object_of_a_request_is_removed_once_it_is_applied() {
    simulated::run(async {
        let (fixture, data) = (in_items().await, Bytes::from("large"));
        let (session, objects) = (fixture.open(1).await, fixture.world.objects());
        let client = Connection { session, attach: 1 };
        let data = temporary::put((&*objects, None), client, (1, 0), data)
            .await
            .expect("no fault is injected");
        let set = Operation::SetData {
            path: "/".into(),
            data,
            version: -1,
        };
        let decided = fixture.decided(session, vec![set]).await;
        assert_eq!(fixture.objects().await.len(), 1);
        Instance::on(&fixture)
            .handle(&decided)
            .await
            .expect("no fault is injected");
        assert_eq!(fixture.objects().await, Vec::<String>::new());
    });
}

/// An instance numbers and applies a request and dies before it announces it. `other` receives its
/// message.
async fn dies_before_it_tells(fixture: &Fixture, other: &Instance, message: &[Delivery]) {
    let dying = Instance::on(fixture);
    let session = id_of(&message[0]).session;
    dying.dies(Side::After, move |call| {
        matches!(call, Call::Update(_)) && is_of_row(call, session)
    });
    dying.handle(message).await.expect_err("it dies");
    assert_eq!(
        (
            fixture.row(session).await.applied,
            fixture.announcements_of(id_of(&message[0]))
        ),
        (1, 0)
    );
    other.handles(message).await;
}

/// C-3: a message that another instance numbered may be the only sign of it, also in the next
/// incarnation of the store.
#[test]
fn a_slot_of_another_instance_is_announced_before_its_message_is_acknowledged() {
    for restarts in [false, true] {
        simulated::run(async {
            let fixture = in_items().await;
            let session = fixture.open(1).await;
            let message = fixture.decided(session, vec![Operation::Attach]).await;
            if restarts {
                fixture.restart().await;
            }
            let other = Instance::warm(&fixture, 2).await;
            dies_before_it_tells(&fixture, &other, &message).await;
            assert!(
                fixture.announcements_of(id_of(&message[0])) > 0,
                "restarts: {restarts}"
            );
        });
    }
}

/// C-3: like above, while the instance takes over the log for another message.
#[test]
fn a_slot_numbered_during_a_takeover_is_announced_before_its_message_is_acknowledged() {
    simulated::run(async {
        let fixture = in_items().await;
        let (known, rest) = (fixture.open(1).await, fixture.open(2).await);
        let mut messages = fixture.decided(known, vec![Operation::Attach]).await;
        messages.extend(fixture.decided(rest, vec![Operation::Attach]).await);
        let (taking_over, other) = (Instance::warm(&fixture, 3).await, Instance::on(&fixture));
        other.handles(&messages[..1]).await;
        let is_looked_up =
            move |call: &Call<'_>| matches!(call, Call::Get(_)) && is_of_row(call, rest);
        // Before it takes over, it finds the request unnumbered.
        taking_over
            .store
            .once(Side::Before, is_looked_up, async { Ok(()) });
        // Then another instance numbers it and dies before it announces it.
        other.dies(Side::After, move |call| {
            matches!(call, Call::Update(_)) && is_of_row(call, rest)
        });
        let (dying, message) = (other.distributor.clone(), messages[1..].to_vec());
        taking_over
            .store
            .once(Side::Before, is_looked_up, async move {
                dying.handle_messages(&message).await.expect_err("it dies");
                Ok(())
            });
        taking_over.handles(&messages).await;
        assert!(taking_over.store.is_through() && other.store.is_through());
        assert_eq!(fixture.row(rest).await.applied, 1);
        assert!(fixture.announcements_of(id_of(&messages[1])) > 0);
    });
}

/// C-3: an instance announces a request once, even if its message arrives repeatedly and was
/// decided in an earlier incarnation.
#[test]
fn a_redelivered_message_is_not_announced_again() {
    for restarts in [false, true] {
        simulated::run(async {
            let fixture = in_items().await;
            let session = fixture.open(1).await;
            let message = fixture.decided(session, vec![Operation::Attach]).await;
            if restarts {
                fixture.restart().await;
            }
            let instance = Instance::on(&fixture);
            for _ in 0..2 {
                instance.handles(&message).await;
            }
            assert_eq!(
                fixture.announcements_of(id_of(&message[0])),
                1,
                "restarts: {restarts}"
            );
        });
    }
}

/// C-3, D4: a decision that an earlier incarnation did not install is installed before it leaves
/// its outbox.
#[test]
fn a_decision_of_an_earlier_incarnation_is_installed_before_it_is_numbered() {
    simulated::run(async {
        let fixture = in_items().await;
        let (session, store) = (fixture.open(1).await, fixture.store());
        let asked = fixture
            .asked(session, vec![create("/a", Lifetime::Persistent)])
            .await;
        let is_of_root = |call: &Call<'_>| matches!(call, Call::Update(Update { key, .. }) if key.partition() == b"node:/");
        // The row is locked; installing its new state would unlock it.
        store.once(Side::Before, is_of_root, async { Ok(()) });
        store.once(Side::Before, is_of_root, async { Err(death()) });
        fixture
            .writer(&store)
            .handle(Fixture::messages(asked))
            .await
            .expect_err("it dies");
        assert!(store.is_through());
        let message = fixture.outbox(session).await;
        fixture.restart().await;
        Instance::on(&fixture)
            .handle(&message)
            .await
            .expect("no fault is injected");
        assert!(
            crate::storage::node::is_there(&mut fixture.system(), "/a")
                .await
                .expect("no fault is injected")
        );
    });
}

/// C-3, D4: an instance forgets what it numbered in a lost incarnation of the store.
#[test]
fn an_instance_starts_cold_after_a_restart_of_the_store() {
    simulated::run(async {
        let fixture = in_items().await;
        let session = fixture.open(1).await;
        let message = fixture.decided(session, vec![Operation::Attach]).await;
        let store = fixture.world.key_value();
        store
            .externalize(store.point())
            .await
            .expect("no fault is injected");
        let warm = Instance::on(&fixture);
        warm.handles(&message).await;
        assert_eq!(fixture.row(session).await.applied, 1);
        fixture.world.fall_back();
        assert_eq!(
            fixture.row(session).await.applied,
            0,
            "the decision is durable, and nothing else"
        );
        warm.handles(&message).await;
        assert_eq!(fixture.row(session).await.applied, 1);
    });
}

/// C-5: if a slot is applied in parts, a znode appears only after its parent lists it.
#[test]
fn parents_are_changed_before_their_children() {
    const PARTS: usize = 3;
    simulated::run(async {
        let mut options = Options::default();
        options.key_value.transact_items_max = 2;
        let fixture = Fixture::new(options, Config::default()).await;
        let instance = Instance::warm(&fixture, 2).await;
        let session = fixture.open(1).await;
        let made = ["/a", "/a/b"].map(|path| create(path, Lifetime::Persistent));
        let messages = fixture.decided(session, made.into()).await;
        for part in 1..=PARTS {
            let region = fixture.region(fixture.world.key_value());
            instance.store.once(
                Side::After,
                |call| matches!(call, Call::Transact),
                async move {
                    let (root, a) = (
                        region.get("/").await?.expect("it is built in"),
                        region.get("/a").await?,
                    );
                    let children = a.as_ref().map(|a| a.stat.num_children);
                    let seen = (
                        root.stat.num_children,
                        children,
                        region.get("/a/b").await?.is_some(),
                    );
                    let expected = [(1, None, false), (1, Some(1), false), (1, Some(1), true)];
                    assert_eq!(seen, expected[part - 1], "after part {part}");
                    Ok(())
                },
            );
        }
        instance.handles(&messages).await;
        assert!(instance.store.is_through());
    });
}

/// C-3: another instance numbers a later request of a session that this instance knows.
#[test]
fn a_later_request_of_a_known_session_is_announced() {
    simulated::run(async {
        let fixture = in_items().await;
        let session = fixture.open(1).await;
        let messages = fixture
            .decided(session, vec![set("/", "one"), set("/", "two")])
            .await;
        fixture.restart().await;
        let (other, dying) = (Instance::on(&fixture), Instance::on(&fixture));
        other.handles(&messages[..1]).await;
        // It takes over and repeats the first slot.
        dying.store.once(
            Side::After,
            move |call| matches!(call, Call::Update(_)) && is_of_row(call, session),
            async { Ok(()) },
        );
        dying.dies(Side::After, move |call| {
            matches!(call, Call::Update(_)) && is_of_row(call, session)
        });
        dying.handle(&messages[1..]).await.expect_err("it dies");
        assert_eq!(
            (
                fixture.row(session).await.applied,
                fixture.announcements_of(id_of(&messages[1]))
            ),
            (2, 0)
        );
        other.handles(&messages[1..]).await;
        assert!(fixture.announcements_of(id_of(&messages[1])) > 0);
    });
}

/// C-3: another instance has numbered a session's end and removed its row.
#[test]
fn a_session_end_that_another_instance_applied_is_announced() {
    simulated::run(async {
        let fixture = in_items().await;
        let session = fixture.open(1).await;
        let message = fixture.decided(session, vec![Operation::Close]).await;
        fixture.restart().await;
        let (other, dying) = (Instance::warm(&fixture, 2).await, Instance::on(&fixture));
        dying.dies(Side::After, move |call| {
            matches!(call, Call::Update(_)) && is_of_row(call, session)
        });
        dying.handle(&message).await.expect_err("it dies");
        assert_eq!(fixture.announcements_of(id_of(&message[0])), 0);
        other.handles(&message).await;
        assert!(fixture.announcements_of(id_of(&message[0])) > 0);
    });
}

/// D4: the row is authoritative, not the message of a lost decision.
#[test]
fn the_message_of_a_lost_decision_is_ignored() {
    simulated::run(async {
        let fixture = in_items().await;
        let session = fixture.open(1).await;
        let store = fixture.world.key_value();
        store
            .externalize(store.point())
            .await
            .expect("no fault is injected");
        let lost = fixture.decided(session, vec![set("/", "lost")]).await;
        fixture.world.fall_back();
        let kept = fixture.decided(session, vec![set("/", "kept")]).await;
        assert_eq!(id_of(&lost[0]), id_of(&kept[0]));
        Instance::on(&fixture)
            .handle(&lost)
            .await
            .expect("no fault is injected");
        let root = fixture
            .region(fixture.world.key_value())
            .get("/")
            .await
            .expect("no fault is injected")
            .expect("it is there");
        assert_eq!(root.data, Payload::Inline("kept".into()));
    });
}

/// P5: an object is removed once the store cannot roll back to state that names it.
#[test]
fn an_object_is_removed_once_its_replacement_is_durable() {
    simulated::run(async {
        let fixture = in_objects().await;
        let instance = Instance::warm(&fixture, 2).await;
        let sets = set_twice(&fixture, &instance).await;
        instance.handles(&sets[..1]).await;
        let store = fixture.world.key_value();
        store
            .externalize(store.point())
            .await
            .expect("no fault is injected");
        instance.handles(&sets[1..]).await;
        assert_is_kept_alone(&fixture, &sets[1]).await;
        fixture.world.fall_back();
        let a = fixture
            .region(store)
            .get("/a")
            .await
            .expect("no fault is injected")
            .expect("it is there");
        let Payload::Object { name, .. } = a.data else {
            panic!("{a:?}")
        };
        assert_eq!(fixture.objects().await, [name]);
    });
}

/// P5: an instance that is fenced before its update is applied leaves the object, because its
/// successor will name it.
#[test]
fn an_object_that_a_successor_will_name_is_kept() {
    simulated::run(async {
        let fixture = in_objects().await;
        let late = Instance::warm(&fixture, 2).await;
        let session = fixture.open(1).await;
        let sets = fixture.decided(session, vec![set("/", "kept")]).await;
        let other = Instance::on(&fixture);
        let (is_late, goes_on, is_done) = (
            Arc::new(Notify::new()),
            Arc::new(Notify::new()),
            Arc::new(Notify::new()),
        );
        let (told, goes) = (is_late.clone(), goes_on.clone());
        // It has put the object,
        late.store.once(Side::Before, is_append, async move {
            told.notify_one();
            goes.notified().await;
            Ok(())
        });
        late.dies(Side::After, is_collected);
        let (goes, done) = (goes_on.clone(), is_done.clone());
        // and the other instance has logged the update, after its seal.
        other.store.once(Side::After, is_append, async { Ok(()) });
        other.store.once(Side::After, is_append, async move {
            goes.notify_one();
            done.notified().await;
            Ok(())
        });
        let late_work = async {
            let _ = late.handle(&sets).await;
            is_done.notify_one();
        };
        let other_work = async {
            is_late.notified().await;
            let _ = other.handle(&sets).await;
        };
        tokio::join!(late_work, other_work);
        assert!(other.store.is_through());
        assert_is_kept_alone(&fixture, &sets[0]).await;
    });
}
