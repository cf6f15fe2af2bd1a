//! Mixes of requests after which the service goes on by itself: it removes znodes that are due, and
//! keeps the statistics of quotas.

use coordination::model::{Lifetime, Naming, Request};
use fastrand::Rng;

use super::{create, set};
use crate::checks::{CONTAINER_BYTES, QUOTA_TOP, TIME_TO_LIVE_BYTES};

/// Znodes of all kinds that hold each other, at few paths.
pub fn expiring(rng: &mut Rng, client: usize, request: usize) -> Request {
    const PATHS: [&str; 5] = ["/x", "/x", "/x/y", "/x/y/z", "/x/w"];
    let path = PATHS[rng.usize(..PATHS.len())].to_owned();
    let lifetime = match rng.usize(..10) {
        0..=4 => Lifetime::Container,
        5 | 6 => Lifetime::TimeToLive {
            ms: rng.i64(100..8_000),
        },
        7 => Lifetime::Ephemeral,
        _ => Lifetime::Persistent,
    };
    match rng.usize(..10) {
        0..=4 => {
            let mut request = create(path, client, request, lifetime, Naming::Given);
            if let Request::Create { data, .. } = &mut request {
                let length = match lifetime {
                    Lifetime::Container => CONTAINER_BYTES,
                    Lifetime::TimeToLive { .. } => TIME_TO_LIVE_BYTES,
                    Lifetime::Persistent | Lifetime::Ephemeral => 1,
                };
                *data = Some(vec![b'x'; length as usize].into());
            }
            request
        }
        5 => Request::Multi(vec![
            Request::Delete {
                path: "/x/y/z".into(),
                version: -1,
            },
            Request::Delete {
                path: "/x/y".into(),
                version: -1,
            },
        ]),
        6..=8 => Request::Delete { path, version: -1 },
        _ => set(path, client, request, -1),
    }
}

/// All clients change a subtree, on which one of them sets a quota.
pub fn quotas(rng: &mut Rng, client: usize, request: usize) -> Request {
    const PATHS: [&str; 5] = ["/q", "/q/a", "/q/b", "/q/a/c", "/other"];
    let path = PATHS[rng.usize(..PATHS.len())].to_owned();
    let made =
        |path: &str, lifetime| create(path.to_owned(), client, request, lifetime, Naming::Given);
    let parts = ["", "/zookeeper_limits", "/zookeeper_stats"];
    match rng.usize(..10) {
        0 => Request::Multi(
            parts
                .map(|name| format!("/zookeeper/quota{QUOTA_TOP}{name}"))
                .map(|path| made(&path, Lifetime::Persistent))
                .into(),
        ),
        1..=3 => made(&path, Lifetime::Persistent),
        4 => made("/q/e", Lifetime::Ephemeral),
        5 | 6 => Request::Delete { path, version: -1 },
        _ => {
            let mut request = set(path, client, request, -1);
            if let Request::SetData { data, .. } = &mut request {
                *data = Some(vec![b'x'; rng.usize(..50)].into());
            }
            request
        }
    }
}
