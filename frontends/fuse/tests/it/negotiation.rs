//! INIT: versions, flags and sizes.

use fuse_frontend::wire::init::{
    AUTO_INVAL_DATA, DIRECT_IO_ALLOW_MMAP, INIT_EXT, Init, InitReply, MAX_PAGES, Negotiation,
    READDIRPLUS, REQUIRED, Refusal, WANTED, Wishes, negotiate,
};

/// Linux 6.18 offers this and more.
fn modern() -> Init {
    Init {
        major: 7,
        minor: 45,
        max_readahead: 131_072,
        flags: u64::MAX,
    }
}

fn agreed(init: &Init, wishes: Wishes) -> InitReply {
    match negotiate(init, wishes) {
        Negotiation::Agreed(reply) => reply,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_modern_kernel_gets_what_we_want_and_no_more() {
    let reply = agreed(&modern(), Wishes::default());
    assert_eq!(reply.flags, REQUIRED | WANTED);
    assert_eq!(
        (reply.minor, reply.max_write, reply.max_pages),
        (45, 1 << 20, 256)
    );
    assert_eq!(reply.max_readahead, 131_072);
    // FUSE_WRITEBACK_CACHE would give the sizes of files to the kernel.
    assert_eq!(reply.flags & (1 << 16), 0);
    let without_plus = Wishes {
        declined: READDIRPLUS,
        ..Wishes::default()
    };
    let reply = agreed(&modern(), without_plus);
    assert_eq!(reply.flags, (REQUIRED | WANTED) & !READDIRPLUS);
    let with_leases = Wishes {
        flags: AUTO_INVAL_DATA,
        ..Wishes::default()
    };
    assert_ne!(agreed(&modern(), with_leases).flags & AUTO_INVAL_DATA, 0);
}

#[test]
fn the_lower_minor_version_is_spoken() {
    for (theirs, spoken) in [(31, 31), (38, 38), (45, 45), (46, 45), (99, 45)] {
        let init = Init {
            minor: theirs,
            ..modern()
        };
        assert_eq!(agreed(&init, Wishes::default()).minor, spoken);
    }
}

#[test]
fn a_newer_major_version_is_asked_to_come_again() {
    let init = Init {
        major: 8,
        minor: 0,
        max_readahead: 0,
        flags: 0,
    };
    let negotiation = negotiate(&init, Wishes::default());
    assert!(matches!(negotiation, Negotiation::Again(reply) if reply.minor == 45));
}

#[test]
fn an_old_kernel_is_refused() {
    for (major, minor) in [(7, 30), (6, 45), (7, 0)] {
        let init = Init {
            major,
            minor,
            ..modern()
        };
        assert_eq!(
            negotiate(&init, Wishes::default()),
            Negotiation::Refused(Refusal::TooOld(major, minor))
        );
    }
}

#[test]
fn a_kernel_that_would_keep_locks_to_itself_is_refused() {
    for bit in 0..64 {
        let init = Init {
            flags: !(1 << bit),
            ..modern()
        };
        let negotiation = negotiate(&init, Wishes::default());
        let lacks = REQUIRED & (1 << bit);
        if lacks == 0 {
            assert!(matches!(negotiation, Negotiation::Agreed(_)), "bit {bit}");
        } else {
            assert_eq!(negotiation, Negotiation::Refused(Refusal::Lacks(lacks)));
        }
    }
}

#[test]
fn flags_that_were_not_offered_are_not_asked_for() {
    let init = Init {
        minor: 31,
        flags: REQUIRED,
        ..modern()
    };
    let reply = agreed(&init, Wishes::default());
    assert_eq!(reply.flags, REQUIRED);
    assert_eq!(
        (reply.max_write, reply.max_pages),
        (128 * 1024, 32),
        "without {MAX_PAGES:#x}"
    );
    let init = Init {
        flags: !DIRECT_IO_ALLOW_MMAP,
        ..modern()
    };
    assert_eq!(
        agreed(&init, Wishes::default()).flags & DIRECT_IO_ALLOW_MMAP,
        0
    );
    assert_ne!(agreed(&init, Wishes::default()).flags & INIT_EXT, 0);
}

#[test]
fn the_largest_write_has_bounds() {
    for (wish, is) in [
        (0, 4096),
        (4097, 4097),
        (16 << 20, 16 << 20),
        (u32::MAX, 16 << 20),
    ] {
        let reply = agreed(
            &modern(),
            Wishes {
                max_write: wish,
                flags: 0,
                declined: 0,
            },
        );
        assert_eq!(reply.max_write, is);
        assert!(u32::from(reply.max_pages) * 4096 >= is);
    }
}
