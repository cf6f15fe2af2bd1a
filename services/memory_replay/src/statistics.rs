//! The statistics of a trace that papers publish: sizes, working sets, reuse intervals, bursts.

use std::collections::VecDeque;

use serde::Serialize;

use crate::trace::{Operation, Trace};

/// Objects with fewer reads again are left out of the statistics of bursts, as in the paper.
const REUSES_MIN: usize = 10;

/// What a trace is like. Shares are from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Statistics {
    /// The objects.
    pub objects: usize,
    /// The GETs.
    pub gets: usize,
    /// The bytes of all objects.
    pub distinct_bytes: u64,
    /// The objects of more than 10 MB.
    pub large_share: f64,
    /// The accesses of an object at most a minute after the last.
    pub reused_in_1_min_share: f64,
    /// At most 10 minutes after.
    pub reused_in_10_min_share: f64,
    /// At most 100 minutes after.
    pub reused_in_100_min_share: f64,
    /// The GETs of objects with fewer than ten.
    pub rarely_reused_share: f64,
    /// The objects with ten GETs or more whose intervals have a coefficient of variation above 1.
    pub bursty_share: f64,
    /// The largest working set of an hour.
    pub hour_bytes_max: u64,
    /// The largest working set of a minute over the smallest that is not empty.
    pub minute_ratio: f64,
}

impl Statistics {
    /// The statistics of a trace.
    pub fn of(trace: &Trace) -> Self {
        let mut times: Vec<Vec<u64>> = vec![Vec::new(); trace.keys.len()];
        let mut sizes = vec![0; trace.keys.len()];
        let mut hour = WorkingSet::new(3_600_000, trace.keys.len());
        let (mut gets, mut hour_bytes_max) = (0, 0);
        for request in &trace.requests {
            gets += usize::from(request.operation == Operation::Get);
            times[request.object as usize].push(request.at_ms);
            sizes[request.object as usize] = request.bytes;
            hour.add(request.at_ms, request.object, request.bytes);
            hour_bytes_max = hour_bytes_max.max(hour.bytes());
        }
        let large = sizes.iter().filter(|bytes| **bytes > 10_000_000).count();
        let gaps = || times.iter().flat_map(|times| gaps(times));
        let within = |ms: f64| share(gaps().filter(|gap| *gap <= ms).count(), gaps().count());
        let (often, rarely): (Vec<_>, Vec<_>) =
            times.iter().partition(|times| times.len() > REUSES_MIN);
        let rare: usize = rarely.iter().map(|times| times.len().max(1) - 1).sum();
        let bursty = often.iter().filter(|times| variation(times) > 1.0).count();
        Self {
            objects: sizes.len(),
            gets,
            distinct_bytes: sizes.iter().sum(),
            large_share: share(large, sizes.len()),
            reused_in_1_min_share: within(60_000.0),
            reused_in_10_min_share: within(600_000.0),
            reused_in_100_min_share: within(6_000_000.0),
            rarely_reused_share: share(rare, gets),
            bursty_share: share(bursty, often.len()),
            hour_bytes_max,
            minute_ratio: minute_ratio(trace),
        }
    }
}

fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn gaps(times: &[u64]) -> impl Iterator<Item = f64> {
    times.windows(2).map(|pair| (pair[1] - pair[0]) as f64)
}

/// The coefficient of variation of the intervals.
fn variation(times: &[u64]) -> f64 {
    let count = (times.len() - 1) as f64;
    let mean = gaps(times).sum::<f64>() / count;
    let variance = gaps(times).map(|gap| (gap - mean).powi(2)).sum::<f64>() / count;
    variance.sqrt() / mean.max(f64::MIN_POSITIVE)
}

/// Of whole minutes, one after the other.
fn minute_ratio(trace: &Trace) -> f64 {
    let mut minutes: Vec<u64> = Vec::new();
    let mut last_minute = vec![None; trace.keys.len()];
    for request in &trace.requests {
        let minute = (request.at_ms / 60_000) as usize;
        minutes.resize(minutes.len().max(minute + 1), 0);
        let last = &mut last_minute[request.object as usize];
        if last.replace(minute) != Some(minute) {
            minutes[minute] += request.bytes;
        }
    }
    let used = || minutes.iter().copied().filter(|bytes| *bytes > 0);
    let (most, least) = (used().max().unwrap_or(0), used().min().unwrap_or(1));
    most as f64 / least as f64
}

/// The bytes of the objects that were used in the last span of time.
#[derive(Debug)]
pub struct WorkingSet {
    span_ms: u64,
    accesses: VecDeque<(u64, u32)>,
    /// By object: the last access in the span, and the size.
    last: Vec<Option<(u64, u64)>>,
    bytes: u64,
}

impl WorkingSet {
    /// An empty set for objects with indices below `objects`.
    pub fn new(span_ms: u64, objects: usize) -> Self {
        Self {
            span_ms,
            accesses: VecDeque::new(),
            last: vec![None; objects],
            bytes: 0,
        }
    }

    /// Notes an access.
    pub fn add(&mut self, at_ms: u64, object: u32, bytes: u64) {
        self.expire(at_ms);
        let before = self.last[object as usize].replace((at_ms, bytes));
        self.bytes += bytes;
        self.bytes -= before.map_or(0, |(_, bytes)| bytes);
        self.accesses.push_back((at_ms, object));
    }

    /// Forgets the accesses before the span that ends now.
    pub fn expire(&mut self, now_ms: u64) {
        while let Some(&(at_ms, object)) = self.accesses.front()
            && at_ms + self.span_ms <= now_ms
        {
            self.accesses.pop_front();
            let last = &mut self.last[object as usize];
            if let Some((last_ms, bytes)) = *last
                && last_ms == at_ms
            {
                self.bytes -= bytes;
                *last = None;
            }
        }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
