//! Messages are read back as they were sent, and bounds are checked.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ports::{DurabilityPoint, Incarnation, Position};
use transactions::{
    Error,
    serializable::{
        model::{
            At, BlockBytes, Changed, Entry, Granted, Groups, Is, KEYS_MAX, Key, KeyRange, Leased,
            LockBytes, LockMode, Page, PageLimits, Patch, PinName, Predicate, Proposal, Recall,
            Refusal, SessionId, Slot, Snapshot, StageId, Usage, Values, Verdict, Wait, Write,
            Writes,
        },
        volumes::{VolumeInfo, VolumeName},
    },
};
use volumes_frontend::{
    frames::{self, Frames},
    wire::{
        Answer, Call, FORMAT, Fault, Hello, List, Request, SessionKey, VolumeNumber, Welcome,
        decode_answer, decode_request, hello,
    },
};

use crate::world::{demo, key, lock, owner, put, settings};

const POINT: DurabilityPoint = DurabilityPoint {
    incarnation: Incarnation(3),
    position: Position(9),
};

fn proposal() -> Proposal {
    let range = KeyRange::new("d", "a", Some(Bytes::from("b"))).expect("short");
    Proposal {
        reads: vec![key("a"), key("b")],
        predicates: vec![
            Predicate::Untouched(range),
            Predicate::Number {
                key: key("n"),
                is: Is::AtMost(7),
            },
            Predicate::LockFree(key("l")),
        ],
        writes: Writes::Inline(vec![
            Write::Delete { key: key("a") },
            Write::Patch {
                key: key("b"),
                offset: 9,
                data: Patch::Zeros(4),
            },
            Write::Append {
                length: key("s"),
                blocks: key(""),
                block_bytes: 4096,
                data: Bytes::from("data"),
            },
        ]),
        ..put(7, "a", b"")
    }
}

fn calls() -> Vec<Call> {
    let (pin, session) = (PinName::new("run").expect("short"), SessionId(5));
    let staged = Proposal {
        writes: Writes::Staged {
            stage: StageId([7; 16]),
            parts: 2,
            bytes: 70_000,
            crc: 8,
        },
        ..proposal()
    };
    let range = KeyRange::all("d").expect("short");
    vec![
        Call::Snapshot,
        Call::GetMany(At::Slot(Slot(4)), List(vec![key("a"), key("b")])),
        Call::GetLeased(session, List(vec![key("a"), key("b")])),
        Call::Recalled(session, 3),
        Call::CommitLeased(session, proposal().into()),
        Call::Scan(At::Tail, range, PageLimits::default()),
        Call::changed_since(Slot(4), &Groups::All),
        Call::changed_since(Slot(4), &Groups::Of(vec![Bytes::from("d")])),
        Call::Stage(StageId([7; 16]), 3, Bytes::from("part")),
        Call::Commit(proposal().into()),
        Call::Commit(staged.into()),
        Call::Externalize(POINT),
        Call::Pin(pin.clone(), Slot(4)),
        Call::Unpin(pin),
        Call::Pins,
        Call::Lock(owner(3), lock("a", LockMode::Shared, Wait::UntilGranted)),
        Call::Reclaim(owner(3), lock("a", LockMode::Exclusive, Wait::Never)),
        Call::Hold(session, key("a")),
        Call::Release(session, key("a")),
        Call::IsHeld(key("a")),
        Call::EndSession(session),
        Call::ReserveNumbers,
        Call::Usage,
    ]
}

/// A request of each kind.
pub(crate) fn requests() -> Vec<Request> {
    let volume = VolumeNumber(300);
    let calls = calls().into_iter().map(|call| Request::On(volume, call));
    let others = [
        Request::Open(volume, demo()),
        Request::Close(volume),
        Request::Create(demo(), settings()),
        Request::List,
        Request::SetQuota(demo(), Some(1 << 40)),
        Request::Clone {
            from: demo(),
            at: Some(Slot(4)),
            to: VolumeName::new("to").expect("a name"),
        },
        Request::Delete(demo()),
        Request::Cancel(9),
        Request::Goodbye,
    ];
    calls.chain(others).collect()
}

/// An answer of each kind.
fn leased(values: Values) -> Leased {
    Leased {
        values,
        groups: vec![Bytes::from("d")],
    }
}

fn info() -> VolumeInfo {
    VolumeInfo {
        name: demo(),
        block_bytes: BlockBytes::new(4096).expect("a power of two"),
        created_ms: 9,
        usage: Usage {
            bytes: 8,
            keys: 2,
            quota_bytes: None,
        },
    }
}

fn recall() -> Recall {
    Recall {
        number: 3,
        groups: vec![Bytes::from("d")],
        has_lapsed: true,
        visible: Slot(4),
    }
}

pub(crate) fn answers() -> Vec<Answer> {
    let info = info();
    let (block_bytes, usage) = (info.block_bytes, info.usage);
    let values = Values {
        slot: Slot(4),
        found: vec![None, Some(Bytes::from("value"))],
    };
    let entry = Entry {
        name: Bytes::from("a"),
        value: Bytes::from("value"),
    };
    let page = Page {
        slot: Slot(4),
        entries: vec![entry],
        next: Some(Bytes::from("b")),
    };
    let changed = Changed::Keys {
        to: Slot(4),
        keys: vec![key("a")],
    };
    let committed = Verdict::Committed {
        slot: Slot(4),
        appended_at: vec![0, 1 << 40],
    };
    let refused = Granted::No {
        bytes: LockBytes::ALL,
        mode: LockMode::Shared,
        pid: 7,
    };
    vec![
        Answer::Done,
        Answer::Opened(block_bytes),
        Answer::Listed(List(vec![info])),
        Answer::Snapshot(Snapshot { slot: Slot(4) }, POINT),
        Answer::Leased(leased(values.clone()), POINT),
        Answer::Values(values, POINT),
        Answer::Recalled(recall(), POINT),
        Answer::Page(page, POINT),
        Answer::Changed(changed, POINT),
        Answer::Verdict(committed, POINT),
        Answer::Verdict(Verdict::Conflict { key: key("a") }, POINT),
        Answer::Verdict(Verdict::Refused(Refusal::NoNumber(key("a"))), POINT),
        Answer::Point(POINT),
        Answer::Pins(List(vec![(PinName::new("run").expect("short"), Slot(4))])),
        Answer::Granted(Granted::Yes),
        Answer::Granted(refused),
        Answer::Cancelled,
        Answer::IsHeld(true),
        Answer::Numbers(1_024..2_048),
        Answer::Usage(usage),
        Answer::failed(&Error::Unavailable("why".into())),
    ]
}

#[test]
fn messages_are_read_back_as_they_were_sent() {
    for request in requests() {
        assert_eq!(decode_request(&FORMAT.encode(&request, 0)), Ok(request));
    }
    for answer in answers() {
        assert_eq!(decode_answer(&FORMAT.encode(&answer, 0)), Ok(answer));
    }
    assert_eq!(
        Proposal::from(volumes_frontend::wire::SentProposal::from(proposal())),
        proposal()
    );
    let hello = Hello::new(SessionKey(u128::MAX / 3));
    assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    let welcome = Welcome {
        server: u128::MAX / 5,
        is_resumed: true,
        may_reclaim: false,
    };
    for answer in [
        Ok(welcome),
        Err(hello::Refusal::Version(2)),
        Err(hello::Refusal::TooManyConnections),
        Err(hello::Refusal::Ending),
        Err(hello::Refusal::Unknown(77)),
    ] {
        assert_eq!(Welcome::decode(&Welcome::encode(answer)), Some(answer));
    }
}

#[test]
fn errors_are_those_of_the_server() {
    let text = |text: &str| Arc::<str>::from(text);
    for error in [
        Error::Invalid("one reason"),
        Error::TooLarge("another"),
        Error::NoSuchVolume,
        Error::VolumeExists,
        Error::VolumeInUse,
        Error::Conflict,
        Error::SnapshotTooOld,
        Error::Expired,
        Error::OutcomeUnknown,
        Error::Unavailable(text("later")),
        Error::NoRoom,
        Error::WrongObjects(text("another store")),
        Error::Corrupt(text("a row")),
    ] {
        assert_eq!(Error::from(Fault::from(&error)), error);
    }
    let other = Error::from(Fault::from(&Error::TooManyOpen));
    assert_eq!(
        other,
        Error::Unavailable(text("too many transactions are open"))
    );
    let long = Error::Unavailable("ä".repeat(1_000).into());
    let Error::Unavailable(short) = Error::from(Fault::from(&long)) else {
        panic!("another error");
    };
    assert_eq!(short.len(), 1_024);
    // A hostile server cannot fill the memory of its clients with reasons.
    let reasons = (0..1_000).map(|number| Error::from(Fault::Invalid(format!("reason {number}"))));
    let reasons: std::collections::BTreeSet<String> = reasons.map(|why| why.to_string()).collect();
    assert!(reasons.len() <= 257, "{}", reasons.len());
}

/// A key of three bytes takes more than fifty in memory, and a frame has 16 MiB.
#[test]
fn lists_have_bounds() {
    let of = |count| {
        let keys = vec![key(""); count];
        let request = Request::On(VolumeNumber(1), Call::GetMany(At::Tail, List(keys)));
        decode_request(&FORMAT.encode(&request, 0))
    };
    assert!(of(KEYS_MAX).is_ok());
    assert_eq!(
        of(KEYS_MAX + 1),
        Err(Error::Invalid(
            "the request does not decode, or is out of bounds"
        ))
    );
    let read = |count| {
        let proposal = Proposal {
            reads: vec![key(""); count],
            ..put(1, "a", b"")
        };
        decode_request(&FORMAT.encode(
            &Request::On(VolumeNumber(1), Call::Commit(proposal.into())),
            0,
        ))
    };
    assert!(read(100_000).is_ok() && read(100_001).is_err());
    // A key beyond its bounds cannot be made here, so its bytes are written by hand.
    let hold = Request::On(
        VolumeNumber(1),
        Call::IsHeld(Key::new("g", "n").expect("short")),
    );
    let mut bytes = FORMAT.encode(&hold, 0).to_vec();
    assert_eq!(bytes[bytes.len() - 4..], [1, b'g', 1, b'n']);
    bytes.truncate(bytes.len() - 4);
    bytes.extend([17]);
    bytes.extend([b'g'; 17]);
    bytes.extend([1, b'n']);
    assert!(decode_request(&bytes).is_err());
}

#[test]
fn a_stream_is_split_wherever_it_is_cut() {
    let mut stream = BytesMut::new();
    for (number, request) in (1..).zip(requests()) {
        assert!(frames::put(&mut stream, number, &request, 1 << 20));
    }
    for step in [1, 3, 7, stream.len()] {
        let (mut frames, mut found) = (Frames::new(1 << 20), Vec::new());
        for part in stream.chunks(step) {
            frames.buffer().extend_from_slice(part);
            while let Some(frame) = frames.next_frame().expect("frames") {
                assert_eq!(frame.number, found.len() as u64 + 1);
                found.push(decode_request(&frame.body).expect("a request"));
            }
        }
        assert_eq!(found, requests());
    }
    let before = stream.len();
    assert!(!frames::put(&mut stream, 1, &Request::List, 9));
    assert_eq!(stream.len(), before, "what is too long is not sent in part");
}
