//! O1, O3: the directory of objects is the one that was opened, or it answers nothing.
//!
//! An unmount leaves an empty directory in place of the objects. Here the directory is renamed, and
//! another one created.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use embedded::ObjectDirectory;
use futures_util::TryStreamExt as _;
use ports::objects::{ObjectError, ObjectPath, ObjectStore, ObjectStoreExt as _, PutMode};
use tempfile::TempDir;

use crate::world::{block_on, directory};

/// A store with one object, and a way to take its directory away.
struct Opened {
    _directory: TempDir,
    place: PathBuf,
    aside: PathBuf,
    directory: ObjectDirectory,
    objects: Arc<dyn ObjectStore>,
}

const BEFORE: &str = "packs/home/1";
const NEW: &str = "packs/home/2";

async fn opened() -> Opened {
    let parent = directory();
    let (place, aside) = (parent.path().join("objects"), parent.path().join("aside"));
    let directory = embedded::open_objects(place.clone())
        .await
        .expect("they open");
    let objects = directory.objects();
    create(&objects, BEFORE).await.expect("the disk has room");
    Opened {
        _directory: parent,
        place,
        aside,
        directory,
        objects,
    }
}

async fn create(objects: &Arc<dyn ObjectStore>, name: &str) -> Result<(), ObjectError> {
    let put = objects
        .put_opts(
            &ObjectPath::from(name),
            "whole".into(),
            PutMode::Create.into(),
        )
        .await;
    put.map(|_| ())
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).expect("it lists").next().is_none()
}

fn assert_refused<T: std::fmt::Debug>(answer: Result<T, ObjectError>) {
    assert!(
        matches!(answer, Err(ObjectError::Generic { .. })),
        "{answer:?}"
    );
    let kind = ports::objects::failed("ask".into(), answer.expect_err("it was looked at")).kind();
    assert!(
        matches!(kind, ports::ErrorKind::Unavailable { .. }),
        "{kind:?}"
    );
}

async fn assert_nothing_is_answered(objects: &Arc<dyn ObjectStore>) {
    let before = ObjectPath::from(BEFORE);
    assert_refused(create(objects, NEW).await);
    assert_refused(objects.get(&before).await);
    assert_refused(objects.head(&before).await);
    assert_refused(objects.get_range(&before, 0..2).await);
    assert_refused(objects.delete(&before).await);
    assert_refused(objects.list(None).try_collect::<Vec<_>>().await);
    assert_refused(objects.list_with_delimiter(None).await);
}

/// O1, O3.
#[test]
fn an_empty_directory_in_place_of_the_objects_is_neither_written_nor_trusted() {
    block_on(async {
        let Opened {
            _directory,
            place,
            aside,
            directory,
            objects,
        } = opened().await;
        fs::rename(&place, &aside).expect("it is renamed");
        fs::create_dir(&place).expect("it is made");
        assert_nothing_is_answered(&objects).await;
        assert!(directory.is_missing() && is_empty(&place));
        fs::remove_dir(&place).expect("nothing is in it");
        fs::rename(&aside, &place).expect("it is renamed");
        create(&objects, NEW).await.expect("it goes on by itself");
        assert!(!directory.is_missing());
        let whole = objects
            .get(&ObjectPath::from(BEFORE))
            .await
            .expect("it is there")
            .bytes()
            .await;
        assert_eq!(whole.expect("it is read"), "whole");
        let absent = objects.head(&ObjectPath::from("packs/home/3")).await;
        assert!(
            matches!(absent, Err(ObjectError::NotFound { .. })),
            "{absent:?}"
        );
    });
}

/// O1, O3.
#[test]
fn a_removed_directory_of_objects_is_not_recreated_while_it_is_open() {
    block_on(async {
        let Opened {
            _directory,
            place,
            aside,
            directory,
            objects,
        } = opened().await;
        fs::rename(&place, &aside).expect("it is renamed");
        directory.check().await.expect_err("it is gone");
        assert!(directory.is_missing());
        assert_nothing_is_answered(&objects).await;
        assert!(!place.exists());
        fs::rename(&aside, &place).expect("it is renamed");
        directory.check().await.expect("it is back");
        assert!(!directory.is_missing());
    });
}
