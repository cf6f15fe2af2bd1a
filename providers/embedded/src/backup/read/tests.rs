use std::fs::{self, File};

use super::super::{Target, frames::FrameWriter, restore};
use super::*;
use crate::{Config, Embedded};

/// A small backup of a record and an object, with a part that compresses.
fn backup(object: &ObjectHead) -> Vec<u8> {
    let mut out = Vec::new();
    let mut frames = FrameWriter::begin(&mut out).expect("memory takes it");
    let head = Head {
        taken_ms: 7,
        incarnation: 3,
        position: 9,
        absent_at: Some("s3://bucket".to_owned()),
    };
    let key = Bytes::from_static(b"\x04queue");
    let records = vec![(key, Bytes::from_static(b"a message"))];
    let written = frames
        .value(Kind::Head, &head)
        .and_then(|()| frames.value(Kind::Records, &records))
        .and_then(|()| frames.value(Kind::Object, object))
        .and_then(|()| frames.frame(Kind::Data, &vec![1; object.bytes as usize]))
        .and_then(|()| frames.value(Kind::Absent, &ObjectHead::default()));
    written.expect("memory takes it");
    let end = End {
        records: 1,
        objects: 1,
        object_bytes: object.bytes,
        absent_objects: 1,
        ..End::default()
    };
    frames.end(end).expect("memory takes it");
    out
}

fn object(place: &str, name: &str) -> ObjectHead {
    ObjectHead {
        place: place.to_owned(),
        name: name.to_owned(),
        bytes: 500,
    }
}

#[test]
fn a_backup_is_verified_and_counted() {
    let bytes = backup(&object("objects", "a/b"));
    assert!(bytes.len() < 500, "it is compressed");
    let found = verify(&*bytes).expect("it is whole");
    let expected = Contents {
        written_by: env!("CARGO_PKG_VERSION").to_owned(),
        taken_ms: 7,
        records: 1,
        objects: 1,
        object_bytes: 500,
        absent_objects: 1,
        absent_at: Some("s3://bucket".to_owned()),
        bytes: bytes.len() as u64,
    };
    assert_eq!(found, expected);
}

#[test]
fn a_cut_or_flipped_or_longer_backup_is_refused() {
    let whole = backup(&object("objects", "a/b"));
    for length in 0..whole.len() {
        verify(&whole[..length]).expect_err("it is cut off");
        let mut flipped = whole.clone();
        flipped[length] ^= 1 << (length % 8);
        verify(&*flipped).expect_err("a bit is flipped");
    }
    match verify(&whole[..whole.len() - 1]) {
        Err(BackupError::CutOff { frame, .. }) => assert_eq!(frame, 6),
        other => panic!("{other:?}"),
    }
    let longer = [&*whole, b"x"].concat();
    match verify(&*longer) {
        Err(BackupError::Damaged { offset, .. }) => assert_eq!(offset, whole.len() as u64),
        other => panic!("{other:?}"),
    }
}

/// Frames with right checksums, but hostile content.
#[test]
fn any_frames_are_refused_without_a_panic() {
    let mut state = 1_u64;
    let mut next = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u8
    };
    for _ in 0..2_000 {
        let mut out = Vec::new();
        let mut frames = FrameWriter::begin(&mut out).expect("memory takes it");
        frames
            .value(Kind::Head, &Head::default())
            .expect("memory takes it");
        for _ in 0..next() % 4 {
            let kinds = [
                Kind::Records,
                Kind::Object,
                Kind::Data,
                Kind::Absent,
                Kind::End,
            ];
            let kind = kinds[usize::from(next()) % kinds.len()];
            let content: Vec<u8> = (0..next() % 40).map(|_| next()).collect();
            frames.frame(kind, &content).expect("memory takes it");
        }
        verify(&*out).expect_err("it has no right end");
    }
}

/// Whole backups of hostile records and objects: each is restored and opens or says why not, or
/// leaves nothing.
#[test]
fn any_content_is_restored_inside_of_the_target_or_not_at_all() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let (mut restored, mut refused) = (0, 0);
    for seed in 0..24 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let bytes = whole(&mut rng);
        let directory = tempfile::tempdir().expect("a directory");
        let target = Target {
            data_dir: directory.path().join("data"),
            named: Some(directory.path().join("named")),
        };
        let made = || fs::read_dir(directory.path()).expect("it lists").count();
        if let Ok(contents) = restore(&*bytes, &target) {
            assert_eq!(contents, verify(&*bytes).expect("it is whole"), "{seed}");
            assert_eq!(made(), 2, "{seed}");
            let _ = runtime.block_on(Embedded::open(Config::new(target.data_dir)));
            restored += 1;
        } else {
            assert_eq!(made(), 0, "{seed}");
            refused += 1;
        }
    }
    assert!(restored > 3 && refused > 3, "{restored} {refused}");
}

/// A backup with right frames, whose records and objects are drawn.
fn whole(rng: &mut fastrand::Rng) -> Vec<u8> {
    let (mut out, mut end) = (Vec::new(), End::default());
    let mut frames = FrameWriter::begin(&mut out).expect("memory takes it");
    let mut records = Vec::new();
    for _ in 0..rng.usize(..3) {
        // A message, the id of one, a time, or noise.
        let table = rng.choice([4, 8, 6, 1, 3, 0]).expect("some");
        let key = [&[table], &*noise(rng)].concat();
        records.push((Bytes::from(key), Bytes::from(noise(rng))));
    }
    end.records = records.len() as u64;
    let written = frames.value(Kind::Head, &Head::default());
    let mut written = written.and_then(|()| frames.value(Kind::Records, &records));
    for _ in 0..rng.usize(..3) {
        let place = rng
            .choice(["objects", ".", "--objects", "journal", "a/b"])
            .expect("some");
        let name = rng
            .choice(["a", "a/b", "format", "x/../y", "LOCK", "00000001.log"])
            .expect("some");
        let (head, data) = (object(place, name), vec![rng.u8(..); 500]);
        (end.objects, end.object_bytes) = (end.objects + 1, end.object_bytes + 500);
        written = written
            .and_then(|()| frames.value(Kind::Object, &head))
            .and_then(|()| frames.frame(Kind::Data, &data));
    }
    written
        .and_then(|()| frames.end(end))
        .expect("memory takes it");
    out
}

fn noise(rng: &mut fastrand::Rng) -> Vec<u8> {
    (0..rng.usize(..12)).map(|_| rng.u8(..)).collect()
}

#[test]
fn a_frame_that_claims_to_be_huge_takes_no_memory() {
    let whole = backup(&object("objects", "a"));
    let line = whole
        .iter()
        .position(|byte| *byte == b'\n')
        .expect("a line")
        + 1;
    let mut huge = whole[..line].to_vec();
    huge.push(Kind::Records as u8);
    huge.extend([0xff; 12]);
    let refused = verify(&*huge).expect_err("it is too long").to_string();
    assert!(
        refused.contains("frame 1") && refused.contains("too large"),
        "{refused}"
    );
}

#[test]
fn a_backup_of_another_format_is_refused_by_the_release_that_wrote_it() {
    let said = "landfast backup 2 store 9 by 0.7.1 check ";
    let line = format!("{said}{:08x}\n", crc32fast::hash(said.as_bytes()));
    let refused = verify(line.as_bytes())
        .expect_err("it is newer")
        .to_string();
    assert!(
        refused.contains("Landfast 0.7.1 wrote this backup in format 2/9"),
        "{refused}"
    );
    let damaged = line.replace('9', "8");
    assert!(matches!(
        verify(damaged.as_bytes()),
        Err(BackupError::NotABackup)
    ));
    assert!(matches!(
        verify(&b"\x1f\x8b"[..]),
        Err(BackupError::NotABackup)
    ));
}

#[test]
fn an_object_never_lies_outside_of_the_target() {
    let directory = tempfile::tempdir().expect("a directory");
    let places = [
        ("objects", "../../escaped"),
        ("objects", "/escaped"),
        ("objects", ""),
        ("../escaped", "a"),
        (".", "../escaped"),
    ];
    for (place, name) in places {
        let target = Target {
            data_dir: directory.path().join("a/data"),
            named: None,
        };
        let refused = restore(&*backup(&object(place, name)), &target);
        assert!(
            matches!(refused, Err(BackupError::Refused(_))),
            "{place} {name}"
        );
        let left = fs::read_dir(directory.path().join("a")).expect("it lists");
        assert_eq!(left.count(), 0, "{place} {name}");
    }
    assert_eq!(fs::read_dir(directory.path()).expect("it lists").count(), 1);
}

#[test]
fn an_object_takes_the_place_of_no_file_of_the_store() {
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["state.redb", "format", ".landfast-restoring"] {
        let target = Target {
            data_dir: directory.path().join("data"),
            named: None,
        };
        let refused = restore(&*backup(&object(".", name)), &target).expect_err(name);
        assert!(refused.to_string().contains(name), "{refused}");
        assert!(!target.data_dir.exists(), "{name}");
    }
}

/// The next restore to the same directories removes what one left that was killed. One that runs
/// keeps its own.
#[test]
fn a_restore_takes_the_place_of_an_interrupted_one_and_not_of_a_running_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let target = Target {
        data_dir: directory.path().join("data"),
        named: Some(directory.path().join("named")),
    };
    let left = directory.path().join("data.restoring");
    fs::create_dir_all(left.join("objects/old")).expect("the disk has room");
    fs::write(left.join("state.redb"), "half").expect("the disk has room");
    fs::write(left.join(".landfast-restoring"), "").expect("the disk has room");
    fs::create_dir(directory.path().join("named.restoring")).expect("the disk has room");
    let running = File::open(&left).expect("it opens");
    running.try_lock().expect("it is free");
    let bytes = backup(&object("objects", "a"));
    let refused = restore(&*bytes, &target).expect_err("one runs").to_string();
    assert!(refused.contains("another restore"), "{refused}");
    assert_eq!(fs::read(left.join("state.redb")).expect("kept"), b"half");
    drop(running);
    restore(&*bytes, &target).expect("it is restored");
    assert!(!target.data_dir.join("objects/old").exists());
    let names = fs::read_dir(directory.path()).expect("it lists");
    let mut names: Vec<_> = names
        .map(|entry| entry.expect("it reads").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["data", "named"]);
}

/// A directory of that name without the marker may be of another program.
#[test]
fn a_directory_that_no_restore_has_left_is_not_emptied() {
    let directory = tempfile::tempdir().expect("a directory");
    let target = Target {
        data_dir: directory.path().join("data"),
        named: Some(directory.path().join("named")),
    };
    let bytes = backup(&object("objects", "a"));
    for name in ["data.restoring", "named.restoring"] {
        let other = directory.path().join(name);
        fs::create_dir(&other).expect("the disk has room");
        fs::write(other.join("state.redb"), "mine").expect("the disk has room");
        let refused = restore(&*bytes, &target).expect_err(name).to_string();
        assert!(refused.contains("is not empty"), "{refused}");
        let kept = fs::read(other.join("state.redb")).expect("kept");
        assert_eq!(kept, b"mine");
        fs::remove_dir_all(&other).expect("removed");
    }
    restore(&*bytes, &target).expect("it is restored");
    for restored in ["data", "named"] {
        let marker = directory.path().join(restored).join(".landfast-restoring");
        assert!(!marker.exists(), "{restored}");
    }
}

#[test]
fn a_target_in_use_is_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("mine"), "any").expect("the disk has room");
    let target = Target {
        data_dir: directory.path().to_owned(),
        named: None,
    };
    let bytes = backup(&object("objects", "a"));
    let refused = restore(&*bytes, &target)
        .expect_err("it is in use")
        .to_string();
    assert!(refused.contains("is not empty"), "{refused}");
    assert_eq!(
        fs::read(directory.path().join("mine")).expect("kept"),
        b"any"
    );
}
