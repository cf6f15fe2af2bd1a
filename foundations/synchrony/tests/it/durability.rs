//! The durability contract: the near store crashes and restarts, alone or with the far one.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use ports::{
    Clock,
    contract::{Case, durability},
    key_value::SharedKeyValue,
    objects::ObjectStore,
    queue::SharedQueue,
};
use synchrony::{Lane, Options, Synchrony};

use crate::{Pair, distant, ms, shared};

/// A pair whose near store crashes, or both stores.
struct Crashing {
    pair: Pair,
    far_dies: bool,
    synchrony: Synchrony,
    lane: Lane,
}

impl fmt::Debug for Crashing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Crashing")
    }
}

impl Crashing {
    async fn open(pair: Pair, far_dies: bool) -> durability::Subject {
        let synchrony = pair.open(Options::default()).await;
        let lane = synchrony.lane().expect("there are lanes");
        Box::new(Self {
            pair,
            far_dies,
            synchrony,
            lane,
        })
    }
}

#[async_trait]
impl durability::Crashable for Crashing {
    fn key_value(&self) -> SharedKeyValue {
        shared(self.lane.clone())
    }
    fn queue(&self) -> Option<SharedQueue> {
        None
    }
    fn objects(&self) -> Option<Arc<dyn ObjectStore>> {
        None
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.pair.near.clock()
    }
    async fn crash_and_reopen(self: Box<Self>) -> durability::Subject {
        let Self {
            pair,
            far_dies,
            synchrony,
            lane,
        } = *self;
        drop((lane, synchrony));
        pair.near.crash();
        if far_dies {
            pair.far.crash();
        }
        Self::open(pair, far_dies).await
    }
}

fn on(far_dies: bool, case: Case<durability::Subject>) {
    simulated::run(async {
        let pair = Pair::with(1, simulated::Options::default(), distant(ms(1)));
        case.run(Crashing::open(pair, far_dies).await).await;
    });
}

mod near_dies {
    ports::durability_contract!(|case| super::on(false, case));
}

mod both_die {
    ports::durability_contract!(|case| super::on(true, case));
}
