//! Uploads in parts, and objects that are larger than a reader's buffer: O5 and O6.

use bytes::Bytes;
use futures_util::{StreamExt, future::join_all};
use object_store::MultipartUpload;

use super::Subject;
use crate::objects::{ObjectError, ObjectPath, ObjectStoreExt};

/// All parts but the last have this size: clouds ask for at least 5 MiB.
const PART_BYTES: usize = 5 << 20;

/// The sizes of an upload's parts.
const PARTS: [usize; 3] = [PART_BYTES, PART_BYTES, 1_000];

/// The parts of an upload, each of which holds its number.
fn parts() -> Vec<Bytes> {
    let part = |(number, bytes): (u8, usize)| Bytes::from(vec![number; bytes]);
    (0..).zip(PARTS).map(part).collect()
}

impl Subject {
    /// Begins an upload, or checks that a store without parts refuses one.
    async fn upload(&self, name: &str) -> Option<Box<dyn MultipartUpload>> {
        let upload = self.objects.put_multipart(&ObjectPath::from(name)).await;
        if self.limits.takes_parts {
            return Some(upload.expect("put_multipart answers"));
        }
        let refused = upload.expect_err("the store takes no parts");
        assert!(
            matches!(refused, ObjectError::NotSupported { .. }),
            "{refused}"
        );
        None
    }
}

/// O5, O3.
pub(super) async fn an_object_put_in_parts_appears_whole_when_it_is_completed(subject: Subject) {
    const NAME: &str = "parts/whole";
    let Some(mut upload) = subject.upload(NAME).await else {
        return;
    };
    for part in parts() {
        upload
            .put_part(part.into())
            .await
            .expect("put_part answers");
        assert_eq!(subject.get(NAME).await, None, "it is not completed");
        assert_eq!(subject.list(Some("parts")).await, []);
    }
    upload.complete().await.expect("complete answers");
    let whole = Bytes::from(parts().concat());
    assert!(subject.get(NAME).await.as_ref() == Some(&whole));
    let size = whole.len() as u64;
    assert_eq!(subject.list(Some("parts")).await, [(NAME.to_owned(), size)]);
    let (path, border) = (ObjectPath::from(NAME), PART_BYTES as u64);
    for range in [
        0..1,
        border - 1..border + 1,
        border - 2..2 * border + 2,
        size - 1..size,
    ] {
        let found = subject
            .objects
            .get_range(&path, range.clone())
            .await
            .expect("get_range answers");
        let expected = whole.slice(range.start as usize..range.end as usize);
        assert!(found == expected, "{range:?}");
    }
}

/// O5: parts may be under way at once.
pub(super) async fn parts_keep_the_order_in_which_they_were_given(subject: Subject) {
    const NAME: &str = "parts/order";
    let Some(mut upload) = subject.upload(NAME).await else {
        return;
    };
    let mut under_way: Vec<_> = parts()
        .into_iter()
        .map(|part| upload.put_part(part.into()))
        .collect();
    under_way.reverse();
    for part in join_all(under_way).await {
        part.expect("put_part answers");
    }
    upload.complete().await.expect("complete answers");
    let found = subject.get(NAME).await.expect("it is completed");
    assert!(found == parts().concat(), "another order");
}

/// O5.
pub(super) async fn an_aborted_upload_leaves_nothing(subject: Subject) {
    const NAME: &str = "parts/aborted";
    let Some(mut upload) = subject.upload(NAME).await else {
        return;
    };
    for part in parts() {
        upload
            .put_part(part.into())
            .await
            .expect("put_part answers");
    }
    upload.abort().await.expect("abort answers");
    drop(upload);
    assert_eq!(subject.get(NAME).await, None);
    assert_eq!(subject.list(Some("parts")).await, []);
    let content = Bytes::from_static(b"another");
    subject
        .create(NAME, content.clone())
        .await
        .expect("its name is free");
    assert_eq!(subject.get(NAME).await, Some(content));
}

/// O6.
pub(super) async fn a_large_object_is_streamed_in_bounded_pieces(subject: Subject) {
    const NAME: &str = "large/object";
    let size = subject.limits.object_bytes_max.min(10_000_000) as usize / 2;
    let whole: Bytes = vec![6; size].into();
    subject
        .create(NAME, whole.clone())
        .await
        .expect("create answers");
    let path = ObjectPath::from(NAME);
    let found = subject.objects.get(&path).await.expect("get answers");
    let mut pieces = found.into_stream();
    let mut left = whole;
    while let Some(piece) = pieces.next().await {
        let piece = piece.expect("the object is read");
        let limit = subject.limits.piece_bytes_max;
        assert!(
            piece.len() <= limit,
            "a piece of {} bytes, where {limit} is the limit",
            piece.len()
        );
        assert!(left.len() >= piece.len() && left.split_to(piece.len()) == piece);
    }
    assert!(left.is_empty(), "{} bytes are missing", left.len());
    let found = subject.objects.get(&path).await.expect("get answers");
    let first = found.into_stream().next().await;
    assert!(
        first.is_some_and(|piece| piece.is_ok()),
        "a reader may stop after one piece"
    );
}
