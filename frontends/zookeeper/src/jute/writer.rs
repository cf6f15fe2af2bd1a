//! Writes frames, one after another, into a buffer that the connection reuses.

use bytes::{BufMut, BytesMut};
use coordination::model::{Acl, Stat};

/// A frame that is being written. Its length is filled in at the end.
#[derive(Debug)]
pub struct FrameWriter<'a> {
    buffer: &'a mut BytesMut,
    start: usize,
}

impl<'a> FrameWriter<'a> {
    pub const LENGTH_BYTES: usize = 4;

    /// Begins a frame at the end of the buffer. `body_bytes` is a hint of its size.
    pub fn begin(buffer: &'a mut BytesMut, body_bytes: usize) -> Self {
        let start = buffer.len();
        buffer.reserve(Self::LENGTH_BYTES + body_bytes);
        buffer.put_i32(0);
        Self { buffer, start }
    }

    /// Fills in the length.
    pub fn finish(self) {
        let length = self.buffer.len() - self.start - Self::LENGTH_BYTES;
        let length = i32::try_from(length).expect("a reply is a small part of two gigabytes");
        self.buffer[self.start..self.start + Self::LENGTH_BYTES]
            .copy_from_slice(&length.to_be_bytes());
    }

    pub fn bool(&mut self, value: bool) {
        self.buffer.put_u8(u8::from(value));
    }

    pub fn int(&mut self, value: i32) {
        self.buffer.put_i32(value);
    }

    pub fn long(&mut self, value: i64) {
        self.buffer.put_i64(value);
    }

    pub fn buffer(&mut self, value: Option<&[u8]>) {
        match value {
            None => self.int(-1),
            Some(bytes) => {
                self.length(bytes.len());
                self.buffer.put_slice(bytes);
            }
        }
    }

    pub fn string(&mut self, value: &str) {
        self.buffer(Some(value.as_bytes()));
    }

    pub fn strings<S: AsRef<str>>(&mut self, values: &[S]) {
        self.length(values.len());
        for value in values {
            self.string(value.as_ref());
        }
    }

    pub fn vector<T>(&mut self, values: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.length(values.len());
        for value in values {
            write(self, value);
        }
    }

    pub fn acl(&mut self, acl: &[Acl]) {
        self.vector(acl, |frame, entry| {
            frame.int(entry.permissions);
            frame.string(&entry.scheme);
            frame.string(&entry.id);
        });
    }

    pub fn reply_header(&mut self, xid: i32, zxid: i64, code: i32) {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&xid.to_be_bytes());
        header[4..12].copy_from_slice(&zxid.to_be_bytes());
        header[12..].copy_from_slice(&code.to_be_bytes());
        self.buffer.put_slice(&header);
    }

    /// A Stat, assembled on the stack because it ends most replies.
    pub fn stat(&mut self, stat: &Stat) {
        let mut bytes = [0; Self::STAT_BYTES];
        let mut rest = &mut bytes[..];
        for long in [stat.czxid.0, stat.mzxid.0, stat.ctime, stat.mtime] {
            rest.put_i64(long);
        }
        for int in [stat.version, stat.cversion, stat.aversion] {
            rest.put_i32(int);
        }
        rest.put_i64(stat.ephemeral_owner);
        rest.put_i32(stat.data_length);
        rest.put_i32(stat.num_children);
        rest.put_i64(stat.pzxid.0);
        self.buffer.put_slice(&bytes);
    }

    pub const STAT_BYTES: usize = 68;

    fn length(&mut self, length: usize) {
        self.int(i32::try_from(length).expect("a reply is a small part of two gigabytes"));
    }
}
