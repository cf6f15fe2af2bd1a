//! S13: the slots that a trim removes, those that it leaves, and the view of late readers and
//! writers.

use std::{sync::Arc, time::Duration};

use ports::{
    ErrorKind, Key, Update,
    faults::{Fault, FaultyKeyValue, Script},
    key_value::Scan,
    metering::{Meter, MeteredKeyValue, Operation},
};
use primitives::{Appended, Cursor, FencedLog, SlotIndex};
use simulated::{Chance, World, run};

use super::{append, log, payloads};

/// S13.
#[test]
fn a_writer_paused_before_a_trim_finds_itself_fenced() {
    run(async {
        let world = World::new(1);
        let log = log(&world);
        let (mut paused, _) = log.take_over(Cursor::START).await.expect("calm");
        append(&mut paused, "a").await;
        let (mut second, replay) = log.take_over(Cursor::START).await.expect("calm");
        append(&mut second, "b").await;
        append(&mut second, "c").await;
        let until = log
            .read(replay[0].cursor(), 100)
            .await
            .expect("calm")
            .cursor;
        log.trim(until).await.expect("calm");
        assert_eq!(append(&mut paused, "late").await, Appended::Fenced);
        let error = log.read(replay[0].cursor(), 100).await;
        append(&mut second, "d").await;
        assert_eq!(payloads(&log, until).await, ["d"]);
        let behind = log
            .read(Cursor::START, 100)
            .await
            .expect_err("it was trimmed");
        assert_eq!(behind.kind(), ErrorKind::Invalid);
        assert!(error.is_err() || error.is_ok_and(|read| read.slots.is_empty()));
        let (third, replay) = log.take_over(Cursor::START).await.expect("calm");
        assert_eq!(replay.len(), 1, "a takeover begins behind what was trimmed");
        assert!(third.epoch() > second.epoch());
    });
}

/// S10, S13: between a takeover's read of the log and its seal, the log grew and was trimmed.
#[test]
fn a_takeover_that_was_paused_does_not_seal_a_hole_that_a_trim_left() {
    run(async {
        let world = World::new(1);
        let log = log(&world);
        let (mut first, _) = log.take_over(Cursor::START).await.expect("calm");
        // Each way of each call takes this long: two calls look, and the third one's seal is on its
        // way.
        let way = Duration::from_millis(100);
        world.faults().delay(Chance::ALWAYS, way..=way);
        let paused = {
            let log = log.clone();
            tokio::spawn(async move { log.take_over(Cursor::START).await })
        };
        world.clock().sleep(way * 9 / 2).await;
        world.faults().calm();
        append(&mut first, "a").await;
        append(&mut first, "b").await;
        let until = log.read(Cursor::START, 100).await.expect("calm").cursor;
        log.trim(until).await.expect("calm");
        let (second, _) = paused.await.expect("it does not panic").expect("calm");
        assert_eq!(second.sealed(), until.next, "behind what was trimmed");
        assert_eq!(append(&mut first, "late").await, Appended::Fenced);
    });
}

/// S13.
#[test]
fn a_trim_leaves_one_small_item_per_takeover() {
    run(async {
        let world = World::new(1);
        let log = log(&world);
        let mut cursor = Cursor::START;
        for _ in 0..3 {
            let (mut writer, _) = log.take_over(cursor).await.expect("calm");
            for _ in 0..150 {
                append(&mut writer, "record").await;
            }
            let mut read = log.read(cursor, 100).await.expect("calm");
            while !read.is_tail {
                read = log.read(read.cursor, 100).await.expect("calm");
            }
            cursor = read.cursor;
            log.trim(cursor).await.expect("calm");
            log.trim(cursor)
                .await
                .expect("repeating it changes nothing");
        }
        assert_eq!(log.start().await.expect("calm"), cursor);
        let left = world
            .key_value()
            .scan(&Scan::partition("log", 100))
            .await
            .expect("calm");
        assert_eq!(left.value.items.len(), 1 + 3, "the mark and the seals");
        assert!(
            world
                .key_value()
                .get(&Key::new("log", "mark"))
                .await
                .expect("calm")
                .value
                .is_some()
        );
    });
}

/// A log of three records between two seals; where the second one is.
async fn filled(world: &World) -> Cursor {
    let (mut writer, _) = log(world).take_over(Cursor::START).await.expect("calm");
    for record in ["a", "b", "c"] {
        append(&mut writer, record).await;
    }
    let until = log(world)
        .read(Cursor::START, 100)
        .await
        .expect("calm")
        .cursor;
    log(world).take_over(until).await.expect("calm");
    until
}

/// S9, S13: a trim may die between any two of its steps. A late reader gets an error, and never a
/// log that ends where slots are missing.
#[test]
fn a_trim_that_was_left_off_halfway_is_no_end_of_the_log() {
    // The mark, and three records; a seal takes no step.
    for steps in 0..=4 {
        run(async {
            let world = World::new(1);
            let until = filled(&world).await;
            let faults = [Fault::None]
                .repeat(steps)
                .into_iter()
                .chain([Fault::RefuseBefore].repeat(4));
            let faults = Arc::new(Script::of("key_value.update", faults));
            let dying = FaultyKeyValue::new(world.key_value(), faults, world.clock());
            let trimmed = FencedLog::new(Arc::new(dying), "log").trim(until).await;
            assert_eq!(
                trimmed.is_ok(),
                steps == 4,
                "after {steps} steps: {trimmed:?}"
            );
            match log(&world).read(Cursor::START, 100).await {
                Ok(read) => {
                    assert_eq!(read.slots.len(), 3, "after {steps} steps");
                }
                Err(error) => assert_eq!((error.kind(), steps > 0), (ErrorKind::Invalid, true)),
            }
            let start = log(&world).start().await.expect("calm");
            assert_eq!(start, if steps == 0 { Cursor::START } else { until });
            log(&world).trim(until).await.expect("calm");
            let behind = log(&world)
                .read(Cursor::START, 100)
                .await
                .expect_err("it was trimmed");
            assert_eq!(behind.kind(), ErrorKind::Invalid);
        });
    }
}

/// S10, S13: nothing of it is left but the mark and its seals, and the next epoch is higher all the
/// same.
#[test]
fn a_takeover_of_a_log_that_was_trimmed_to_its_end_has_a_higher_epoch() {
    run(async {
        let world = World::new(1);
        let log = log(&world);
        let (mut first, _) = log.take_over(Cursor::START).await.expect("calm");
        append(&mut first, "a").await;
        let (mut second, _) = log.take_over(Cursor::START).await.expect("calm");
        append(&mut second, "b").await;
        let until = log.read(Cursor::START, 100).await.expect("calm").cursor;
        log.trim(until).await.expect("calm");
        let (mut third, replay) = log.take_over(Cursor::START).await.expect("calm");
        assert_eq!(replay, []);
        assert!(
            third.epoch() > second.epoch(),
            "{:?} and {:?}",
            third.epoch(),
            second.epoch()
        );
        assert_eq!(append(&mut second, "late").await, Appended::Fenced);
        append(&mut third, "c").await;
        assert_eq!(
            payloads(&log, log.start().await.expect("calm")).await,
            ["c"]
        );
    });
}

/// S9, S13: a late trim does not move the start of the log back.
#[test]
fn a_trim_that_comes_late_does_not_move_the_start_back() {
    run(async {
        let world = World::new(1);
        let until = filled(&world).await;
        let log = log(&world);
        let early = Cursor {
            next: SlotIndex(3),
            epoch: until.epoch,
        };
        log.trim(until).await.expect("calm");
        log.trim(early).await.expect("it changes nothing");
        assert_eq!(log.start().await.expect("calm"), until);
    });
}

/// S9: a start that cannot be read is not taken for the first slot.
#[test]
fn a_mark_that_cannot_be_read_is_said_to_be_corrupt() {
    run(async {
        let world = World::new(1);
        let until = filled(&world).await;
        let log = log(&world);
        log.trim(until).await.expect("calm");
        world
            .key_value()
            .update(Update::put(Key::new("log", "mark"), vec![]))
            .await
            .expect("calm");
        assert_eq!(
            log.start().await.expect_err("it holds nothing").kind(),
            ErrorKind::Corrupt
        );
        let taken = log
            .take_over(Cursor::START)
            .await
            .expect_err("its start is unknown");
        assert_eq!(taken.kind(), ErrorKind::Corrupt);
    });
}

/// S13: a trim takes what lies before its cursor, and nothing else.
#[test]
fn a_trim_leaves_the_slot_that_its_cursor_names() {
    run(async {
        let world = World::new(1);
        let log = log(&world);
        let (mut writer, _) = log.take_over(Cursor::START).await.expect("calm");
        append(&mut writer, "a").await;
        let until = log.read(Cursor::START, 100).await.expect("calm").cursor;
        append(&mut writer, "b").await;
        log.trim(until).await.expect("calm");
        assert_eq!(payloads(&log, until).await, ["b"]);
    });
}

/// S13: of a log of several pages as well.
#[test]
fn a_trim_leaves_nothing_before_its_end_but_seals() {
    run(async {
        let world = World::new(1);
        let log = log(&world);
        let (mut writer, _) = log.take_over(Cursor::START).await.expect("calm");
        for _ in 0..250 {
            append(&mut writer, "record").await;
        }
        log.trim(Cursor {
            next: writer.next(),
            epoch: writer.epoch(),
        })
        .await
        .expect("calm");
        let left = world
            .key_value()
            .scan(&Scan::partition("log", 100))
            .await
            .expect("calm")
            .value
            .items;
        assert_eq!(left.len(), 2, "the seal and the mark: {left:?}");
    });
}

/// S13. A trim that began at the first slot each time would cost more with each takeover. In a
/// store that remembers deleted items, it would cost more with each record.
#[test]
fn a_trim_looks_at_nothing_that_one_before_it_has_seen() {
    run(async {
        let world = World::new(1);
        let meter = Arc::new(Meter::default());
        let metered = Arc::new(MeteredKeyValue::new(world.key_value(), Arc::clone(&meter)));
        let trimming = FencedLog::new(metered, "log");
        for _ in 0..50 {
            let (mut writer, _) = log(&world).take_over(Cursor::START).await.expect("calm");
            append(&mut writer, "record").await;
            let until = Cursor {
                next: writer.next(),
                epoch: writer.epoch(),
            };
            let before = meter.usage().of(Operation::KeyValueScan).items;
            trimming.clone().trim(until).await.expect("calm");
            assert_eq!(
                meter.usage().of(Operation::KeyValueScan).items - before,
                2,
                "a seal and a record"
            );
        }
        assert_eq!(
            world
                .key_value()
                .scan(&Scan::partition("log", 100))
                .await
                .expect("calm")
                .value
                .items
                .len(),
            51,
            "and the mark"
        );
    });
}
