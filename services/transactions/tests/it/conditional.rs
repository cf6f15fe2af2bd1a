//! Plain writes under a condition whose caller leaves.

use std::time::Duration;

use transactions::{Config, Expected, layout};

use crate::{
    gate::{Gate, Held},
    house::{Node, bytes, in_virtual_time, key},
};

/// It was dropped between its read and its write, and its transaction stayed open.
#[test]
fn a_conditional_write_whose_caller_leaves_runs_to_its_end() {
    in_virtual_time(async |world| {
        for (partition, held) in [
            (layout::DECISIONS, Held::Updates),
            (layout::VERSIONS, Held::Scans),
        ] {
            let gate = Gate::new(world.key_value());
            let node = Node::on(&world, gate.clone(), Config::default()).await;
            gate.close(held, partition);
            let name = format!("{held:?}");
            let absent = Expected::Absent;
            let mut write = node.engine.put_now_if(key(&name), Some(bytes("v")), absent);
            tokio::select! {
                biased;
                () = gate.holds() => {}
                written = &mut write => panic!("it is held: {written:?}"),
            }
            drop(write);
            gate.open();
            while node.engine.figures().open > 0 {
                world.clock().sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(node.now(&name).await.as_deref(), Some("v"), "{name}");
            assert_eq!(node.engine.figures().buffered_bytes, 0);
        }
    });
}
