//! The layouts of requests, replies and notifications, byte by byte.

use std::time::Duration;

use fuse_frontend::wire::{
    Attributes, DirectoryEntry, DirectoryList, Entry, Errno, ExtendedAttributes, Fault, FileLock,
    LockKind, LockRequest, LockStyle, Notification, Opened, Operation, Reply, Request, SetTime,
    Time,
};

use crate::drive::message;

/// Writes fields of a message.
#[derive(Default, Clone)]
struct Body(Vec<u8>);

impl Body {
    fn u32(mut self, numbers: &[u32]) -> Self {
        self.0
            .extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        self
    }
    fn u64(mut self, numbers: &[u64]) -> Self {
        self.0
            .extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        self
    }
    fn text(mut self, text: &str) -> Self {
        self.0.extend(text.bytes());
        self
    }
}

fn body() -> Body {
    Body::default()
}

fn lock_body(kind: u32, flags: u32) -> Body {
    body().u64(&[7, 99, 10, 20]).u32(&[kind, 42, flags, 0])
}

fn read_body() -> Body {
    body()
        .u64(&[7, 4096])
        .u32(&[512, 2])
        .u64(&[99])
        .u32(&[0x8000, 0])
}

/// One request of every operation that has a body.
pub(crate) fn samples() -> Vec<(u32, Vec<u8>)> {
    let samples = [
        (1, body().text("name\0")),
        (2, body().u64(&[3])),
        (3, body().u32(&[1, 0]).u64(&[7])),
        (4, set_attr_body(0xfff)),
        (6, body().text("name\0../target\0")),
        (8, body().u32(&[0o10_644, 0, 0o22, 0]).text("name\0")),
        (9, body().u32(&[0o755, 0o22]).text("name\0")),
        (10, body().text("name\0")),
        (11, body().text("name\0")),
        (12, body().u64(&[5]).text("old\0new\0")),
        (13, body().u64(&[5]).text("name\0")),
        (14, body().u32(&[0x8002, 1])),
        (15, read_body()),
        (
            16,
            body()
                .u64(&[7, 4096])
                .u32(&[4, 6])
                .u64(&[99])
                .u32(&[0x401, 0])
                .text("data"),
        ),
        (18, body().u64(&[7]).u32(&[0x8000, 2]).u64(&[99])),
        (20, body().u64(&[7]).u32(&[1, 0])),
        (21, body().u32(&[5, 1]).text("user.a\0value")),
        (22, body().u32(&[64, 0]).text("user.a\0")),
        (23, body().u32(&[64, 0])),
        (24, body().text("user.a\0")),
        (25, body().u64(&[7, 0, 99])),
        (26, body().u32(&[7, 45, 131_072, 1 << 30, 16]).u32(&[0; 11])),
        (27, body().u32(&[0x8000, 0])),
        (28, read_body()),
        (29, body().u64(&[7]).u32(&[0x8000, 0]).u64(&[0])),
        (30, body().u64(&[7]).u32(&[0, 0])),
        (31, lock_body(0, 0)),
        (32, lock_body(1, 0)),
        (33, lock_body(1, 1)),
        (34, body().u32(&[4, 0])),
        (35, body().u32(&[0x8042, 0o644, 0o22, 0]).text("name\0")),
        (36, body().u64(&[2])),
        (42, body().u32(&[2, 0]).u64(&[5, 1, 6, 2])),
        (43, body().u64(&[7, 0, 4096]).u32(&[3, 0])),
        (44, read_body()),
        (45, body().u64(&[5]).u32(&[2, 0]).text("old\0new\0")),
        (46, body().u64(&[7, 100]).u32(&[4, 0])),
        (47, body().u64(&[7, 0, 5, 8, 100, 4096, 0])),
        (50, body().u64(&[0])),
        (51, body().u32(&[0x41_0002, 0o600, 0o22, 0]).text("/\0")),
        (52, body().u32(&[0, 0]).u64(&[0]).u32(&[0x100, 0xfff])),
    ];
    // INIT has a shorter form, so that its end is not a fault: `fuzz.rs` truncates the first 16 bytes.
    let short = |(opcode, body): (u32, Body)| match opcode {
        26 => (opcode, body.0[..20].to_vec()),
        _ => (opcode, body.0),
    };
    samples.into_iter().map(short).collect()
}

fn set_attr_body(valid: u32) -> Body {
    let fixed = body()
        .u32(&[valid, 0])
        .u64(&[7, 1234, 99, u64::MAX, 200, 300]);
    fixed.u32(&[500_000_000, 2, 3, 0o644, 0, 1000, 100, 0])
}

/// Decodes a request of `body`, and passes it on.
fn decoded<T>(opcode: u32, body: &Body, then: impl FnOnce(Result<Operation<'_>, Fault>) -> T) -> T {
    let message = message(opcode, &body.0);
    let (header, request) = Request::decode(&message).expect("a header");
    assert_eq!((header.uid, header.gid, header.pid), (1000, 100, 42));
    then(request.map(|request| request.operation))
}

fn shown(opcode: u32, body: &Body) -> String {
    decoded(opcode, body, |operation| format!("{operation:?}"))
}

#[test]
fn every_operation_decodes() {
    for (opcode, body) in samples() {
        decoded(opcode, &Body(body), |operation| {
            let operation = operation.unwrap_or_else(|fault| panic!("opcode {opcode}: {fault}"));
            assert_ne!(operation, Operation::Unsupported, "opcode {opcode}");
        });
    }
    for (opcode, is) in [
        (5, Operation::ReadLink),
        (17, Operation::StatFs),
        (38, Operation::Destroy),
    ] {
        decoded(opcode, &body(), |operation| assert_eq!(operation, Ok(is)));
    }
}

#[test]
fn operations_that_we_refuse_are_unsupported_whatever_they_carry() {
    // BMAP, IOCTL, POLL, SETUPMAPPING, COPY_FILE_RANGE_64, and none.
    for opcode in [37, 39, 40, 48, 53, 0, 7, 19, 4096, u32::MAX] {
        decoded(opcode, &body().u64(&[1, 2, 3]), |operation| {
            assert_eq!(operation, Ok(Operation::Unsupported), "opcode {opcode}");
        });
    }
}

#[test]
fn names_and_numbers_come_from_their_places() {
    let rename = body().u64(&[5]).u32(&[2, 0]).text("old\0new\0");
    decoded(45, &rename, |operation| {
        let expected = Operation::Rename {
            name: b"old",
            directory_new: 5,
            name_new: b"new",
            flags: 2,
        };
        assert_eq!(operation, Ok(expected));
    });
    assert_eq!(shown(31, &lock_body(2, 0)).matches("Unlocked").count(), 1);
    let written = shown(16, &Body(samples()[13].1.clone()));
    for part in [
        "handle: 7",
        "offset: 4096",
        "flags: 1025",
        "lock_owner: Some(99)",
    ] {
        assert!(written.contains(part), "{written}");
    }
    assert!(
        written.contains("is_cached: false, kills_privileges: true"),
        "{written}"
    );
    decoded(42, &body().u32(&[2, 0]).u64(&[5, 1, 6, 2]), |operation| {
        let Ok(Operation::BatchForget(forgets)) = operation else {
            panic!("{operation:?}")
        };
        assert_eq!(forgets.iter().collect::<Vec<_>>(), [(5, 1), (6, 2)]);
    });
}

/// The fault of other codecs that made flock(2) and fcntl(2) one.
#[test]
fn the_style_of_a_lock_is_kept() {
    for (flags, style) in [
        (0, LockStyle::Posix),
        (1, LockStyle::Flock),
        (2, LockStyle::Posix),
    ] {
        let lock = FileLock {
            start: 10,
            end: 20,
            kind: LockKind::Exclusive,
            pid: 42,
        };
        let request = LockRequest {
            handle: 7,
            owner: 99,
            lock,
            style,
        };
        decoded(33, &lock_body(1, flags), |operation| {
            assert_eq!(operation, Ok(Operation::SetLockWait(request)));
        });
    }
}

#[test]
fn attributes_change_only_where_a_bit_says_so() {
    let Ok(Operation::SetAttr(all)) = decoded(4, &set_attr_body(0xfff), |o| {
        o.map(|o| match o {
            Operation::SetAttr(set) => Operation::SetAttr(set),
            _ => Operation::Unsupported,
        })
    }) else {
        panic!("it decodes")
    };
    assert_eq!(
        (all.mode, all.uid, all.gid, all.size),
        (Some(0o644), Some(1000), Some(100), Some(1234))
    );
    assert_eq!(
        (all.atime, all.mtime),
        (Some(SetTime::Now), Some(SetTime::Now))
    );
    assert_eq!(
        all.ctime,
        Some(Time {
            seconds: 300,
            nanoseconds: 3
        })
    );
    assert_eq!(
        (all.handle, all.lock_owner, all.kills_privileges),
        (Some(7), Some(99), true)
    );
    let none = shown(4, &set_attr_body(0));
    assert_eq!(none.matches("None").count(), 9, "{none}");
    // Half a second before 1970.
    let early = shown(4, &set_attr_body(1 << 4));
    assert!(
        early.contains("To(Time { seconds: -1, nanoseconds: 500000000 })"),
        "{early}"
    );
}

#[test]
fn hostile_values_are_faults() {
    let fault =
        |opcode, body: Body| decoded(opcode, &body, |operation| operation.expect_err("a fault"));
    assert_eq!(fault(1, body().text("\0")), Fault::Name);
    assert_eq!(fault(1, body().text("a/b\0")), Fault::Name);
    assert_eq!(fault(1, body().text("endless")), Fault::Name);
    assert_eq!(fault(42, body().u32(&[u32::MAX, 0])), Fault::Truncated);
    let huge = body()
        .u64(&[7, 0])
        .u32(&[u32::MAX, 0])
        .u64(&[0])
        .u32(&[0, 0]);
    let size = Fault::Value {
        field: "size",
        value: u32::MAX.into(),
    };
    assert_eq!(fault(15, huge.clone()), size);
    assert_eq!(fault(16, huge), size);
    assert_eq!(
        fault(31, lock_body(3, 0)),
        Fault::Value {
            field: "type",
            value: 3
        }
    );
    let reversed = body().u64(&[7, 99, 20, 10]).u32(&[1, 42, 0, 0]);
    assert_eq!(
        fault(32, reversed),
        Fault::Value {
            field: "end",
            value: 10
        }
    );
}

#[test]
fn a_wrong_header_is_a_fault() {
    let mut long = message(5, &[]);
    long.push(0);
    assert_eq!(
        Request::decode(&long),
        Err(Fault::Length { said: 40, read: 41 })
    );
    assert_eq!(Request::decode(&[]), Err(Fault::Truncated));
    // Extensions longer than the body.
    let mut extended = message(5, &[0; 8]);
    extended[36..38].copy_from_slice(&2_u16.to_ne_bytes());
    let (_, request) = Request::decode(&extended).expect("a header");
    assert_eq!(request, Err(Fault::Truncated));
    extended[36..38].copy_from_slice(&1_u16.to_ne_bytes());
    let (_, request) = Request::decode(&extended).expect("a header");
    assert_eq!(
        request.expect("extensions are skipped").operation,
        Operation::ReadLink
    );
}

fn encoded(reply: &Reply<'_>) -> Vec<u8> {
    let mut head = vec![1, 2, 3];
    let payload = reply.encode(9, &mut head);
    let all = [&head[..], payload].concat();
    assert_eq!(all[..4], (all.len() as u32).to_ne_bytes());
    assert_eq!(all[8..16], 9_u64.to_ne_bytes());
    all
}

/// Lengths that the kernel insists on: those of the structures, and the header.
#[test]
fn replies_have_the_lengths_of_their_structures() {
    let (entry, opened) = (Entry::default(), Opened::default());
    let lock = FileLock {
        start: 0,
        end: 0,
        kind: LockKind::Unlocked,
        pid: 0,
    };
    let second = Duration::from_secs(1);
    for (reply, bytes) in [
        (Reply::Done, 0),
        (Reply::Error(Errno::ENOENT), 0),
        (Reply::Entry(entry), 128),
        (Reply::Attributes(Attributes::default(), second), 104),
        (
            Reply::ExtendedAttributes(ExtendedAttributes::default(), second),
            288,
        ),
        (Reply::Opened(opened), 16),
        (Reply::Created(entry, opened), 144),
        (Reply::Data(b"12345"), 5),
        (Reply::Written(1), 8),
        (Reply::Length(1), 8),
        (
            Reply::Usage(fuse_frontend::wire::FileSystemUsage::default()),
            80,
        ),
        (Reply::Lock(lock), 24),
        (Reply::Offset(1), 8),
    ] {
        assert_eq!(encoded(&reply).len(), 16 + bytes, "{reply:?}");
    }
}

#[test]
fn an_error_is_negative_and_in_the_kernels_range() {
    assert_eq!(
        encoded(&Reply::Error(Errno::EINTR))[4..8],
        (-4_i32).to_ne_bytes()
    );
    for (number, is) in [(1, 1), (511, 511), (0, 5), (-2, 5), (512, 5), (i32::MAX, 5)] {
        assert_eq!(Errno::new(number).number(), is);
    }
}

#[test]
fn attributes_stand_in_their_places() {
    let attributes = Attributes {
        inode: 11,
        size: 12,
        blocks: 13,
        atime: Time {
            seconds: -1,
            nanoseconds: 21,
        },
        mtime: Time {
            seconds: 15,
            nanoseconds: 22,
        },
        ctime: Time {
            seconds: 16,
            nanoseconds: 23,
        },
        mode: 24,
        links: 25,
        uid: 26,
        gid: 27,
        rdev: 28,
        block_bytes: 29,
    };
    let ttl = Duration::new(1, 5);
    let expected = body()
        .u64(&[1])
        .u32(&[5, 0])
        .u64(&[11, 12, 13, u64::MAX, 15, 16]);
    let expected = expected.u32(&[21, 22, 23, 24, 25, 26, 27, 28, 29, 0]);
    assert_eq!(
        encoded(&Reply::Attributes(attributes, ttl))[16..],
        expected.0
    );
}

#[test]
fn a_list_ends_before_it_grows_too_long() {
    let entry = |cookie| DirectoryEntry {
        inode: 5,
        cookie,
        mode: 0o040_755,
        name: b"name",
    };
    let mut list = DirectoryList::new(65);
    assert!(list.push(entry(1)));
    assert!(list.push(entry(2)));
    assert!(!list.push(entry(3)), "65 bytes hold two entries of 32");
    let expected = body().u64(&[5, 1]).u32(&[4, 4]).text("name\0\0\0\0");
    let bytes = encoded(&list.reply());
    assert_eq!(bytes[16..48], expected.0);
    assert_eq!(bytes.len(), 16 + 64);
    let mut list = DirectoryList::new(160);
    assert!(list.push_with(&Entry::default(), entry(1)));
    assert_eq!(encoded(&list.reply()).len(), 16 + 160);
}

#[test]
fn notifications_have_their_numbers_and_layouts() {
    let name = b"ab";
    let named = |flags| body().u64(&[1]).u32(&[2, flags]).text("ab\0");
    for (notification, code, body) in [
        (
            Notification::InvalidateInode {
                inode: 5,
                offset: -1,
                length: 0,
            },
            2,
            body().u64(&[5, u64::MAX, 0]),
        ),
        (Notification::InvalidateEntry(1, name), 3, named(0)),
        (Notification::ExpireEntry(1, name), 3, named(1)),
        (
            Notification::Delete {
                directory: 1,
                inode: 5,
                name,
            },
            6,
            body().u64(&[1, 5]).u32(&[2, 0]).text("ab\0"),
        ),
        (
            Notification::Store {
                inode: 5,
                offset: 8,
                data: name,
            },
            4,
            body().u64(&[5, 8]).u32(&[2, 0]).text("ab"),
        ),
        (Notification::IncrementEpoch, 8, body()),
    ] {
        let mut head = Vec::new();
        let payload = notification.encode(&mut head);
        let all = [&head[..], payload].concat();
        assert_eq!(all[..4], (all.len() as u32).to_ne_bytes());
        assert_eq!(all[4..8], i32::to_ne_bytes(code), "{notification:?}");
        assert_eq!(all[8..16], [0; 8]);
        assert_eq!(all[16..], body.0, "{notification:?}");
    }
}
