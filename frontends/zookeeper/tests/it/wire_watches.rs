//! Persistent watches on the wire, as ZooKeeper 3.9.5 reads and answers them.

use bytes::BytesMut;
use coordination::{
    Error,
    model::{Output, Request, Response, WatchKind, WatchMode, Watched, Zxid},
};
use zookeeper_frontend::framing::Frames;

use crate::drive;
use crate::requests::{frame, int, long, string, strings};

/// The request that these bytes decode to, and the bytes of this answer to it.
fn exchange(opcode: i32, body: &[Vec<u8>], result: Result<Response, Error>) -> (Request, Vec<u8>) {
    let bytes = frame(&[int(7), int(opcode), body.concat()].concat());
    let mut frames = Frames::new(1 << 20);
    frames.space().extend_from_slice(&bytes);
    frames.received(bytes.len());
    let mut conversation = drive::conversation();
    let asked = conversation.next_request(&mut frames);
    let (tag, request) = asked.expect("a frame").expect("a request");
    let mut written = BytesMut::new();
    let reply = Output::Reply {
        tag,
        zxid: Zxid(5),
        result,
    };
    conversation.encode(&reply, &mut written);
    (request, written.to_vec())
}

fn decoded(opcode: i32, body: &[Vec<u8>]) -> Request {
    exchange(opcode, body, Err(Error::System)).0
}

const HEADER: &[u8] = b"\0\0\0\x07\0\0\0\0\0\0\0\x05";

/// Point 39: the reply has a body with an error code.
#[test]
fn a_persistent_watch_is_added_with_its_mode() {
    for (number, mode) in [(0, WatchMode::Persistent), (1, WatchMode::Recursive)] {
        let body = [string("/a"), int(number)];
        let (request, reply) = exchange(106, &body, Ok(Response::WatchAdded));
        let path = "/a".into();
        assert_eq!(request, Request::AddWatch { path, mode });
        let expected = [b"\0\0\0\x14", HEADER, b"\0\0\0\0\0\0\0\0"].concat();
        assert_eq!(reply, expected);
    }
    for mode in [-1, 2, i32::MAX] {
        let request = decoded(106, &[string("/a"), int(mode)]);
        assert_eq!(request, Request::Refuse(Error::Marshalling));
    }
    let (path, mode) = (String::new(), WatchMode::Persistent);
    let with_null = decoded(106, &[int(-1), int(0)]);
    assert_eq!(with_null, Request::AddWatch { path, mode });
    assert_eq!(
        decoded(106, &[string("/a"), vec![0, 0, 0]]),
        Request::Refuse(Error::Marshalling)
    );
}

/// Point 42.
#[test]
fn watches_are_checked_and_removed_by_their_kind() {
    let kinds = [
        (1, WatchKind::Children),
        (2, WatchKind::Data),
        (3, WatchKind::Any),
        (4, WatchKind::Persistent),
        (5, WatchKind::Recursive),
    ];
    for (opcode, only_checks) in [(17, true), (18, false)] {
        for (number, kind) in kinds {
            let body = [string("/a"), int(number)];
            let (request, reply) = exchange(opcode, &body, Err(Error::NoWatcher));
            let path = "/a".into();
            let expected = Request::RemoveWatches {
                path,
                kind,
                only_checks,
            };
            assert_eq!(request, expected);
            let header = [b"\0\0\0\x10", HEADER, b"\xff\xff\xff\x87"].concat();
            assert_eq!(reply, header);
        }
        for unknown in [-1, 0, 6] {
            let request = decoded(opcode, &[string("/a"), int(unknown)]);
            assert_eq!(request, Request::Refuse(Error::Marshalling));
        }
    }
}

/// Point 40: both lists are required, and only they may contain a null path.
#[test]
fn persistent_watches_are_set_again_behind_the_one_shot_ones() {
    let none = || strings(&[]);
    let lists = [strings(&["/p".to_owned()]), strings(&["/r".to_owned()])];
    let mut body = vec![long(4), none(), none(), none()];
    body.extend(lists);
    let expected = Request::SetWatches {
        relative: Zxid(4),
        watches: vec![
            (Watched::Lasting(WatchMode::Persistent), "/p".into()),
            (Watched::Lasting(WatchMode::Recursive), "/r".into()),
        ],
    };
    let (request, reply) = exchange(105, &body, Ok(Response::WatchesSet));
    assert_eq!(request, expected);
    assert_eq!(reply, [b"\0\0\0\x10", HEADER, b"\0\0\0\0"].concat());
    for bad in [
        vec![long(4), none(), none(), none(), none()],
        vec![long(4), none(), none(), none(), int(-1), int(-1)],
        vec![
            long(4),
            [int(1), int(-1)].concat(),
            none(),
            none(),
            none(),
            none(),
        ],
    ] {
        assert_eq!(decoded(105, &bad), Request::Refuse(Error::Marshalling));
    }
    let with_null = [
        long(4),
        none(),
        none(),
        none(),
        [int(1), int(-1)].concat(),
        none(),
    ];
    assert!(
        matches!(decoded(105, &with_null), Request::SetWatches { watches, .. } if watches.len() == 1)
    );
}
