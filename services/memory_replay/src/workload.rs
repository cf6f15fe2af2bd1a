//! Traces with the published statistics of two workloads: layers of a container registry (IBM) and
//! blobs of serverless functions (Azure).
//!
//! Objects arrive at random times. Each has a size, and a session of reads with random gaps. The
//! published figures are those of `infinistore.txt`, sections 2 and 6.1: [`Profile::published`].
//! They leave much open, so the rest is assumed: [`Profile::assumptions`].
//!
//! Three published figures are kept by construction. An object whose session would make an hour's
//! working set too large arrives at another time. In a pause almost nothing arrives, and requests
//! wait for its end. A minute with less than its least working set takes further small objects.

use std::time::Duration;

use crate::{
    chance::Chance,
    trace::{Operation, Request, Trace},
};

const MINUTE_MS: f64 = 60_000.0;
const HOUR_MS: f64 = 3_600_000.0;
/// Objects above this size are large.
const LARGE_BYTES: f64 = 10e6;
/// The attempts to find a time for an object.
const ATTEMPTS_MAX: usize = 60;

/// The statistics of a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// The hours of the published run.
    pub hours: u64,
    /// The GETs of an hour.
    pub gets_per_hour: f64,
    /// The bytes of new objects in an hour.
    pub bytes_per_hour: f64,
    /// The objects of more than 10 MB.
    pub large_share: f64,
    /// The GETs of objects with fewer than ten.
    pub rare_share: f64,
    /// The largest working set of an hour.
    pub hour_bytes_max: f64,
    /// The largest working set of a minute over the smallest.
    pub minute_ratio: f64,
    /// The share of long gaps between accesses, and their mean.
    long_gaps: (f64, Duration),
    /// The means of the other gaps, each as frequent.
    short_gaps: [Duration; 2],
    /// The medians of small and of large objects, and the largest object.
    sizes: (f64, f64, f64),
    /// The large ones among objects that are read often.
    popular_large_share: f64,
    /// Popular objects that are read steadily: with exponential gaps.
    steady_share: f64,
    /// The time from one pause to the next, and its length.
    pauses: (Duration, Duration),
    /// The length of quiet and of busy times, and how many more objects arrive in busy ones.
    busy: (Duration, Duration, f64),
    /// The GC interval of the published run, with M and N.
    pub window: (Duration, u32, u32),
    /// The failures of instances in the published run.
    pub failures: u32,
}

/// The container registry: 50 hours in Dallas.
pub const IBM: Profile = Profile {
    name: "ibm",
    hours: 50,
    gets_per_hour: 3654.0,
    bytes_per_hour: 888e9 / 50.0,
    large_share: 0.31,
    rare_share: 0.16,
    hour_bytes_max: 40e9,
    minute_ratio: 209.0,
    // Exponentials through the two published quantiles, 0.80 in 10 minutes and 0.94 in 100. That is
    // a share of 0.2286; the end of the trace cuts off some.
    long_gaps: (0.24, Duration::from_secs(4485)),
    short_gaps: [Duration::from_mins(1); 2],
    sizes: (0.4e6, 30e6, 1e9),
    popular_large_share: 0.1,
    steady_share: 0.26,
    pauses: (Duration::from_hours(2), Duration::from_mins(4)),
    busy: (Duration::from_mins(90), Duration::from_mins(30), 4.0),
    window: (Duration::from_mins(10), 6, 12),
    failures: 1083,
};

/// Blobs of serverless functions: the 5 hours with the burstiest requests.
pub const AZURE: Profile = Profile {
    name: "azure",
    hours: 5,
    gets_per_hour: 20_000.0,
    bytes_per_hour: 60e9,
    large_share: 0.45,
    rare_share: 0.02,
    hour_bytes_max: f64::MAX,
    minute_ratio: 173.0,
    long_gaps: (0.018, Duration::from_mins(10)),
    short_gaps: [Duration::from_millis(500), Duration::from_secs(10)],
    sizes: (1e6, 40e6, 2e9),
    popular_large_share: 0.45,
    steady_share: 0.25,
    pauses: (Duration::from_mins(30), Duration::from_mins(3)),
    busy: (Duration::from_mins(12), Duration::from_mins(4), 4.0),
    window: (Duration::from_mins(1), 8, 15),
    failures: 108,
};

impl Profile {
    /// What the paper publishes, in words.
    pub fn published(&self) -> String {
        let Self {
            large_share,
            rare_share,
            minute_ratio,
            ..
        } = self;
        let common = format!(
            "{:.0} % of objects over 10 MB, {:.0} % of GETs to objects with fewer than 10, \
             80 % of the others with CoV > 1, working set of a minute {minute_ratio} times as large at most as at least",
            large_share * 100.0,
            rare_share * 100.0
        );
        match self.name {
            "ibm" => format!(
                "50 h, 3,654 GETs/h, 888 GB, 40 GB an hour at most; reused in 10 min 80 %, in 100 min 94 %; {common}"
            ),
            _ => format!("5 h, reused in 1 min 98 %; {common}"),
        }
    }

    /// What is assumed, in words.
    pub fn assumptions(&self) -> String {
        let (small, large, largest) = self.sizes;
        let ((long_share, long), [short, other]) = (self.long_gaps, self.short_gaps);
        let (quiet, busy, times) = self.busy;
        let volume = if self.name == "azure" {
            "20,000 GETs/h, 60 GB/h, 108 failures; "
        } else {
            ""
        };
        format!(
            "{volume}objects are put before they are read; sizes lognormal around {:.1} MB and {:.0} MB, {:.0} GB at most; \
             gaps exponential with {:?} or {:?} on average, {:.1} % of {} s; popular objects: 10 to 400 GETs by Pareto (1.2), \
             {:.0} % over 10 MB, {:.0} % read steadily; for {} of {} min {times} times as many arrivals; \
             pauses of {} min each {} min",
            small / 1e6,
            large / 1e6,
            largest / 1e9,
            short,
            other,
            long_share * 100.0,
            long.as_secs(),
            self.popular_large_share * 100.0,
            self.steady_share * 100.0,
            busy.as_secs() / 60,
            (quiet + busy).as_secs() / 60,
            self.pauses.1.as_secs() / 60,
            self.pauses.0.as_secs() / 60,
        )
    }

    /// A trace of some hours.
    pub fn generate(&self, hours: u64, seed: u64) -> Trace {
        let chance = Chance::new(seed);
        let mut maker = Maker::new(self, hours, &chance);
        maker.add_popular_objects();
        maker.add_other_objects();
        maker.fill_minutes();
        maker.finish()
    }

    fn size(&self, large_share: f64, chance: &Chance) -> f64 {
        let is_large = chance.happens(large_share);
        let (small, large, largest) = self.sizes;
        for _ in 0..ATTEMPTS_MAX {
            let bytes = if is_large {
                chance.lognormal(large, 0.9)
            } else {
                chance.lognormal(small, 2.0)
            };
            if (bytes > LARGE_BYTES) == is_large && bytes >= 1.0 && bytes <= largest {
                return bytes;
            }
        }
        if is_large { large } else { small }
    }
}

/// An object with its accesses, of which the first is its PUT.
#[derive(Debug)]
struct Session {
    bytes: u64,
    times_ms: Vec<u64>,
}

/// Begin and end of each pause.
fn pauses(profile: &Profile, end_ms: f64, chance: &Chance) -> Vec<(f64, f64)> {
    let (between, length) = profile.pauses;
    let [between, length] = [between, length].map(|mean| mean.as_millis() as f64);
    let (mut pauses, mut from) = (Vec::new(), 0.0);
    loop {
        from += chance.exponential(between).max(between / 10.0);
        // At least one whole minute lies in each.
        let to = from + chance.exponential(length).max(2.0 * MINUTE_MS);
        if to >= end_ms {
            return pauses;
        }
        pauses.push((from, to));
        from = to;
    }
}

/// Quiet and busy times in turns.
fn states(profile: &Profile, end_ms: f64, chance: &Chance) -> Vec<(f64, f64, f64)> {
    let (quiet, busy, times) = profile.busy;
    let (mut states, mut from, mut arrivals) = (Vec::new(), 0.0, 0.0);
    while from < end_ms {
        let (mean, rate) = if states.len() % 2 == 0 {
            (quiet, 1.0)
        } else {
            (busy, times)
        };
        let to = (from + chance.exponential(mean.as_millis() as f64)).min(end_ms);
        arrivals += rate * (to - from);
        states.push((from, to, arrivals));
        from = to;
    }
    for state in &mut states {
        state.2 /= arrivals;
    }
    states
}

/// A trace while it is made.
#[derive(Debug)]
struct Maker<'a> {
    profile: &'a Profile,
    chance: &'a Chance,
    end_ms: f64,
    /// Begin and end of each.
    pauses: Vec<(f64, f64)>,
    /// The quiet and the busy times, as begin, end, and the share of arrivals up to the end.
    states: Vec<(f64, f64, f64)>,
    sessions: Vec<Session>,
    gets: usize,
    bytes: f64,
    /// The GETs of objects with fewer than ten.
    rare_gets: usize,
    /// By minute: the working set of the minute, and that of the hour that ends with it.
    minute_bytes: Vec<f64>,
    hour_bytes: Vec<f64>,
}

impl<'a> Maker<'a> {
    fn new(profile: &'a Profile, hours: u64, chance: &'a Chance) -> Self {
        let end_ms = hours as f64 * HOUR_MS;
        let minutes = (hours * 60) as usize;
        Self {
            profile,
            chance,
            end_ms,
            pauses: pauses(profile, end_ms, chance),
            states: states(profile, end_ms, chance),
            sessions: Vec::new(),
            gets: 0,
            bytes: 0.0,
            rare_gets: 0,
            minute_bytes: vec![0.0; minutes],
            hour_bytes: vec![0.0; minutes],
        }
    }

    /// The time at which an object arrives.
    fn arrival(&self) -> f64 {
        let at = self.chance.unit();
        let index = self.states.partition_point(|(_, _, share)| *share <= at);
        let (from, to, _) = self.states[index.min(self.states.len() - 1)];
        self.outside_pauses(from + self.chance.unit() * (to - from))
    }

    /// A request that falls into a pause begins within a minute after its end.
    fn outside_pauses(&self, at_ms: f64) -> f64 {
        let index = self.pauses.partition_point(|(_, to)| *to <= at_ms);
        match self.pauses.get(index) {
            Some((from, to)) if *from <= at_ms => to + self.chance.unit() * MINUTE_MS,
            _ => at_ms,
        }
    }

    /// The times of an object that is read `reads` times, as far as they lie in the trace.
    fn times(&self, reads: usize, is_steady: bool) -> Vec<u64> {
        let mut at_ms = self.arrival();
        let mut times = Vec::new();
        while times.len() <= reads && at_ms < self.end_ms {
            times.push(at_ms as u64);
            at_ms = self.outside_pauses(at_ms + self.gap(is_steady));
        }
        times
    }

    fn gap(&self, is_steady: bool) -> f64 {
        let profile = self.profile;
        let ((long_share, long), short) = (profile.long_gaps, profile.short_gaps);
        // Steady objects have no long gaps, so the others have more.
        let steady = profile.steady_share * (1.0 - profile.rare_share);
        let mean = if is_steady {
            short[0] + short[1]
        } else if self.chance.happens(long_share / (1.0 - steady)) {
            long
        } else {
            short[usize::from(self.chance.happens(0.5))]
        };
        self.chance.exponential(mean.as_millis() as f64)
    }

    fn add(&mut self, session: Session) {
        let gets = session.times_ms.len() - 1;
        self.gets += gets;
        self.bytes += session.bytes as f64;
        if gets < 10 {
            self.rare_gets += gets;
        }
        for (minute, in_hour) in self.minutes(&session.times_ms) {
            self.minute_bytes[minute] += session.bytes as f64;
            for minute in in_hour {
                self.hour_bytes[minute] += session.bytes as f64;
            }
        }
        self.sessions.push(session);
    }

    /// Each minute with an access, and the minutes whose hour has this access as its first.
    fn minutes(&self, times_ms: &[u64]) -> Vec<(usize, std::ops::Range<usize>)> {
        let mut minutes: Vec<_> = times_ms.iter().map(|at| (at / 60_000) as usize).collect();
        minutes.dedup();
        let mut counted_to = 0;
        let count = self.hour_bytes.len();
        let found = minutes.into_iter().map(|minute| {
            // An hour that begins within a minute touches 61 of them.
            let hour = minute.max(counted_to)..(minute + 61).min(count).max(counted_to);
            counted_to = hour.end;
            (minute, hour)
        });
        found.collect()
    }

    fn fits(&self, session: &Session) -> bool {
        // Minutes are filled later.
        let room = 0.99 * self.profile.hour_bytes_max - session.bytes as f64;
        let minutes = self.minutes(&session.times_ms);
        let mut hours = minutes.into_iter().flat_map(|(_, hour)| hour);
        hours.all(|minute| self.hour_bytes[minute] <= room)
    }

    /// Adds an object at the first random time at which it fits. Whether there is one.
    fn place(&mut self, bytes: u64, reads: usize, is_steady: bool) -> bool {
        for _ in 0..ATTEMPTS_MAX {
            let times_ms = self.times(reads, is_steady);
            let session = Session { bytes, times_ms };
            if !session.times_ms.is_empty() && self.fits(&session) {
                self.add(session);
                return true;
            }
        }
        false
    }

    fn hours(&self) -> f64 {
        self.end_ms / HOUR_MS
    }

    fn add_popular_objects(&mut self) {
        let profile = self.profile;
        let wanted = profile.gets_per_hour * self.hours() * (1.0 - profile.rare_share);
        while ((self.gets - self.rare_gets) as f64) < wanted {
            let reads = self.chance.pareto(1.2, 10.0, 400.0) as usize;
            let bytes = profile.size(profile.popular_large_share, self.chance);
            let is_steady = self.chance.happens(profile.steady_share);
            self.place(bytes as u64, reads, is_steady);
        }
    }

    fn add_other_objects(&mut self) {
        let profile = self.profile;
        let mut sizes = Vec::new();
        // The large ones of all objects have their share.
        let popular = self.sessions.len() as f64;
        let popular_large = popular * profile.popular_large_share;
        let mut large_share = profile.large_share;
        for pass in 0..4 {
            sizes.clear();
            let mut bytes = self.bytes;
            while bytes < profile.bytes_per_hour * self.hours() {
                let size = profile.size(large_share, self.chance);
                bytes += size;
                sizes.push(size);
            }
            let count = sizes.len() as f64;
            if pass < 3 {
                let large = profile.large_share * (count + popular) - popular_large;
                large_share = (large / count).clamp(0.0, 1.0);
            }
        }
        let wanted = profile.gets_per_hour * self.hours() - self.gets as f64;
        let mut left = sizes.len();
        let end = self.gets as f64 + wanted;
        for bytes in sizes {
            // Those that come later make up for reads after the end of the trace.
            let mean = (end - self.gets as f64).max(0.0) / left as f64;
            let reads = self
                .chance
                .exponential(1.0 / (1.0 + 1.0 / mean.max(1e-9)).ln());
            self.place(bytes as u64, (reads as usize).min(9), false);
            left -= 1;
        }
    }

    /// Adds objects to minutes whose working set is too small.
    fn fill_minutes(&mut self) {
        let profile = self.profile;
        let most = self.minute_bytes.iter().copied().fold(0.0, f64::max);
        let least = most / profile.minute_ratio;
        for minute in 0..self.minute_bytes.len() {
            while self.minute_bytes[minute] < least {
                let missing = least - self.minute_bytes[minute];
                let bytes = missing.ceil().min(LARGE_BYTES);
                let at_ms = (minute as f64 + self.chance.unit()) * MINUTE_MS;
                let times_ms = vec![at_ms as u64];
                let bytes = bytes as u64;
                self.add(Session { bytes, times_ms });
            }
        }
    }

    fn finish(self) -> Trace {
        let mut sessions = self.sessions;
        sessions.sort_by_key(|session| session.times_ms[0]);
        let keys = (0..sessions.len()).map(|index| format!("{}/{index}", self.profile.name));
        let keys = keys.collect();
        let mut requests = Vec::new();
        for (object, session) in (0..).zip(&sessions) {
            for (index, at_ms) in session.times_ms.iter().enumerate() {
                requests.push(Request {
                    at_ms: *at_ms,
                    operation: if index == 0 {
                        Operation::Put
                    } else {
                        Operation::Get
                    },
                    object,
                    bytes: session.bytes,
                });
            }
        }
        // Stable: of requests at one time, the PUT stays the first of its object.
        requests.sort_by_key(|request| request.at_ms);
        Trace { keys, requests }
    }
}

#[cfg(test)]
mod tests;
