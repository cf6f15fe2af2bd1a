//! The cases of [`objects`](crate::objects): the calls of an `ObjectStore` that Landfast uses, and
//! no others.

use std::sync::Arc;

use super::{Case, Spawn, in_place, together};
use crate::objects::{ObjectLimits, ObjectStore};

/// A fresh object store.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The store under test.
    pub objects: Arc<dyn ObjectStore>,
    /// Its limits, by which the cases leave out what it does not offer.
    pub limits: ObjectLimits,
    /// How the cases run writers beside each other.
    pub spawn: Spawn,
}

impl Subject {
    /// A subject whose concurrent writers run on one thread.
    pub fn new(objects: Arc<dyn ObjectStore>, limits: ObjectLimits) -> Self {
        Self {
            objects,
            limits,
            spawn: in_place,
        }
    }

    /// The same with concurrent writers run by `spawn`.
    pub fn spawning(mut self, spawn: Spawn) -> Self {
        self.spawn = spawn;
        self
    }
}

/// The suite.
pub const CASES: &[Case<Subject>] = crate::objects_contract!(@list);

/// One test per case of the objects contract; `run` takes a
/// [`Case<contract::objects::Subject>`](crate::contract::Case) and runs it on a fresh store.
#[macro_export]
macro_rules! objects_contract {
    ($($run:tt)*) => {
        $crate::contract_cases! { [$($run)*] objects {
            cases {
                "O1" a_get_returns_the_object_that_was_put,
                "O1" a_deleted_object_is_gone,
                "O2" a_second_create_is_told_that_the_name_is_taken,
                "O2" only_one_of_many_creates_of_a_name_wins,
                "O3" a_part_is_got_by_its_range,
                "O3" a_get_beside_a_put_sees_the_whole_object_or_none,
                "O4" a_list_shows_what_lies_under_its_prefix_once,
                "O4" a_list_of_many_objects_is_complete,
            }
            parts {
                "O5" an_object_put_in_parts_appears_whole_when_it_is_completed,
                "O5" parts_keep_the_order_in_which_they_were_given,
                "O5" an_aborted_upload_leaves_nothing,
                "O6" a_large_object_is_streamed_in_bounded_pieces,
            }
        } }
    };
}

mod parts;

mod cases {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use futures_util::{TryStreamExt, future::BoxFuture};

    use super::{Arc, Subject, together};
    use crate::{
        contract::pause,
        objects::{ObjectError, ObjectPath, ObjectStoreExt, PutMode},
    };

    impl Subject {
        pub(super) async fn create(&self, name: &str, content: Bytes) -> Result<(), ObjectError> {
            let path = ObjectPath::from(name);
            self.objects
                .put_opts(&path, content.into(), PutMode::Create.into())
                .await
                .map(drop)
        }

        pub(super) async fn get(&self, name: &str) -> Option<Bytes> {
            match self.objects.get(&ObjectPath::from(name)).await {
                Ok(found) => Some(
                    found
                        .bytes()
                        .await
                        .expect("an object that is there is read whole"),
                ),
                Err(ObjectError::NotFound { .. }) => None,
                Err(error) => panic!("get {name}: {error}"),
            }
        }

        pub(super) async fn list(&self, prefix: Option<&str>) -> Vec<(String, u64)> {
            let prefix = prefix.map(ObjectPath::from);
            let listed = self
                .objects
                .list(prefix.as_ref())
                .try_collect::<Vec<_>>()
                .await;
            let mut listed: Vec<(String, u64)> = listed
                .expect("list answers")
                .into_iter()
                .map(|meta| (meta.location.to_string(), meta.size))
                .collect();
            listed.sort_unstable();
            listed
        }
    }

    /// `length` bytes that identify their writer.
    fn content(writer: u8, length: usize) -> Bytes {
        (0..length)
            .map(|index| writer ^ (index % 251) as u8)
            .collect()
    }

    /// O1.
    pub(super) async fn a_get_returns_the_object_that_was_put(subject: Subject) {
        let mut put = BTreeMap::new();
        assert_eq!(subject.get("put/missing").await, None);
        for (number, length) in [0, 1, 4096, 300_000].into_iter().enumerate() {
            let (name, content) = (
                format!("put/{number} of é #%"),
                content(number as u8, length),
            );
            assert_eq!(subject.get(&name).await, None);
            subject
                .create(&name, content.clone())
                .await
                .expect("create answers");
            let meta = subject
                .objects
                .head(&ObjectPath::from(name.as_str()))
                .await
                .expect("head answers");
            assert_eq!(meta.size, length as u64);
            put.insert(name, content);
            for (name, content) in &put {
                assert_eq!(subject.get(name).await.as_ref(), Some(content), "{name}");
            }
        }
    }

    /// O1.
    pub(super) async fn a_deleted_object_is_gone(subject: Subject) {
        subject
            .create("deleted/one", content(1, 10))
            .await
            .expect("create answers");
        subject
            .create("deleted/two", content(2, 10))
            .await
            .expect("create answers");
        subject
            .objects
            .delete(&ObjectPath::from("deleted/one"))
            .await
            .expect("delete answers");
        assert_eq!(subject.get("deleted/one").await, None);
        assert_eq!(subject.get("deleted/two").await, Some(content(2, 10)));
        assert_eq!(
            subject.list(Some("deleted")).await,
            [("deleted/two".to_owned(), 10)]
        );
    }

    /// O2.
    pub(super) async fn a_second_create_is_told_that_the_name_is_taken(subject: Subject) {
        subject
            .create("taken", content(1, 10))
            .await
            .expect("create answers");
        let answer = subject.create("taken", content(2, 10)).await;
        assert!(
            matches!(answer, Err(ObjectError::AlreadyExists { .. })),
            "{answer:?}"
        );
        assert_eq!(subject.get("taken").await, Some(content(1, 10)));
    }

    /// O2.
    pub(super) async fn only_one_of_many_creates_of_a_name_wins(subject: Subject) {
        let answers = together(
            subject.spawn,
            (0..32).map(|writer| {
                let subject = subject.clone();
                async move {
                    pause().await;
                    (
                        writer,
                        subject.create("race", content(writer, 50_000)).await,
                    )
                }
            }),
        )
        .await;
        let mut winners = Vec::new();
        for (writer, answer) in answers {
            match answer {
                Ok(()) => winners.push(writer),
                Err(ObjectError::AlreadyExists { .. }) => {}
                Err(error) => panic!("writer {writer}: {error}"),
            }
        }
        assert_eq!(winners.len(), 1, "{winners:?}");
        assert_eq!(subject.get("race").await, Some(content(winners[0], 50_000)));
    }

    /// O3.
    pub(super) async fn a_part_is_got_by_its_range(subject: Subject) {
        let (path, whole) = (ObjectPath::from("range"), content(3, 10_000));
        subject
            .create("range", whole.clone())
            .await
            .expect("create answers");
        for (from, until) in [(0, 1), (0, 10_000), (4_095, 4_097), (9_999, 10_000)] {
            let part = subject
                .objects
                .get_range(&path, from..until)
                .await
                .expect("get_range answers");
            assert_eq!(part, whole.slice(from as usize..until as usize));
        }
    }

    /// O3.
    pub(super) async fn a_get_beside_a_put_sees_the_whole_object_or_none(subject: Subject) {
        const LENGTH: usize = 400_000;
        let mut tasks: Vec<BoxFuture<'static, ()>> = Vec::new();
        for number in 0..8_u8 {
            let name = format!("beside/{number}");
            let (writer, reader, read) = (subject.clone(), subject.clone(), name.clone());
            tasks.push(Box::pin(async move {
                pause().await;
                writer
                    .create(&name, content(number, LENGTH))
                    .await
                    .expect("create answers");
            }));
            tasks.push(Box::pin(async move {
                for _ in 0..20 {
                    if let Some(found) = reader.get(&read).await {
                        assert_eq!(found.len(), LENGTH, "half of {read}");
                        assert_eq!(found, content(number, LENGTH), "{read}");
                    }
                    pause().await;
                }
            }));
        }
        together(subject.spawn, tasks).await;
    }

    /// O4.
    pub(super) async fn a_list_shows_what_lies_under_its_prefix_once(subject: Subject) {
        for name in [
            "list/a/1",
            "list/a/2",
            "list/a/deeper/3",
            "list/ab/4",
            "list/b",
            "elsewhere/5",
        ] {
            subject
                .create(name, content(0, name.len()))
                .await
                .expect("create answers");
        }
        let names = |listed: Vec<(String, u64)>| {
            assert!(
                listed.iter().all(|(name, size)| *size == name.len() as u64),
                "{listed:?}"
            );
            listed.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let under_a = ["list/a/1", "list/a/2", "list/a/deeper/3"];
        assert_eq!(names(subject.list(Some("list/a")).await), under_a);
        let under_list = [&under_a[..], &["list/ab/4", "list/b"]].concat();
        assert_eq!(names(subject.list(Some("list")).await), under_list);
        assert_eq!(
            names(subject.list(None).await),
            [&["elsewhere/5"][..], &under_list].concat()
        );
        assert!(subject.list(Some("nowhere")).await.is_empty());
    }

    /// O4.
    pub(super) async fn a_list_of_many_objects_is_complete(subject: Subject) {
        const OBJECTS: usize = 300;
        let mut expected = Vec::new();
        for number in 0..OBJECTS {
            let name = format!("many/{number:04}");
            subject
                .create(&name, content(0, 1))
                .await
                .expect("create answers");
            expected.push((name, 1));
        }
        assert_eq!(subject.list(Some("many")).await, expected);
        let one: Arc<_> = Arc::clone(&subject.objects);
        one.delete(&ObjectPath::from("many/0150"))
            .await
            .expect("delete answers");
        expected.remove(150);
        assert_eq!(subject.list(Some("many")).await, expected);
    }
}
