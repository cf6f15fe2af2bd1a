//! Wake-ups of consumers: queues publish that a message may be available, and one connection
//! subscribes for all consumers.
//!
//! The first waiting consumer starts the subscription. A message on the channel wakes the consumers
//! of its queue. Each start of the subscription wakes all, because earlier messages were missed. A
//! woken consumer polls its queue. Messages are only hints: consumers also poll at intervals
//! without one.

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

/// The poll interval of a consumer while there is no subscription.
const POLL_INTERVAL_UNSUBSCRIBED: Duration = Duration::from_millis(20);

/// The pause before the next attempt to subscribe.
const RESUBSCRIBE_PAUSE: Duration = Duration::from_millis(50);

/// The waiting consumers of this process.
#[derive(Debug)]
pub(crate) struct WakeUps {
    /// The poll interval of a consumer while the subscription is open.
    pub(crate) poll_interval_subscribed: Duration,
    listener: Arc<Listener>,
    listening: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Listener {
    is_subscribed: AtomicBool,
    waiting: Mutex<HashMap<String, Weak<Notify>>>,
}

impl WakeUps {
    pub(crate) fn new(poll_interval_subscribed: Duration) -> Self {
        Self {
            poll_interval_subscribed,
            listener: Arc::default(),
            listening: Mutex::default(),
        }
    }

    /// The notification for consumers of `queue`. The first call subscribes to `channel`.
    pub(crate) fn of(&self, queue: &str, servers: &Arc<Servers>, channel: &str) -> Arc<Notify> {
        let mut listening = self.listening.lock();
        if listening.as_ref().is_none_or(JoinHandle::is_finished) {
            let (servers, listener) = (Arc::clone(servers), Arc::clone(&self.listener));
            let channel = channel.to_owned();
            *listening = Some(tokio::spawn(async move {
                listener.listen(&servers, &channel).await;
            }));
        }
        drop(listening);
        self.listener.of(queue)
    }

    /// The longest wait between two polls.
    pub(crate) fn poll_interval(&self) -> Duration {
        if self.listener.is_subscribed.load(Ordering::SeqCst) {
            self.poll_interval_subscribed
        } else {
            POLL_INTERVAL_UNSUBSCRIBED
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

impl Listener {
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
        for rotation in 0_usize.. {
            if let Some(mut subscription) = servers.subscribe(channel, rotation).await {
                self.is_subscribed.store(true, Ordering::SeqCst);
                self.wake_all();
                let mut messages = subscription.on_message();
                while let Some(message) = messages.next().await {
                    self.wake(&String::from_utf8_lossy(message.get_payload_bytes()));
                }
                self.is_subscribed.store(false, Ordering::SeqCst);
                self.wake_all();
            }
            tokio::time::sleep(RESUBSCRIBE_PAUSE).await;
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
