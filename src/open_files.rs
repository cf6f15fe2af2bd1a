//! The limit of open files, and its division among the store and the front ends.
//!
//! Each connection takes a file, and the store needs some: a journal segment, a checkpoint, an
//! object that is being written. If connections took the last of them, writes of connected clients
//! would fail. So the front ends get only the files that the store leaves.

use std::fs;

/// The files of the store, the runtime and the logs. Most of them are for objects, each of which is
/// a file while it is written or read.
const OWN: usize = 128;
/// The most that the front ends can use, even if the system allows more.
const ZOOKEEPER_MAX: usize = 10_000;
const HTTP_MAX: usize = 256;
const ROUTES_MAX: usize = 256;
const S3_MAX: usize = 256;
const VOLUMES_MAX: usize = 256;

/// The connections that each front end may have open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connections {
    pub(crate) zookeeper: usize,
    pub(crate) http: usize,
    pub(crate) routes: usize,
    pub(crate) s3: usize,
    pub(crate) volumes: usize,
}

impl Connections {
    /// By the limit of this process.
    pub(crate) fn allowed() -> Self {
        let allowed = Self::under(limit().unwrap_or(usize::MAX));
        if allowed.zookeeper < ZOOKEEPER_MAX {
            tracing::warn!(
                zookeeper = allowed.zookeeper,
                http = allowed.http,
                routes = allowed.routes,
                s3 = allowed.s3,
                volumes = allowed.volumes,
                "the limit of open files allows only so many connections: raise it with `ulimit -n`"
            );
        }
        allowed
    }

    /// HTTP gets up to a quarter of the files that the store leaves. Routes and S3 get an eighth
    /// each, volumes a sixteenth, and ZooKeeper the rest. If there are too few for the store, the
    /// front ends get half.
    fn under(limit: usize) -> Self {
        let left = limit - OWN.min(limit / 2);
        let http = (left / 4).clamp(1, HTTP_MAX);
        let routes = (left / 8).clamp(1, ROUTES_MAX);
        let s3 = (left / 8).clamp(1, S3_MAX);
        let volumes = (left / 16).clamp(1, VOLUMES_MAX);
        Self {
            zookeeper: left
                .saturating_sub(http + routes + s3 + volumes)
                .clamp(1, ZOOKEEPER_MAX),
            http,
            routes,
            s3,
            volumes,
        }
    }
}

/// The most files that may be open: `usize::MAX` if that is unlimited, `None` if the system does
/// not say.
pub(crate) fn limit() -> Option<usize> {
    parse(&fs::read_to_string("/proc/self/limits").ok()?)
}

fn parse(limits: &str) -> Option<usize> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(usize::MAX),
        soft => soft.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_counts() {
        let line = |soft| {
            format!("Max processes 1 2 processes\nMax open files            {soft}  4096  files\n")
        };
        assert_eq!(parse(&line("1024")), Some(1024));
        assert_eq!(parse(&line("unlimited")), Some(usize::MAX));
        assert_eq!(parse("nothing of the kind"), None);
    }

    #[test]
    fn connections_leave_the_store_its_own() {
        for limit in [16, 256, 1024, 4096, 20_000, usize::MAX] {
            let allowed = Connections::under(limit);
            let Connections {
                zookeeper,
                http,
                routes,
                s3,
                volumes,
            } = allowed;
            let all = [zookeeper, http, routes, s3, volumes];
            assert!(all.iter().all(|count| *count > 0), "{limit}");
            let sum: usize = all.iter().sum();
            assert!(sum + OWN.min(limit / 2) <= limit, "{limit}");
        }
        let under = |limit| {
            let allowed = Connections::under(limit);
            (allowed.zookeeper, allowed.http, allowed.routes, allowed.s3)
        };
        assert_eq!(under(20_000), (ZOOKEEPER_MAX, HTTP_MAX, ROUTES_MAX, S3_MAX));
        assert_eq!(under(1024), (392, 224, 112, 112));
    }
}
