//! How many files the system lets this process have open, and who gets them.
//!
//! Each connection takes one, and the store needs some to go on: a journal segment, a checkpoint, an object being
//! written. Were connections to take the last of them, writes of clients that are there would fail. So the front ends
//! get what is left when the store has its own.

use std::fs;

/// What the store, the runtime and the logs keep for themselves. Most of it is for objects, each of which is a file while
/// it is written or read.
const OWN: usize = 128;
/// As many as the front ends have use for, whatever the system allows.
const ZOOKEEPER_MAX: usize = 10_000;
const HTTP_MAX: usize = 256;

/// How many connections each front end may have open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connections {
    pub(crate) zookeeper: usize,
    pub(crate) http: usize,
}

impl Connections {
    /// Under this process's limit.
    pub(crate) fn allowed() -> Self {
        let allowed = Self::under(limit().unwrap_or(usize::MAX));
        if allowed.zookeeper < ZOOKEEPER_MAX {
            tracing::warn!(
                zookeeper = allowed.zookeeper,
                http = allowed.http,
                "the limit of open files allows only so many connections: raise it with `ulimit -n`"
            );
        }
        allowed
    }

    /// HTTP gets up to a quarter of what the store leaves, ZooKeeper the rest. Where there is too little for the store, half.
    fn under(limit: usize) -> Self {
        let left = limit - OWN.min(limit / 2);
        let http = (left / 4).clamp(1, HTTP_MAX);
        Self {
            zookeeper: left.saturating_sub(http).clamp(1, ZOOKEEPER_MAX),
            http,
        }
    }
}

/// The most files that may be open; `usize::MAX` if that is unlimited, none if the system does not tell.
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
        for limit in [4, 256, 1024, 4096, 20_000, usize::MAX] {
            let Connections { zookeeper, http } = Connections::under(limit);
            assert!(zookeeper > 0 && http > 0, "{limit}");
            assert!(zookeeper + http + OWN.min(limit / 2) <= limit, "{limit}");
        }
        assert_eq!(
            Connections::under(20_000),
            Connections {
                zookeeper: ZOOKEEPER_MAX,
                http: HTTP_MAX
            }
        );
        assert_eq!(
            Connections::under(1024),
            Connections {
                zookeeper: 672,
                http: 224
            }
        );
    }
}
