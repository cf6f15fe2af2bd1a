//! Which connections are open, by task and by address: whom to stop, and whether there is a place for one more.
//!
//! No I/O. A connection is known by its task, which also says so when it panicked, so that no place is lost.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
};

use tokio::{sync::oneshot, task};

/// The connections of one server.
#[derive(Debug)]
pub(crate) struct OpenConnections {
    all_max: usize,
    /// Zero: no bound.
    per_address_max: usize,
    by_task: HashMap<task::Id, (IpAddr, oneshot::Sender<()>)>,
    by_address: BTreeMap<IpAddr, usize>,
}

/// Why there is no place for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoPlace {
    /// All places are taken.
    #[error("{0} connections are open, which is the limit")]
    Anywhere(usize),
    /// Those of its address are.
    #[error("{0} connections of its address are open, which is the limit")]
    ForAddress(usize),
}

impl OpenConnections {
    /// None yet. `per_address_max` zero: an address has as many places as there are.
    pub(crate) fn new(all_max: usize, per_address_max: usize) -> Self {
        Self {
            all_max,
            per_address_max,
            by_task: HashMap::new(),
            by_address: BTreeMap::new(),
        }
    }

    /// Whether a connection of `peer` may be opened.
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

    /// A connection of `peer` was opened; dropping `stop` stops it.
    pub(crate) fn opened(&mut self, task: task::Id, peer: SocketAddr, stop: oneshot::Sender<()>) {
        *self.by_address.entry(address(peer)).or_default() += 1;
        self.by_task.insert(task, (address(peer), stop));
    }

    /// It has ended.
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

/// A listener of both families sees an IPv4 peer at an IPv6 address.
fn address(peer: SocketAddr) -> IpAddr {
    peer.ip().to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    /// The id of a task, which these tests need many of.
    fn task() -> task::Id {
        tokio::spawn(async {}).id()
    }

    #[tokio::test]
    async fn an_address_has_its_own_places_and_gets_them_back() {
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
            "nothing is kept of who has gone"
        );
    }

    #[tokio::test]
    async fn no_bound_per_address_leaves_the_one_for_all() {
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
