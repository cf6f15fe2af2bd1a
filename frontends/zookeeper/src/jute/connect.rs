//! The first record in each direction, which has no header.
//!
//! Clients before 3.4 send no `readOnly` byte and must receive none. There is no read-only mode
//! here, so only the presence of the byte matters, and the answer is false.

use std::time::Duration;

use bytes::BytesMut;
use coordination::model::{Connect, Password, SessionId, Zxid};

use super::{FrameWriter, Malformed, Reader};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectRequest {
    pub last_zxid_seen: Zxid,
    pub timeout_ms: i32,
    pub session: SessionId,
    /// The password of that session. None if it does not have sixteen bytes and therefore cannot be
    /// right.
    pub password: Option<Password>,
    /// Whether the client sent the `readOnly` byte.
    pub has_read_only: bool,
}

impl ConnectRequest {
    /// Reads the record. The protocol version has always been zero and is ignored, as in ZooKeeper.
    pub fn decode(mut frame: Reader<'_>) -> Result<Self, Malformed> {
        let _protocol_version = frame.int()?;
        let last_zxid_seen = Zxid(frame.long()?);
        let timeout_ms = frame.int()?;
        let session = SessionId(frame.long()?);
        let password = frame
            .buffer()?
            .and_then(|bytes| bytes.try_into().ok())
            .map(Password);
        let has_read_only = frame.remaining() > 0;
        Ok(Self {
            last_zxid_seen,
            timeout_ms,
            session,
            password,
            has_read_only,
        })
    }

    /// The service's form of the request. `None` if the named session cannot be resumed with it.
    pub fn connect(&self) -> Option<Connect> {
        let resume = match (self.session, self.password) {
            (SessionId(0), _) => None,
            (session, Some(password)) => Some((session, password)),
            (_, None) => return None,
        };
        let timeout = Duration::from_millis(u64::try_from(self.timeout_ms).unwrap_or(0));
        Some(Connect {
            last_zxid_seen: self.last_zxid_seen,
            timeout,
            resume,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectResponse {
    pub timeout_ms: i32,
    pub session: SessionId,
    pub password: Password,
    /// Whether the client sent the `readOnly` byte and therefore expects one.
    pub has_read_only: bool,
}

impl ConnectResponse {
    /// Tells a client that its session has ended, so that it does not try to resume it again.
    pub fn expired(has_read_only: bool) -> Self {
        Self {
            timeout_ms: 0,
            session: SessionId(0),
            password: Password([0; 16]),
            has_read_only,
        }
    }

    pub fn encode(&self, buffer: &mut BytesMut) {
        let mut frame = FrameWriter::begin(buffer, 37);
        frame.int(0);
        frame.int(self.timeout_ms);
        frame.long(self.session.0);
        frame.buffer(Some(&self.password.0));
        if self.has_read_only {
            frame.bool(false);
        }
        frame.finish();
    }
}
