//! The ZooKeeper requests the benchmark sends, as bytes.
//!
//! Requests are encoded once and copied. Only the xid (and a create's name) is rewritten, so that
//! the generator's share of two cores stays small. This is no client library: it has no watches,
//! and no ACLs beyond `world:anyone`.

use std::io;

/// Digits of a created node's number; fixed so that the template is patched in place.
const NUMBER_DIGITS: usize = 10;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const PING: i32 = 11;
const MULTI: i32 = 14;
const CLOSE_SESSION: i32 = -11;

/// The longest accepted reply; a longer one is an error of the server.
pub const REPLY_BYTES_MAX: usize = 1 << 20;

/// A session's first packet: a new session with `timeout_ms`.
pub fn connect(timeout_ms: i32) -> Vec<u8> {
    let mut packet = Packet::new();
    packet.int(0); // protocol version
    packet.long(0); // last zxid seen
    packet.int(timeout_ms);
    packet.long(0); // session id: a new one
    packet.buffer(&[0; 16]);
    packet.0.push(0); // not read-only
    packet.finish()
}

/// A session's last packet.
pub fn close_session() -> Vec<u8> {
    Packet::request(CLOSE_SESSION).finish()
}

/// A persistent node at `path` that grants everyone all permissions.
pub fn create(path: &str, data: &[u8]) -> Vec<u8> {
    let mut packet = Packet::request(CREATE);
    packet.buffer(path.as_bytes());
    packet.buffer(data);
    packet.int(1); // one ACL entry
    packet.int(0x1f);
    packet.buffer(b"world");
    packet.buffer(b"anyone");
    packet.int(0); // persistent
    packet.finish()
}

/// Delete the node at `path`, at any version.
pub fn delete(path: &str) -> Vec<u8> {
    let mut packet = Packet::request(DELETE);
    packet.buffer(path.as_bytes());
    packet.int(-1);
    packet.finish()
}

/// Read `path` without a watch.
pub fn get_data(path: &str) -> Vec<u8> {
    let mut packet = Packet::request(GET_DATA);
    packet.buffer(path.as_bytes());
    packet.0.push(0);
    packet.finish()
}

/// Replace the data of the node at `path`, at any version.
pub fn set_data(path: &str, data: &[u8]) -> Vec<u8> {
    let mut packet = Packet::request(SET_DATA);
    packet.buffer(path.as_bytes());
    packet.buffer(data);
    packet.int(-1);
    packet.finish()
}

/// Replace the data of every node in `paths` at once, at any version.
pub fn multi_set(paths: &[&str], data: &[u8]) -> Vec<u8> {
    let mut packet = Packet::request(MULTI);
    for path in paths {
        packet.multi_header(SET_DATA, false);
        packet.buffer(path.as_bytes());
        packet.buffer(data);
        packet.int(-1);
    }
    packet.multi_header(-1, true);
    packet.finish()
}

/// Sign of life of a session; its xid stays as it is here.
pub fn ping() -> Vec<u8> {
    let mut packet = Packet::request(PING).finish();
    set_xid(&mut packet, -2);
    packet
}

/// The answer to [`connect`].
pub fn connected(session: i64) -> Vec<u8> {
    let mut packet = Packet::new();
    packet.int(0); // protocol version
    packet.int(30_000);
    packet.long(session);
    packet.buffer(&[0; 16]);
    packet.0.push(0); // not read-only
    packet.finish()
}

/// A path under `parent` whose last [`NUMBER_DIGITS`] bytes are the number that [`set_number`] overwrites.
pub fn numbered(parent: &str, number: u64) -> String {
    format!("{parent}/n{number:0NUMBER_DIGITS$}")
}

/// Overwrites the xid of the packet that starts at `packet[0]`.
pub fn set_xid(packet: &mut [u8], xid: i32) {
    packet[4..8].copy_from_slice(&xid.to_be_bytes());
}

/// Overwrites the number in the path of a create or delete whose path came from [`numbered`].
pub fn set_number(packet: &mut [u8], mut number: u64) {
    let path_bytes = i32::from_be_bytes(packet[12..16].try_into().expect("four bytes")) as usize;
    for digit in packet[16 + path_bytes - NUMBER_DIGITS..16 + path_bytes]
        .iter_mut()
        .rev()
    {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// A reply's header and the size of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The request that it answers.
    pub xid: i32,
    /// The transaction it reflects.
    pub zxid: i64,
    /// Zero, or the protocol's error code.
    pub error: i32,
    /// Bytes after the header.
    pub body_bytes: usize,
}

/// The first whole reply in `received` and how many bytes it took; none if more must be read.
pub fn decode_reply(received: &[u8]) -> io::Result<Option<(Reply, usize)>> {
    let Some(length) = frame_bytes(received)? else {
        return Ok(None);
    };
    if length < 16 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a reply of {length} bytes"),
        ));
    }
    let reply = Reply {
        xid: i32::from_be_bytes(received[4..8].try_into().expect("four bytes")),
        zxid: i64::from_be_bytes(received[8..16].try_into().expect("eight bytes")),
        error: i32::from_be_bytes(received[16..20].try_into().expect("four bytes")),
        body_bytes: length - 16,
    };
    Ok(Some((reply, 4 + length)))
}

/// The length of the first frame if all of it has arrived.
pub fn frame_bytes(received: &[u8]) -> io::Result<Option<usize>> {
    let Some(prefix) = received.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = i32::from_be_bytes(*prefix);
    if !(0..=REPLY_BYTES_MAX as i32).contains(&length) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a frame of {length} bytes"),
        ));
    }
    Ok((received.len() >= 4 + length as usize).then_some(length as usize))
}

/// A packet under construction; its first four bytes become its length.
struct Packet(Vec<u8>);

impl Packet {
    fn new() -> Self {
        Self(vec![0; 4])
    }

    fn request(kind: i32) -> Self {
        let mut packet = Self::new();
        packet.int(0); // the xid, set when sent
        packet.int(kind);
        packet
    }

    fn int(&mut self, value: i32) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    fn long(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    fn multi_header(&mut self, kind: i32, is_end: bool) {
        self.int(kind);
        self.0.push(u8::from(is_end));
        self.int(-1);
    }

    fn buffer(&mut self, bytes: &[u8]) {
        self.int(bytes.len() as i32);
        self.0.extend_from_slice(bytes);
    }

    fn finish(mut self) -> Vec<u8> {
        let length = (self.0.len() - 4) as i32;
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_its_length_xid_and_kind_in_front() {
        let mut packet = get_data("/a");
        set_xid(&mut packet, 7);
        assert_eq!(
            packet,
            [
                0, 0, 0, 15, 0, 0, 0, 7, 0, 0, 0, 4, 0, 0, 0, 2, b'/', b'a', 0
            ]
        );
    }

    #[test]
    fn a_patched_number_equals_one_encoded_anew() {
        let mut packet = create(&numbered("/bench", 0), b"data");
        set_number(&mut packet, 1_234_567);
        assert_eq!(packet, create(&numbered("/bench", 1_234_567), b"data"));
    }

    #[test]
    fn a_reply_is_decoded_once_all_of_it_has_arrived() {
        let bytes = [
            0, 0, 0, 17, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 42,
        ];
        assert_eq!(decode_reply(&bytes[..20]).expect("valid so far"), None);
        let reply = Reply {
            xid: 1,
            zxid: 9,
            error: 0,
            body_bytes: 1,
        };
        assert_eq!(decode_reply(&bytes).expect("valid"), Some((reply, 21)));
    }

    #[test]
    fn a_negative_or_huge_frame_is_an_error() {
        assert!(frame_bytes(&(-1_i32).to_be_bytes()).is_err());
        assert!(frame_bytes(&i32::MAX.to_be_bytes()).is_err());
    }
}
