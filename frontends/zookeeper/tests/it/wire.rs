//! Bytes that clients and ZooKeeper 3.9.5 exchange, as captured on the wire.

use bytes::{Bytes, BytesMut};
use coordination::{
    Error, access,
    model::{
        Connect, EventKind, Lifetime, Naming, Output, Password, Request, Response, SessionId, Stat,
        Watched, Watching, Zxid,
    },
};
use zookeeper_frontend::{
    conversation::Conversation,
    framing::Frames,
    jute::{
        Reader,
        connect::{ConnectRequest, ConnectResponse},
        request::Fault,
    },
};

use crate::drive::conversation;
use crate::requests::{buffer, frame, int, long, string, strings};

/// A conversation in bytes.
pub(crate) struct Wire {
    pub(crate) frames: Frames,
    pub(crate) conversation: Conversation,
    pub(crate) written: BytesMut,
}

impl Wire {
    pub(crate) fn new() -> Self {
        Self {
            frames: Frames::new(1 << 20),
            conversation: conversation(),
            written: BytesMut::new(),
        }
    }

    /// The requests that the service receives for these bytes.
    pub(crate) fn ask(&mut self, bytes: &[u8]) -> Vec<(i32, Request)> {
        self.frames.space().extend_from_slice(bytes);
        self.frames.received(bytes.len());
        std::iter::from_fn(|| {
            self.conversation
                .next_request(&mut self.frames)
                .expect("these are frames")
        })
        .collect()
    }

    /// The bytes that the client receives for this answer of the service.
    pub(crate) fn answer(
        &mut self,
        tag: i32,
        zxid: i64,
        result: Result<Response, Error>,
    ) -> Vec<u8> {
        self.conversation.encode(
            &Output::Reply {
                tag,
                zxid: Zxid(zxid),
                result,
            },
            &mut self.written,
        );
        self.written.split().to_vec()
    }
}

/// The decoded request of one body under an opcode.
fn decoded(opcode: i32, body: &[Vec<u8>]) -> Request {
    decoded_with_fault(opcode, body).0
}

/// The decoded request and its fault.
fn decoded_with_fault(opcode: i32, body: &[Vec<u8>]) -> (Request, Option<Fault>) {
    let bytes = frame(&[int(7), int(opcode), body.concat()].concat());
    let mut wire = Wire::new();
    let mut asked = wire.ask(&bytes);
    let (xid, request) = asked.pop().expect("a header makes a request");
    assert_eq!((xid, asked.len()), (7, 0));
    let fault = wire.conversation.take_fault();
    assert_eq!(wire.conversation.take_fault(), None, "it is said once");
    (request, fault)
}

fn world() -> Vec<u8> {
    [int(1), int(31), string("world"), string("anyone")].concat()
}

/// kazoo: a new session, ten seconds, with the byte added in 3.4.
#[test]
fn a_connect_request_of_kazoo_opens_a_session() {
    let packet = Bytes::from_static(
        b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x27\x10\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    );
    assert_eq!(packet.len(), 45);
    let request = ConnectRequest::decode(Reader::new(&packet)).expect("it decodes");
    assert!(request.has_read_only);
    let connect = request.connect().expect("it asks for nothing impossible");
    assert_eq!(
        connect,
        Connect {
            last_zxid_seen: Zxid(0),
            timeout: std::time::Duration::from_secs(10),
            resume: None
        }
    );
    let old = packet.slice(..44);
    assert!(
        !ConnectRequest::decode(Reader::new(&old))
            .expect("it decodes")
            .has_read_only
    );
}

/// The answer of ZooKeeper 3.9.5, with its session and password.
#[test]
fn a_connect_response_has_a_read_only_byte_only_for_clients_that_sent_one() {
    let password = *b"\x10\xfchM\xa0\xd9L-\xea:za\x16Jok";
    let mut response = ConnectResponse {
        timeout_ms: 10_000,
        session: SessionId(0x0100_0023_c832_0000),
        password: Password(password),
        has_read_only: true,
    };
    let expected = [
        b"\0\0\0\x25\0\0\0\0\0\0\x27\x10\x01\0\0\x23\xc8\x32\0\0\0\0\0\x10",
        &password[..],
        b"\0",
    ]
    .concat();
    let mut buffer = BytesMut::new();
    response.encode(&mut buffer);
    assert_eq!(buffer, expected);

    response.has_read_only = false;
    buffer.clear();
    response.encode(&mut buffer);
    assert_eq!(buffer[..4], [0, 0, 0, 0x24]);
    assert_eq!(buffer[4..], expected[4..expected.len() - 1]);
}

/// Point 4 of ZooKeeper's session rules: the client gets an answer, not only a close.
#[test]
fn an_expired_session_is_reported_with_zeros() {
    let mut buffer = BytesMut::new();
    ConnectResponse::expired(true).encode(&mut buffer);
    assert_eq!(
        buffer,
        [&b"\0\0\0\x25"[..], &[0; 16], b"\0\0\0\x10", &[0; 17]].concat()
    );
}

#[test]
fn a_session_is_resumed_only_with_a_password_that_could_be_right() {
    let request = |session: i64, password: Option<&[u8]>| {
        let body =
            Bytes::from([int(0), long(9), int(-5), long(session), buffer(password)].concat());
        ConnectRequest::decode(Reader::new(&body))
            .expect("it decodes")
            .connect()
    };
    let resume = request(5, Some(&[7; 16])).expect("it can be tried").resume;
    assert_eq!(resume, Some((SessionId(5), Password([7; 16]))));
    assert_eq!(request(5, Some(&[7; 15])), None);
    assert_eq!(request(5, None), None);
    let fresh = request(0, None).expect("a new session needs no password");
    assert_eq!((fresh.resume, fresh.timeout.as_millis()), (None, 0));
}

#[test]
fn a_create_is_answered_with_its_path_and_a_create2_with_its_stat_too() {
    let bytes =
        b"\0\0\0\x32\0\0\0\x01\0\0\0\x01\0\0\0\x02/x\0\0\0\x01d\0\0\0\x01\0\0\0\x1f\0\0\0\x05world\
                  \0\0\0\x06anyone\0\0\0\0";
    let create = Request::Create {
        path: "/x".into(),
        data: Some(Bytes::from_static(b"d")),
        acl: access::open(),
        lifetime: Lifetime::Persistent,
        naming: Naming::Given,
    };
    let mut wire = Wire::new();
    assert_eq!(wire.ask(bytes), [(1, create)]);
    let created = Response::Created {
        path: "/x".into(),
        stat: Stat::default(),
    };
    assert_eq!(
        wire.answer(1, 2, Ok(created.clone())),
        b"\0\0\0\x16\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x02/x"
    );

    let mut create2 = bytes.to_vec();
    create2[11] = 15;
    assert_eq!(wire.ask(&create2).len(), 1);
    let answered = wire.answer(1, 2, Ok(created));
    assert_eq!(answered.len(), 4 + 0x16 + 68);
}

/// The answer of ZooKeeper 3.9.5, field for field.
#[test]
fn a_data_reply_ends_with_the_whole_stat() {
    let mut wire = Wire::new();
    let asked = wire.ask(b"\0\0\0\x0f\0\0\0\x07\0\0\0\x04\0\0\0\x02/x\x01");
    assert_eq!(
        asked,
        [(
            7,
            Request::GetData {
                path: "/x".into(),
                watching: Watching::Yes
            }
        )]
    );
    let stat = Stat {
        czxid: Zxid(2),
        mzxid: Zxid(3),
        ctime: 0x01a1_fc29_6b6f,
        mtime: 0x01a1_fc29_6b70,
        version: 4,
        cversion: 5,
        aversion: 6,
        ephemeral_owner: 0x0100_0023_c832_0000,
        data_length: 1,
        num_children: 8,
        pzxid: Zxid(9),
    };
    let data = Some(Bytes::from_static(b"d"));
    let expected = [
        &b"\0\0\0\x59\0\0\0\x07\0\0\0\0\0\0\0\x29\0\0\0\0\0\0\0\x01d"[..],
        b"\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\x01\xa1\xfc\x29\x6b\x6f\0\0\x01\xa1\xfc\x29\x6b\x70",
        b"\0\0\0\x04\0\0\0\x05\0\0\0\x06\x01\0\0\x23\xc8\x32\0\0\0\0\0\x01\0\0\0\x08\0\0\0\0\0\0\0\x09",
    ]
    .concat();
    assert_eq!(
        wire.answer(7, 41, Ok(Response::Data { data, stat })),
        expected
    );
}

#[test]
fn null_data_stays_null() {
    let mut wire = Wire::new();
    wire.ask(b"\0\0\0\x0f\0\0\0\x07\0\0\0\x04\0\0\0\x02/x\0");
    let bytes = wire.answer(
        7,
        1,
        Ok(Response::Data {
            data: None,
            stat: Stat::default(),
        }),
    );
    assert_eq!(bytes[20..24], [0xff; 4]);
    assert_eq!(bytes.len(), 24 + 68);
}

#[test]
fn children_include_a_stat_only_on_request() {
    let children = Response::Children {
        children: vec!["a".into(), "bc".into()],
        stat: Stat::default(),
    };
    for (opcode, stat_bytes) in [(8, 0), (12, 68)] {
        let mut wire = Wire::new();
        let body = [int(3), int(opcode), string("/"), vec![0]].concat();
        assert_eq!(wire.ask(&frame(&body)).len(), 1);
        let bytes = wire.answer(3, 1, Ok(children.clone()));
        assert_eq!(bytes[20..35], *b"\0\0\0\x02\0\0\0\x01a\0\0\0\x02bc");
        assert_eq!(bytes.len(), 35 + stat_bytes);
    }
}

/// As in ZooKeeper, which uses only the ping's own xid.
#[test]
fn a_ping_with_an_ordinary_xid_is_answered_with_the_pings_own() {
    let mut wire = Wire::new();
    assert_eq!(
        wire.ask(b"\0\0\0\x08\0\0\0\x07\0\0\0\x0b"),
        [(7, Request::Ping)]
    );
    assert_eq!(
        wire.answer(7, 5, Ok(Response::Pong)),
        b"\0\0\0\x10\xff\xff\xff\xfe\0\0\0\0\0\0\0\x05\0\0\0\0"
    );
}

/// Points 9 and 40: the negative xids of ping and setWatches are echoed.
#[test]
fn special_xids_are_echoed() {
    let mut wire = Wire::new();
    assert_eq!(
        wire.ask(b"\0\0\0\x08\xff\xff\xff\xfe\0\0\0\x0b"),
        [(-2, Request::Ping)]
    );
    assert_eq!(
        wire.answer(-2, 5, Ok(Response::Pong)),
        b"\0\0\0\x10\xff\xff\xff\xfe\0\0\0\0\0\0\0\x05\0\0\0\0"
    );
    let paths = |path: &str| strings(&[path.to_owned()]);
    let body = [
        int(-8),
        int(101),
        long(4),
        paths("/d"),
        paths("/e"),
        paths("/c"),
    ]
    .concat();
    let set = Request::SetWatches {
        relative: Zxid(4),
        watches: vec![
            (Watched::Data, "/d".into()),
            (Watched::Existence, "/e".into()),
            (Watched::Children, "/c".into()),
        ],
    };
    assert_eq!(wire.ask(&frame(&body)), [(-8, set)]);
    assert_eq!(
        wire.answer(-8, 5, Ok(Response::WatchesSet)),
        b"\0\0\0\x10\xff\xff\xff\xf8\0\0\0\0\0\0\0\x05\0\0\0\0"
    );
}

/// Point 34.
#[test]
fn an_event_has_xid_minus_one_and_the_zxid_of_its_change() {
    let mut wire = Wire::new();
    let mut event = |zxid, kind| {
        wire.conversation.encode(
            &Output::Event {
                zxid,
                kind,
                path: "/x".into(),
            },
            &mut wire.written,
        );
        wire.written.split().to_vec()
    };
    assert_eq!(
        event(Some(Zxid(6)), EventKind::NodeDataChanged),
        b"\0\0\0\x1e\xff\xff\xff\xff\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x03\0\0\0\x03\0\0\0\x02/x"
    );
    assert_eq!(event(None, EventKind::NodeDeleted)[8..16], [0xff; 8]);
}

#[test]
fn an_error_has_no_body() {
    let mut wire = Wire::new();
    wire.ask(b"\0\0\0\x0f\0\0\0\x07\0\0\0\x04\0\0\0\x02/x\0");
    assert_eq!(
        wire.answer(7, 3, Err(Error::NoNode)),
        b"\0\0\0\x10\0\0\0\x07\0\0\0\0\0\0\0\x03\xff\xff\xff\x9b"
    );
}

/// Point 16: ZooKeeper answers like this, then closes. `check` outside a multi is one of them.
#[test]
fn an_unknown_opcode_is_refused_without_a_zxid_and_ends_the_conversation() {
    for opcode in [55, 0, -10, -1, 13, 102, i32::MAX, i32::MIN] {
        let mut wire = Wire::new();
        let asked =
            wire.ask(&[frame(&[int(7), int(opcode)].concat()), frame(b"never read")].concat());
        assert_eq!(
            asked,
            [(7, Request::Refuse(Error::Unimplemented))],
            "{opcode}"
        );
        assert!(wire.conversation.is_ending() && !wire.conversation.is_over());
        assert_eq!(
            wire.answer(7, 3, Err(Error::Unimplemented)),
            b"\0\0\0\x10\0\0\0\x07\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfa"
        );
        assert!(wire.conversation.is_over());
    }
}

#[test]
fn an_operation_that_is_not_offered_is_refused_and_the_conversation_goes_on() {
    assert_eq!(decoded(20, &[]), Request::Refuse(Error::Unimplemented));
    let null = buffer(None);
    assert_eq!(
        decoded(16, &[null.clone(), null.clone(), null, long(-1)]),
        Request::RefuseUpdate(Error::ReconfigurationDisabled)
    );
    assert_eq!(decoded(16, &[]), Request::Refuse(Error::Marshalling));
    for opcode in [16, 20] {
        let mut wire = Wire::new();
        let both = [
            frame(&[int(7), int(opcode)].concat()),
            frame(&[int(-2), int(11)].concat()),
        ]
        .concat();
        assert_eq!(wire.ask(&both).len(), 2, "{opcode}");
    }
}

/// Point 24: opcode 1 makes containers too, and no znodes with a time to live. Flags are checked
/// before the ACL.
#[test]
fn flags_of_create_are_checked() {
    let create = |flags| decoded(1, &[string("/x"), buffer(None), int(0), int(flags)]);
    for flags in 0..5 {
        assert!(matches!(create(flags), Request::Create { .. }), "{flags}");
    }
    let with_time = |flags, ms| {
        let body = [string("/x"), buffer(None), int(0), int(flags), long(ms)];
        decoded(21, &body)
    };
    for (flags, ms, is_valid) in [
        (0, -1, true),
        (0, 5, false),
        (5, 0, false),
        (5, 1, true),
        (6, (1 << 40) - 1, true),
        (6, 1 << 40, false),
    ] {
        let is_create = matches!(with_time(flags, ms), Request::Create { .. });
        assert_eq!(is_create, is_valid, "{flags} {ms}");
    }
    for flags in [-1, 5, 6, 7, 9, i32::MAX, i32::MIN] {
        assert_eq!(
            create(flags),
            Request::RefuseUpdate(Error::BadArguments),
            "{flags}"
        );
    }
}

/// In a multi, flags of no mode end the whole multi, and `createContainer` makes containers alone.
#[test]
fn flags_of_parts_are_checked() {
    let multi = |opcode: i32, flags| {
        let part = [string("/x"), buffer(None), world(), int(flags)].concat();
        let header = [int(opcode), vec![0], int(-1)].concat();
        decoded(14, &[header, part, int(-1), vec![1], int(-1)])
    };
    for (opcode, flags) in [(1, 9), (1, -5), (1, 5), (15, 6), (19, 5)] {
        let refused = Request::RefuseUpdate(Error::Marshalling);
        assert_eq!(multi(opcode, flags), refused, "{opcode} {flags}");
    }
    for (opcode, flags) in [(1, 4), (15, 4), (19, 0), (19, 1), (19, 4)] {
        let Request::Multi(parts) = multi(opcode, flags) else {
            panic!("{opcode} {flags} is refused")
        };
        let is_container = |part: &Request| matches!(part, Request::Create { lifetime, .. } if *lifetime == Lifetime::Container);
        assert!(parts.iter().all(is_container), "{opcode} {flags}");
    }
}

/// The refusal of a body of this name. An update with a null path takes a zxid, as in ZooKeeper.
fn refusal_of(name: &str) -> Request {
    match name {
        "null path to delete"
        | "null path to create"
        | "truncated multi"
        | "null path in a multi" => Request::RefuseUpdate(Error::Marshalling),
        _ => Request::Refuse(Error::Marshalling),
    }
}

/// Point 16, and the answers of ZooKeeper 3.9.5 to the same bytes.
#[test]
fn a_body_that_does_not_decode_is_refused_and_the_conversation_goes_on() {
    let null = buffer(None);
    let bodies: [(&str, i32, Vec<Vec<u8>>); 18] = [
        ("truncated get", 4, vec![int(50)]),
        ("truncated set", 5, vec![int(50), b"abc".to_vec()]),
        ("truncated create", 1, vec![int(50), b"abc".to_vec()]),
        ("missing watch flag", 4, vec![string("/x")]),
        ("huge ACL", 1, vec![string("/x"), string(""), int(i32::MAX)]),
        ("null path to get", 4, vec![null.clone(), vec![0]]),
        ("null path to exists", 3, vec![null.clone(), vec![1]]),
        ("null path to children", 8, vec![null.clone(), vec![1]]),
        ("null path to delete", 2, vec![null.clone(), int(0)]),
        (
            "null path to a truncated delete",
            2,
            vec![null.clone(), b"abc".to_vec()],
        ),
        (
            "null path to create",
            1,
            vec![null.clone(), null.clone(), world(), int(0)],
        ),
        ("negative length", 4, vec![int(-5), vec![0]]),
        (
            "null watch path",
            101,
            vec![long(0), int(1), null.clone(), int(0), int(0)],
        ),
        ("truncated watches", 101, vec![long(0), int(5)]),
        ("truncated multi", 14, vec![int(1)]),
        (
            "null path in a multi",
            14,
            vec![int(2), vec![0], int(-1), null.clone(), int(0)],
        ),
        (
            "null watch lists",
            101,
            vec![long(0), int(-1), int(-1), int(-1)],
        ),
        (
            "missing persistent lists",
            105,
            vec![long(0), int(0), int(0), int(0)],
        ),
    ];
    for (name, opcode, body) in bodies {
        let malformed = refusal_of(name);
        let (request, fault) = decoded_with_fault(opcode, &body);
        assert_eq!(request, malformed, "{name}");
        assert!(
            matches!(fault, Some(Fault::Body { .. })),
            "{name}: {fault:?}"
        );
    }
    assert_eq!(
        decoded(5, &[null.clone(), null, int(0)]),
        Request::RefuseUpdate(Error::BadArguments)
    );
}

/// Bodies that do not decode, unknown opcodes and failing authentications are faults. Requests that are
/// merely refused are not.
#[test]
fn only_requests_that_no_client_sends_are_faults() {
    assert_eq!(decoded_with_fault(4242, &[]).1, Some(Fault::Opcode(4242)));
    let authentication = |scheme| [int(0), string(scheme), string("user:password")];
    assert_eq!(decoded_with_fault(100, &authentication("digest")).1, None);
    assert_eq!(
        decoded_with_fault(100, &authentication("sasl")).1,
        Some(Fault::Authentication)
    );
    let fault = decoded_with_fault(4, &[int(-5)])
        .1
        .expect("it does not decode");
    assert_eq!(
        fault.to_string(),
        "GetData: a length does not fit the frame"
    );
    let path = string("/x");
    let create = |flags| [path.clone(), string(""), world(), int(flags)];
    assert_eq!(decoded_with_fault(4, &[path.clone(), vec![1]]).1, None);
    let multi = |part: i32| {
        let header = [int(part), vec![0], int(-1)].concat();
        decoded_with_fault(14, &[header, path.clone(), vec![0]]).1
    };
    assert_eq!(
        multi(4).map(|fault| fault.to_string()),
        Some("Multi: opcode 4 may not be a part".to_owned())
    );
    let empty = [int(-1), vec![1], int(-1)];
    assert_eq!(decoded_with_fault(14, &empty).1, None);
    assert_eq!(decoded_with_fault(1, &create(4)).1, None);
    assert_eq!(decoded_with_fault(1, &create(99)).1, None);
}

/// As in ZooKeeper 3.9.5, the service decides about such values.
#[test]
fn odd_but_decodable_values_reach_the_service() {
    let get = |path: &str, watching| Request::GetData {
        path: path.into(),
        watching,
    };
    assert_eq!(
        decoded(4, &[string("/x"), vec![7]]),
        get("/x", Watching::Yes)
    );
    assert_eq!(
        decoded(4, &[string("/x"), b"\0trailing".to_vec()]),
        get("/x", Watching::No)
    );
    assert_eq!(
        decoded(4, &[buffer(Some(b"/\xff")), vec![0]]),
        get("/\u{fffd}", Watching::No)
    );
    for acl in [int(-1), int(-7), int(0)] {
        let create = decoded(1, &[string("/x"), string(""), acl, int(0)]);
        assert!(matches!(create, Request::Create { acl, .. } if acl.is_empty()));
    }
    let anonymous = [int(1), int(31), buffer(None), string("x")].concat();
    let create = decoded(1, &[string("/x"), string(""), anonymous, int(0)]);
    assert!(matches!(create, Request::Create { acl, .. } if acl[0].scheme.is_empty()));
}

/// Point 7: the reply to a close is sent last, and bytes after the close are not read.
#[test]
fn a_close_ends_the_conversation_with_its_reply() {
    let mut wire = Wire::new();
    let close = frame(&[int(3), int(-11)].concat());
    let ping = frame(&[int(-2), int(11)].concat());
    assert_eq!(
        wire.ask(&[&ping[..], &close, &ping].concat()),
        [(-2, Request::Ping), (3, Request::Close)]
    );
    wire.answer(-2, 1, Ok(Response::Pong));
    assert!(!wire.conversation.is_over());
    assert_eq!(
        wire.answer(3, 0x32, Ok(Response::Closed)),
        b"\0\0\0\x10\0\0\0\x03\0\0\0\0\0\0\0\x32\0\0\0\0"
    );
    assert!(wire.conversation.is_over());
    wire.conversation.encode(
        &Output::Event {
            zxid: None,
            kind: EventKind::NodeCreated,
            path: "/x".into(),
        },
        &mut wire.written,
    );
    assert!(wire.written.is_empty());
}

#[test]
fn a_packet_too_short_for_a_header_breaks_the_conversation() {
    for length in 0..8 {
        let mut frames = Frames::new(100);
        frames.space().extend_from_slice(&frame(&vec![0; length]));
        assert!(
            conversation().next_request(&mut frames).is_err(),
            "{length}"
        );
    }
}
