//! O2: the file of a put that a crash interrupted is removed, and objects of any name stay.

use std::fs;

use embedded::{Config, Embedded};
use ports::objects::{ObjectPath, ObjectStoreExt as _};

use crate::world::{block_on, directory, found};

#[test]
fn the_next_start_removes_files_of_unfinished_puts() {
    let directory = directory();
    block_on(async {
        let finished = ObjectPath::from("znodes/1/finished");
        let store = Embedded::open(Config::new(directory.path()))
            .await
            .expect("the store opens");
        store
            .objects()
            .put(&finished, "whole".into())
            .await
            .expect("the disk has room");
        store.close().await;
        let folder = directory.path().join("objects/znodes/1");
        let staged = folder.join("unfinished#12");
        fs::write(&staged, "par").expect("the disk has room");

        let store = Embedded::open(Config::new(directory.path()))
            .await
            .expect("the store opens");
        found("the staged file goes", async || {
            (!staged.exists()).then_some(())
        })
        .await;
        let whole = store
            .objects()
            .get(&finished)
            .await
            .expect("it is there")
            .bytes()
            .await;
        assert_eq!(whole.expect("it is read"), "whole");
    });
}
