//! The contracts of the sandbox's ports. Those of the runtime and of instances run on this machine
//! as it is, and as if it had neither namespaces nor control groups.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
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
            logs: world.sandbox.logs(),
            function: (*function).clone(),
            clock: Arc::new(SystemClock),
        };
        case.run(subject).await;
        world.close().await;
    });
}

/// An archive as `landfast functions deploy` sends it, with one file.
fn archive(path: &str, content: &[u8]) -> Bytes {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    builder
        .append_data(&mut header, path, content)
        .expect("appended");
    let finished = builder.into_inner().and_then(GzEncoder::finish);
    Bytes::from(finished.expect("finished"))
}

mod runtime {
    mod as_it_is {
        ports::runtime_contract!(|case| {
            let _turn = crate::contract::one_at_a_time();
            crate::contract::run(case, crate::contract::Enforcement::probe);
        });
    }

    mod with_nothing {
        ports::runtime_contract!(|case| crate::contract::run(case, |_| {
            crate::contract::Enforcement::nothing()
        }));
    }
}

mod logs {
    ports::logs_contract!(|case| crate::contract::run(case, |_| {
        crate::contract::Enforcement::nothing()
    }));
}

mod code_store {
    use ports::contract::code_store::Subject;

    use super::{archive, block_on, world};

    ports::code_store_contract!(|case: ports::contract::Case<Subject>| block_on(async {
        let world = world(|_| crate::contract::Enforcement::nothing());
        let store = world.sandbox.code_store();
        case.run(Subject { store, archive }).await;
        world.close().await;
    }));
}

mod instances {
    use ports::{
        contract::{Case, instances::Subject},
        instances::Spec,
    };

    use super::{Arc, Enforcement, Path, SystemClock, block_on, world};
    use crate::world::PYTHON;

    const PROGRAM: &str = include_str!("instance.py");

    fn run(case: Case<Subject>, enforcement: impl FnOnce(&Path) -> Enforcement) {
        block_on(async {
            let world = world(enforcement);
            let subject = Subject {
                instances: world.sandbox.instances(),
                spec: Spec {
                    command: [PYTHON, "-c", PROGRAM].map(str::to_owned).into(),
                    memory_bytes: 256 << 20,
                    ..Spec::default()
                },
                clock: Arc::new(SystemClock),
            };
            case.run(subject).await;
            world.close().await;
        });
    }

    mod as_it_is {
        ports::instances_contract!(|case| {
            let _turn = crate::contract::one_at_a_time();
            super::run(case, crate::contract::Enforcement::probe);
        });
    }

    mod with_nothing {
        ports::instances_contract!(|case| super::run(case, |_| {
            crate::contract::Enforcement::nothing()
        }));
    }
}
