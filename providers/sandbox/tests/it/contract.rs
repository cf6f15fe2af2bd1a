//! The runtime's contract, on this machine as it is, and where it gives neither namespaces nor control groups.

use std::{path::Path, sync::Arc};

use in_process::SystemClock;
use ports::contract::{Case, runtime::Subject};
use sandbox::process::Enforcement;

use crate::{
    processes::{block_on, one_at_a_time, world},
    world::CODE,
};

fn run(case: Case<Subject>, enforcement: impl FnOnce(&Path) -> Enforcement) {
    block_on(async {
        let world = world(enforcement);
        let function = world.function("obedient", CODE, |_| {}).await;
        let subject = Subject {
            runtime: world.sandbox.clone(),
            function: (*function).clone(),
            clock: Arc::new(SystemClock),
        };
        case.run(subject).await;
        world.close().await;
    });
}

mod as_it_is {
    ports::runtime_contract!(|case| {
        let _turn = super::one_at_a_time();
        super::run(case, super::Enforcement::probe);
    });
}

mod with_nothing {
    ports::runtime_contract!(|case| super::run(case, |_| super::Enforcement::nothing()));
}
