//! C-3, D4: what a direct decision leaves to the log, the indexes and the instance that holds it.

use std::sync::Mutex;

use ports::functions::{Definition, FunctionOptions};
use simulated::World;

use super::*;
use crate::distributor::{SLOTS_RETAINED, SLOTS_TRIMMED};

/// The slots of one instance. Neither one nor two instances retain as many, but three do.
const SLOTS: usize = 500;

const INSTANCES: usize = 10;

/// The epochs of the slots in the log, in order.
async fn epochs(fixture: &Fixture) -> Vec<u64> {
    let log = FencedLog::new(fixture.world.key_value(), LOG_PARTITION);
    let read = log.read(Cursor::START, 100).await;
    let slots = read.expect("no fault is injected").slots.into_iter();
    slots.map(|slot| slot.epoch.0).collect()
}

/// C-3: a request follows the end of a session whose message waits in the queue.
#[test]
fn a_request_behind_the_end_of_a_session_forces_no_takeover() {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let process = Process::with_a(&fixture).await;
        let (session, other) = (fixture.open(1).await, fixture.open(2).await);
        let made = vec![create("/e", Lifetime::Ephemeral)];
        process.write(&fixture, other, made).await;
        let end = fixture.with_queue();
        let end = end.decided(other, vec![Operation::Close]).await;
        let made = vec![create("/b", Lifetime::Persistent)];
        process.write(&fixture, session, made).await;
        let handled = process.distributor.handle(Fixture::messages(end)).await;
        handled.expect("no fault is injected");
        process.distribute(&fixture, session).await;
        process.write(&fixture, session, vec![set("/b", "x")]).await;
        assert_eq!(fixture.row(session).await.applied, 2);
        let epochs = epochs(&fixture).await;
        assert_eq!(epochs.len(), 5);
        assert!(epochs.iter().all(|epoch| *epoch == epochs[0]), "{epochs:?}");
    });
}

/// The log keeps a bounded number of slots although no instance appends as many as it retains.
#[test]
fn the_log_is_trimmed_by_instances_that_take_over_often() {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let (mut process, session) = (Process::with_a(&fixture).await, fixture.open(1).await);
        for _ in 0..INSTANCES {
            for _ in 0..SLOTS {
                process.write(&fixture, session, vec![set("/a", "x")]).await;
            }
            process = Process::start(&fixture);
        }
        let log = FencedLog::new(fixture.world.key_value(), LOG_PARTITION);
        let start = log.start().await.expect("no fault is injected");
        let cursor = fixture.region(fixture.world.key_value()).cursor().await;
        let tail = cursor.expect("no fault is injected").value.0.slot;
        let left = tail - start.next.0;
        let most = SLOTS_RETAINED + SLOTS_TRIMMED + SLOTS;
        assert!(left <= most as u64, "{left} slots of {tail} are left");
        let read = log.read(start, 1).await.expect("no fault is injected");
        assert_eq!(read.slots.len(), 1, "the rest is there");
    });
}

/// Another instance trims the log while a takeover reads the slots to trim.
#[test]
fn a_takeover_during_a_trim_succeeds() {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let (mut process, session) = (Process::with_a(&fixture).await, fixture.open(1).await);
        for _ in 0..3 {
            for _ in 0..SLOTS {
                process.write(&fixture, session, vec![set("/a", "x")]).await;
            }
            process = Process::start(&fixture);
        }
        let log = FencedLog::new(fixture.world.key_value(), LOG_PARTITION);
        let trims = async move {
            let read = log.read(Cursor::START, 9).await?;
            log.trim(read.cursor).await
        };
        let is_scan = |call: &Call<'_>| matches!(call, Call::Scan);
        // The first scan reads the end of the log.
        process.store.once(Side::Before, is_scan, async { Ok(()) });
        process.store.once(Side::Before, is_scan, trims);
        process.write(&fixture, session, vec![set("/a", "y")]).await;
        assert!(process.store.is_through());
    });
}

/// Loses what is not durable when it is invoked.
#[derive(Debug)]
struct FallsBack(World);

#[async_trait]
impl Handler for FallsBack {
    async fn handle(&self, _: Event) -> Result<Bytes, Failure> {
        self.0.fall_back();
        Ok(Bytes::new())
    }
}

/// D4, C6: the store loses the direct deletion of an own ephemeral while it is announced.
#[test]
fn the_index_entry_of_a_lost_direct_deletion_stays() {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let (process, session) = (Process::with_a(&fixture).await, fixture.open(1).await);
        let made = vec![create("/e", Lifetime::Ephemeral)];
        process.write(&fixture, session, made).await;
        // Only the transaction is lost.
        let store = fixture.world.key_value();
        let is_transaction = |call: &Call<'_>| matches!(call, Call::Transact);
        process
            .store
            .once(Side::Before, is_transaction, async move {
                store.externalize(store.point()).await
            });
        let asked = fixture.asked(session, vec![delete("/e")]).await;
        fixture.world.functions().register(Definition {
            name: queue_names::WATCH.into(),
            options: FunctionOptions::default(),
            handler: Arc::new(FallsBack(fixture.world.clone())),
        });
        let lost = process.writer.handle_messages(&asked).await;
        lost.expect_err("the store has restarted");
        assert!(shown(&fixture, "/e").await.is_some(), "it is not deleted");
        let left = ephemerals::first(&mut fixture.system(), session, 9).await;
        assert_eq!(left.expect("no fault is injected"), ["/e"]);
    });
}

/// Whether the quotas are read again after a direct decision about `path` was refused.
fn are_quotas_read_again(path: &'static str) -> bool {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let process = Process::with_a(&fixture).await;
        let (session, other) = (fixture.open(1).await, fixture.open(2).await);
        let made = ["", "/quota", "/quota/a", "/quota/a/zookeeper_limits"];
        let made = made.map(|path| create(&format!("/zookeeper{path}"), Lifetime::Persistent));
        process.write(&fixture, session, made.into()).await;
        let read = Arc::new(Mutex::new(false));
        let (on_fixture, is_read) = (fixture.with_queue(), read.clone());
        let is_transaction = |call: &Call<'_>| matches!(call, Call::Transact);
        process
            .store
            .once(Side::Before, is_transaction, async move {
                on_fixture.decided(other, vec![set(path, "")]).await;
                Ok(())
            });
        let is_scan = |call: &Call<'_>| matches!(call, Call::Scan);
        process.store.once(Side::Before, is_scan, async move {
            *is_read.lock().expect("no panic while it is locked") = true;
            Ok(())
        });
        process.write(&fixture, session, vec![set(path, "")]).await;
        assert_eq!(fixture.row(session).await.applied, 5, "no queue took part");
        let read = read.lock().expect("no panic while it is locked");
        *read
    })
}

/// Quotas are limits alone, so other refused requests leave them as they are.
#[test]
fn the_quotas_are_read_again_only_if_limits_were_refused() {
    assert!(!are_quotas_read_again("/a"));
    assert!(are_quotas_read_again("/zookeeper/quota/a/zookeeper_limits"));
}
