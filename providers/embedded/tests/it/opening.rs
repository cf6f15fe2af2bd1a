//! Opens that the caller drops before they end.

use std::sync::Arc;

use embedded::{Config, Embedded};
use futures_util::poll;

use crate::{
    faulty::{Faults, FaultyStorage},
    world::{block_on, config, directory, durably, eventually, found, put, value},
};

/// One process has the directory open at a time. A dropped open releases it, and leaves no threads.
#[test]
fn an_open_that_is_dropped_while_it_runs_releases_the_directory() {
    let directory = directory();
    block_on(async {
        let faults = Arc::new(Faults::default());
        let storage = Arc::new(FaultyStorage(Arc::clone(&faults)));
        let config = Config {
            storage,
            ..config(directory.path())
        };
        let store = Embedded::open(config.clone()).await.expect("it opens");
        durably(&store.key_value(), put("kept", 1)).await;
        drop(store);
        faults.hold_syncs(true);
        let mut opening = Box::pin(Embedded::open(config.clone()));
        assert!(
            poll!(&mut opening).is_pending(),
            "its first record is not synced"
        );
        eventually("it has the directory", || faults.waiting_syncs() == 1).await;
        drop(opening);
        faults.hold_syncs(false);
        let store = found("the directory is given back", async || {
            Embedded::open(config.clone()).await.ok()
        });
        assert_eq!(value(&store.await.key_value(), "kept").await, Some(1));
    });
}
