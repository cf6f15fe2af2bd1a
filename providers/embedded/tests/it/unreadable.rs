//! A checkpoint store that can neither be read nor opened again for a while: its items are not
//! reported as absent.

use std::sync::Arc;

use bytes::Bytes;
use embedded::{Config, Embedded};
use ports::{
    Condition, ErrorKind, Update,
    key_value::{Action, Outcome, Scan},
};

use crate::{
    faulty::{Faults, FaultyStorage},
    world::{block_on, config, directory, durably, key, put, value},
};

/// More than fit one block, so that the first read does not bring all of them.
const ITEMS: i64 = 200;

fn name(number: i64) -> String {
    format!("item-{number:04}")
}

/// Leaves a checkpoint that holds all items.
async fn fill(config: Config) {
    let store = Embedded::open(config).await.expect("the store opens");
    let kv = store.key_value();
    for number in 0..ITEMS {
        let filling = Action::set("filling", Bytes::from(vec![1; 1000]));
        let item = vec![Action::set_integer("value", number), filling];
        kv.update(Update::modify(key(&name(number)), item))
            .await
            .expect("there is room");
    }
    store.close().await;
}

/// K1, K2: until the disk reads again, an item in the checkpoint is served or refused, on every
/// get, scan and conditional create.
#[test]
fn no_item_is_reported_absent_while_the_checkpoint_store_cannot_be_opened_again() {
    let directory = directory();
    let faults = Arc::new(Faults::default());
    let storage = Arc::new(FaultyStorage(Arc::clone(&faults)));
    let config = Config {
        storage,
        ..config(directory.path())
    };
    block_on(async {
        fill(config.clone()).await;
        let store = Embedded::open(config).await.expect("the store opens");
        let kv = store.key_value();
        Faults::set(&faults.fail_checkpoint_reads, true);
        let mut refused = 0;
        for number in 0..ITEMS {
            // Items read before are still cached.
            match kv.get(&key(&name(number))).await {
                Ok(read) => assert!(read.value.is_some(), "item {number} is reported absent"),
                Err(error) => {
                    assert!(
                        matches!(error.kind(), ErrorKind::Unavailable { .. }),
                        "{error}"
                    );
                    refused += 1;
                }
            }
            match kv
                .update(put(&name(number), -1).when(Condition::Absent))
                .await
            {
                Ok(updated) => assert!(
                    matches!(updated.outcome, Outcome::Conflict(Some(_))),
                    "item {number} is made anew"
                ),
                Err(error) => assert!(
                    matches!(error.kind(), ErrorKind::Unavailable { .. }),
                    "{error}"
                ),
            }
        }
        assert!(refused > ITEMS / 2, "{refused} reads were refused");
        kv.scan(&Scan::partition("test", 10))
            .await
            .expect_err("the disk does not read");
        Faults::set(&faults.fail_checkpoint_reads, false);
        for number in 0..ITEMS {
            assert_eq!(value(&kv, &name(number)).await, Some(number));
        }
        durably(&kv, put("later", 1)).await;
        drop((store, kv));
    });
}
