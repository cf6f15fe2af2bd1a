//! The open connections, by task and by address: which ones to stop, and whether one more may open.
//!
//! No I/O. A connection is identified by its task. A task that panicked also reports its end, so no
//! place is lost.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
};

use tokio::{sync::oneshot, task};

/// The connections of one server.
#[derive(Debug)]
pub(crate) struct OpenConnections {
    all_max: usize,
    /// Zero means no bound.
    per_address_max: usize,
    by_task: HashMap<task::Id, (IpAddr, oneshot::Sender<()>)>,
    by_address: BTreeMap<IpAddr, usize>,
}

/// Why a connection may not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoPlace {
    /// All places are taken.
    #[error("{0} connections are open, which is the limit")]
    Anywhere(usize),
    /// All places of its address are taken.
    #[error("{0} connections of its address are open, which is the limit")]
    ForAddress(usize),
}

impl OpenConnections {
    /// No open connections. If `per_address_max` is zero, one address may take all places.
    pub(crate) fn new(all_max: usize, per_address_max: usize) -> Self {
        Self {
            all_max,
            per_address_max,
            by_task: HashMap::new(),
            by_address: BTreeMap::new(),
        }
    }

    /// Whether a connection of `peer` may open.
    pub(crate) fn check_place(&self, peer: SocketAddr) -> Result<(), NoPlace> {
        let of_address = self
            .by_address
            .get(&address(peer))
            .copied()
            .unwrap_or_default();
        if self.by_task.len() >= self.all_max {
            return Err(NoPlace::Anywhere(self.all_max));
        }
        if self.per_address_max > 0 && of_address >= self.per_address_max {
            return Err(NoPlace::ForAddress(self.per_address_max));
        }
        Ok(())
    }

    /// Records an open connection of `peer`. Dropping `stop` stops it.
    pub(crate) fn opened(&mut self, task: task::Id, peer: SocketAddr, stop: oneshot::Sender<()>) {
        *self.by_address.entry(address(peer)).or_default() += 1;
        self.by_task.insert(task, (address(peer), stop));
    }

    /// Records the end of a connection.
    pub(crate) fn ended(&mut self, task: task::Id) {
        let Some((address, _)) = self.by_task.remove(&task) else {
            return;
        };
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

/// A listener for both address families sees an IPv4 peer with an IPv6 address.
fn address(peer: SocketAddr) -> IpAddr {
    peer.ip().to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    /// The id of a new task.
    fn task() -> task::Id {
        tokio::spawn(async {}).id()
    }

    #[tokio::test]
    async fn an_address_has_its_own_bound_and_reuses_closed_places() {
        let mut open = OpenConnections::new(3, 2);
        let (one, other) = (peer("10.0.0.1:1"), peer("10.0.0.2:1"));
        let (first, second) = (task(), task());
        for id in [first, second] {
            assert_eq!(open.check_place(one), Ok(()));
            open.opened(id, one, oneshot::channel().0);
        }
        assert_eq!(open.check_place(one), Err(NoPlace::ForAddress(2)));
        assert_eq!(
            open.check_place(peer("[::ffff:10.0.0.1]:7")),
            Err(NoPlace::ForAddress(2))
        );
        assert_eq!(open.check_place(other), Ok(()));
        open.opened(task(), other, oneshot::channel().0);
        assert_eq!(open.check_place(other), Err(NoPlace::Anywhere(3)));
        open.ended(first);
        open.ended(first);
        assert_eq!(open.check_place(one), Ok(()));
        open.ended(second);
        assert!(
            !open.by_address.contains_key(&address(one)),
            "closed connections leave no entry"
        );
    }

    #[tokio::test]
    async fn without_a_bound_per_address_the_total_bound_holds() {
        let mut open = OpenConnections::new(2, 0);
        for _ in 0..2 {
            assert_eq!(open.check_place(peer("10.0.0.1:1")), Ok(()));
            open.opened(task(), peer("10.0.0.1:1"), oneshot::channel().0);
        }
        assert_eq!(
            open.check_place(peer("10.0.0.1:1")),
            Err(NoPlace::Anywhere(2))
        );
    }
}
