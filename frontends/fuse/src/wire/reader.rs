//! A cursor over a message, which checks every length.

/// A defect of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The message ends before its last field.
    #[error("the message ends early")]
    Truncated,
    /// Bytes follow the last field.
    #[error("{0} bytes follow the last field")]
    Trailing(usize),
    /// The header gives another length than the read did.
    #[error("the header says {said} bytes, but {read} were read")]
    Length {
        /// The length in the header, in bytes.
        said: u32,
        /// The bytes that were read.
        read: usize,
    },
    /// A name is empty, has a slash, or lacks its end.
    #[error("a name is empty, has a slash, or does not end")]
    Name,
    /// A field has a value outside of its range.
    #[error("{field} has the impossible value {value}")]
    Value {
        /// The field, by its name in `fuse.h`.
        field: &'static str,
        /// The value that was read.
        value: u64,
    },
}

pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (first, rest) = self.rest.split_first_chunk().ok_or(Fault::Truncated)?;
        self.rest = rest;
        Ok(*first)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Fault> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_ne_bytes)
    }

    /// A number of 32 bits, and 32 bits that say nothing.
    pub(super) fn padded(&mut self) -> Result<u32, Fault> {
        let number = self.u32()?;
        self.u32().map(|_| number)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let (first, rest) = self.rest.split_at_checked(count).ok_or(Fault::Truncated)?;
        self.rest = rest;
        Ok(first)
    }

    /// Bytes up to a NUL, which is consumed.
    pub(super) fn text(&mut self) -> Result<&'a [u8], Fault> {
        let end = self.rest.iter().position(|byte| *byte == 0);
        let text = self.bytes(end.ok_or(Fault::Name)?)?;
        self.bytes(1)?;
        if text.is_empty() {
            return Err(Fault::Name);
        }
        Ok(text)
    }

    /// The name of a directory entry: a text without a slash.
    pub(super) fn name(&mut self) -> Result<&'a [u8], Fault> {
        let name = self.text()?;
        if name.contains(&b'/') {
            return Err(Fault::Name);
        }
        Ok(name)
    }

    /// Everything that is left.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(super) fn end(&self) -> Result<(), Fault> {
        match self.rest.len() {
            0 => Ok(()),
            trailing => Err(Fault::Trailing(trailing)),
        }
    }
}
