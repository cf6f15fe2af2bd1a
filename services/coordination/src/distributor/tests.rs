//! C-3, C-4, P5: what several distributors leave to each other, step by step.

use std::sync::Arc;

use ports::{Update, key_value::Action};
use simulated::Options;
use tokio::sync::Notify;

use super::*;
use crate::{
    config::DataPlacement,
    model::Lifetime,
    records::{Operation, Payload, UpdateId},
    storage::temporary,
    test_fixture::{Call, Interrupted, Side, Stage, create, is_of_row, set},
};

/// Of a distributor that dies at a call.
fn death() -> ports::Error {
    ports::Error::unavailable("go on")
}

async fn in_objects() -> Stage {
    let config = Config {
        placement: DataPlacement::Objects,
        ..Config::default()
    };
    Stage::new(Options::default(), config).await
}

async fn in_items() -> Stage {
    Stage::new(Options::default(), Config::default()).await
}

/// A distributor, and where it is interrupted.
struct Instance {
    store: Arc<Interrupted>,
    distributor: Arc<Distributor>,
}

impl Instance {
    fn on(stage: &Stage) -> Self {
        let store = stage.store();
        Self {
            distributor: stage.distributor(&store),
            store,
        }
    }

    /// One that holds the log, after it has numbered the first requests of a session of its own.
    async fn warm(stage: &Stage, number: u64) -> Self {
        let instance = Self::on(stage);
        let session = stage.open(number).await;
        let attached = stage.decided(session, vec![Operation::Attach]).await;
        instance
            .distributor
            .handle_messages(&attached)
            .await
            .expect("calm");
        instance
    }

    async fn handle(&self, deliveries: &[Delivery]) -> Result<()> {
        self.distributor.handle_messages(deliveries).await
    }

    /// Has `other` handle `deliveries`, to the end, right before or after the next call that is meant.
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
    decode::<Decided>(&delivery.body, "a decided request")
        .expect("it was encoded")
        .id
}

/// Objects are about to be put: their decisions are made durable.
fn is_placing(call: &Call<'_>) -> bool {
    matches!(call, Call::Externalize)
}

fn is_append(call: &Call<'_>) -> bool {
    matches!(call, Call::Update(Update { key, .. }) if key.partition() == LOG_PARTITION.as_bytes())
}

/// The last step of collecting.
fn is_collected(call: &Call<'_>) -> bool {
    let Call::Update(Update {
        change: ports::key_value::Change::Modify(actions),
        ..
    }) = call
    else {
        return false;
    };
    actions
        .iter()
        .any(|action| matches!(action, Action::RemoveElements(..)))
}

/// A znode without data, made by a session, and its data set twice: the first is garbage once the second is there.
async fn set_twice(stage: &Stage, maker: &Instance) -> Vec<Delivery> {
    let session = stage.open(1).await;
    let made = stage
        .decided(session, vec![create("/a", Lifetime::Persistent)])
        .await;
    maker.handle(&made).await.expect("calm");
    stage
        .decided(session, vec![set("/a", "late"), set("/a", "kept")])
        .await
}

/// The name of the object of an update is all there is.
async fn assert_is_kept_alone(stage: &Stage, kept: &Delivery) {
    let UpdateId { session, sequence } = id_of(kept);
    assert_eq!(
        stage.objects().await,
        [format!("znodes/{:016x}/{sequence:016x}", session.0)]
    );
}

/// P5: one has put an object late and died; its messages come to another.
#[test]
fn an_object_that_came_late_goes_with_the_message_that_it_came_for() {
    simulated::run(async {
        let stage = in_objects().await;
        let late = Instance::warm(&stage, 2).await;
        let sets = set_twice(&stage, &late).await;
        let other = Instance::on(&stage);
        late.overtaken(Side::Before, is_placing, (&other, sets.clone()));
        late.dies(Side::Before, is_append);
        late.handle(&sets[..1]).await.expect_err("it dies");
        assert_eq!(stage.objects().await.len(), 2, "the late one is there");
        other.handle(&sets[..1]).await.expect("calm");
        assert_is_kept_alone(&stage, &sets[1]).await;
    });
}

/// P5: the same where that one learns only by taking over that it is numbered.
#[test]
fn an_object_that_came_late_goes_although_its_message_was_taken_for_new() {
    simulated::run(async {
        let stage = in_objects().await;
        let unaware = Instance::warm(&stage, 2).await;
        let sets = set_twice(&stage, &unaware).await;
        let late = Instance::warm(&stage, 3).await;
        let stranger = stage.open(4).await;
        let attach = stage.decided(stranger, vec![Operation::Attach]).await;
        let other = Instance::on(&stage);
        late.overtaken(
            Side::Before,
            is_placing,
            (&other, [sets.clone(), attach.clone()].concat()),
        );
        late.dies(Side::Before, is_append);
        late.handle(&sets[..1]).await.expect_err("it dies");
        assert_eq!(stage.objects().await.len(), 2, "the late one is there");
        unaware
            .handle(&[sets[0].clone(), attach[0].clone()])
            .await
            .expect("calm");
        assert_is_kept_alone(&stage, &sets[1]).await;
    });
}

/// P5: the same where it lives on, and the store has restarted since the decision, which was found in its row.
#[test]
fn who_was_fenced_removes_the_object_that_it_has_put_for_an_earlier_start() {
    simulated::run(async {
        let stage = in_objects().await;
        let sets = set_twice(&stage, &Instance::warm(&stage, 2).await).await;
        stage.restart().await;
        let (late, other) = (Instance::warm(&stage, 3).await, Instance::on(&stage));
        late.overtaken(Side::Before, is_placing, (&other, sets.clone()));
        late.handle(&sets[..1])
            .await
            .expect("it takes the log over again");
        assert!(late.store.is_through());
        assert_is_kept_alone(&stage, &sets[1]).await;
    });
}

/// P5: whoever looks for a late object while another collects finds that the update is applied.
#[test]
fn what_is_applied_is_said_to_be_before_its_garbage_goes() {
    simulated::run(async {
        let stage = in_objects().await;
        let sets = set_twice(&stage, &Instance::warm(&stage, 2).await).await;
        stage.restart().await;
        let (late, other) = (Instance::warm(&stage, 3).await, Instance::on(&stage));
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
            other.handle(&sets).await.expect("calm");
        };
        tokio::join!(is_late_work, other_work);
        assert!(late.store.is_through() && other.store.is_through());
        assert_is_kept_alone(&stage, &sets[1]).await;
    });
}

/// P5: whoever does a slot again that another does as well may put its objects last.
#[test]
fn who_does_a_slot_again_removes_what_it_has_put_late() {
    simulated::run(async {
        let stage = in_objects().await;
        let first = Instance::warm(&stage, 2).await;
        let sets = set_twice(&stage, &first).await;
        let stranger = stage.open(3).await;
        let attach = stage.decided(stranger, vec![Operation::Attach]).await;
        first.dies(Side::After, is_append);
        first.handle(&sets[..1]).await.expect_err("it dies");
        let (late, other) = (Instance::on(&stage), Instance::on(&stage));
        let session = id_of(&sets[0]).session;
        let is_found =
            move |call: &Call<'_>| matches!(call, Call::Get(_)) && is_of_row(call, session);
        late.overtaken(Side::After, is_found, (&other, sets.clone()));
        // Of the slot it knows by the log alone.
        late.handle(&attach)
            .await
            .expect_err("the log is the other's");
        assert!(late.store.is_through());
        assert_is_kept_alone(&stage, &sets[1]).await;
    });
}

/// P5: what has carried a request's data goes once it is applied, however long its session lives.
#[test]
fn the_temporary_object_of_a_request_goes_when_it_is_applied() {
    simulated::run(async {
        let (stage, data) = (in_items().await, Bytes::from("large"));
        let (session, objects) = (stage.open(1).await, stage.world.objects());
        let data = temporary::put(&*objects, session, 1, 1, data)
            .await
            .expect("calm");
        let set = Operation::SetData {
            path: "/".into(),
            data,
            version: -1,
        };
        let decided = stage.decided(session, vec![set]).await;
        assert_eq!(stage.objects().await.len(), 1);
        Instance::on(&stage).handle(&decided).await.expect("calm");
        assert_eq!(stage.objects().await, Vec::<String>::new());
    });
}

/// One numbers a request, applies it, and dies before it tells anybody; its message comes to `other`.
async fn dies_before_it_tells(stage: &Stage, other: &Instance, message: &[Delivery]) {
    let dying = Instance::on(stage);
    let session = id_of(&message[0]).session;
    dying.dies(Side::After, move |call| {
        matches!(call, Call::Update(_)) && is_of_row(call, session)
    });
    dying.handle(message).await.expect_err("it dies");
    assert_eq!(
        (
            stage.row(session).await.applied,
            stage.told(id_of(&message[0]))
        ),
        (1, 0)
    );
    other.handle(message).await.expect("calm");
}

/// C-3: a message that is numbered by another may be all that is left to say so, also in the next start of the store.
#[test]
fn what_another_has_numbered_is_told_before_its_message_goes() {
    for restarts in [false, true] {
        simulated::run(async {
            let stage = in_items().await;
            let session = stage.open(1).await;
            let message = stage.decided(session, vec![Operation::Attach]).await;
            if restarts {
                stage.restart().await;
            }
            let other = Instance::warm(&stage, 2).await;
            dies_before_it_tells(&stage, &other, &message).await;
            assert!(stage.told(id_of(&message[0])) > 0, "restarts: {restarts}");
        });
    }
}

/// C-3: the same while it takes the log over for another message.
#[test]
fn what_another_has_numbered_meanwhile_is_told_before_its_message_goes() {
    simulated::run(async {
        let stage = in_items().await;
        let (known, rest) = (stage.open(1).await, stage.open(2).await);
        let mut messages = stage.decided(known, vec![Operation::Attach]).await;
        messages.extend(stage.decided(rest, vec![Operation::Attach]).await);
        let (taking_over, other) = (Instance::warm(&stage, 3).await, Instance::on(&stage));
        other.handle(&messages[..1]).await.expect("calm");
        let is_looked_up =
            move |call: &Call<'_>| matches!(call, Call::Get(_)) && is_of_row(call, rest);
        // Before it takes over it finds that nobody has numbered it,
        taking_over
            .store
            .once(Side::Before, is_looked_up, async { Ok(()) });
        // and afterwards somebody has, who dies before it tells.
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
        taking_over.handle(&messages).await.expect("calm");
        assert!(taking_over.store.is_through() && other.store.is_through());
        assert_eq!(stage.row(rest).await.applied, 1);
        assert!(stage.told(id_of(&messages[1])) > 0);
    });
}

/// C-3: what an instance has told itself it need not tell again, however often its message comes, and whenever it was decided.
#[test]
fn a_message_that_comes_again_is_not_told_again() {
    for restarts in [false, true] {
        simulated::run(async {
            let stage = in_items().await;
            let session = stage.open(1).await;
            let message = stage.decided(session, vec![Operation::Attach]).await;
            if restarts {
                stage.restart().await;
            }
            let instance = Instance::on(&stage);
            for _ in 0..2 {
                instance.handle(&message).await.expect("calm");
            }
            assert_eq!(stage.told(id_of(&message[0])), 1, "restarts: {restarts}");
        });
    }
}

/// C-3, D4: what a start has decided and not installed is installed before it leaves its outbox.
#[test]
fn a_decision_of_an_earlier_start_is_installed_before_it_is_numbered() {
    simulated::run(async {
        let stage = in_items().await;
        let (session, store) = (stage.open(1).await, stage.store());
        let asked = stage
            .asked(session, vec![create("/a", Lifetime::Persistent)])
            .await;
        let is_of_root = |call: &Call<'_>| matches!(call, Call::Update(Update { key, .. }) if key.partition() == b"node:/");
        // It is locked, and would be unlocked when its new state is installed.
        store.once(Side::Before, is_of_root, async { Ok(()) });
        store.once(Side::Before, is_of_root, async { Err(death()) });
        stage
            .writer(&store)
            .handle(Stage::messages(asked))
            .await
            .expect_err("it dies");
        assert!(store.is_through());
        let message = stage.outbox(session).await;
        stage.restart().await;
        Instance::on(&stage).handle(&message).await.expect("calm");
        let (nodes, mut basis) = (stage.nodes(stage.world.key_value()), Basis::default());
        assert!(nodes.is_there("/a", &mut basis).await.expect("calm"));
    });
}

/// D4, C-3: what an instance has numbered in a start of the store that is lost, it does not take for numbered.
#[test]
fn an_instance_begins_anew_with_the_store() {
    simulated::run(async {
        let stage = in_items().await;
        let session = stage.open(1).await;
        let message = stage.decided(session, vec![Operation::Attach]).await;
        let store = stage.world.key_value();
        store.externalize(store.point()).await.expect("calm");
        let warm = Instance::on(&stage);
        warm.handle(&message).await.expect("calm");
        assert_eq!(stage.row(session).await.applied, 1);
        stage.world.fall_back();
        assert_eq!(
            stage.row(session).await.applied,
            0,
            "the decision is durable, and nothing else"
        );
        warm.handle(&message).await.expect("calm");
        assert_eq!(stage.row(session).await.applied, 1);
    });
}

/// C-5: where a slot is applied in parts, a znode is there only once its parent says so.
#[test]
fn parents_are_changed_before_their_children() {
    const PARTS: usize = 3;
    simulated::run(async {
        let mut options = Options::default();
        options.key_value.transact_items_max = 2;
        let stage = Stage::new(options, Config::default()).await;
        let instance = Instance::warm(&stage, 2).await;
        let session = stage.open(1).await;
        let made = ["/a", "/a/b"].map(|path| create(path, Lifetime::Persistent));
        let messages = stage.decided(session, made.into()).await;
        for part in 1..=PARTS {
            let region = stage.region(stage.world.key_value());
            instance.store.once(
                Side::After,
                |call| matches!(call, Call::Transact),
                async move {
                    let (root, a) = (
                        region.get("/").await?.expect("it is built in"),
                        region.get("/a").await?,
                    );
                    let children = a.as_ref().map(|a| a.meta.children);
                    let seen = (
                        root.meta.children,
                        children,
                        region.get("/a/b").await?.is_some(),
                    );
                    let expected = [(1, None, false), (1, Some(1), false), (1, Some(1), true)];
                    assert_eq!(seen, expected[part - 1], "after part {part}");
                    Ok(())
                },
            );
        }
        instance.handle(&messages).await.expect("calm");
        assert!(instance.store.is_through());
    });
}

/// C-3: what another has numbered since, of a session that this instance knows.
#[test]
fn a_later_request_of_a_known_session_is_told() {
    simulated::run(async {
        let stage = in_items().await;
        let session = stage.open(1).await;
        let messages = stage
            .decided(session, vec![set("/", "one"), set("/", "two")])
            .await;
        stage.restart().await;
        let (other, dying) = (Instance::on(&stage), Instance::on(&stage));
        other.handle(&messages[..1]).await.expect("calm");
        // It takes over, and does the first slot again.
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
                stage.row(session).await.applied,
                stage.told(id_of(&messages[1]))
            ),
            (2, 0)
        );
        other.handle(&messages[1..]).await.expect("calm");
        assert!(stage.told(id_of(&messages[1])) > 0);
    });
}

/// C-3: the end of a session that another has numbered and removed.
#[test]
fn an_end_that_another_has_applied_is_told() {
    simulated::run(async {
        let stage = in_items().await;
        let session = stage.open(1).await;
        let message = stage.decided(session, vec![Operation::Close]).await;
        stage.restart().await;
        let (other, dying) = (Instance::warm(&stage, 2).await, Instance::on(&stage));
        dying.dies(Side::After, move |call| {
            matches!(call, Call::Update(_)) && is_of_row(call, session)
        });
        dying.handle(&message).await.expect_err("it dies");
        assert_eq!(stage.told(id_of(&message[0])), 0);
        other.handle(&message).await.expect("calm");
        assert!(stage.told(id_of(&message[0])) > 0);
    });
}

/// D4: the row says what was decided, not the message of one that was lost.
#[test]
fn the_message_of_a_lost_decision_is_hearsay() {
    simulated::run(async {
        let stage = in_items().await;
        let session = stage.open(1).await;
        let store = stage.world.key_value();
        store.externalize(store.point()).await.expect("calm");
        let lost = stage.decided(session, vec![set("/", "lost")]).await;
        stage.world.fall_back();
        let kept = stage.decided(session, vec![set("/", "kept")]).await;
        assert_eq!(id_of(&lost[0]), id_of(&kept[0]));
        Instance::on(&stage).handle(&lost).await.expect("calm");
        let root = stage
            .region(stage.world.key_value())
            .get("/")
            .await
            .expect("calm")
            .expect("it is there");
        assert_eq!(root.data, Payload::Inline("kept".into()));
    });
}

/// P5: an object goes once the store cannot come back to what names it.
#[test]
fn an_object_goes_once_it_is_durable_that_nothing_names_it() {
    simulated::run(async {
        let stage = in_objects().await;
        let instance = Instance::warm(&stage, 2).await;
        let sets = set_twice(&stage, &instance).await;
        instance.handle(&sets[..1]).await.expect("calm");
        let store = stage.world.key_value();
        store.externalize(store.point()).await.expect("calm");
        instance.handle(&sets[1..]).await.expect("calm");
        assert_is_kept_alone(&stage, &sets[1]).await;
        stage.world.fall_back();
        let a = stage
            .region(store)
            .get("/a")
            .await
            .expect("calm")
            .expect("it is there");
        let Payload::Object { name, .. } = a.data else {
            panic!("{a:?}")
        };
        assert_eq!(stage.objects().await, [name]);
    });
}

/// P5: whoever is fenced before its update is applied leaves its object: it is about to be named.
#[test]
fn an_object_that_is_about_to_be_named_is_left() {
    simulated::run(async {
        let stage = in_objects().await;
        let late = Instance::warm(&stage, 2).await;
        let session = stage.open(1).await;
        let sets = stage.decided(session, vec![set("/", "kept")]).await;
        let other = Instance::on(&stage);
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
        // and the other has logged the update, behind its seal.
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
        assert_is_kept_alone(&stage, &sets[0]).await;
    });
}
