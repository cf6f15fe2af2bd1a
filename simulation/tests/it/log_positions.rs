//! C5, D4: an answer that depends on a lost position of the log is not released by durability of
//! its successor.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use coordination::{
    Client, Parts,
    broken::Broken,
    model::{Lifetime, Output, Request, Watching},
};
use ports::faults::{Fault, FaultSchedule, FaultyFunctions, FaultyKeyValue};
use simulated::{Options, World};

use crate::single_service::{connect, create, following_with, is_answered, parts, without};

const FSYNC: Duration = Duration::from_millis(150);

/// Longer than it takes to find the next position and to make something durable there.
const READ_TAKES: Duration = Duration::from_secs(3);

/// By how much the view lags behind the applied slots.
const TOLD_AFTER: Duration = Duration::from_millis(100);

/// While switched on, reads and notifications of applied slots take long.
#[derive(Debug, Default)]
struct Slow {
    reads: AtomicBool,
    tells: AtomicBool,
}

impl FaultSchedule for Slow {
    fn next(&self, operation: &'static str) -> Fault {
        match operation {
            "key_value.get" if self.reads.load(Ordering::Relaxed) => Fault::Delay(READ_TAKES),
            "functions.invoke" if self.tells.load(Ordering::Relaxed) => Fault::Delay(TOLD_AFTER),
            _ => Fault::None,
        }
    }
}

impl Slow {
    /// Reads take long only for `reader`.
    async fn for_reader<T>(&self, reader: impl Future<Output = T>) -> T {
        let mut reader = pin!(reader);
        poll_fn(|context| {
            self.reads.store(true, Ordering::Relaxed);
            let polled = reader.as_mut().poll(context);
            self.reads.store(false, Ordering::Relaxed);
            polled
        })
        .await
    }
}

/// The outputs of a client until it ends or has had two answers.
async fn shown_until_its_end(client: &mut Client) -> Vec<Output> {
    let mut outputs = Vec::new();
    while outputs.len() < 2 && client.pump(&mut outputs).await.is_ok() {
        client.wait().await;
    }
    outputs
}

/// The outputs for an update that the store loses while a following read is in progress. Others
/// meanwhile continue from the next position of the log.
async fn shown_of_the_lost(broken: Option<Broken>) -> Vec<Output> {
    let (world, slow) = (
        World::with_options(
            1,
            Options {
                fsync: FSYNC..=FSYNC,
                ..Options::default()
            },
        ),
        Arc::<Slow>::default(),
    );
    let items = Arc::new(FaultyKeyValue::new(
        world.key_value(),
        slow.clone(),
        world.clock(),
    ));
    let made_of = Parts {
        system: items.clone(),
        items,
        objects: world.objects(),

        functions: Arc::new(FaultyFunctions::new(
            world.functions(),
            slow.clone(),
            world.clock(),
        )),
        ..parts(&world)
    };
    let service = following_with(&world, made_of, without(broken)).await;
    let (gateway, clock) = (service.gateway(), world.clock());
    let mut client = connect(&gateway).await.expect("a calm world");
    let before = gateway.applied();
    client.submit(1, create("/lost", Lifetime::Persistent));
    client.submit(
        2,
        Request::Exists {
            path: "/never".into(),
            watching: Watching::No,
        },
    );
    let others = async {
        while gateway.applied() == before {
            clock.sleep(Duration::from_millis(1)).await;
        }
        world.fall_back();
        slow.tells.store(true, Ordering::Relaxed);
        let mut other = loop {
            match connect(&gateway).await {
                Ok(other) => break other,
                Err(_) => clock.sleep(TOLD_AFTER).await,
            }
        };
        for number in 0.. {
            is_answered(
                &mut other,
                create(&format!("/{number}"), Lifetime::Persistent),
            )
            .await;
        }
        unreachable!("the client comes to its end first");
    };
    tokio::select! {
        biased;
        shown = slow.for_reader(shown_until_its_end(&mut client)) => shown,
        never = others => never,
    }
}

/// C5: a lost update is never answered, however long the following read takes.
#[test]
fn answers_of_a_lost_position_are_not_confirmed_by_the_next() {
    assert_eq!(simulated::run(shown_of_the_lost(None)), []);
}

/// C5, D4, broken.
#[test]
fn confirming_answers_of_a_lost_position_is_caught() {
    let shown = simulated::run(shown_of_the_lost(Some(Broken::ConfirmsLostZxids)));
    assert!(
        matches!(
            shown[..],
            [
                Output::Reply {
                    tag: 1,
                    result: Ok(_),
                    ..
                },
                ..
            ]
        ),
        "{shown:?}"
    );
}
