//! Writers take over from each other at random moments, and are paused at others. The store loses
//! responses and crashes. The actors write down their responses, and the test compares these with
//! the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use ports::{Clock, ErrorKind};
use primitives::{Appended, Cursor, Epoch, FencedLog, Slot, SlotIndex, Writer};
use simulated::{World, percent, run};

use crate::PORT_CALLS_MAX;

/// How a writer becomes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takeover {
    Sealing,
    /// The broken variant.
    WithoutSeal,
}

/// The responses to all actors.
#[derive(Debug, Default)]
struct History {
    /// Records that were durable when they were acknowledged, in the order of the acknowledgements.
    acknowledged: Vec<(SlotIndex, Epoch, Bytes)>,
    takeovers: Vec<Takeovers>,
    /// Durable records that readers saw.
    seen: Vec<Slot>,
}

/// The response to one takeover.
#[derive(Debug)]
struct Takeovers {
    epoch: Epoch,
    replayed: Vec<Slot>,
}

type Shared = Arc<Mutex<History>>;

/// Runs one seed; says what was broken.
pub(crate) fn run_storm(seed: u64, takeover: Takeover) -> Result<(), String> {
    run(async {
        let world = World::new(seed);
        let faults = world.faults();
        faults.delay(percent(40), Duration::ZERO..=Duration::from_millis(30));
        faults.refuse(percent(3));
        faults.lose_answer(percent(5));
        if takeover == Takeover::Sealing {
            faults.crash_store(percent(1));
        }
        let history = Shared::default();
        let actors: Vec<_> = (0..4)
            .map(|number| {
                tokio::spawn(write(world.clone(), number, takeover, Arc::clone(&history)))
            })
            .chain([tokio::spawn(tail(world.clone(), Arc::clone(&history)))])
            .collect();
        for actor in actors {
            actor.await.expect("actors do not panic");
        }
        world.faults().calm();
        assert!(
            world.port_calls() <= PORT_CALLS_MAX,
            "seed {seed}: {} calls",
            world.port_calls()
        );
        let log = FencedLog::new(world.key_value(), "log");
        let slots = log.read(Cursor::START, 100).await.expect("calm");
        assert!(slots.is_tail, "the storm fits a page");
        check(&history.lock().expect("no actor panicked"), &slots.slots)
    })
}

/// Takes over, appends a few records with pauses in between, and again.
async fn write(world: World, number: u64, takeover: Takeover, history: Shared) {
    let (clock, chance, key_value) = (world.clock(), world.entropy(), world.key_value());
    let log = FencedLog::new(world.key_value(), "log");
    for round in 0..4 {
        clock.sleep(Duration::from_millis(chance.below(400))).await;
        let taken = match takeover {
            Takeover::Sealing => log.take_over(Cursor::START).await,
            Takeover::WithoutSeal => log.take_over_without_seal(Cursor::START).await,
        };
        let Ok((mut writer, replayed)) = taken else {
            continue;
        };
        let epoch = writer.epoch();
        history
            .lock()
            .expect("no actor panicked")
            .takeovers
            .push(Takeovers { epoch, replayed });
        for record in 0..5 {
            clock.sleep(Duration::from_millis(chance.below(60))).await;
            let payload = Bytes::from(format!("{number}.{round}.{record}"));
            let appended = append(&mut writer, payload.clone(), &*clock).await;
            let Some(Appended::At(index, point)) = appended else {
                break;
            };
            if key_value.externalize(point).await.is_ok() {
                history
                    .lock()
                    .expect("no actor panicked")
                    .acknowledged
                    .push((index, epoch, payload));
            }
        }
    }
}

/// Appends, and settles what was left unknown; none if the writer must give up.
async fn append(writer: &mut Writer, payload: Bytes, clock: &dyn Clock) -> Option<Appended> {
    let mut result = writer.append(payload).await.map(Some);
    loop {
        match result {
            Ok(appended) => return appended,
            Err(error) if error.kind() == ErrorKind::Lost => return None,
            Err(_) => clock.sleep(Duration::from_millis(5)).await,
        }
        result = writer.settle().await;
    }
}

/// Reads on and on, and writes down what was durable.
async fn tail(world: World, history: Shared) {
    let (clock, key_value) = (world.clock(), world.key_value());
    let log = FencedLog::new(world.key_value(), "log");
    let mut cursor = Cursor::START;
    for _ in 0..60 {
        clock.sleep(Duration::from_millis(25)).await;
        let Ok(read) = log.read(cursor, 10).await else {
            continue;
        };
        if key_value.externalize(read.point).await.is_ok() {
            cursor = read.cursor;
            history
                .lock()
                .expect("no actor panicked")
                .seen
                .extend(read.slots);
        }
    }
}

fn check(history: &History, slots: &[Slot]) -> Result<(), String> {
    let log: BTreeMap<SlotIndex, &Slot> = slots.iter().map(|slot| (slot.index, slot)).collect();
    acknowledged_records_stand_once(history, &log)?;
    takeovers_replayed_what_was_acknowledged(history)?;
    let different = history
        .seen
        .iter()
        .find(|seen| log.get(&seen.index) != Some(seen));
    if let Some(seen) = different {
        return Err(format!(
            "a reader saw {seen:?}, and the log says {:?}",
            log.get(&seen.index)
        ));
    }
    let epochs: Vec<Epoch> = slots.iter().map(|slot| slot.epoch).collect();
    if epochs.is_sorted() {
        Ok(())
    } else {
        Err(format!("epochs go back: {epochs:?}"))
    }
}

/// S11.
fn acknowledged_records_stand_once(
    history: &History,
    log: &BTreeMap<SlotIndex, &Slot>,
) -> Result<(), String> {
    let payloads: BTreeSet<&Bytes> = log.values().map(|slot| &slot.payload).collect();
    if payloads.len() != log.len() {
        return Err("a record stands twice".to_owned());
    }
    for (index, epoch, payload) in &history.acknowledged {
        let there = log
            .get(index)
            .is_some_and(|slot| slot.payload == payload && slot.epoch == *epoch);
        if !there {
            return Err(format!(
                "{payload:?} was acknowledged at {index:?}: {:?}",
                log.get(index)
            ));
        }
    }
    Ok(())
}

/// S10: a successor knew each acknowledged record of a lower epoch when it took over.
fn takeovers_replayed_what_was_acknowledged(history: &History) -> Result<(), String> {
    for Takeovers { epoch, replayed } in &history.takeovers {
        let replayed: BTreeSet<&Bytes> = replayed.iter().map(|slot| &slot.payload).collect();
        for (index, of, payload) in &history.acknowledged {
            if of < epoch && !replayed.contains(payload) {
                return Err(format!(
                    "{epoch:?} took over without {payload:?}, acknowledged at {index:?}"
                ));
            }
        }
    }
    Ok(())
}
