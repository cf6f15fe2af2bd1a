//! Figures of each open connection, for operators' commands.
//!
//! A connection adds its tally to its own figures once per turn. The figures of the server are the
//! sum over its connections, so requests of different connections share no memory.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use crate::{
    latency::{LastReply, Latency},
    statistics::Tally,
};

/// The figures of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub(crate) peer: SocketAddr,
    /// In milliseconds since the epoch.
    pub(crate) established_ms: u128,
    /// Zero before it has a session.
    pub(crate) session: i64,
    pub(crate) timeout_ms: u128,
    pub(crate) queued: usize,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) last: Option<LastReply>,
    pub(crate) latency: Latency,
    /// Since the figures of the server were reset.
    of_server: Latency,
}

/// The figures of all open connections of a server.
#[derive(Debug)]
pub(crate) struct AllFigures {
    pub(crate) started: Instant,
    open: Mutex<Open>,
    closed: Mutex<Latency>,
}

#[derive(Debug, Default)]
struct Open {
    last_number: u64,
    by_number: BTreeMap<u64, Arc<Mutex<Figures>>>,
}

/// The entry of an open connection, which ends with it.
#[derive(Debug)]
pub(crate) struct Entry<'all> {
    all: &'all AllFigures,
    number: u64,
    figures: Arc<Mutex<Figures>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while figures are locked")
}

impl AllFigures {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            open: Mutex::default(),
            closed: Mutex::default(),
        }
    }

    /// Adds a connection that has sent its first packet.
    pub(crate) fn open(&self, peer: SocketAddr) -> Entry<'_> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let figures = Arc::new(Mutex::new(Figures {
            peer,
            established_ms: since_epoch.unwrap_or_default().as_millis(),
            session: 0,
            timeout_ms: 0,
            queued: 0,
            received: 1,
            sent: 0,
            last: None,
            latency: Latency::default(),
            of_server: Latency::default(),
        }));
        let mut open = locked(&self.open);
        open.last_number += 1;
        let number = open.last_number;
        open.by_number.insert(number, figures.clone());
        drop(open);
        Entry {
            all: self,
            number,
            figures,
        }
    }

    /// The figures of each open connection, as they are now.
    pub(crate) fn snapshot(&self) -> Vec<Figures> {
        let open: Vec<_> = locked(&self.open).by_number.values().cloned().collect();
        open.iter().map(|figures| locked(figures).clone()).collect()
    }

    /// The latency of all requests since the last reset.
    pub(crate) fn latency(&self) -> Latency {
        let mut latency = *locked(&self.closed);
        for figures in self.snapshot() {
            latency.merge(figures.of_server);
        }
        latency
    }

    fn for_each(&self, change: impl Fn(&mut Figures)) {
        let open: Vec<_> = locked(&self.open).by_number.values().cloned().collect();
        for figures in open {
            change(&mut locked(&figures));
        }
    }

    /// Forgets the latency of the server.
    pub(crate) fn reset_server(&self) {
        *locked(&self.closed) = Latency::default();
        self.for_each(|figures| figures.of_server = Latency::default());
    }

    /// Forgets the figures of every connection.
    pub(crate) fn reset_connections(&self) {
        self.for_each(|figures| {
            (figures.received, figures.sent) = (0, 0);
            (figures.last, figures.latency) = (None, Latency::default());
        });
    }
}

impl Entry<'_> {
    /// The connection has a session and was told so.
    pub(crate) fn has_session(&self, session: i64, timeout_ms: u128) {
        let mut figures = locked(&self.figures);
        (figures.session, figures.timeout_ms) = (session, timeout_ms);
        figures.sent += 1;
    }

    /// Adds the tally of a turn.
    pub(crate) fn add(&self, tally: &Tally, queued: usize) {
        let mut figures = locked(&self.figures);
        figures.queued = queued;
        figures.received += tally.requests;
        figures.sent += tally.packets_sent;
        figures.latency.merge(tally.latency);
        figures.of_server.merge(tally.latency);
        if let Some(last) = tally.last {
            let xid = last.xid.or(figures.last.and_then(|last| last.xid));
            let at_ms = self.all.started.elapsed().as_millis() as u64;
            figures.last = Some(LastReply { xid, at_ms, ..last });
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        locked(&self.all.open).by_number.remove(&self.number);
        let latency = locked(&self.figures).of_server;
        locked(&self.all.closed).merge(latency);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(latencies: &[u32]) -> Tally {
        let mut tally = Tally {
            requests: latencies.len() as u64,
            ..Tally::default()
        };
        for ms in latencies {
            tally.latency.add(*ms);
        }
        tally
    }

    #[test]
    fn the_server_remembers_the_latency_of_closed_connections_until_a_reset() {
        let all = AllFigures::new();
        let peer = "127.0.0.1:1".parse().expect("an address");
        let (one, other) = (all.open(peer), all.open(peer));
        one.add(&tally(&[1, 4]), 0);
        other.add(&tally(&[2]), 3);
        drop(one);
        let latency = all.latency();
        assert_eq!((latency.min, latency.max), (Some(1), 4));
        assert!((latency.average() - 2.3333).abs() < 1e-9);
        all.reset_server();
        assert_eq!(all.latency().min, None);
        let [left] = all.snapshot().try_into().expect("one is open");
        assert_eq!((left.received, left.queued, left.latency.max), (2, 3, 2));
        all.reset_connections();
        assert_eq!(all.snapshot()[0].latency.min, None);
        drop(other);
        assert!(all.snapshot().is_empty());
    }
}
