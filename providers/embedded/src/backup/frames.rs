//! The file of a backup: a line of text, then frames.
//!
//! ```text
//! landfast backup 1 store 3 by 0.1.0 check 8d6f1c52
//! frame: kind u8 | stored bytes u32 | plain bytes u32 | crc u32 | content
//! ```
//!
//! Numbers are little-endian. The content is deflated if that makes it shorter. The crc covers
//! everything else of the frame. The last frame has the SHA-256 of all bytes before it.
//!
//! Invariants
//! - Any bytes decode to frames or an error. A frame takes at most [`FRAME_BYTES_MAX`] of memory
//!   twice, and no more than about the bytes that are there.

use std::io::{self, BufRead, BufReader, Read, Write};

use flate2::{Compression, bufread::DeflateDecoder, write::DeflateEncoder};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};

use super::error::BackupError;
use crate::{directory::format::FORMAT, records};

/// The format of backups that this release writes and reads.
const BACKUP_FORMAT: u32 = 1;
/// The longest content of a frame. A record and an object's part are shorter.
const FRAME_BYTES_MAX: usize = 16 << 20;
/// Shorter contents are not compressed.
const COMPRESSED_BYTES_MIN: usize = 64;
const LINE_BYTES_MAX: u64 = 200;
const HEAD_BYTES: usize = 13;
const PROGRAM: &str = env!("CARGO_PKG_VERSION");
const START: &str = "landfast backup ";

/// The kind of a frame, in the order in which they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Kind {
    /// A [`Head`].
    Head = 1,
    /// Keys and values of records.
    Records = 2,
    /// An [`ObjectHead`].
    Object = 3,
    /// The next bytes of the object.
    Data = 4,
    /// An [`ObjectHead`] of an object that is elsewhere.
    Absent = 5,
    /// An [`End`].
    End = 6,
    /// Instead of the rest: why there is none, as text.
    GaveUp = 7,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        let kinds = [
            Self::Head,
            Self::Records,
            Self::Object,
            Self::Data,
            Self::Absent,
            Self::End,
            Self::GaveUp,
        ];
        kinds.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The moment of a backup.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// When it was taken, in milliseconds since the epoch.
    pub(super) taken_ms: u64,
    pub(super) incarnation: u64,
    pub(super) position: u64,
    /// Where objects are that are not inside.
    pub(super) absent_at: Option<String>,
}

/// An object, before its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ObjectHead {
    pub(super) place: String,
    pub(super) name: String,
    pub(super) bytes: u64,
}

/// What the file must have held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) records: u64,
    pub(super) objects: u64,
    pub(super) object_bytes: u64,
    pub(super) absent_objects: u64,
    pub(super) sha256: [u8; 32],
}

/// Writes a backup.
pub(super) struct FrameWriter<'out> {
    out: &'out mut dyn Write,
    hash: Sha256,
    pub(super) bytes: u64,
}

impl<'out> FrameWriter<'out> {
    /// Begins with the first line.
    pub(super) fn begin(out: &'out mut dyn Write) -> io::Result<Self> {
        let line = format!("{START}{BACKUP_FORMAT} store {FORMAT} by {PROGRAM} check ");
        let line = format!("{line}{:08x}\n", crc32fast::hash(line.as_bytes()));
        let mut writer = Self {
            out,
            hash: Sha256::new(),
            bytes: 0,
        };
        writer.write(line.as_bytes())?;
        Ok(writer)
    }

    /// Writes a value as a frame.
    pub(super) fn value(&mut self, kind: Kind, value: &impl Serialize) -> io::Result<()> {
        let mut content = Vec::new();
        records::put(value, &mut content);
        self.frame(kind, &content)
    }

    /// Writes a frame.
    pub(super) fn frame(&mut self, kind: Kind, content: &[u8]) -> io::Result<()> {
        if content.len() > FRAME_BYTES_MAX {
            return Err(io::Error::other("a record is too long for a backup"));
        }
        let mut frame = vec![0; HEAD_BYTES];
        if content.len() >= COMPRESSED_BYTES_MIN {
            let mut encoder = DeflateEncoder::new(frame, Compression::fast());
            encoder.write_all(content)?;
            frame = encoder.finish()?;
        }
        let is_shorter = frame.len() > HEAD_BYTES && frame.len() < HEAD_BYTES + content.len();
        if !is_shorter {
            frame.truncate(HEAD_BYTES);
            frame.extend_from_slice(content);
        }
        let stored = (frame.len() - HEAD_BYTES) as u32;
        frame[0] = kind as u8;
        frame[1..5].copy_from_slice(&stored.to_le_bytes());
        frame[5..9].copy_from_slice(&(content.len() as u32).to_le_bytes());
        let crc = crc_of(&frame[..9], &frame[HEAD_BYTES..]);
        frame[9..HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
        self.write(&frame)
    }

    /// Writes the last frame.
    pub(super) fn end(&mut self, mut end: End) -> io::Result<()> {
        end.sha256 = self.hash.clone().finalize().into();
        self.value(Kind::End, &end)?;
        self.out.flush()
    }

    /// Writes the last frame of a backup that failed.
    pub(super) fn give_up(&mut self, why: &str) -> io::Result<()> {
        self.frame(Kind::GaveUp, why.as_bytes())?;
        self.out.flush()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}

fn crc_of(head: &[u8], content: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(head);
    crc.update(content);
    crc.finalize()
}

/// Whether a file may be what an interrupted backup has left: the beginning of one, or empty.
pub fn is_begun(input: impl Read) -> io::Result<bool> {
    let mut bytes = Vec::new();
    input.take(START.len() as u64).read_to_end(&mut bytes)?;
    Ok(START.as_bytes().starts_with(&bytes))
}

/// Reads a backup.
pub(super) struct FrameReader<R> {
    input: BufReader<R>,
    hash: Sha256,
    /// The number of the last frame.
    frame: u64,
    /// Where it starts.
    offset: u64,
    /// Where it ends.
    pub(super) bytes: u64,
    /// The release that wrote the file.
    pub(super) by: String,
}

impl<R: Read> FrameReader<R> {
    /// Reads the first line.
    pub(super) fn begin(input: R) -> Result<Self, BackupError> {
        let mut input = BufReader::with_capacity(1 << 18, input);
        let mut line = Vec::new();
        let read = Read::take(&mut input, LINE_BYTES_MAX).read_until(b'\n', &mut line);
        read.map_err(BackupError::io("read the backup"))?;
        let by = parse(&line)?;
        let mut hash = Sha256::new();
        hash.update(&line);
        Ok(Self {
            input,
            hash,
            frame: 0,
            offset: 0,
            bytes: line.len() as u64,
            by,
        })
    }

    /// The next frame, which must not be beyond the end.
    pub(super) fn next(&mut self) -> Result<(Kind, Vec<u8>), BackupError> {
        self.frame += 1;
        self.offset = self.bytes;
        let mut head = [0; HEAD_BYTES];
        self.fill(&mut head)?;
        let number = |at: usize| {
            let bytes = head[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(bytes) as usize
        };
        let (stored, plain, crc) = (number(1), number(5), number(9));
        let kind = Kind::from_byte(head[0]).ok_or_else(|| self.damaged("its kind is unknown"))?;
        if stored > plain || plain > FRAME_BYTES_MAX {
            return Err(self.damaged("its length is too large"));
        }
        let mut content = Vec::new();
        let read = Read::take(&mut self.input, stored as u64).read_to_end(&mut content);
        read.map_err(BackupError::io("read the backup"))?;
        if content.len() < stored {
            return Err(self.cut_off());
        }
        if crc_of(&head[..9], &content) as usize != crc {
            return Err(self.damaged("its checksum differs"));
        }
        if kind == Kind::End {
            let end: End = self.decode(&content)?;
            if end.sha256 != <[u8; 32]>::from(self.hash.clone().finalize()) {
                return Err(self.damaged("it has the SHA-256 of another backup"));
            }
        }
        self.hash.update(head);
        self.hash.update(&content);
        self.bytes += (HEAD_BYTES + stored) as u64;
        if stored == plain {
            return Ok((kind, content));
        }
        let (deflated, mut content) = (content, Vec::new());
        let inflated = DeflateDecoder::new(&*deflated)
            .take(plain as u64 + 1)
            .read_to_end(&mut content);
        match inflated {
            Ok(bytes) if bytes == plain => Ok((kind, content)),
            _ => Err(self.damaged("it does not decompress")),
        }
    }

    /// Errors: bytes follow the last frame.
    pub(super) fn finish(&mut self) -> Result<(), BackupError> {
        self.frame += 1;
        self.offset = self.bytes;
        let rest = self.input.fill_buf();
        let rest = rest.map_err(BackupError::io("read the backup"))?;
        if rest.is_empty() {
            return Ok(());
        }
        Err(self.damaged("it follows the end"))
    }

    /// The value of the last frame.
    pub(super) fn decode<T: DeserializeOwned>(&self, content: &[u8]) -> Result<T, BackupError> {
        records::read(content).ok_or_else(|| self.damaged("its content does not decode"))
    }

    /// The error that the last frame is damaged.
    pub(super) fn damaged(&self, why: &'static str) -> BackupError {
        BackupError::Damaged {
            frame: self.frame,
            offset: self.offset,
            why,
        }
    }

    fn cut_off(&self) -> BackupError {
        BackupError::CutOff {
            frame: self.frame,
            offset: self.offset,
        }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), BackupError> {
        match self.input.read_exact(buffer) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.cut_off()),
            read => read.map_err(BackupError::io("read the backup")),
        }
    }
}

/// The release that wrote the file with this first line. Errors: it has another format.
fn parse(line: &[u8]) -> Result<String, BackupError> {
    let whole = std::str::from_utf8(line).ok().and_then(|line| {
        let (said, check) = line.strip_suffix('\n')?.rsplit_once(' ')?;
        let crc = crc32fast::hash(format!("{said} ").as_bytes());
        (format!("{crc:08x}") == check).then_some(said)
    });
    let fields = whole.and_then(|said| said.strip_prefix(START));
    let fields: Vec<&str> = fields.ok_or(BackupError::NotABackup)?.split(' ').collect();
    let (found, by) = match fields[..] {
        [format, "store", store, "by", by, ..] => (format!("{format}/{store}"), by.to_owned()),
        _ => return Err(BackupError::NotABackup),
    };
    let supported = format!("{BACKUP_FORMAT}/{FORMAT}");
    if found != supported {
        return Err(BackupError::OtherFormat {
            found,
            supported,
            by,
        });
    }
    Ok(by)
}
