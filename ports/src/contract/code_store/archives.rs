//! What becomes of an archive: B1 to B4.

use bytes::Bytes;

use super::{BYTES_MAX, PATH, Subject};
use crate::ErrorKind;

/// B1.
pub(super) async fn an_installed_archive_is_there_whole(subject: Subject) {
    let long = vec![b'x'; BYTES_MAX];
    subject.install("one", b"of one").await;
    subject.install("long", &long).await;
    assert_eq!(subject.file("one").await.as_deref(), Some(&b"of one"[..]));
    assert!(subject.file("long").await.is_some_and(|file| file == long));
}

/// B1.
pub(super) async fn installing_an_archive_again_changes_nothing(subject: Subject) {
    subject.install("one", b"of one").await;
    subject.install("other", b"of other").await;
    subject.install("one", b"of one").await;
    assert_eq!(subject.file("one").await.as_deref(), Some(&b"of one"[..]));
    assert_eq!(
        subject.file("other").await.as_deref(),
        Some(&b"of other"[..])
    );
}

/// B2.
pub(super) async fn content_that_is_no_archive_is_refused_and_leaves_nothing(subject: Subject) {
    let refused = subject
        .store
        .install("one", Bytes::from_static(b"no archive"))
        .await
        .expect_err("it is refused");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert_eq!(subject.file("one").await, None);
    subject.install("one", b"of one").await;
    assert_eq!(subject.file("one").await.as_deref(), Some(&b"of one"[..]));
}

/// B3.
pub(super) async fn a_file_is_read_whole_or_refused(subject: Subject) {
    const CONTENT: &[u8] = b"eight by";
    subject.install("one", CONTENT).await;
    let bounded = async |bytes_max| subject.store.file("one", PATH, bytes_max).await;
    let refused = bounded(CONTENT.len() - 1).await.expect_err("it is refused");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let read = bounded(CONTENT.len()).await.expect("it fits");
    assert_eq!(read.as_deref(), Some(CONTENT));
}

/// B3.
pub(super) async fn a_file_that_is_not_there_is_none(subject: Subject) {
    subject.install("one", b"of one").await;
    for (archive, path) in [("one", "code/other.py"), ("other", PATH)] {
        let read = subject.store.file(archive, path, BYTES_MAX).await;
        assert_eq!(read.expect("it is looked for"), None, "{archive} {path}");
    }
}

/// B4.
pub(super) async fn named_archives_stay_and_all_others_go(subject: Subject) {
    for name in ["one", "two", "three"] {
        subject.install(name, name.as_bytes()).await;
    }
    let kept = ["two".to_owned()];
    subject.store.keep_archives(&kept).await.expect("removed");
    assert_eq!(subject.file("two").await.as_deref(), Some(&b"two"[..]));
    assert_eq!(subject.file("one").await, None);
    assert_eq!(subject.file("three").await, None);
    subject.install("one", b"again").await;
    assert_eq!(subject.file("one").await.as_deref(), Some(&b"again"[..]));
}
