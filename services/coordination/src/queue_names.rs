//! The service's functions, queues, queue groups and log by name.

use bytes::{BufMut, Bytes, BytesMut};
use ports::{Error, Queue, Result, queue::Message};

use crate::model::SessionId;

/// The writer function.
pub const WRITER: &str = "coordination-writer";
/// The distributor function.
pub const DISTRIBUTOR: &str = "coordination-distributor";
/// The watch function.
pub const WATCH: &str = "coordination-watch";
/// The heartbeat function.
pub const HEARTBEAT: &str = "coordination-heartbeat";

/// The queue of requests for the writer, with one group per session.
pub const REQUEST_QUEUE: &str = "coordination-requests";
/// The queue of decided requests for the distributor, with one group.
pub const DISTRIBUTOR_QUEUE: &str = "coordination-decided";

/// The distributor's log, a partition of the system store.
pub const LOG_PARTITION: &str = "distributor-log";

/// The queue group of a session's requests.
pub fn request_group(session: SessionId) -> Bytes {
    Bytes::copy_from_slice(&session.0.to_be_bytes())
}

/// The queue group of all decided requests.
pub fn distributor_group() -> Bytes {
    Bytes::from_static(b"all")
}

/// Several records travel in one message up to this length, because a queue's work is per message.
const MESSAGE_BYTES: usize = 64 << 10;

/// The most records in one message. It bounds the work of one invocation, which receives whole
/// messages.
pub(crate) const MESSAGE_RECORDS_MAX: usize = 64;

/// The length before each record in a message.
const LENGTH_BYTES: usize = size_of::<u32>();

/// Sends records of one group in order, in as few messages and calls as the queue allows.
pub(crate) async fn send(
    queue: &dyn Queue,
    name: &str,
    group: Bytes,
    records: &[Bytes],
) -> Result<()> {
    send_messages(queue, name, group, Messages::of(queue, 0).with(records)).await
}

/// As [`send`], for records that are in messages already.
pub(crate) async fn send_messages(
    queue: &dyn Queue,
    name: &str,
    group: Bytes,
    messages: Messages,
) -> Result<()> {
    let batch_messages_max = queue.limits().batch_messages_max.max(1);
    let mut bodies = messages.into_bodies().into_iter();
    while bodies.len() > 0 {
        let some = bodies.by_ref().take(batch_messages_max);
        let messages = some.map(|body| Message {
            group: group.clone(),
            deduplication: None,
            body,
        });
        queue.send(name, messages.collect()).await?;
    }
    Ok(())
}

/// The bodies of messages with these records, each of at most `bytes_max` or with one record, and
/// of at most [`MESSAGE_RECORDS_MAX`] records.
pub fn packed(records: &[Bytes], bytes_max: usize) -> Vec<Bytes> {
    Messages::new(bytes_max, 0).with(records).into_bodies()
}

/// The bodies of messages, which are filled with one record after the other.
#[derive(Debug)]
pub(crate) struct Messages {
    bytes_max: usize,
    whole: Vec<Bytes>,
    last: BytesMut,
    /// The number of records in the last one.
    records: usize,
}

impl Messages {
    /// Messages for `queue` with about this many bytes of records.
    pub(crate) fn of(queue: &dyn Queue, bytes_len: usize) -> Self {
        let message_bytes_max = queue.limits().message_bytes_max;
        Self::new(message_bytes_max.min(MESSAGE_BYTES), bytes_len)
    }

    fn new(bytes_max: usize, bytes_len: usize) -> Self {
        Self {
            bytes_max,
            whole: Vec::new(),
            last: BytesMut::with_capacity(bytes_len.min(bytes_max)),
            records: 0,
        }
    }

    /// Adds the record that `write` appends.
    pub(crate) fn add(&mut self, write: impl FnOnce(&mut BytesMut)) {
        if self.records == MESSAGE_RECORDS_MAX {
            self.begin(self.last.len());
        }
        let start = self.last.len();
        self.last.put_bytes(0, LENGTH_BYTES);
        write(&mut self.last);
        let length = (self.last.len() - start - LENGTH_BYTES) as u32;
        self.last[start..start + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
        if self.last.len() > self.bytes_max && self.records > 0 {
            self.begin(start);
        }
        self.records += 1;
    }

    /// Begins the next message with what the last one has from `at` on.
    fn begin(&mut self, at: usize) {
        let next = self.last.split_off(at);
        let whole = std::mem::replace(&mut self.last, next);
        self.whole.push(whole.freeze());
        self.records = 0;
    }

    fn with(mut self, records: &[Bytes]) -> Self {
        for record in records {
            self.add(|body| body.put_slice(record));
        }
        self
    }

    fn into_bodies(mut self) -> Vec<Bytes> {
        if self.records > 0 {
            self.whole.push(self.last.freeze());
        }
        self.whole
    }
}

/// The records in the body of a message, in order.
///
/// Errors: `Corrupt` if a record is cut off.
pub fn unpacked(mut body: &[u8]) -> impl Iterator<Item = Result<&[u8]>> {
    std::iter::from_fn(move || {
        if body.is_empty() {
            return None;
        }
        let (length, rest) = body.split_first_chunk().unwrap_or((&[u8::MAX; 4], &[]));
        let record = rest.split_at_checked(u32::from_be_bytes(*length) as usize);
        let Some((record, rest)) = record else {
            body = &[];
            return Some(Err(Error::corrupt("split a message into its records")));
        };
        body = rest;
        Some(Ok(record))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_of_few_messages_as_they_went_in() {
        let records: Vec<Bytes> = [0, 10, 20, 300, 5, 5]
            .map(|length| Bytes::from(vec![length as u8; length]))
            .into();
        let bodies = packed(&records, 64);
        assert_eq!(
            bodies.len(),
            3,
            "three short ones, the long one, two short ones"
        );
        let unpacked: Result<Vec<&[u8]>> = bodies.iter().flat_map(|body| unpacked(body)).collect();
        assert_eq!(unpacked.expect("whole"), records);
    }

    #[test]
    fn a_cut_message_is_corrupt() {
        let body = packed(&[Bytes::from_static(b"record")], 64).remove(0);
        for length in 1..body.len() {
            let cut = unpacked(&body[..length]);
            assert!(cut.last().is_some_and(|record| record.is_err()), "{length}");
        }
        assert!(unpacked(&body).all(|record| record.is_ok()));
    }

    #[test]
    fn short_records_do_not_make_a_message_long() {
        let records = vec![Bytes::from_static(b"r"); 2 * MESSAGE_RECORDS_MAX + 1];
        let bodies = packed(&records, usize::MAX).into_iter();
        let counts: Vec<usize> = bodies.map(|body| unpacked(&body).count()).collect();
        assert_eq!(counts, [MESSAGE_RECORDS_MAX, MESSAGE_RECORDS_MAX, 1]);
    }
}
