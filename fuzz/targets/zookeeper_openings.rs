//! The first bytes of a connection to ZooKeeper's port, and passwords: only the four-letter words, HTTP and TLS are told
//! from packets, and only the configured accounts are proved.
#![no_main]

use std::{collections::BTreeSet, sync::Arc};

use bytes::BufMut as _;
use libfuzzer_sys::fuzz_target;
use zookeeper_frontend::{
    authentication::{Accounts, Authentication},
    framing::{Frames, Stranger},
    jute::connect::ConnectRequest,
};

/// The longest packet that a server may be told to accept.
const FRAME_BYTES_MAX: usize = 64 << 20;

fuzz_target!(|bytes: &[u8]| {
    let mut frames = Frames::new(FRAME_BYTES_MAX);
    for piece in bytes.chunks(3) {
        frames.space().put(piece);
        frames.received(piece.len());
        if let Some(stranger) = frames.prefix().and_then(Stranger::recognise) {
            assert!(frames.next_frame().is_err(), "{stranger:?} is no packet");
            break;
        }
        match frames.next_frame() {
            Ok(Some(frame)) => {
                let _ = ConnectRequest::decode(frame).map(|request| request.connect());
            }
            Ok(None) => {}
            Err(_) => break,
        }
    }
    let (scheme, proof) = bytes.split_at(bytes.len().min(6));
    let scheme = std::str::from_utf8(scheme).ok();
    for accounts in [None, Some(Accounts(Arc::new(BTreeSet::from(["user:tpUq/4Pn5A64fVZyQ0gOJ8ZWqkY=".to_owned()]))))] {
        let (peer, is_closed) = ([127, 0, 0, 1].into(), accounts.is_some());
        let mut authentication = Authentication::new(peer, None, None, accounts, true);
        for scheme in [scheme, Some("digest")] {
            let proved = authentication.prove(scheme, Some(proof)).unwrap_or_default();
            assert!(proved.iter().all(|one| ["ip", "digest"].contains(&&*one.scheme)));
            let is_digest = proved.iter().any(|one| one.scheme == "digest");
            assert!(!(is_digest && is_closed) || proof == b"user:password", "it is in no account");
            assert!(!is_digest || !authentication.is_missing());
        }
    }
});
