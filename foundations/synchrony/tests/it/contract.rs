//! The key-value contract over simulated pairs: a lane is a `KeyValue` like any other.

use std::time::Duration;

use ports::contract::{Case, key_value::Subject};
use synchrony::{Mode, Options};

use crate::{Pair, distant, ms, shared, spawn};

/// Every call responds at once.
fn calm() -> (Pair, Options) {
    (Pair::new(1), Options::default())
}

/// Each write waits for a slow far store. The near store takes a moment, too: while readers get
/// responses at once, virtual time stands still.
fn sync() -> (Pair, Options) {
    let pair = Pair::with(2, distant(ms(1)), distant(ms(5)));
    (
        pair,
        Options {
            mode: Mode::Sync,
            ..Options::default()
        },
    )
}

/// The paper's protocol: one far write at a time.
fn serial() -> (Pair, Options) {
    let far = distant(ms(5));
    (
        Pair::with(3, simulated::Options::default(), far),
        Options {
            mode: Mode::Serial,
            ..Options::default()
        },
    )
}

/// Few items stay near, and calls overtake each other.
fn tight() -> (Pair, Options) {
    let near = simulated::Options {
        latency: Some(Duration::ZERO..=ms(2)),
        ..simulated::Options::default()
    };
    let far = simulated::Options {
        latency: Some(Duration::ZERO..=ms(20)),
        ..near.clone()
    };
    (
        Pair::with(4, near, far),
        Options {
            near_bytes_max: 600,
            ..Options::default()
        },
    )
}

/// A near store with small transactions, and a far one without transactions across partitions or
/// snapshots.
fn frugal() -> (Pair, Options) {
    let mut near = simulated::Options::default();
    near.key_value.transact_items_max = 20;
    let mut far = simulated::Options {
        durable_at_once: true,
        ..distant(ms(1))
    };
    far.key_value.transact_across_partitions = false;
    far.key_value.page_is_snapshot = false;
    far.key_value.page_items_max = 50;
    (Pair::with(5, near, far), Options::default())
}

fn on((pair, options): (Pair, Options), case: Case<Subject>) {
    simulated::run(async {
        let synchrony = pair.open(options).await;
        let lane = synchrony.lane().expect("there are lanes");
        let point = ports::Externalize::point(&lane);
        case.run(Subject::new(shared(lane.clone()), pair.near.clock()).spawning(spawn))
            .await;
        ports::Externalize::externalize(&lane, point)
            .await
            .expect("all is well");
        synchrony
            .drain()
            .await
            .expect("everything becomes far-durable");
    });
}

macro_rules! contracts {
    ($pair:ident) => {
        mod $pair {
            use crate::contract::{self, on};
            ports::key_value_contract!(|case| on(contract::$pair(), case));
        }
    };
}

contracts!(calm);
contracts!(sync);
contracts!(serial);
contracts!(tight);
contracts!(frugal);
