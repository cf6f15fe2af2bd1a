//! The ordered events of a world.

use std::{borrow::Cow, collections::VecDeque, fmt, time::Duration};

/// The most entries that a trace keeps. Older ones only count in its hash.
pub(crate) const ENTRIES_MAX: usize = 10_000;

/// One port call, or one step of the cloud itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The time since the world began.
    pub at: Duration,
    /// The calling invocation, as `writer#7`; empty for any other caller.
    pub caller: String,
    /// The operation.
    pub operation: &'static str,
    /// Its key, queue, function or object.
    pub subject: String,
    /// Its outcome.
    pub outcome: Cow<'static, str>,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let caller = if self.caller.is_empty() {
            "-"
        } else {
            &self.caller
        };
        write!(
            f,
            "{:>12.6} {caller} {} {}: {}",
            self.at.as_secs_f64(),
            self.operation,
            self.subject,
            self.outcome
        )
    }
}

/// The record of a run up to some moment. Two runs of one seed have equal traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The last entries, oldest first.
    entries: VecDeque<Entry>,
    hash: u64,
    port_calls: u64,
    entry_count: u64,
}

impl Default for Trace {
    fn default() -> Self {
        /// The offset basis of FNV-1a.
        const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
        Self {
            entries: VecDeque::new(),
            hash: BASIS,
            port_calls: 0,
            entry_count: 0,
        }
    }
}

impl Trace {
    /// The last entries, at most 10,000, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// A hash over all entries since the world began.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The number of port calls. Steps of triggers and timers do not count.
    pub fn port_calls(&self) -> u64 {
        self.port_calls
    }

    /// The number of entries since the world began.
    pub fn entry_count(&self) -> u64 {
        self.entry_count
    }

    pub(crate) fn count_port_call(&mut self) {
        self.port_calls += 1;
    }

    pub(crate) fn record(&mut self, entry: Entry) {
        self.mix(&entry.at.as_nanos().to_be_bytes());
        for part in [
            &entry.caller,
            entry.operation,
            &entry.subject,
            &entry.outcome,
        ] {
            self.mix(part.as_bytes());
            self.mix(&[0xff]);
        }
        self.entry_count += 1;
        self.entries.push_back(entry);
        if self.entries.len() > ENTRIES_MAX {
            self.entries.pop_front();
        }
    }

    /// FNV-1a.
    fn mix(&mut self, bytes: &[u8]) {
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    }
}

/// The entries as a transcript, one to a line.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entries
            .iter()
            .try_for_each(|entry| writeln!(f, "{entry}"))
    }
}
