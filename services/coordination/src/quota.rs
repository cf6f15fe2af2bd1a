//! Quotas as ZooKeeper keeps them: the limits and the statistics of a subtree are the data of
//! znodes below `/zookeeper/quota`. Paths and text only, no I/O.
//!
//! A quota exists while its limits znode does. The distributor keeps the statistics, and the writer
//! enforces hard limits if the settings say so.

use std::collections::BTreeMap;

/// The znode below which the quotas are.
pub(crate) const ROOT: &str = "/zookeeper/quota";

/// The names of the two znodes of a quota.
const LIMITS: &str = "/zookeeper_limits";
const STATISTICS: &str = "/zookeeper_stats";

/// A longer text is malformed. Each update below a quota logs its statistics.
const TEXT_BYTES_MAX: usize = 1024;

const COUNT: &str = "count";
const BYTES: &str = "bytes";
const COUNT_HARD: &str = "countHardLimit";
const BYTES_HARD: &str = "byteHardLimit";

/// The path of the limits of `top`.
pub(crate) fn limits_path(top: &str) -> String {
    format!("{ROOT}{top}{LIMITS}")
}

/// The path of the statistics of `top`.
pub(crate) fn statistics_path(top: &str) -> String {
    format!("{ROOT}{top}{STATISTICS}")
}

/// The top of the subtree whose limits are at `path`. As in ZooKeeper, a quota of the root has no
/// effect.
pub(crate) fn top_of_limits(path: &str) -> Option<&str> {
    top(path, LIMITS)
}

/// The top of the subtree whose statistics are at `path`.
pub(crate) fn top_of_statistics(path: &str) -> Option<&str> {
    top(path, STATISTICS)
}

fn top<'path>(path: &'path str, name: &str) -> Option<&'path str> {
    let top = path.strip_prefix(ROOT)?.strip_suffix(name)?;
    top.starts_with('/').then_some(top)
}

/// Limits or statistics: ZooKeeper's `StatsTrack`. A missing value is -1, no limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Amounts(BTreeMap<String, i64>);

impl Amounts {
    pub(crate) fn new(count: i64, bytes: i64) -> Self {
        Self(BTreeMap::from([
            (COUNT.into(), count),
            (BYTES.into(), bytes),
        ]))
    }

    /// The amounts in the data of a znode, or `None` if the text is malformed.
    pub fn parse(data: Option<&[u8]>) -> Option<Self> {
        let data = data.unwrap_or_default();
        let text = std::str::from_utf8(data).ok()?;
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let text = text.trim_end_matches([',', ';']);
        let mut amounts = BTreeMap::new();
        for pair in text.split([',', ';']).filter(|_| !text.is_empty()) {
            let mut parts = pair.split('=');
            let (name, value) = (parts.next()?, parts.next()?);
            let value = if value.is_empty() { "-1" } else { value };
            amounts.insert(name.to_owned(), value.parse().ok()?);
        }
        Some(Self(amounts))
    }

    /// The text, with the two values of old clients first.
    pub fn text(&self) -> String {
        let mut text = format!("{COUNT}={},{BYTES}={}", self.count(), self.bytes());
        let others = self
            .0
            .iter()
            .filter(|(name, _)| *name != COUNT && *name != BYTES);
        for (place, (name, value)) in others.enumerate() {
            // The additional sign is ZooKeeper's, for old clients.
            let separator = if place == 0 { "=;" } else { ";" };
            text.extend([separator, name, "=", &value.to_string()]);
        }
        text
    }

    pub(crate) fn add(&mut self, count: i64, bytes: i64) {
        for (name, value, more) in [(COUNT, self.count(), count), (BYTES, self.bytes(), bytes)] {
            self.0.insert(name.to_owned(), value.saturating_add(more));
        }
    }

    pub(crate) fn count(&self) -> i64 {
        self.value(COUNT)
    }

    pub(crate) fn bytes(&self) -> i64 {
        self.value(BYTES)
    }

    fn value(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(-1)
    }

    /// Whether `statistics` are above these limits, if the count, the bytes or both are compared.
    pub(crate) fn exceeded_by(&self, statistics: &Self, compared: Compared) -> Option<Exceeded> {
        let limits = [
            (compared.count, COUNT, COUNT_HARD, statistics.count()),
            (compared.bytes, BYTES, BYTES_HARD, statistics.bytes()),
        ];
        let exceeded = limits
            .into_iter()
            .filter_map(|(is_compared, soft, hard, now)| {
                let is_hard = self.value(hard) > -1;
                let limit = self.value(if is_hard { hard } else { soft });
                let is_above = is_compared && limit > -1 && now > limit;
                is_above.then_some(Exceeded {
                    is_hard,
                    limit,
                    now,
                })
            });
        // A hard limit counts more than a soft one.
        exceeded.max_by_key(|exceeded| exceeded.is_hard)
    }
}

/// Which amounts a change may have raised.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compared {
    pub(crate) count: bool,
    pub(crate) bytes: bool,
}

/// A limit that is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) is_hard: bool,
    pub(crate) limit: i64,
    pub(crate) now: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_zookeepers() {
        let text = "count=3,bytes=-1=;byteHardLimit=7;countHardLimit=-1";
        let limits = Amounts::parse(Some(text.as_bytes())).expect("it is right");
        assert_eq!(limits.text(), text);
        assert_eq!((limits.count(), limits.bytes()), (3, -1));
        assert_eq!(Amounts::new(1, 2).text(), "count=1,bytes=2");
        assert_eq!(Amounts::parse(None), Some(Amounts::default()));
        let mut sums = Amounts::parse(Some(b"count=1")).expect("it is right");
        sums.add(2, 5);
        assert_eq!(sums.text(), "count=3,bytes=4", "as in ZooKeeper");
        for malformed in ["count", "count=x", ",count=1", "\u{ff}"] {
            assert_eq!(
                Amounts::parse(Some(malformed.as_bytes())),
                None,
                "{malformed}"
            );
        }
        assert_eq!(Amounts::parse(Some(b"\xff")), None);
    }

    #[test]
    fn a_quota_is_known_by_its_paths() {
        assert_eq!(limits_path("/a/b"), "/zookeeper/quota/a/b/zookeeper_limits");
        assert_eq!(top_of_limits(&limits_path("/a/b")), Some("/a/b"));
        assert_eq!(top_of_statistics(&statistics_path("/a")), Some("/a"));
        assert_eq!(top_of_limits("/zookeeper/quota/zookeeper_limits"), None);
        assert_eq!(top_of_limits("/zookeeper/quotas/zookeeper_limits"), None);
        assert_eq!(top_of_limits("/a/zookeeper_limits"), None);
    }

    #[test]
    fn a_hard_limit_counts_before_a_soft_one() {
        let limits = Amounts::parse(Some(b"count=1,bytes=5=;countHardLimit=3")).expect("right");
        let both = Compared {
            count: true,
            bytes: true,
        };
        let exceeded = |count, bytes, compared| {
            let exceeded = limits.exceeded_by(&Amounts::new(count, bytes), compared);
            exceeded.map(|exceeded| (exceeded.is_hard, exceeded.limit))
        };
        assert_eq!(exceeded(3, 5, both), None, "the soft count is not compared");
        assert_eq!(exceeded(4, 6, both), Some((true, 3)));
        assert_eq!(exceeded(3, 6, both), Some((false, 5)));
        assert_eq!(
            exceeded(
                9,
                5,
                Compared {
                    count: false,
                    bytes: true
                }
            ),
            None
        );
    }
}
