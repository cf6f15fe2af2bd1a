//! The event queue of a client: answers and events that the tail delivers to it, in order.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

use crate::{
    Error,
    backlog::Backlog,
    model::{EventKind, Zxid},
    path,
    records::UpdateAnswer,
};

/// A client whose queue reaches this many bytes is disconnected. It reconnects and sets its watches
/// again. The bound is about 50,000 events with short paths.
const EVENT_BYTES_MAX: usize = 8 << 20;

#[derive(Debug)]
pub(crate) enum ClientEvent {
    /// One of the client's updates was applied or refused.
    Answer {
        zxid: Zxid,
        request: u64,
        answer: Result<UpdateAnswer, Error>,
    },
    /// One of the client's watches fired.
    Event {
        zxid: Zxid,
        kind: EventKind,
        path: String,
    },
    Expired,
    /// Another connection acts for the session.
    Moved,
    /// This process has lost its position in the log.
    PositionLost,
    /// The queue reached its bound.
    Overflow,
}

impl ClientEvent {
    /// The zxid of the delivery, or `None` if the connection ends with it.
    fn zxid(&self) -> Option<Zxid> {
        match self {
            Self::Answer { zxid, .. } | Self::Event { zxid, .. } => Some(*zxid),
            Self::Expired | Self::Moved | Self::PositionLost | Self::Overflow => None,
        }
    }

    fn bytes_len(&self) -> usize {
        match self {
            Self::Answer {
                answer: Ok(UpdateAnswer::Created { path, .. }),
                ..
            }
            | Self::Event { path, .. } => path.len(),
            _ => 0,
        }
    }
}

#[derive(Debug, Default)]
struct QueuedEvents {
    waiting: Backlog<ClientEvent>,
    has_overflown: bool,
}

#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    queued: Mutex<QueuedEvents>,
    arrived: Notify,
    is_eager: AtomicBool,
}

impl EventQueue {
    fn queued(&self) -> MutexGuard<'_, QueuedEvents> {
        self.queued
            .lock()
            .expect("no panic while the queue is locked")
    }

    /// Appends an event. The client sees it after the next [`EventQueue::wake`].
    pub(crate) fn put(&self, event: ClientEvent) {
        let mut queued = self.queued();
        if queued.has_overflown {
            return;
        }
        queued.has_overflown = queued.waiting.bytes() >= EVENT_BYTES_MAX;
        let event = if queued.has_overflown {
            ClientEvent::Overflow
        } else {
            event
        };
        queued.waiting.push_back(event.bytes_len(), event);
    }

    /// Inserts an event at its zxid, unless it is queued already. The client asked for this event
    /// after it had happened. As in ZooKeeper, the event of a znode precedes that of its parent.
    pub(crate) fn put_late(&self, zxid: Zxid, kind: EventKind, path: &str) {
        let mut queued = self.queued();
        let is_it = |event: &ClientEvent| matches!(event, ClientEvent::Event { zxid: of, kind: what, path: at } if (*of, *what, at.as_str()) == (zxid, kind, path));
        if queued.has_overflown || queued.waiting.iter().any(is_it) {
            return;
        }
        let parent = path::split(path).map(|(parent, _)| parent);
        let is_of_parent = |event: &ClientEvent| matches!(event, ClientEvent::Event { zxid: of, kind: EventKind::NodeChildrenChanged, path } if *of == zxid && kind != EventKind::NodeChildrenChanged && Some(path.as_str()) == parent);
        let is_later =
            |event: &ClientEvent| event.zxid().is_none_or(|of| of > zxid) || is_of_parent(event);
        let place = queued
            .waiting
            .iter()
            .position(is_later)
            .unwrap_or(queued.waiting.len());
        let event = ClientEvent::Event {
            zxid,
            kind,
            path: path.to_owned(),
        };
        queued.waiting.insert(place, event.bytes_len(), event);
    }

    /// Records whether the client can use an event before it is durable.
    pub(crate) fn set_eager(&self, is_eager: bool) {
        self.is_eager.store(is_eager, Ordering::Release);
    }

    pub(crate) fn is_eager(&self) -> bool {
        self.is_eager.load(Ordering::Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queued().waiting.is_empty()
    }

    /// Frees the memory of an empty queue.
    pub(crate) fn release_unused(&self) {
        self.queued().waiting.release_unused();
    }

    pub(crate) fn wake(&self) {
        self.arrived.notify_one();
    }

    /// The next event if its zxid is at most `until`. The end of the connection is always returned.
    pub(crate) fn take(&self, until: Zxid) -> Option<ClientEvent> {
        let mut queued = self.queued();
        let is_due = |event: &ClientEvent| event.zxid().is_none_or(|zxid| zxid <= until);
        if let Some(event) = queued.waiting.pop_front_if(is_due) {
            return Some(event);
        }
        let has_expired = |last: &ClientEvent| last.zxid().is_none();
        if queued.waiting.back().is_some_and(has_expired) {
            queued.waiting.pop_back()
        } else {
            None
        }
    }

    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that takes no events is disconnected before they fill the memory, for any path
    /// length.
    #[test]
    fn a_client_that_reads_no_events_is_disconnected_at_the_bound() {
        for path_len in [1, 1000] {
            let (queue, mut put) = (EventQueue::default(), 0);
            while !queue.queued().has_overflown {
                let path = "p".repeat(path_len);
                queue.put(ClientEvent::Event {
                    zxid: Zxid(1),
                    kind: EventKind::NodeCreated,
                    path,
                });
                put += 1;
            }
            queue.put(ClientEvent::Moved);
            assert!(put * path_len <= EVENT_BYTES_MAX, "{put} queued");
            let taken: Vec<ClientEvent> = std::iter::from_fn(|| queue.take(Zxid(1))).collect();
            assert_eq!(taken.len(), put);
            assert!(matches!(taken.last(), Some(ClientEvent::Overflow)));
        }
    }
    fn events(queue: &EventQueue, until: i64) -> Vec<i64> {
        let taken = std::iter::from_fn(|| queue.take(Zxid(until)));
        taken
            .map(|event| event.zxid().map_or(-1, |zxid| zxid.0))
            .collect()
    }

    #[test]
    fn events_are_taken_up_to_a_zxid_and_late_events_are_inserted_in_order() {
        let queue = EventQueue::default();
        for zxid in [2, 5, 9] {
            let path = "/n".to_owned();
            queue.put(ClientEvent::Event {
                zxid: Zxid(zxid),
                kind: EventKind::NodeDataChanged,
                path,
            });
        }
        assert_eq!(events(&queue, 4), [2]);
        for _ in 0..2 {
            queue.put_late(Zxid(7), EventKind::NodeDeleted, "/n");
        }
        queue.put_late(Zxid(9), EventKind::NodeDataChanged, "/n");
        assert_eq!(events(&queue, 8), [5, 7]);
        assert_eq!(events(&queue, 9), [9]);
    }

    #[test]
    fn a_late_event_of_a_znode_precedes_that_of_its_parent() {
        let queue = EventQueue::default();
        for (zxid, path) in [(3, "/other"), (3, "/"), (4, "/")] {
            let kind = EventKind::NodeChildrenChanged;
            queue.put(ClientEvent::Event {
                zxid: Zxid(zxid),
                kind,
                path: path.to_owned(),
            });
        }
        queue.put_late(Zxid(3), EventKind::NodeCreated, "/b");
        queue.put_late(Zxid(4), EventKind::NodeChildrenChanged, "/b");
        let paths: Vec<String> = std::iter::from_fn(|| queue.take(Zxid(4)))
            .map(|event| match event {
                ClientEvent::Event { path, .. } => path,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(paths, ["/other", "/b", "/", "/", "/b"]);
    }

    /// A client that waits for the view to reach its read learns that the view never will.
    #[test]
    fn the_end_of_a_connection_overtakes_events_that_are_not_due() {
        let queue = EventQueue::default();
        let path = "/n".to_owned();
        queue.put(ClientEvent::Event {
            zxid: Zxid(5),
            kind: EventKind::NodeCreated,
            path,
        });
        assert!(events(&queue, 4).is_empty());
        queue.put(ClientEvent::PositionLost);
        assert_eq!(events(&queue, 4), [-1]);
    }
}
