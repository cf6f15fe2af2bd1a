//! The names of conflicts.

use transactions::serializable::model::Key;

use super::*;
use crate::{
    Ino,
    inode::{self, Field},
};

#[test]
fn a_key_is_named_by_the_path_of_its_file() {
    simulated::run(async {
        let files = fresh().await;
        let mut directory = Ino::ROOT;
        for text in ["a", "b", "c"] {
            let made = files.mkdir(directory, ACCESS, &name(text)).await;
            directory = made.expect("made");
        }
        let created = files.create(directory, ACCESS, &name("file")).await;
        let file = created.expect("created");
        let gone = Ino(file.0 + 1_000);
        for (key, expected) in [
            (inode::block(file, 7), "/a/b/c/file"),
            (inode::field(file, Field::Size), "/a/b/c/file"),
            (inode::orphan(file), "/a/b/c/file"),
            (inode::entry(directory, b"new"), "/a/b/c/new"),
            (inode::entry(Ino::ROOT, b"new"), "/new"),
            (inode::field(Ino::ROOT, Field::Mtime), "/"),
        ] {
            assert_eq!(files.name_of(&key).await, expected);
        }
        for (key, expected) in [
            (
                inode::lock_key(file),
                "another client locked /a/b/c/file, or removed it",
            ),
            (
                inode::block(file, 7),
                "another transaction changed /a/b/c/file",
            ),
            (
                inode::entry(directory, b"new"),
                "another transaction changed /a/b/c/new",
            ),
        ] {
            assert_eq!(files.cause_of(&key).await, expected);
        }
        let unnamed = files.name_of(&inode::field(gone, Field::Size)).await;
        assert_eq!(unnamed, format!("the file with inode {}", gone.0));
        let other = Key::new("k", "balance").expect("a key");
        assert_eq!(files.name_of(&other).await, "the key b\"balance\"");
    });
}

/// The search for a name is bounded.
#[test]
fn one_of_many_names_may_stay_unfound() {
    simulated::run(async {
        let files = fresh().await;
        let mut last = Ino::ROOT;
        for number in 0..1_500 {
            let text = format!("{number:05}");
            let created = files.create(Ino::ROOT, ACCESS, &name(&text)).await;
            last = created.expect("created");
        }
        let key = inode::field(last, Field::Size);
        assert_eq!(files.name_of(&key).await, "/01499", "on the second page");
        assert_eq!(files.path_of(last, 1_400).await, Ok(None));
    });
}
