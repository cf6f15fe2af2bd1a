//! S9 to S13: writers that do not know of each other, in a storm, and the resulting log.

mod changes;
mod losses;
mod storm;
mod trimming;
mod void_slots;

use std::time::Duration;

use bytes::Bytes;
use ports::ErrorKind;
use primitives::{Appended, Cursor, FencedLog, SlotIndex, Writer};
use simulated::{Chance, World, run};

use crate::{BROKEN_SEEDS, seeds};

fn log(world: &World) -> FencedLog {
    FencedLog::new(world.key_value(), "log")
}

async fn append(writer: &mut Writer, payload: &'static str) -> Appended {
    writer
        .append(Bytes::from_static(payload.as_bytes()))
        .await
        .expect("calm")
}

async fn payloads(log: &FencedLog, from: Cursor) -> Vec<String> {
    let slots = log.read(from, 100).await.expect("calm").slots;
    slots
        .iter()
        .map(|slot| String::from_utf8_lossy(&slot.payload).into_owned())
        .collect()
}

/// S10.
#[test]
fn a_successor_replays_what_was_appended_and_fences_the_predecessor() {
    run(async {
        let log = log(&World::new(1));
        let (mut first, replay) = log.take_over(Cursor::START).await.expect("calm");
        assert_eq!(replay, []);
        append(&mut first, "a").await;
        append(&mut first, "b").await;
        let (mut second, replay) = log.take_over(Cursor::START).await.expect("calm");
        let replayed: Vec<_> = replay.iter().map(|slot| &slot.payload[..]).collect();
        assert_eq!(replayed, [b"a", b"b"]);
        assert!(second.epoch() > first.epoch());
        assert_eq!(append(&mut first, "late").await, Appended::Fenced);
        assert!(matches!(
            append(&mut second, "c").await,
            Appended::At(SlotIndex(5), _)
        ));
        assert_eq!(append(&mut first, "later").await, Appended::Fenced);
        let (_, replay) = log.take_over(replay[0].cursor()).await.expect("calm");
        assert_eq!(replay.len(), 2, "from where the caller says");
        assert_eq!(payloads(&log, Cursor::START).await, ["a", "b", "c"]);
    });
}

/// S9, S10, S11, S12.
#[test]
fn every_acknowledged_record_stands_once_and_every_reader_and_successor_knows_it() {
    for seed in seeds() {
        if let Err(broken) = storm::run_storm(seed, storm::Takeover::Sealing) {
            panic!("seed {seed}: {broken}");
        }
    }
}

/// S10: the reason for the seal.
#[test]
fn without_a_seal_an_acknowledged_record_is_unknown_to_the_successor() {
    let caught =
        BROKEN_SEEDS.filter(|seed| storm::run_storm(*seed, storm::Takeover::WithoutSeal).is_err());
    assert!(caught.count() > 0, "the scenario catches it");
}

/// S11.
#[test]
fn an_append_without_an_answer_is_settled_and_stands_once() {
    for fault in ["lost answer", "refusal"] {
        run(async {
            let world = World::new(1);
            let log = log(&world);
            let (mut writer, _) = log.take_over(Cursor::START).await.expect("calm");
            if fault == "refusal" {
                world.faults().refuse(Chance::ALWAYS);
            } else {
                world.faults().lose_answer(Chance::ALWAYS);
            }
            let error = writer
                .append(Bytes::from_static(b"a"))
                .await
                .expect_err("the fault strikes");
            world.faults().calm();
            if fault == "refusal" {
                assert!(matches!(error.kind(), ErrorKind::Unavailable { .. }));
                assert_eq!(
                    writer.settle().await.expect("calm"),
                    None,
                    "nothing happened"
                );
            } else {
                assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
                let settled = writer.settle().await.expect("calm");
                assert!(matches!(settled, Some(Appended::At(SlotIndex(2), _))));
            }
            append(&mut writer, "b").await;
            let expected: &[&str] = if fault == "refusal" {
                &["b"]
            } else {
                &["a", "b"]
            };
            assert_eq!(payloads(&log, Cursor::START).await, expected);
        });
    }
}

/// S11: the next append settles an append that its caller did not settle.
#[test]
fn an_append_comes_after_the_unsettled_one_before_it() {
    run(async {
        let world = World::new(1);
        let log = log(&world);
        let (mut writer, _) = log.take_over(Cursor::START).await.expect("calm");
        world.faults().lose_answer(Chance::ALWAYS);
        writer
            .append(Bytes::from_static(b"a"))
            .await
            .expect_err("the answer was lost");
        world.faults().calm();
        assert!(matches!(
            append(&mut writer, "b").await,
            Appended::At(SlotIndex(3), _)
        ));
        assert_eq!(payloads(&log, Cursor::START).await, ["a", "b"]);
    });
}

/// S11: the caller no longer waits for an append, which happens nevertheless.
#[test]
fn an_append_comes_after_one_that_was_dropped_on_its_way() {
    run(async {
        let world = World::new(1);
        let log = log(&world);
        let (mut writer, _) = log.take_over(Cursor::START).await.expect("calm");
        // Each direction takes this long: at half of the second one the record is in the store.
        let (clock, way) = (world.clock(), Duration::from_millis(100));
        world.faults().delay(Chance::ALWAYS, way..=way);
        tokio::select! {
            biased;
            () = clock.sleep(way * 3 / 2) => {}
            appended = writer.append(Bytes::from_static(b"a")) => panic!("it has not come back: {appended:?}"),
        }
        world.faults().calm();
        assert!(matches!(
            append(&mut writer, "b").await,
            Appended::At(SlotIndex(3), _)
        ));
        assert_eq!(payloads(&log, Cursor::START).await, ["a", "b"]);
    });
}

/// S9, S10: nothing is left out between two pages.
#[test]
fn a_successor_replays_a_log_of_several_pages() {
    run(async {
        let log = log(&World::new(1));
        let (mut writer, _) = log.take_over(Cursor::START).await.expect("calm");
        for _ in 0..250 {
            append(&mut writer, "record").await;
        }
        let (successor, replay) = log.take_over(Cursor::START).await.expect("calm");
        assert_eq!((replay.len(), successor.sealed()), (250, SlotIndex(252)));
        assert!(replay.iter().map(|slot| slot.index.0).eq(2..252));
        let few = log.read(Cursor::START, 3).await.expect("calm");
        assert!(
            few.slots.len() <= 3 && !few.is_tail,
            "as many as were asked for: {few:?}"
        );
    });
}

/// S11, S10: the put happened, its response was lost, and another writer took over before it was
/// settled.
#[test]
fn an_unsettled_append_that_a_successor_replays_is_found_by_its_writer() {
    run(async {
        let world = World::new(1);
        let log = log(&world);
        let (mut first, _) = log.take_over(Cursor::START).await.expect("calm");
        world.faults().lose_answer(Chance::ALWAYS);
        first
            .append(Bytes::from_static(b"a"))
            .await
            .expect_err("the answer was lost");
        world.faults().calm();
        let (_, replay) = log.take_over(Cursor::START).await.expect("calm");
        assert_eq!(replay.len(), 1);
        assert!(matches!(
            first.settle().await.expect("calm"),
            Some(Appended::At(SlotIndex(2), _))
        ));
        assert_eq!(append(&mut first, "b").await, Appended::Fenced);
    });
}

/// S12.
#[test]
fn a_writer_that_outlives_the_store_adds_nothing_behind_a_lost_slot() {
    run(async {
        let world = World::new(1);
        let log = log(&world);
        let (mut writer, _) = log.take_over(Cursor::START).await.expect("calm");
        let Appended::At(_, kept) = append(&mut writer, "kept").await else {
            panic!("nobody fenced it")
        };
        world
            .key_value()
            .externalize(kept)
            .await
            .expect("it is there");
        append(&mut writer, "lost").await;
        world.crash();
        let error = writer
            .append(Bytes::from_static(b"behind"))
            .await
            .expect_err("a slot is gone");
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert_eq!(append(&mut writer, "more").await, Appended::Fenced);
        let (mut successor, replay) = log.take_over(Cursor::START).await.expect("calm");
        assert_eq!(replay.len(), 1);
        append(&mut successor, "new").await;
        assert_eq!(payloads(&log, Cursor::START).await, ["kept", "new"]);
    });
}

/// S12.
#[test]
fn a_writer_whose_slots_survived_a_crash_goes_on() {
    run(async {
        let world = World::new(1);
        let log = log(&world);
        let (mut writer, _) = log.take_over(Cursor::START).await.expect("calm");
        append(&mut writer, "a").await;
        world
            .key_value()
            .externalize(writer.point())
            .await
            .expect("it is there");
        world.crash();
        append(&mut writer, "b").await;
        assert_eq!(payloads(&log, Cursor::START).await, ["a", "b"]);
    });
}
