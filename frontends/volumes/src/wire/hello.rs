//! The first message of each side. Its layout never changes, so that a peer of another version can
//! tell the reason of a refusal.

use transactions::Error;

use super::VERSION;

/// The first bytes of both messages.
const MAGIC: [u8; 8] = *b"landfstv";
const WELCOME: u8 = 0;

/// The name of a session: 128 random bits that its client chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionKey(pub u128);

/// The first message of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The version of the protocol that it speaks.
    pub version: u16,
    /// Its session, which may continue an earlier one.
    pub session: SessionKey,
}

/// The server's answer to a [`Hello`] that it accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// The start of the server: 128 random bits.
    pub server: u128,
    /// The session is known: its locks and holds are in force.
    pub is_resumed: bool,
    /// The server has just started, and grants only locks that clients had before.
    pub may_reclaim: bool,
}

/// The reason why a server refuses a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The server speaks another version.
    Version(u16),
    /// It has as many connections as it accepts.
    TooManyConnections,
    /// The session is being ended. Try again in a moment.
    Ending,
    /// A reason that this build does not know.
    Unknown(u8),
}

impl Hello {
    /// Its length in bytes.
    pub const BYTES: usize = 26;

    /// A message of this build.
    pub fn new(session: SessionKey) -> Self {
        let version = VERSION;
        Self { version, session }
    }

    /// Encodes it.
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_be_bytes());
        bytes[10..].copy_from_slice(&self.session.0.to_be_bytes());
        bytes
    }

    /// Decodes it. `None`: the peer speaks another protocol.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (version, session) = rest.split_first_chunk()?;
        Some(Self {
            version: u16::from_be_bytes(*version),
            session: SessionKey(u128::from_be_bytes(session.try_into().ok()?)),
        })
    }
}

impl Welcome {
    /// Its length in bytes, also of a refusal.
    pub const BYTES: usize = 28;

    /// Encodes the answer to a hello.
    pub fn encode(answer: Result<Self, Refusal>) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
        match answer {
            Ok(welcome) => {
                bytes[10] = WELCOME;
                bytes[11] = u8::from(welcome.is_resumed) | u8::from(welcome.may_reclaim) << 1;
                bytes[12..].copy_from_slice(&welcome.server.to_be_bytes());
            }
            Err(refusal) => bytes[10] = refusal.number(),
        }
        bytes
    }

    /// Decodes the answer to a hello. `None`: the peer speaks another protocol.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Result<Self, Refusal>> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (version, rest) = rest.split_first_chunk()?;
        let (&[kind, flags], server) = rest.split_first_chunk()?;
        Some(match kind {
            WELCOME => Ok(Self {
                server: u128::from_be_bytes(server.try_into().ok()?),
                is_resumed: flags & 1 != 0,
                may_reclaim: flags & 2 != 0,
            }),
            1 => Err(Refusal::Version(u16::from_be_bytes(*version))),
            2 => Err(Refusal::TooManyConnections),
            3 => Err(Refusal::Ending),
            other => Err(Refusal::Unknown(other)),
        })
    }
}

impl Refusal {
    fn number(self) -> u8 {
        match self {
            Self::Version(_) => 1,
            Self::TooManyConnections => 2,
            Self::Ending => 3,
            Self::Unknown(other) => other,
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let why = match refusal {
            Refusal::Version(version) => format!(
                "the server speaks version {version} of the protocol of volumes, this program {VERSION}: use the server's build"
            ),
            Refusal::TooManyConnections => {
                "the server has as many connections to volumes as it accepts".to_owned()
            }
            Refusal::Ending => "the server still ends the session".to_owned(),
            Refusal::Unknown(reason) => format!("the server refused with reason {reason}"),
        };
        Self::Unavailable(why.into())
    }
}
