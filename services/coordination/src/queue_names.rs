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
    let limits = queue.limits();
    let batch_messages_max = limits.batch_messages_max.max(1);
    let mut bodies = packed(records, limits.message_bytes_max.min(MESSAGE_BYTES)).into_iter();
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
    let mut bodies = Vec::new();
    let mut rest = records;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |record: &&Bytes| {
            bytes += LENGTH_BYTES + record.len();
            bytes <= bytes_max
        };
        let some = rest.iter().take(MESSAGE_RECORDS_MAX);
        let count = some.take_while(fits).count().max(1);
        let (together, later) = rest.split_at(count);
        let lengths = together.iter().map(|record| LENGTH_BYTES + record.len());
        let mut body = BytesMut::with_capacity(lengths.sum());
        for record in together {
            body.put_u32(record.len() as u32);
            body.put_slice(record);
        }
        bodies.push(body.freeze());
        rest = later;
    }
    bodies
}

/// The records in the body of a message, in order. They share its memory.
///
/// Errors: `Corrupt` if a record is cut off.
pub fn unpacked(mut body: Bytes) -> impl Iterator<Item = Result<Bytes>> {
    std::iter::from_fn(move || {
        if body.is_empty() {
            return None;
        }
        let length = body.first_chunk().copied().map(u32::from_be_bytes);
        let end = length.map(|length| LENGTH_BYTES + length as usize);
        let Some(end) = end.filter(|end| *end <= body.len()) else {
            body.clear();
            return Some(Err(Error::corrupt("split a message into its records")));
        };
        Some(Ok(body.split_to(end).slice(LENGTH_BYTES..)))
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
        let unpacked: Result<Vec<Bytes>> = bodies.into_iter().flat_map(unpacked).collect();
        assert_eq!(unpacked.expect("whole"), records);
    }

    #[test]
    fn a_cut_message_is_corrupt() {
        let body = packed(&[Bytes::from_static(b"record")], 64).remove(0);
        for length in 1..body.len() {
            let cut = unpacked(body.slice(..length));
            assert!(cut.last().is_some_and(|record| record.is_err()), "{length}");
        }
        assert!(unpacked(body).all(|record| record.is_ok()));
    }

    #[test]
    fn short_records_do_not_make_a_message_long() {
        let records = vec![Bytes::from_static(b"r"); 2 * MESSAGE_RECORDS_MAX + 1];
        let bodies = packed(&records, usize::MAX).into_iter();
        let counts: Vec<usize> = bodies.map(|body| unpacked(body).count()).collect();
        assert_eq!(counts, [MESSAGE_RECORDS_MAX, MESSAGE_RECORDS_MAX, 1]);
    }
}
