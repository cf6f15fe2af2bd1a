//! The service receives the request that a client encoded.

use bytes::Bytes;
use coordination::model::{
    Acl, Lifetime, Naming, Request, WatchKind, WatchMode, Watched, Watching, Zxid,
};
use proptest::{collection::vec, option, prelude::*};
use zookeeper_frontend::framing::Frames;

use crate::{drive::conversation, requests::encode};

const PACKET_BYTES_MAX: usize = 1 << 20;

fn path() -> impl Strategy<Value = String> {
    any::<String>()
}

fn watching() -> impl Strategy<Value = Watching> {
    prop_oneof![Just(Watching::No), Just(Watching::Yes)]
}

fn data() -> impl Strategy<Value = Option<Bytes>> {
    option::of(
        prop_oneof![vec(any::<u8>(), 0..100), vec(any::<u8>(), 4000..5000)].prop_map(Bytes::from),
    )
}

fn acl() -> impl Strategy<Value = Acl> {
    (any::<i32>(), any::<String>(), any::<String>()).prop_map(|(permissions, scheme, id)| Acl {
        permissions,
        scheme,
        id,
    })
}

fn create() -> impl Strategy<Value = Request> {
    let lifetime = prop_oneof![
        Just(Lifetime::Persistent),
        Just(Lifetime::Ephemeral),
        (1_i64..1 << 40).prop_map(|ms| Lifetime::TimeToLive { ms }),
    ];
    let naming = prop_oneof![Just(Naming::Given), Just(Naming::Sequential)];
    (path(), data(), vec(acl(), 0..4), lifetime, naming).prop_map(
        |(path, data, acl, lifetime, naming)| Request::Create {
            path,
            data,
            acl,
            lifetime,
            naming,
        },
    )
}

fn set_watches() -> impl Strategy<Value = Request> {
    let of = |watched| vec(path().prop_map(move |path| (watched, path)), 0..5);
    let lists = [
        of(Watched::Data),
        of(Watched::Existence),
        of(Watched::Children),
        of(Watched::Lasting(WatchMode::Persistent)),
        of(Watched::Lasting(WatchMode::Recursive)),
    ];
    (any::<i64>(), lists).prop_map(|(relative, lists)| Request::SetWatches {
        relative: Zxid(relative),
        watches: lists.concat(),
    })
}

/// A path to read. The empty path decodes as the root.
fn path_to_read() -> impl Strategy<Value = String> {
    path().prop_filter("not empty", |path| !path.is_empty())
}

/// An update that may be a part of a multi.
fn part() -> impl Strategy<Value = Request> {
    prop_oneof![
        create(),
        (path(), any::<i32>()).prop_map(|(path, version)| Request::Check { path, version }),
        (path(), any::<i32>()).prop_map(|(path, version)| Request::Delete { path, version }),
    ]
}

fn watch() -> impl Strategy<Value = Request> {
    let kind = prop_oneof![
        Just(WatchKind::Children),
        Just(WatchKind::Data),
        Just(WatchKind::Any),
        Just(WatchKind::Persistent),
        Just(WatchKind::Recursive),
    ];
    let removal = (path(), kind, any::<bool>());
    prop_oneof![
        path().prop_map(|path| Request::AddWatch {
            path,
            mode: WatchMode::Recursive
        }),
        removal.prop_map(|(path, kind, only_checks)| Request::RemoveWatches {
            path,
            kind,
            only_checks
        }),
    ]
}

/// Every request except the one that ends a conversation.
fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        create(),
        watch(),
        vec(part(), 0..5).prop_map(Request::Multi),
        path().prop_map(|path| Request::GetAcl { path }),
        path().prop_map(|prefix| Request::GetEphemerals { prefix }),
        path().prop_map(|path| Request::CountDescendants { path }),
        Just(Request::WhoAmI),
        set_watches(),
        (path(), any::<i32>()).prop_map(|(path, version)| Request::Delete { path, version }),
        (path(), data(), any::<i32>()).prop_map(|(path, data, version)| Request::SetData {
            path,
            data,
            version
        }),
        (path_to_read(), watching())
            .prop_map(|(path, watching)| Request::Exists { path, watching }),
        (path_to_read(), watching())
            .prop_map(|(path, watching)| Request::GetData { path, watching }),
        (path_to_read(), watching())
            .prop_map(|(path, watching)| Request::GetChildren { path, watching }),
        path().prop_map(|path| Request::Sync { path: Some(path) }),
        Just(Request::Ping),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// For any division of the stream into reads, the requests are complete and in order.
    #[test]
    fn requests_decode_as_they_were_encoded(
        requests in vec((any::<i32>(), request(), any::<bool>()), 1..12),
        piece in 1_usize..3000,
    ) {
        let bytes: Vec<u8> =
            requests.iter().flat_map(|(xid, request, newer)| encode(*xid, request, *newer)).collect();
        let mut frames = Frames::new(PACKET_BYTES_MAX);
        let mut conversation = conversation();
        let mut decoded = Vec::new();
        for bytes in bytes.chunks(piece) {
            frames.space().extend_from_slice(bytes);
            frames.received(bytes.len());
            while let Some(next) = conversation.next_request(&mut frames).expect("these are requests") {
                decoded.push(next);
            }
        }
        let expected: Vec<_> = requests.into_iter().map(|(xid, request, _)| (xid, request)).collect();
        prop_assert_eq!(decoded, expected);
    }
}
