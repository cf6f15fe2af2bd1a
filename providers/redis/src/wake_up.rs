//! Waking consumers: queues publish that they may have something to give, and one connection listens for all.
//!
//! Listening begins with the first consumer that waits. Whoever waits is woken by every message on the channel, and
//! whenever listening begins or begins again, because what was published before that was not heard; he then looks
//! for himself. Published messages are hints alone: a consumer also looks after a while without one.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinHandle};

use crate::servers::Servers;

/// How long a consumer waits without a hint while nobody listens.
const PATIENCE_WITHOUT_EARS: Duration = Duration::from_millis(20);

/// How long to wait before listening is tried again.
const LISTEN_AGAIN: Duration = Duration::from_millis(50);

/// The consumers of this process that wait.
#[derive(Debug)]
pub(crate) struct WakeUps {
    /// How long a consumer waits without a hint while somebody listens.
    patience: Duration,
    ears: Arc<Ears>,
    listening: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Ears {
    are_open: AtomicBool,
    waiting: Mutex<HashMap<String, Weak<Notify>>>,
}

impl WakeUps {
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            patience,
            ears: Arc::default(),
            listening: Mutex::default(),
        }
    }

    /// The same for other queues.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.patience)
    }

    /// What wakes those who wait for `queue`; listening on `channel` begins with the first.
    pub(crate) fn of(&self, queue: &str, servers: &Arc<Servers>, channel: &str) -> Arc<Notify> {
        let mut listening = self.listening.lock();
        if listening.as_ref().is_none_or(JoinHandle::is_finished) {
            let (servers, ears) = (Arc::clone(servers), Arc::clone(&self.ears));
            let channel = channel.to_owned();
            *listening = Some(tokio::spawn(async move {
                ears.listen(&servers, &channel).await
            }));
        }
        drop(listening);
        self.ears.of(queue)
    }

    /// The longest wait between two looks.
    pub(crate) fn patience(&self) -> Duration {
        if self.ears.are_open.load(Ordering::SeqCst) {
            self.patience
        } else {
            PATIENCE_WITHOUT_EARS
        }
    }
}

impl Drop for WakeUps {
    fn drop(&mut self) {
        if let Some(listening) = self.listening.lock().take() {
            listening.abort();
        }
    }
}

impl Ears {
    fn of(&self, queue: &str) -> Arc<Notify> {
        let mut waiting = self.waiting.lock();
        if let Some(notify) = waiting.get(queue).and_then(Weak::upgrade) {
            return notify;
        }
        waiting.retain(|_, notify| notify.strong_count() > 0);
        let notify = Arc::new(Notify::new());
        waiting.insert(queue.to_owned(), Arc::downgrade(&notify));
        notify
    }

    async fn listen(&self, servers: &Servers, channel: &str) {
        for turn in 0_usize.. {
            if let Some(mut subscription) = servers.subscribe(channel, turn).await {
                self.are_open.store(true, Ordering::SeqCst);
                self.wake_all();
                let mut messages = subscription.on_message();
                while let Some(message) = messages.next().await {
                    self.wake(&String::from_utf8_lossy(message.get_payload_bytes()));
                }
                self.are_open.store(false, Ordering::SeqCst);
                self.wake_all();
            }
            tokio::time::sleep(LISTEN_AGAIN).await;
        }
    }

    fn wake(&self, queue: &str) {
        if let Some(notify) = self.waiting.lock().get(queue).and_then(Weak::upgrade) {
            notify.notify_waiters();
        }
    }

    fn wake_all(&self) {
        for notify in self.waiting.lock().values().filter_map(Weak::upgrade) {
            notify.notify_waiters();
        }
    }
}
