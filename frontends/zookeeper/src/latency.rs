//! How long requests waited for their answers, and the last one that was answered. No I/O.

use coordination::model::Zxid;

use crate::jute::Operation;

/// Times from a request to its answer, in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Latency {
    pub(crate) min: Option<u32>,
    pub(crate) max: u32,
    pub(crate) last: u32,
    sum: u64,
    count: u64,
}

impl Latency {
    pub(crate) fn add(&mut self, ms: u32) {
        self.merge(Self {
            min: Some(ms),
            max: ms,
            last: ms,
            sum: u64::from(ms),
            count: 1,
        });
    }

    pub(crate) fn merge(&mut self, other: Self) {
        if other.count == 0 {
            return;
        }
        self.min = other.min.min(self.min.or(other.min));
        self.max = self.max.max(other.max);
        self.last = other.last;
        self.sum += other.sum;
        self.count += other.count;
    }

    /// With four decimals, as ZooKeeper rounds it.
    pub(crate) fn average(&self) -> f64 {
        let average = self.sum as f64 / self.count.max(1) as f64;
        (average * 1e4).round() / 1e4
    }
}

/// The last answered request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastReply {
    pub(crate) operation: Operation,
    /// That of the last request with a number of its own, not of a ping.
    pub(crate) xid: Option<i32>,
    pub(crate) zxid: Zxid,
    /// In milliseconds since the server started.
    pub(crate) at_ms: u64,
}
