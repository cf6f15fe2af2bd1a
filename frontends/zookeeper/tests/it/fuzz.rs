//! Bytes that no client would send: mutated requests and plain noise, from seeds.
//!
//! Runs for a few seconds, or for `LANDFAST_FUZZ_SECONDS`. An input depends only on its number, so
//! the number that a failure prints replays it: `LANDFAST_FUZZ_INPUT=N`. The cargo-fuzz target in
//! `fuzz/` uses the same driver.
#![allow(clippy::disallowed_methods)] // The clock only decides when to stop.

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::{Duration, Instant},
};

use bytes::Bytes;
use coordination::{
    Error,
    model::{Acl, Lifetime, Naming, Request, WatchKind, WatchMode, Watched, Watching, Zxid},
};
use fastrand::Rng;
use zookeeper_frontend::jute::{Reader, request};

use crate::{
    counting_allocator::allocated_by,
    drive::authentication,
    drive::{PACKET_BYTES_MAX, drive, drive_connect},
    requests::{buffer, encode, frame, int, long},
};

const INPUTS: u64 = 200_000;
const SECONDS: u64 = 10;

/// Lengths and counts that broke decoders before.
const NUMBERS: [i32; 14] = [
    0,
    1,
    -1,
    -2,
    4,
    0xff,
    0xffff,
    0x1_0000,
    0x1_0001,
    0xf_ffff,
    0x10_0000,
    i32::MAX - 3,
    i32::MAX,
    i32::MIN,
];

#[test]
fn no_bytes_of_a_peer_crash_the_decoder_or_make_it_allocate_beyond_the_packet() {
    if let Some(input) = number("LANDFAST_FUZZ_INPUT") {
        return check(input);
    }
    let seconds = number("LANDFAST_FUZZ_SECONDS");
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(SECONDS));
    let mut inputs = 0;
    while (seconds.is_some() || inputs < INPUTS) && (inputs % 64 != 0 || Instant::now() < end) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(inputs))) {
            eprintln!("replay with LANDFAST_FUZZ_INPUT={inputs}");
            resume_unwind(panic);
        }
        inputs += 1;
    }
    assert!(inputs > 0, "some time was given");
}

/// The fuzzer is useful only if a good share of its inputs passes the framing.
#[test]
fn many_fuzzed_inputs_still_hold_requests_and_many_do_not() {
    let requests: Vec<usize> = (0..2000)
        .map(|input| drive(&bytes_of(input), usize::MAX))
        .collect();
    let with_requests = requests.iter().filter(|requests| **requests > 0).count();
    assert!(
        (400..1900).contains(&with_requests),
        "{with_requests} of 2000"
    );
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|value| value.parse().ok())
}

fn check(input: u64) {
    let bytes = bytes_of(input);
    let piece = Rng::with_seed(!input).usize(1..=bytes.len().max(1));
    let (_, allocated) = allocated_by(|| drive(&bytes, piece));
    // The read buffer and the reply buffer double as they grow. A packet alone is at most the
    // limit.
    assert!(
        allocated.largest_bytes <= 4 * (PACKET_BYTES_MAX + bytes.len()),
        "{} bytes made for {} bytes: {allocated:?}",
        allocated.largest_bytes,
        bytes.len()
    );
    drive_connect(&bytes);

    let body = Bytes::from(bytes);
    let (_, allocated) =
        allocated_by(|| request::decode(Reader::new(&body), &mut authentication()));
    // An empty string is 4 bytes on the wire and a `String` of 24 here. A part of a multi is 18 and
    // a `Request`, in a vector that begins with four and doubles. A password also becomes an
    // identity with a hash.
    let parts = size_of::<Request>() * (4 + 4 * body.len() / 18);
    assert!(
        allocated.total_bytes <= 8 * body.len() + parts + 512,
        "for {} bytes: {allocated:?}",
        body.len()
    );
}

/// The bytes of this number: a few valid frames, then damage.
fn bytes_of(input: u64) -> Vec<u8> {
    let mut rng = Rng::with_seed(input);
    if rng.u8(..) < 16 {
        return noise(&mut rng);
    }
    let mut bytes = Vec::new();
    if rng.u8(..) < 16 {
        bytes.extend(connect(&mut rng));
    }
    for _ in 0..rng.usize(1..6) {
        let xid = rng.i32(-9..100);
        if rng.u8(..) < 16 {
            bytes.extend(authentication_packet(&mut rng));
        }
        bytes.extend(encode(xid, &some_request(&mut rng), rng.bool()));
    }
    for _ in 0..rng.usize(0..6) {
        damage(&mut rng, &mut bytes);
    }
    bytes
}

fn noise(rng: &mut Rng) -> Vec<u8> {
    let length = rng.usize(0..300);
    let bytes = std::iter::repeat_with(|| rng.u8(..))
        .take(length)
        .collect::<Vec<_>>();
    if rng.bool() { frame(&bytes) } else { bytes }
}

/// With a proof of any size.
fn authentication_packet(rng: &mut Rng) -> Vec<u8> {
    let schemes: [Option<&[u8]>; 5] =
        [Some(b"digest"), Some(b"ip"), Some(b"x509"), Some(b""), None];
    let scheme = schemes[rng.usize(..schemes.len())];
    let length = if rng.bool() {
        rng.usize(0..40)
    } else {
        rng.usize(0..20_000)
    };
    let proof: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(length).collect();
    let proof = Some(proof.as_slice()).filter(|_| rng.u8(..) > 16);
    frame(&[int(-4), int(100), int(0), buffer(scheme), buffer(proof)].concat())
}

fn connect(rng: &mut Rng) -> Vec<u8> {
    let password: Vec<u8> = (0..rng.u8(0..32)).collect();
    let mut body = [
        int(0),
        long(rng.i64(..)),
        int(rng.i32(..)),
        long(rng.i64(..)),
        buffer(Some(&password)),
    ]
    .concat();
    body.extend(vec![0; rng.usize(0..3)]);
    frame(&body)
}

fn some_create(rng: &mut Rng, path: String) -> Request {
    let acl = (0..rng.i32(0..4)).map(|permissions| Acl {
        permissions,
        scheme: text(rng),
        id: text(rng),
    });
    let acl = acl.collect();
    Request::Create {
        path,
        data: data(rng),
        acl,
        lifetime: [Lifetime::Persistent, Lifetime::Ephemeral][rng.usize(..2)],
        naming: [Naming::Given, Naming::Sequential][rng.usize(..2)],
    }
}

fn some_request(rng: &mut Rng) -> Request {
    let path = text(rng);
    let version = rng.i32(-2..5);
    let watching = if rng.bool() {
        Watching::Yes
    } else {
        Watching::No
    };
    match rng.u8(0..15) {
        0 => some_create(rng, path),
        1 => Request::Delete { path, version },
        2 => Request::SetData {
            path,
            data: data(rng),
            version,
        },
        3 => Request::Exists { path, watching },
        4 => Request::GetData { path, watching },
        5 => Request::GetChildren { path, watching },
        6 => Request::Sync { path: Some(path) },
        7 => Request::Ping,
        8 => {
            let kinds = [
                Watched::Data,
                Watched::Existence,
                Watched::Children,
                Watched::Lasting(WatchMode::Recursive),
            ];
            let watches = kinds.into_iter().flat_map(|watched| {
                let paths = (0..rng.u8(0..40)).map(|_| (watched, text(rng)));
                paths.collect::<Vec<_>>()
            });
            let watches = watches.collect();
            Request::SetWatches {
                relative: Zxid(rng.i64(..)),
                watches,
            }
        }
        9 => Request::Close,
        10 => Request::AddWatch {
            path,
            mode: WatchMode::Persistent,
        },
        11 => Request::RemoveWatches {
            path,
            kind: WatchKind::Any,
            only_checks: rng.bool(),
        },
        12 => Request::CountDescendants { path },
        13 => Request::GetEphemerals { prefix: path },
        _ => Request::Refuse(Error::Unimplemented),
    }
}

fn text(rng: &mut Rng) -> String {
    let length = rng.usize(0..12);
    std::iter::repeat_with(|| {
        if rng.u8(..) < 8 {
            rng.char(..)
        } else {
            rng.char('/'..'c')
        }
    })
    .take(length)
    .collect()
}

fn data(rng: &mut Rng) -> Option<Bytes> {
    let lengths = [0, 1, 100, 4096, 4097, 20_000];
    let length = rng.choice(lengths).expect("there are lengths");
    rng.bool().then(|| Bytes::from(vec![rng.u8(..); length]))
}

fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.usize(0..bytes.len());
    match rng.u8(0..7) {
        0 => bytes[at] ^= 1 << rng.u8(0..8),
        1 => bytes[at] = rng.u8(..),
        2 => bytes.truncate(at),
        3 => {
            bytes.remove(at);
        }
        4 => bytes.insert(at, rng.u8(..)),
        5 => {
            let piece = bytes[at..(at + rng.usize(0..64)).min(bytes.len())].to_vec();
            let to = rng.usize(0..=bytes.len());
            bytes.splice(to..to, piece);
        }
        _ => {
            let number = rng
                .choice(NUMBERS)
                .expect("there are numbers")
                .to_be_bytes();
            let end = (at + 4).min(bytes.len());
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
    }
}
