//! The count of processes of which something may be left.

use tokio::sync::watch;

/// The count.
#[derive(Debug, Clone)]
pub(super) struct AliveCount(watch::Sender<usize>);

impl Default for AliveCount {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

/// One counted process, until this is dropped.
#[derive(Debug)]
pub(super) struct Alive(AliveCount);

impl AliveCount {
    pub(super) fn one_more(&self) -> Alive {
        self.0.send_modify(|alive| *alive += 1);
        Alive(self.clone())
    }

    /// Waits until it is 0.
    pub(super) async fn none(&self) {
        // No error: the sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(|alive| *alive == 0).await;
    }

    #[cfg(test)]
    pub(super) fn get(&self) -> usize {
        *self.0.borrow()
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.0.send_modify(|alive| *alive -= 1);
    }
}
