//! The region shared with an instance: X3, X6 and X7.

use std::sync::Arc;

use super::{Command, Subject};
use crate::ErrorKind;

/// The size of the cases' regions.
const BYTES: u64 = 1 << 20;

fn has_regions(subject: &Subject) -> bool {
    subject.instances.limits().shared_memory_bytes_max >= BYTES
}

/// X3.
pub(super) async fn both_sides_see_what_the_other_wrote_before_its_message(subject: Subject) {
    if !has_regions(&subject) {
        return;
    }
    let instance = subject.start_with(|spec| spec.shared_bytes = BYTES).await;
    let channel = subject.open(&instance).await;
    let region = instance.memory().expect("it asked for one");
    assert_eq!(region.bytes(), BYTES);
    for (offset, text) in [(0, "first"), (BYTES - 4, "last")] {
        region.write(offset, text.as_bytes()).expect("inside");
        let read = Command::Read(offset, text.len());
        assert_eq!(subject.ask(&channel, read).await, text);
    }
    let write = Command::Write(7, "theirs".to_owned());
    assert_eq!(subject.ask(&channel, write).await, "written");
    let mut read = [0; 6];
    region.read(7, &mut read).expect("inside");
    assert_eq!(&read, b"theirs");
}

/// X3.
pub(super) async fn regions_are_zero_at_first_and_not_shared_between_instances(subject: Subject) {
    if !has_regions(&subject) {
        return;
    }
    assert!(
        subject.start().await.memory().is_none(),
        "it asked for none"
    );
    let one = subject.start_with(|spec| spec.shared_bytes = BYTES).await;
    let other = subject.start_with(|spec| spec.shared_bytes = BYTES).await;
    let region = one.memory().expect("it asked for one");
    region.write(0, &[1; 64]).expect("inside");
    let mut read = [1; 64];
    let others = other.memory().expect("it asked for one");
    others.read(0, &mut read).expect("inside");
    assert_eq!(read, [0; 64]);
}

/// X3.
pub(super) async fn an_access_outside_of_a_region_is_refused(subject: Subject) {
    if !has_regions(&subject) {
        return;
    }
    let instance = subject.start_with(|spec| spec.shared_bytes = BYTES).await;
    let region = instance.memory().expect("it asked for one");
    for offset in [BYTES - 3, BYTES, u64::MAX] {
        let read = region.read(offset, &mut [0; 4]).expect_err("outside");
        let written = region.write(offset, &[0; 4]).expect_err("outside");
        assert_eq!(
            (read.kind(), written.kind()),
            (ErrorKind::Invalid, ErrorKind::Invalid),
            "{offset}"
        );
    }
}

/// X6.
pub(super) async fn discarded_bytes_are_zeros_for_both_sides_and_others_stay(subject: Subject) {
    if !has_regions(&subject) {
        return;
    }
    let instance = subject.start_with(|spec| spec.shared_bytes = BYTES).await;
    let channel = subject.open(&instance).await;
    let region = instance.memory().expect("it asked for one");
    let full = vec![b'x'; BYTES as usize];
    region.write(0, &full).expect("inside");
    // Neither bound is that of a page.
    let (from, to) = (5_000, 100_003);
    region.discard(from, to - from).expect("inside");
    region.discard(7, 0).expect("nothing is inside");
    let mut read = vec![1; BYTES as usize];
    region.read(0, &mut read).expect("inside");
    let kept = |byte: &u8| *byte == b'x';
    assert!(read[..from as usize].iter().all(kept), "before");
    let discarded = &read[from as usize..to as usize];
    assert!(discarded.iter().all(|byte| *byte == 0), "discarded");
    assert!(read[to as usize..].iter().all(kept), "after");
    let theirs = subject.ask(&channel, Command::Read(from - 1, 3)).await;
    assert_eq!(theirs, "x\0\0");
    region.write(from, b"new").expect("inside");
    let theirs = subject.ask(&channel, Command::Read(from, 4)).await;
    assert_eq!(theirs, "new\0");
}

/// X6.
pub(super) async fn discarding_outside_of_a_region_is_refused(subject: Subject) {
    if !has_regions(&subject) {
        return;
    }
    let instance = subject.start_with(|spec| spec.shared_bytes = BYTES).await;
    let region = instance.memory().expect("it asked for one");
    region.write(BYTES - 1, b"x").expect("inside");
    for offset in [BYTES - 3, BYTES, u64::MAX] {
        let refused = region.discard(offset, 4).expect_err("outside");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{offset}");
    }
    let mut last = [0];
    region.read(BYTES - 1, &mut last).expect("inside");
    assert_eq!(&last, b"x", "a refused call discards nothing");
}

/// X7.
pub(super) async fn shared_bytes_stay_as_they_are_until_they_are_dropped(subject: Subject) {
    if !has_regions(&subject) {
        return;
    }
    let instance = subject.start_with(|spec| spec.shared_bytes = BYTES).await;
    let region = instance.memory().expect("it asked for one");
    region.write(5_000, b"content").expect("inside");
    for offset in [BYTES - 3, BYTES, u64::MAX] {
        let refused = Arc::clone(&region).share(offset, 4).expect_err("outside");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{offset}");
    }
    let shared = Arc::clone(&region).share(4_999, 9).expect("inside");
    assert_eq!(shared, &b"\0content\0"[..]);
    let part = shared.slice(1..);
    drop(shared);
    // It may be refused, or change the region alone.
    let _ = region.write(5_003, b"x");
    let _ = region.discard(0, BYTES);
    instance.end();
    super::super::within(&*subject.clock, "its death", instance.died()).await;
    drop(instance);
    assert_eq!(part, &b"content\0"[..]);
    drop(part);
    region.write(5_003, b"x").expect("none are shared now");
}
