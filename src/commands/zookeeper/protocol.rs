//! The requests of a ZooKeeper client as bytes, and the replies as values, without I/O. Their parts
//! are those of the front end's codec.

use std::fmt;

use bytes::{Bytes, BytesMut};
use coordination::model::{Acl, Stat};
use zookeeper_frontend::jute::{FrameWriter, Malformed, Reader};

use super::kinds::Kind;

const PASSWORD_BYTES: usize = 16;

/// The xids that are not of a numbered request.
pub(super) const PING_XID: i32 = -2;
pub(super) const AUTH_XID: i32 = -4;

const ANY_VERSION: i32 = -1;

pub(super) const OK: i32 = 0;
pub(super) const NO_NODE: i32 = -101;
pub(super) const NO_AUTH: i32 = -102;
pub(super) const NODE_EXISTS: i32 = -110;
pub(super) const SESSION_EXPIRED: i32 = -112;
pub(super) const INVALID_ACL: i32 = -114;
pub(super) const SESSION_CLOSED_REQUIRE_AUTH: i32 = -124;

/// How many children were created in a znode, which is its next sequence number. ZooKeeper shows it
/// as twice the count less the children there are.
pub(super) fn creates(stat: &Stat) -> i64 {
    i64::midpoint(stat.cversion.into(), stat.num_children.into())
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

    pub(super) fn create(path: &str, data: Option<&[u8]>, acl: &[Acl], kind: Kind) -> Self {
        let (opcode, flags) = match kind {
            Kind::Persistent => (1, 0),
            Kind::Container => (19, 4),
            Kind::Ttl(_) => (21, 5),
        };
        Self::new(opcode, |frame| {
            frame.string(path);
            frame.buffer(data);
            frame.acl(acl);
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

    pub(super) fn set_acl(path: &str, acl: &[Acl]) -> Self {
        Self::new(7, |frame| {
            frame.string(path);
            frame.acl(acl);
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
    pub(super) fn decode(frame: &Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(frame);
        Ok(Self {
            xid: reader.int()?,
            zxid: reader.long()?,
            code: reader.int()?,
            body: reader.rest(),
        })
    }

    /// The body of getData.
    pub(super) fn data(&self) -> Result<(Option<Bytes>, Stat), Malformed> {
        let mut reader = Reader::new(&self.body);
        Ok((reader.data()?, reader.stat()?))
    }

    /// The body of exists.
    pub(super) fn stat(&self) -> Result<Stat, Malformed> {
        Reader::new(&self.body).stat()
    }

    /// The body of getACL, in one order for all servers.
    pub(super) fn acl(&self) -> Result<Vec<Acl>, Malformed> {
        let mut acl = Reader::new(&self.body).acl()?;
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
            NO_AUTH => "NoAuth",
            -108 => "NoChildrenForEphemerals: an ephemeral znode of the target is above it",
            NODE_EXISTS => "NodeExists",
            -111 => "NotEmpty",
            INVALID_ACL => {
                "InvalidACL: it does not know a scheme of the ACL (x509 needs a secure port)"
            }
            -115 => "AuthFailed: it does not accept the credentials",
            SESSION_CLOSED_REQUIRE_AUTH => "SessionClosedRequireAuth",
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
                let reply = Reply::decode(&reply(&whole[..length])).expect("it has a header");
                assert!(reply.acl().is_err() || reply.data().is_err(), "{length}");
            }
        }
        assert_eq!(
            Reply::decode(&reply(&acl))
                .expect("a reply")
                .acl()
                .expect("an ACL")[0]
                .id,
            "anyone"
        );
        let hostile = Reply::decode(&reply(&i32::MAX.to_be_bytes())).expect("a reply");
        assert_eq!(hostile.children(), Err(Malformed::Length));
        assert_eq!(hostile.acl(), Err(Malformed::Length));
        assert_eq!(hostile.data(), Err(Malformed::Length));
        Reply::decode(&Bytes::from_static(&[0; 15])).expect_err("no header");
    }

    #[test]
    fn the_next_sequence_number_is_the_number_of_creates() {
        let stat = Stat {
            cversion: 5,
            num_children: 1,
            ..Stat::default()
        };
        assert_eq!(creates(&stat), 3);
    }
}
