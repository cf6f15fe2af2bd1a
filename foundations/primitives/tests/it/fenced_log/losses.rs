//! S12, D4: the store loses data that a writer has read while the writer's next call is in flight.

use std::{sync::Arc, time::Duration};

use ports::{
    ErrorKind, Key, Update,
    faults::{Fault, FaultyKeyValue, Script},
};
use primitives::{Appended, Cursor, FencedLog, SlotIndex};
use simulated::{World, run};

use super::{append, log};

/// How long a call is on its way.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// The log, for a caller whose updates are slow after the first `prompt` ones.
fn slow_log(world: &World, prompt: usize) -> FencedLog {
    let faults = [Fault::None]
        .repeat(prompt)
        .into_iter()
        .chain([Fault::Delay(ON_ITS_WAY)]);
    let faults = Arc::new(Script::of("key_value.update", faults));
    FencedLog::new(
        Arc::new(FaultyKeyValue::new(
            world.key_value(),
            faults,
            world.clock(),
        )),
        "log",
    )
}

/// Appends after reading elsewhere in the store, with or without a dependency on that read.
/// Meanwhile the store loses the data that was read, but no slot.
async fn appends_by_what_is_lost(says_so: bool) -> ports::Result<Appended> {
    let world = World::new(1);
    let (mut writer, _) = slow_log(&world, 2)
        .take_over(Cursor::START)
        .await
        .expect("calm");
    append(&mut writer, "kept").await;
    let store = world.key_value();
    store.externalize(writer.point()).await.expect("calm");
    let seen = store
        .update(Update::put(Key::new("p", "seen"), vec![]))
        .await
        .expect("calm");
    if says_so {
        writer
            .depend_on(seen.receipt.point)
            .await
            .expect("one start of the store");
    }
    let losing = async {
        world.clock().sleep(ON_ITS_WAY / 2).await;
        world.fall_back();
    };
    let (appended, ()) = tokio::join!(writer.append("rests on it".into()), losing);
    appended
}

/// S12, D4.
#[test]
fn an_append_that_rests_on_what_is_lost_is_refused() {
    let refused = run(appends_by_what_is_lost(true)).expect_err("it is lost");
    assert_eq!(refused.kind(), ErrorKind::Lost);
    let appended = run(appends_by_what_is_lost(false));
    assert!(
        matches!(appended, Ok(Appended::At(SlotIndex(3), _))),
        "the test would notice: {appended:?}"
    );
}

/// Trims slots that the store loses meanwhile, with or without a dependency on them. Returns how
/// many records of its successor, written in their place, the next takeover replays.
async fn trims_what_is_lost(by_what_it_knows: bool) -> (ports::Result<()>, usize) {
    let world = World::new(1);
    let slow = slow_log(&world, 4);
    let (mut writer, _) = slow.take_over(Cursor::START).await.expect("calm");
    for lost in ["a", "b", "c"] {
        append(&mut writer, lost).await;
    }
    let until = slow.read(Cursor::START, 10).await.expect("calm").cursor;
    let trimming = async {
        if by_what_it_knows {
            writer.trim(until).await
        } else {
            slow.trim(until).await
        }
    };
    let succeeding = async {
        world.clock().sleep(ON_ITS_WAY / 2).await;
        world.fall_back();
        let (mut successor, replay) = log(&world).take_over(Cursor::START).await.expect("calm");
        assert_eq!(replay, [], "nothing was durable");
        for new in ["x", "y", "z"] {
            append(&mut successor, new).await;
        }
    };
    let (trimmed, ()) = tokio::join!(trimming, succeeding);
    let (_, replay) = log(&world).take_over(Cursor::START).await.expect("calm");
    (trimmed, replay.len())
}

/// S13, D4.
#[test]
fn a_trim_that_rests_on_what_is_lost_takes_nothing_of_a_successor() {
    let (trimmed, replayed) = run(trims_what_is_lost(true));
    assert_eq!(
        (trimmed.expect_err("it is lost").kind(), replayed),
        (ErrorKind::Lost, 3)
    );
    let (trimmed, replayed) = run(trims_what_is_lost(false));
    assert!(
        trimmed.is_ok() && replayed < 3,
        "the test would notice: {trimmed:?}, {replayed} are left"
    );
}

/// A writer depends on a point of another start of the store than that of its own last slot, which
/// is durable or not. Returns the result of that, and of its next append.
async fn rests_on_another_start(is_durable: bool) -> (ports::Result<()>, ports::Result<Appended>) {
    let world = World::new(1);
    let (mut writer, _) = log(&world).take_over(Cursor::START).await.expect("calm");
    append(&mut writer, "before").await;
    let store = world.key_value();
    if is_durable {
        store.externalize(writer.point()).await.expect("calm");
    }
    world.fall_back();
    let seen = store
        .update(Update::put(Key::new("p", "seen"), vec![]))
        .await
        .expect("calm")
        .receipt
        .point;
    let rested = writer.depend_on(seen).await;
    assert!(rested.is_err() || writer.point() >= seen);
    (rested, writer.append("after".into()).await)
}

/// S12, D4: a read in a later start of the store proves nothing about this writer's slots of an
/// earlier one.
#[test]
fn a_writer_whose_slots_are_lost_rests_on_nothing_that_came_later() {
    let (rested, appended) = run(rests_on_another_start(false));
    assert_eq!(
        rested.expect_err("its slot is lost").kind(),
        ErrorKind::Lost
    );
    assert_eq!(
        appended.expect_err("its slot is lost").kind(),
        ErrorKind::Lost
    );
    let (rested, appended) = run(rests_on_another_start(true));
    assert!(
        rested.is_ok() && matches!(appended, Ok(Appended::At(SlotIndex(3), _))),
        "{rested:?}, {appended:?}"
    );
}

/// S12, D4: the same, where it is the writer that came later.
#[test]
fn a_writer_rests_on_nothing_that_was_lost_before_it_came() {
    run(async {
        let world = World::new(1);
        let store = world.key_value();
        let seen = store
            .update(Update::put(Key::new("p", "seen"), vec![]))
            .await
            .expect("calm")
            .receipt
            .point;
        world.fall_back();
        let (mut writer, _) = log(&world).take_over(Cursor::START).await.expect("calm");
        let rested = writer.depend_on(seen).await.expect_err("it is lost");
        assert_eq!(rested.kind(), ErrorKind::Lost);
    });
}

/// The store goes back while a takeover's first call of `operation` is in flight. Checks the
/// takeover's predecessor.
async fn takes_over_while_the_store_goes_back(operation: &'static str) {
    let world = World::new(1);
    let (mut first, _) = log(&world).take_over(Cursor::START).await.expect("calm");
    append(&mut first, "kept").await;
    world
        .key_value()
        .externalize(first.point())
        .await
        .expect("calm");
    append(&mut first, "lost").await;
    let faults = Arc::new(Script::of(operation, [Fault::Delay(ON_ITS_WAY)]));
    let slow = FencedLog::new(
        Arc::new(FaultyKeyValue::new(
            world.key_value(),
            faults,
            world.clock(),
        )),
        "log",
    );
    let losing = async {
        world.clock().sleep(ON_ITS_WAY / 2).await;
        world.fall_back();
    };
    let (taken, ()) = tokio::join!(slow.take_over(Cursor::START), losing);
    let (mut second, replay) = taken.expect("it starts again with the remaining log");
    assert_eq!(
        (second.sealed(), replay.len()),
        (SlotIndex(3), 1),
        "behind what was kept"
    );
    append(&mut second, "new").await;
    let read = log(&world).read(Cursor::START, 10).await.expect("calm");
    let payloads: Vec<_> = read.slots.iter().map(|slot| &slot.payload[..]).collect();
    assert_eq!(payloads, [&b"kept"[..], b"new"]);
}

/// S10, S12, D4: the store has lost the slots that the takeover read when its seal arrives.
#[test]
fn a_takeover_begins_again_where_what_it_has_read_is_lost() {
    run(takes_over_while_the_store_goes_back("key_value.update"));
}

/// S10, S12: the store loses the seal before it is durable.
#[test]
fn a_takeover_begins_again_where_its_seal_is_lost() {
    run(takes_over_while_the_store_goes_back(
        "key_value.externalize",
    ));
}

/// S13, D4: the mark was moved before the store lost the log after it. The slots are removed later.
#[test]
fn a_trim_that_has_moved_the_start_takes_nothing_that_a_successor_wrote_since() {
    run(async {
        let world = World::new(1);
        let (mut writer, _) = log(&world).take_over(Cursor::START).await.expect("calm");
        append(&mut writer, "kept").await;
        world
            .key_value()
            .externalize(writer.point())
            .await
            .expect("calm");
        append(&mut writer, "lost").await;
        let until = log(&world)
            .read(Cursor::START, 10)
            .await
            .expect("calm")
            .cursor;
        // Between its look at the slots and the first of their deletions.
        let faults = Arc::new(Script::of(
            "key_value.scan",
            [Fault::DelayAnswer(ON_ITS_WAY)],
        ));
        let slow = FencedLog::new(
            Arc::new(FaultyKeyValue::new(
                world.key_value(),
                faults,
                world.clock(),
            )),
            "log",
        );
        let basis = writer.point();
        let succeeding = async {
            world.clock().sleep(ON_ITS_WAY / 2).await;
            world.fall_back();
            let (mut successor, _) = log(&world).take_over(Cursor::START).await.expect("calm");
            append(&mut successor, "new").await;
        };
        let (trimmed, ()) = tokio::join!(slow.trim_depending_on(until, basis), succeeding);
        assert_eq!(trimmed.expect_err("it is lost").kind(), ErrorKind::Lost);
        let (_, replay) = log(&world).take_over(Cursor::START).await.expect("calm");
        assert_eq!(replay.len(), 2, "what was kept, and what is new");
    });
}
