//! C-1 to C-4: writers that decide in one transaction instead of under locks, and those that also
//! apply in it.

mod direct;
mod together;

use primitives::{Cursor, FencedLog};

use super::{redelivery::again, *};
use crate::{
    queue_names::{LOG_PARTITION, packed, unpacked},
    records::{LogEntry, Payload, Slot, UpdateAnswer},
    storage::{expiring, user_store::Node},
};

/// What one transaction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Decides,
    Applies,
}

const MODES: [Mode; 2] = [Mode::Decides, Mode::Applies];

/// Enough for every transaction here.
const ITEMS_MAX: usize = 100;

async fn fixture_of(mode: Mode, broken: Option<Broken>, items_max: usize) -> Arc<Fixture> {
    let mut options = Options::default();
    options.key_value.transact_items_max = items_max;
    let config = Config {
        applies_directly: mode == Mode::Applies,
        mutant: broken.into(),
        ..Config::default()
    };
    Arc::new(Fixture::new(options, config).await)
}

/// The functions of one process.
struct Process {
    store: Arc<Interrupted>,
    distributor: Arc<Distributor>,
    writer: Writer,
}

impl Process {
    fn start(fixture: &Fixture) -> Self {
        let store = fixture.store();
        let env = fixture.env(store.clone());
        let distributor = Arc::new(Distributor::new(env.clone()));
        let writer = Writer::new(env, &distributor);
        Self {
            store,
            distributor,
            writer,
        }
    }

    /// A process that holds the log, in which `/a` exists.
    async fn with_a(fixture: &Fixture) -> Self {
        let (process, session) = (Self::start(fixture), fixture.open(9).await);
        let made = vec![create("/a", Lifetime::Persistent)];
        fixture.with_queue().decided(session, made).await;
        process.distribute(fixture, session).await;
        process
    }

    async fn write(&self, fixture: &Fixture, session: SessionId, asked: Vec<Operation>) {
        let asked = fixture.asked(session, asked).await;
        let written = self.writer.handle_messages(&asked).await;
        written.expect("no fault is injected");
    }

    /// Delivers what the ordinary way has left, if anything.
    async fn distribute(&self, fixture: &Fixture, session: SessionId) {
        let outbox = fixture.outbox(session).await;
        if !outbox.is_empty() {
            let handled = self.distributor.handle(Fixture::messages(outbox)).await;
            handled.expect("no fault is injected");
        }
    }
}

/// The entries of the log, in order.
async fn logged(fixture: &Fixture) -> Vec<LogEntry> {
    let log = FencedLog::new(fixture.world.key_value(), LOG_PARTITION);
    let read = log.read(Cursor::START, 100).await;
    let slots = read.expect("no fault is injected").slots.into_iter();
    let entries = |slot: primitives::Slot| {
        let slot: Slot = decode(&slot.payload, "a slot").expect("it was encoded");
        slot.entries
    };
    slots.flat_map(entries).collect()
}

async fn logged_of(fixture: &Fixture, session: SessionId) -> Vec<LogEntry> {
    let mut entries = logged(fixture).await;
    entries.retain(|entry| entry.id.session == session);
    entries
}

/// The znode that clients read.
async fn shown(fixture: &Fixture, path: &str) -> Option<Node> {
    let region = fixture.region(fixture.world.key_value());
    region.get(path).await.expect("no fault is injected")
}

async fn version(fixture: &Fixture, path: &str) -> i32 {
    let seen = node::Seen::read(&mut fixture.system(), path).await;
    let seen = seen.expect("no fault is injected").expect("no lock");
    let state = seen.state().expect("it decodes").expect("it exists");
    state.version
}

/// A writer dies at a call, and its process with it or not. The second delivery alone finishes the
/// work. Returns whether it is announced, or `None` if there is no such call.
fn is_announced(
    mode: Mode,
    broken: Option<Broken>,
    at: (Side, usize),
    (is_restarted, earlier): (bool, u64),
) -> Option<bool> {
    simulated::run(async {
        let fixture = fixture_of(mode, broken, ITEMS_MAX).await;
        let (first, session) = (Process::with_a(&fixture).await, fixture.open(1).await);
        for _ in 0..earlier {
            first.write(&fixture, session, vec![set("/a", "x")]).await;
            first.distribute(&fixture, session).await;
        }
        let last = earlier + 2;
        let operations = vec![create("/b", Lifetime::Persistent), set("/b", "x")];
        let asked = fixture.asked(session, operations).await;
        let (side, number) = at;
        let at_call = (side, is_call(number));
        if !dies_at(&first.writer, &first.store, at_call, &asked).await {
            return None;
        }
        let second = if is_restarted {
            Process::start(&fixture)
        } else {
            first
        };
        let finished = second.writer.handle_messages(&again(asked)).await;
        finished.expect("no fault is injected");
        let row = fixture.row(session).await;
        assert_eq!((row.sequence, row.request), (last, last), "once, {at:?}");
        let is_done = mode == Mode::Applies && broken.is_none();
        assert!(!is_done || row.applied == last, "without a queue, {at:?}");
        second.distribute(&fixture, session).await;
        assert_eq!(fixture.row(session).await.applied, last, "{at:?}");
        let logged = logged_of(&fixture, session).await;
        assert_eq!(logged.len() as u64, last, "{at:?}");
        assert!(is_free(&fixture, "/").await, "no lock remains");
        assert_eq!(version(&fixture, "/b").await, 1);
        let b = shown(&fixture, "/b").await.expect("it was made");
        let root = shown(&fixture, "/").await.expect("it is built in");
        assert_eq!((b.stat.version, root.stat.num_children), (1, 2), "{at:?}");
        let told = |sequence| fixture.announcements_of(UpdateId { session, sequence }) > 0;
        Some(told(last - 1) && told(last))
    })
}

/// Whether every death is followed by an announcement.
fn are_announced(mode: Mode, broken: Option<Broken>) -> bool {
    [
        (Side::Before, false),
        (Side::Before, true),
        (Side::After, false),
        (Side::After, true),
    ]
    .into_iter()
    // Under a fence of its own, and under that of an earlier invocation.
    .flat_map(|(side, is_restarted)| [0, 1].map(|earlier| (side, (is_restarted, earlier))))
    .all(|(side, how)| {
        let told = (0..).map_while(|number| is_announced(mode, broken, (side, number), how));
        let told: Vec<bool> = told.collect();
        assert!(told.len() >= 3, "it takes up the row, reads and decides");
        told.into_iter().all(|told| told)
    })
}

/// C-1, C-2, C-4: after every death, the second delivery alone finishes the work.
#[test]
fn redelivery_finishes_the_transaction_of_a_dead_writer() {
    for mode in MODES {
        assert!(are_announced(mode, None), "{mode:?}");
    }
    let broken = Some(Broken::AnnouncesOnce);
    assert!(!are_announced(Mode::Applies, broken), "the rule is needed");
}

/// Another session sets a znode before call `number` of a writer that sets it. Returns the number
/// of updates that the znode has seen, or `None` if there is no such call.
fn updates_with_conflict_at(mode: Mode, broken: Option<Broken>, number: usize) -> Option<i32> {
    simulated::run(async {
        let fixture = fixture_of(mode, broken, ITEMS_MAX).await;
        let process = Process::with_a(&fixture).await;
        let (session, other) = (fixture.open(1).await, fixture.open(2).await);
        // Now its process knows the znode.
        process.write(&fixture, session, vec![set("/a", "0")]).await;
        process.distribute(&fixture, session).await;
        let on_fixture = fixture.with_queue();
        let setting = async move {
            on_fixture.decided(other, vec![set("/a", "2")]).await;
            Ok(())
        };
        process.store.once(Side::Before, is_call(number), setting);
        process.write(&fixture, session, vec![set("/a", "1")]).await;
        if !process.store.is_through() {
            return None;
        }
        for session in [session, other] {
            process.distribute(&fixture, session).await;
        }
        let (a, logged) = (shown(&fixture, "/a").await, logged(&fixture).await);
        let (a, last) = (a.expect("it exists"), logged.last().expect("all of them"));
        assert_eq!(a.stat.version, version(&fixture, "/a").await);
        let data = if last.id.session == session { "1" } else { "2" };
        assert!(broken.is_some() || a.data == Payload::Inline(data.into()));
        Some(a.stat.version)
    })
}

/// C-1: no update is lost if a znode changes after it was read, or since the process knew it.
#[test]
fn a_writer_without_locks_notices_every_change() {
    let versions = |mode, broken| -> Vec<i32> {
        (0..)
            .map_while(|number| updates_with_conflict_at(mode, broken, number))
            .collect()
    };
    for mode in MODES {
        // A process that knows the row of the session and the znode makes one call.
        let calls = if mode == Mode::Applies { 1 } else { 2 };
        let right = versions(mode, None);
        assert!(
            right.len() >= calls && right.iter().all(|version| *version == 3),
            "{right:?}"
        );
        let wrong = versions(mode, Some(Broken::DecidesOnOutdatedStates));
        assert!(wrong.contains(&2), "the rule is needed, {mode:?}");
    }
}

/// Whose updates are in the log, if a request follows one of another session that waits in the
/// queue.
fn order_behind_the_queue(broken: Option<Broken>) -> Vec<SessionId> {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, broken, ITEMS_MAX).await;
        let process = Process::with_a(&fixture).await;
        let (session, other) = (fixture.open(1).await, fixture.open(2).await);
        fixture
            .with_queue()
            .decided(other, vec![set("/a", "1")])
            .await;
        for data in ["2", "3"] {
            process
                .write(&fixture, session, vec![set("/a", data)])
                .await;
        }
        for session in [session, other] {
            process.distribute(&fixture, session).await;
        }
        let logged = logged(&fixture).await.into_iter().skip(1);
        logged.map(|entry| entry.id.session).collect()
    })
}

/// C-3.
#[test]
fn a_request_behind_one_in_the_queue_is_not_applied_directly() {
    let [session, other] = [1, 2].map(|number| SessionId::of_client(number << 2));
    assert_eq!(order_behind_the_queue(None), [other, session, session]);
    let broken = Some(Broken::IgnoresPredecessors);
    assert_eq!(
        order_behind_the_queue(broken)[0],
        session,
        "the rule is needed"
    );
}

/// C-3: refusals have their positions too, also a multi with the number of its failed part.
#[test]
fn refusals_are_applied_directly() {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let (process, session) = (Process::with_a(&fixture).await, fixture.open(1).await);
        let check = Operation::Check {
            path: "/a".into(),
            version: 7,
        };
        let multi = Operation::Multi(vec![create("/b", Lifetime::Persistent), check]);
        let asked = vec![multi, delete("/b/c"), set("/a", "x")];
        process.write(&fixture, session, asked).await;
        let row = fixture.row(session).await;
        assert_eq!((row.sequence, row.applied), (3, 3), "no queue took part");
        let answers: Vec<_> = logged_of(&fixture, session).await;
        let failed = UpdateAnswer::MultiFailed {
            failed: 1,
            parts: 2,
            error: Error::BadVersion,
        };
        assert_eq!(answers[0].answer, Ok(failed));
        assert_eq!(answers[1].answer, Err(Error::NoNode));
        assert!(matches!(answers[2].answer, Ok(UpdateAnswer::Set(_))));
        assert_eq!(shown(&fixture, "/b").await, None);
    });
}

/// C-6: another connection attaches right before the transaction.
#[test]
fn requests_of_a_replaced_connection_are_not_decided() {
    for mode in MODES {
        simulated::run(async {
            let fixture = fixture_of(mode, None, ITEMS_MAX).await;
            let (process, session) = (Process::with_a(&fixture).await, fixture.open(1).await);
            let mut sessions = fixture.system();
            let is_transaction = |call: &Call<'_>| matches!(call, Call::Transact);
            process
                .store
                .once(Side::Before, is_transaction, async move {
                    let attached =
                        session::attach(&mut sessions, session, PASSWORD, TIMEOUT).await?;
                    assert!(matches!(attached, Transition::Done(_)));
                    Ok(())
                });
            let is_second = |call: &Call<'_>| matches!(call, Call::Transact);
            process.store.once(Side::Before, is_second, async {
                panic!("it is refused once")
            });
            process.write(&fixture, session, vec![set("/a", "x")]).await;
            assert_eq!(fixture.row(session).await.attach, 2);
            assert_eq!(fixture.row(session).await.sequence, 0);
            assert_eq!(version(&fixture, "/a").await, 0);
        });
    }
}

/// Whether a writer that wrote the session's row last decides the first request of a connection that
/// attached since, and then the end that the heartbeat asks for.
fn follows_changes_of_others(broken: Option<Broken>) -> bool {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, broken, ITEMS_MAX).await;
        let (process, session) = (Process::with_a(&fixture).await, fixture.open(1).await);
        process.write(&fixture, session, vec![set("/a", "0")]).await;
        let mut sessions = fixture.system();
        let attached = session::attach(&mut sessions, session, PASSWORD, TIMEOUT).await;
        let attached = attached.expect("no fault is injected");
        assert!(matches!(attached, Transition::Done(_)));
        process.write(&fixture, session, vec![set("/a", "1")]).await;
        let row = fixture.row(session).await;
        let decides = (row.sequence, row.request) == (2, 1);
        let expired = session::expire(&mut sessions, session, row.renewals).await;
        assert!(matches!(expired, Ok(Transition::Done(_))));
        let asked = fixture.asked(session, vec![Operation::Expire]).await;
        let written = process.writer.handle_messages(&asked).await;
        written.expect("no fault is injected");
        decides && fixture.row(session).await.state == State::Closed
    })
}

/// C-6.
#[test]
fn a_writer_notices_that_others_changed_the_row_that_it_left() {
    assert!(follows_changes_of_others(None));
    let broken = Some(Broken::TrustsOutdatedRows);
    assert!(!follows_changes_of_others(broken), "the rule is needed");
}

/// C-1: a writer that wrote the row last raises its fence only after a failure.
#[test]
fn one_fence_serves_the_invocations_of_one_process_until_one_fails() {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let (process, session) = (Process::with_a(&fixture).await, fixture.open(1).await);
        for data in ["0", "1"] {
            process
                .write(&fixture, session, vec![set("/a", data)])
                .await;
        }
        assert_eq!(fixture.row(session).await.fence, 1);
        let asked = fixture.asked(session, vec![set("/a", "2")]).await;
        let at_call = (Side::Before, is_call(0));
        assert!(dies_at(&process.writer, &process.store, at_call, &asked).await);
        // As a first delivery, which alone would not raise it.
        let written = process.writer.handle_messages(&asked).await;
        written.expect("no fault is injected");
        let row = fixture.row(session).await;
        assert_eq!((row.fence, row.sequence), (2, 3));
    });
}

/// A request with more items than a transaction takes is decided under locks, or distributed as all
/// others.
#[test]
fn a_request_that_fits_into_no_transaction_takes_the_ordinary_way() {
    let mut ways = BTreeSet::new();
    for items_max in 2..16 {
        simulated::run(async {
            let fixture = fixture_of(Mode::Applies, None, items_max).await;
            let (process, session) = (Process::with_a(&fixture).await, fixture.open(1).await);
            let made = ["/b", "/b/c", "/b/d"].map(|path| create(path, Lifetime::Persistent));
            let asked = vec![Operation::Multi(made.into())];
            process.write(&fixture, session, asked).await;
            ways.insert(fixture.row(session).await.applied);
            process.distribute(&fixture, session).await;
            assert_eq!(
                fixture.row(session).await.applied,
                1,
                "of {items_max} items"
            );
            let b = shown(&fixture, "/b").await.expect("it was made");
            assert_eq!(b.stat.num_children, 2, "of {items_max} items");
            assert!(is_free(&fixture, "/b/c").await);
        });
    }
    assert_eq!(ways, BTreeSet::from([0, 1]), "both ways are taken");
}

/// Requests that together need more items than a transaction takes are applied in several.
#[test]
fn requests_are_decided_together_as_far_as_they_fit_into_a_transaction() {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let (process, session) = (Process::with_a(&fixture).await, fixture.open(1).await);
        let multi = |number: usize| {
            let paths = (0..10).map(|part| format!("/a/{number}-{part}"));
            Operation::Multi(
                paths
                    .map(|path| create(&path, Lifetime::Persistent))
                    .collect(),
            )
        };
        let asked = (0..9).map(multi).collect();
        process.write(&fixture, session, asked).await;
        assert_eq!(fixture.row(session).await.applied, 9, "no queue took part");
        let log = FencedLog::new(fixture.world.key_value(), LOG_PARTITION);
        let read = log.read(Cursor::START, 100).await;
        let slots = read.expect("no fault is injected").slots.len();
        assert!((3..9).contains(&slots), "{slots} slots");
        let a = shown(&fixture, "/a").await.expect("it exists");
        assert_eq!(a.stat.num_children, 90);
    });
}

/// C6: a deletion that is applied directly leaves no entry for the owner's end to find.
#[test]
fn a_direct_deletion_of_a_foreign_ephemeral_leaves_no_entry() {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let (process, owner) = (Process::with_a(&fixture).await, fixture.open(1).await);
        let (other, ephemerals) = (fixture.open(2).await, ["/e", "/f"]);
        let made = ephemerals.map(|path| create(path, Lifetime::Ephemeral));
        process.write(&fixture, owner, made.into()).await;
        process.write(&fixture, owner, vec![delete("/e")]).await;
        process.write(&fixture, other, vec![delete("/f")]).await;
        assert_eq!(fixture.row(other).await.applied, 1, "no queue took part");
        let left = ephemerals::first(&mut fixture.system(), owner, 9).await;
        assert_eq!(left.expect("no fault is injected"), Vec::<String>::new());
    });
}

/// D4: a store that loses a direct transaction loses all of it, and its process starts again.
#[test]
fn a_lost_transaction_is_lost_whole() {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let (process, session) = (Process::with_a(&fixture).await, fixture.open(1).await);
        process.write(&fixture, session, vec![set("/a", "0")]).await;
        let store = fixture.world.key_value();
        let durable = store.externalize(store.point()).await;
        durable.expect("no fault is injected");
        process
            .write(&fixture, session, vec![set("/a", "lost")])
            .await;
        fixture.world.fall_back();
        assert_eq!(logged_of(&fixture, session).await.len(), 1);
        for data in ["1", "2"] {
            process
                .write(&fixture, session, vec![set("/a", data)])
                .await;
            process.distribute(&fixture, session).await;
            let a = shown(&fixture, "/a").await.expect("it exists");
            assert_eq!(a.data, Payload::Inline(data.into()));
        }
        let a = shown(&fixture, "/a").await.expect("it exists");
        assert_eq!((a.stat.version, version(&fixture, "/a").await), (3, 3));
    });
}

/// Whether a container is in the index after its last child was deleted, while another writer
/// found it in use and dropped the new entry.
fn is_indexed(broken: Option<Broken>) -> bool {
    simulated::run(async {
        let fixture = fixture_of(Mode::Decides, broken, ITEMS_MAX).await;
        let (process, session) = (Process::with_a(&fixture).await, fixture.open(1).await);
        let system = SessionId::SYSTEM;
        let opened = session::create(&mut fixture.system(), system, PASSWORD, TIMEOUT).await;
        assert!(opened.expect("no fault is injected"));
        let made = [("/c", Lifetime::Container), ("/c/a", Lifetime::Persistent)];
        let made = made.map(|(path, lifetime)| create(path, lifetime));
        process.write(&fixture, session, made.into()).await;
        let is_added = |call: &Call<'_>| matches!(call, Call::Update(Update { key, .. }) if key.partition() == b"expiring");
        let on_fixture = fixture.clone();
        process.store.once(Side::After, is_added, async move {
            let entry = expiring::version(&mut on_fixture.system(), "/c").await?;
            let path = "/c".into();
            let entry = entry.expect("it was added");
            let remove = Operation::RemoveExpired { path, entry };
            on_fixture.decided(system, vec![remove]).await;
            Ok(())
        });
        let asked = fixture.asked(session, vec![delete("/c/a")]).await;
        if process.writer.handle_messages(&asked).await.is_err() {
            // The other writer waited for its locks and broke them.
            let second = process.writer.handle_messages(&again(asked)).await;
            second.expect("no fault is injected");
        }
        assert!(process.store.is_through());
        assert_eq!(fixture.row(session).await.sequence, 3);
        let any = expiring::any(&mut fixture.system()).await;
        any.expect("no fault is injected")
    })
}

/// C6.
#[test]
fn the_index_of_expiring_znodes_is_maintained_under_locks() {
    assert!(is_indexed(None));
    let broken = Some(Broken::IndexesWithoutLocks);
    assert!(!is_indexed(broken), "the rule is needed");
}

/// P1: a message that does not decode holds up none of those before it.
#[test]
fn a_message_that_does_not_decode_fails_alone() {
    simulated::run(async {
        let fixture = fixture().await;
        let (session, store) = (fixture.open(1).await, fixture.store());
        let made = vec![create("/a", Lifetime::Persistent)];
        let mut asked = fixture.asked(session, made).await;
        asked.push(Delivery {
            body: packed(&[Bytes::from_static(b"of another build")], 64).remove(0),
            ..asked[0].clone()
        });
        let failed = fixture.writer(&store).handle_messages(&asked).await;
        assert_eq!(failed.expect_err("it does not decode").completed, 1);
        assert_eq!(fixture.row(session).await.sequence, 1);
    });
}

/// P1: a request that cannot be planned holds up only those after it in its message.
#[test]
fn the_requests_of_one_message_fail_one_by_one() {
    simulated::run(async {
        let fixture = fixture().await;
        let (session, store) = (fixture.open(1).await, fixture.store());
        let made = ["/a", "/b", "/c"].map(|path| create(path, Lifetime::Persistent));
        let asked = fixture.asked(session, made.into()).await;
        let records = asked.iter().flat_map(|one| unpacked(&one.body));
        let records = records.map(|record| record.map(Bytes::copy_from_slice));
        let records: Result<Vec<Bytes>> = records.collect();
        let body = packed(&records.expect("they are whole"), usize::MAX).remove(0);
        let together = vec![Delivery {
            body,
            ..asked[0].clone()
        }];
        for _ in 0..2 {
            store.once(Side::Before, |call| is_lock_of(call, "/b"), async {
                Err(ports::Error::unavailable("lock"))
            });
        }
        let first = fixture.writer(&store).handle_messages(&together).await;
        assert_eq!(first.expect_err("the store fails").completed, 0);
        assert!(store.is_through());
        assert_eq!(
            fixture.row(session).await.sequence,
            1,
            "the first is decided"
        );
        let second = fixture
            .writer(&store)
            .handle_messages(&again(together))
            .await;
        second.expect("the store works again");
        assert_eq!(fixture.row(session).await.sequence, 3);
    });
}
