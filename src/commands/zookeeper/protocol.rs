//! The requests of a ZooKeeper client as bytes, and the replies as values, without I/O.
//!
//! Replies come from a server that may be anything. A length beyond its frame, and a frame beyond
//! [`FRAME_BYTES_MAX`], are refused before memory is taken for them.

use std::fmt;

use bytes::{Buf as _, Bytes, BytesMut};
use zookeeper_frontend::jute::{FrameWriter, Malformed, Reader};

use super::kinds::Kind;

/// The longest accepted reply. The names of a million children take about half of it.
pub(super) const FRAME_BYTES_MAX: usize = 64 << 20;
/// The bytes of a reply's header: xid, zxid and code.
const HEADER_BYTES: usize = 16;
const PASSWORD_BYTES: usize = 16;

/// The xids that are not of a numbered request.
pub(super) const PING_XID: i32 = -2;
pub(super) const AUTH_XID: i32 = -4;

const ANY_VERSION: i32 = -1;

pub(super) const OK: i32 = 0;
pub(super) const NO_NODE: i32 = -101;
pub(super) const NODE_EXISTS: i32 = -110;
pub(super) const SESSION_EXPIRED: i32 = -112;

/// A permission of an ACL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Grant {
    pub(super) permissions: i32,
    pub(super) scheme: String,
    pub(super) id: String,
}

impl Grant {
    /// All permissions to all clients.
    pub(super) fn anyone() -> Self {
        Self {
            permissions: 31,
            scheme: "world".to_owned(),
            id: "anyone".to_owned(),
        }
    }
}

/// The part of a Stat that a copy needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) cversion: i32,
    pub(super) ephemeral_owner: i64,
    pub(super) num_children: i32,
}

impl Stat {
    /// How many children were created here, which is the next sequence number. ZooKeeper shows it
    /// as twice the count less the children there are.
    pub(super) fn creates(&self) -> i64 {
        i64::midpoint(self.cversion.into(), self.num_children.into())
    }
}

/// A request after the first packet of a connection, as one frame.
#[derive(Debug, Clone)]
pub(super) struct Request(BytesMut);

impl Request {
    const XID: std::ops::Range<usize> = 4..8;

    fn new(opcode: i32, fields: impl FnOnce(&mut FrameWriter<'_>)) -> Self {
        let mut bytes = BytesMut::new();
        let mut frame = FrameWriter::begin(&mut bytes, 64);
        frame.int(0);
        frame.int(opcode);
        fields(&mut frame);
        frame.finish();
        Self(bytes)
    }

    /// Its bytes under a number.
    pub(super) fn numbered(&mut self, xid: i32) -> &[u8] {
        self.0[Self::XID].copy_from_slice(&xid.to_be_bytes());
        &self.0
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }

    fn read(opcode: i32, path: &str) -> Self {
        Self::new(opcode, |frame| {
            frame.string(path);
            frame.bool(false); // no watch
        })
    }

    pub(super) fn exists(path: &str) -> Self {
        Self::read(3, path)
    }

    pub(super) fn get_data(path: &str) -> Self {
        Self::read(4, path)
    }

    pub(super) fn get_children(path: &str) -> Self {
        Self::read(8, path)
    }

    pub(super) fn get_acl(path: &str) -> Self {
        Self::new(6, |frame| frame.string(path))
    }

    /// Later reads of the session see every update before it.
    pub(super) fn sync(path: &str) -> Self {
        Self::new(9, |frame| frame.string(path))
    }

    /// Returns the number of all descendants.
    pub(super) fn count_descendants(path: &str) -> Self {
        Self::new(104, |frame| frame.string(path))
    }

    pub(super) fn create(path: &str, data: Option<&[u8]>, acl: &[Grant], kind: Kind) -> Self {
        let (opcode, flags) = match kind {
            Kind::Persistent => (1, 0),
            Kind::Container => (19, 4),
            Kind::Ttl(_) => (21, 5),
        };
        Self::new(opcode, |frame| {
            frame.string(path);
            frame.buffer(data);
            write_acl(frame, acl);
            frame.int(flags);
            if let Kind::Ttl(ms) = kind {
                frame.long(ms);
            }
        })
    }

    pub(super) fn set_data(path: &str, data: Option<&[u8]>) -> Self {
        Self::new(5, |frame| {
            frame.string(path);
            frame.buffer(data);
            frame.int(ANY_VERSION);
        })
    }

    pub(super) fn set_acl(path: &str, acl: &[Grant]) -> Self {
        Self::new(7, |frame| {
            frame.string(path);
            write_acl(frame, acl);
            frame.int(ANY_VERSION);
        })
    }

    pub(super) fn delete(path: &str) -> Self {
        Self::new(2, |frame| {
            frame.string(path);
            frame.int(ANY_VERSION);
        })
    }

    pub(super) fn auth(scheme: &str, credentials: &[u8]) -> Self {
        Self::new(100, |frame| {
            frame.int(0);
            frame.string(scheme);
            frame.buffer(Some(credentials));
        })
    }

    pub(super) fn ping() -> Self {
        Self::new(11, |_| {})
    }

    pub(super) fn close_session() -> Self {
        Self::new(-11, |_| {})
    }
}

fn write_acl(frame: &mut FrameWriter<'_>, acl: &[Grant]) {
    frame.int(i32::try_from(acl.len()).expect("an ACL came in one frame"));
    for grant in acl {
        frame.int(grant.permissions);
        frame.string(&grant.scheme);
        frame.string(&grant.id);
    }
}

/// The first packet of a connection, for a new session.
pub(super) fn connect(last_zxid_seen: i64, timeout_ms: i32, buffer: &mut BytesMut) {
    let mut frame = FrameWriter::begin(buffer, 45);
    frame.int(0);
    frame.long(last_zxid_seen);
    frame.int(timeout_ms);
    frame.long(0);
    frame.buffer(Some(&[0; PASSWORD_BYTES]));
    frame.bool(false);
    frame.finish();
}

/// The session timeout in milliseconds that the server answers; zero if it refuses.
pub(super) fn connected(frame: &Bytes) -> Result<i32, Malformed> {
    let mut reader = Reader::new(frame);
    let _protocol_version = reader.int()?;
    reader.int()
}

/// Removes the first frame from the bytes that have arrived. `None` until all of it is there.
pub(super) fn take_frame(arrived: &mut BytesMut) -> anyhow::Result<Option<Bytes>> {
    let Some(length) = arrived.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = i32::from_be_bytes(*length);
    let length = usize::try_from(length).ok();
    let Some(length) = length.filter(|length| *length <= FRAME_BYTES_MAX) else {
        anyhow::bail!(
            "it sent a reply that is no ZooKeeper packet, or longer than {FRAME_BYTES_MAX} bytes"
        );
    };
    if arrived.len() - 4 < length {
        return Ok(None);
    }
    arrived.advance(4);
    Ok(Some(arrived.split_to(length).freeze()))
}

/// The reply to a request, or a notification.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) xid: i32,
    pub(super) zxid: i64,
    /// [`OK`], or the error.
    pub(super) code: i32,
    body: Bytes,
}

impl Reply {
    pub(super) fn decode(mut frame: Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(&frame);
        let (xid, zxid, code) = (reader.int()?, reader.long()?, reader.int()?);
        frame.advance(HEADER_BYTES);
        Ok(Self {
            xid,
            zxid,
            code,
            body: frame,
        })
    }

    /// The body of getData.
    pub(super) fn data(&self) -> Result<(Option<Bytes>, Stat), Malformed> {
        let mut reader = Reader::new(&self.body);
        Ok((reader.data()?, stat(&mut reader)?))
    }

    /// The body of exists.
    pub(super) fn stat(&self) -> Result<Stat, Malformed> {
        stat(&mut Reader::new(&self.body))
    }

    /// The body of getACL, in one order for all servers.
    pub(super) fn acl(&self) -> Result<Vec<Grant>, Malformed> {
        let mut reader = Reader::new(&self.body);
        let acl = reader.vector(12, |reader| {
            Ok(Grant {
                permissions: reader.int()?,
                scheme: reader.path()?,
                id: reader.path()?,
            })
        })?;
        let mut acl = acl.unwrap_or_default();
        acl.sort_unstable();
        Ok(acl)
    }

    /// The body of getChildren.
    pub(super) fn children(&self) -> Result<Vec<String>, Malformed> {
        let names = Reader::new(&self.body).vector(4, Reader::path)?;
        Ok(names.unwrap_or_default())
    }

    /// The body of getAllChildrenNumber.
    pub(super) fn count(&self) -> Result<i32, Malformed> {
        Reader::new(&self.body).int()
    }
}

fn stat(reader: &mut Reader<'_>) -> Result<Stat, Malformed> {
    for _czxid_mzxid_ctime_mtime in 0..4 {
        reader.long()?;
    }
    let _version = reader.int()?;
    let cversion = reader.int()?;
    let _aversion = reader.int()?;
    let ephemeral_owner = reader.long()?;
    let _data_length = reader.int()?;
    Ok(Stat {
        cversion,
        ephemeral_owner,
        num_children: reader.int()?,
    })
}

/// An error code, for people.
pub(super) struct Code(pub(super) i32);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            -1 => "SystemError: it may be out of disk space; see its log",
            -6 => {
                "Unimplemented: this server or its settings lack the operation (extendedTypesEnabled for TTL znodes)"
            }
            -8 => "BadArguments: it does not accept the path or the TTL",
            NO_NODE => "NoNode",
            -102 => {
                "NoAuth: give an account with READ and ADMIN on the source, or all permissions on the target, \
                     by --from-auth or --to-auth"
            }
            -108 => "NoChildrenForEphemerals: an ephemeral znode of the target is above it",
            NODE_EXISTS => "NodeExists",
            -111 => "NotEmpty",
            -114 => "InvalidACL: it does not know a scheme of the ACL",
            -115 => "AuthFailed: it does not accept the credentials",
            -124 => "SessionClosedRequireAuth: it wants credentials by --from-auth or --to-auth",
            -125 => "QuotaExceeded",
            -127 => "Throttled: it is overloaded",
            code => return write!(f, "error {code}"),
        };
        f.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(body: &[u8]) -> Bytes {
        let mut frame = vec![0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0];
        frame.extend_from_slice(body);
        frame.into()
    }

    #[test]
    fn a_request_is_a_frame_with_its_xid_and_opcode() {
        let mut request = Request::get_data("/a");
        let expected = [
            0, 0, 0, 15, 0, 0, 0, 7, 0, 0, 0, 4, 0, 0, 0, 2, b'/', b'a', 0,
        ];
        assert_eq!(request.numbered(7), expected);
    }

    #[test]
    fn null_data_stays_null_and_a_ttl_follows_its_flag() {
        let request = Request::create("/a", None, &[], Kind::Ttl(258));
        let after_path = &request.0[18..];
        assert_eq!(after_path[..8], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        assert_eq!(after_path[8..], [0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 1, 2]);
    }

    #[test]
    fn a_frame_is_taken_once_it_is_whole_and_a_hostile_length_is_refused() {
        let mut arrived = BytesMut::from(&[0, 0, 0, 2, 1][..]);
        assert_eq!(take_frame(&mut arrived).expect("valid so far"), None);
        arrived.extend_from_slice(&[2, 3]);
        assert_eq!(
            take_frame(&mut arrived).expect("valid").as_deref(),
            Some(&[1, 2][..])
        );
        assert_eq!(arrived[..], [3]);
        for length in [-1, i32::MIN, i32::MAX] {
            let mut arrived = BytesMut::from(&length.to_be_bytes()[..]);
            take_frame(&mut arrived).expect_err("hostile");
        }
    }

    #[test]
    fn every_truncated_or_overlong_body_is_an_error() {
        let mut acl = vec![0, 0, 0, 1, 0, 0, 0, 31];
        for text in ["world", "anyone"] {
            acl.extend_from_slice(&(text.len() as i32).to_be_bytes());
            acl.extend_from_slice(text.as_bytes());
        }
        let mut data = vec![0, 0, 0, 1, 42];
        data.extend_from_slice(&[0; 68]);
        for whole in [&acl, &data] {
            for length in 0..whole.len() - 8 {
                let reply = Reply::decode(reply(&whole[..length])).expect("it has a header");
                assert!(reply.acl().is_err() || reply.data().is_err(), "{length}");
            }
        }
        assert_eq!(
            Reply::decode(reply(&acl))
                .expect("a reply")
                .acl()
                .expect("an ACL")[0]
                .id,
            "anyone"
        );
        let hostile = Reply::decode(reply(&i32::MAX.to_be_bytes())).expect("a reply");
        assert_eq!(hostile.children(), Err(Malformed::Length));
        assert_eq!(hostile.acl(), Err(Malformed::Length));
        assert_eq!(hostile.data(), Err(Malformed::Length));
        Reply::decode(Bytes::from_static(&[0; 15])).expect_err("no header");
    }

    #[test]
    fn the_next_sequence_number_is_the_number_of_creates() {
        let stat = Stat {
            cversion: 5,
            ephemeral_owner: 0,
            num_children: 1,
        };
        assert_eq!(stat.creates(), 3);
    }
}
