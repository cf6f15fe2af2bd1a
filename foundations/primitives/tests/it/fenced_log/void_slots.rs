//! S9, S10, S13: slots of a lower epoch after a seal. Our writers leave no gap, so these tests make
//! such slots by hand. A store that lost a slot without noticing would leave such a log, and so
//! would a pipelining writer.

use bytes::Bytes;
use ports::{Key, Update, key_value::Action};
use primitives::{Appended, Cursor, SlotIndex, Writer};
use simulated::{World, run};

use super::{append, log, payloads};

/// Puts an item where a slot lies, as `primitives::fenced_log` lays it out; without a payload: a
/// seal.
async fn put(world: &World, slot: SlotIndex, epoch: i64, payload: Option<&'static str>) {
    let mut actions = vec![Action::set_integer("epoch", epoch)];
    actions.extend(payload.map(|payload| Action::set("payload", payload)));
    world
        .key_value()
        .update(Update::modify(key(slot), actions))
        .await
        .expect("calm");
}

fn key(slot: SlotIndex) -> Key {
    let mut sort = b"s".to_vec();
    sort.extend_from_slice(&slot.0.to_be_bytes());
    Key::new("log", sort)
}

/// A log whose second writer has sealed slot 3. Slots 4 and 5 after it are of the first writer,
/// which wrote them over the gap.
async fn with_void_slots(world: &World) -> Writer {
    let log = log(world);
    let (mut first, _) = log.take_over(Cursor::START).await.expect("calm");
    assert!(matches!(
        append(&mut first, "a").await,
        Appended::At(SlotIndex(2), _)
    ));
    put(world, SlotIndex(4), 1, Some("stray")).await;
    put(world, SlotIndex(5), 1, Some("stray")).await;
    let (second, replay) = log.take_over(Cursor::START).await.expect("calm");
    assert_eq!(
        (second.sealed(), second.next()),
        (SlotIndex(3), SlotIndex(4))
    );
    assert_eq!(replay.len(), 1, "the gap is where the log ends");
    second
}

/// S9, S10: no read and no takeover returns it.
#[test]
fn a_void_slot_is_shown_to_nobody() {
    run(async {
        let world = World::new(1);
        with_void_slots(&world).await;
        let log = log(&world);
        let read = log.read(Cursor::START, 100).await.expect("calm");
        assert_eq!(read.cursor.next, SlotIndex(6), "it is passed");
        assert_eq!(payloads(&log, Cursor::START).await, ["a"]);
        let (third, replay) = log.take_over(Cursor::START).await.expect("calm");
        assert_eq!((third.sealed(), replay.len()), (SlotIndex(6), 1));
    });
}

/// S11: an append of the writer of a higher epoch comes after it, and is read.
#[test]
fn an_append_passes_void_slots() {
    run(async {
        let world = World::new(1);
        let mut second = with_void_slots(&world).await;
        assert!(matches!(
            append(&mut second, "b").await,
            Appended::At(SlotIndex(6), _)
        ));
        assert_eq!(payloads(&log(&world), Cursor::START).await, ["a", "b"]);
    });
}

/// S11: another attempt at the same epoch sealed a later slot, when the store had not yet lost the
/// slots before.
#[test]
fn an_append_passes_a_seal_of_its_own_epoch() {
    run(async {
        let world = World::new(1);
        let log = log(&world);
        let (mut writer, _) = log.take_over(Cursor::START).await.expect("calm");
        put(&world, SlotIndex(2), 1, None).await;
        assert!(matches!(
            append(&mut writer, "a").await,
            Appended::At(SlotIndex(3), _)
        ));
        assert_eq!(payloads(&log, Cursor::START).await, ["a"]);
    });
}

/// S13: without a void slot, which a trim removed, a writer that must pass it would find a free
/// slot.
#[test]
fn a_void_slot_keeps_its_place_when_the_log_is_trimmed() {
    run(async {
        let world = World::new(1);
        let mut second = with_void_slots(&world).await;
        let log = log(&world);
        let (mut third, _) = log.take_over(Cursor::START).await.expect("calm");
        append(&mut third, "c").await;
        let until = log.read(Cursor::START, 100).await.expect("calm").cursor;
        log.trim(until).await.expect("calm");
        for void in [SlotIndex(4), SlotIndex(5)] {
            let left = world
                .key_value()
                .get(&key(void))
                .await
                .expect("calm")
                .value
                .expect("it stays");
            assert_eq!(
                left.bytes("payload"),
                None,
                "what is left of {void:?} is small"
            );
        }
        let late = second
            .append(Bytes::from_static(b"late"))
            .await
            .expect("calm");
        assert_eq!(
            late,
            Appended::Fenced,
            "behind the void slots it has found the seal"
        );
    });
}
