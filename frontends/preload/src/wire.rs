//! The messages between the library and the local server: bytes to values and back, no I/O.
//!
//! The library encodes a request into a buffer of the shared region, without allocating. The server
//! copies the bytes before it decodes them, because a faulty program may change them meanwhile.
//! Numbers are little-endian, and a byte string follows its length of 4 bytes.
//!
//! A reply starts with a status of 4 bytes: 0, a positive `errno`, or [`OUTSIDE`], which an absolute
//! path follows. After 0 the payload follows, whose type the request determines.

/// The version of the messages and of the layout of the region. Both sides must have the same.
pub const VERSION: u32 = 2;
/// The status of a call whose path leads out of the volume by a symbolic link.
pub const OUTSIDE: i32 = -1;
/// The most bytes of data in one request or reply. A longer call is several requests.
pub const DATA_BYTES_MAX: usize = 1 << 20;
/// The bytes of a request beside its data and two paths, at most.
pub const OVERHEAD_BYTES: usize = 16 << 10;

/// Writes fields to a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// An empty message in `bytes`.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, len: 0 }
    }

    /// The bytes written so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.len.checked_add(bytes.len())?;
        self.bytes.get_mut(self.len..end)?.copy_from_slice(bytes);
        self.len = end;
        Some(())
    }
}

/// Reads fields from a message.
#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// A reader of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next field; `None` if the message is too short or the field is invalid.
    pub fn get<F: Field<'a>>(&mut self) -> Option<F> {
        F::get(self)
    }

    /// The bytes that are left.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }
}

/// A part of a message.
pub trait Field<'a>: Sized {
    /// Writes it; `None` if the buffer is full.
    fn put(&self, writer: &mut Writer<'_>) -> Option<()>;
    /// Reads it; `None` if it is cut off or invalid.
    fn get(reader: &mut Reader<'a>) -> Option<Self>;
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Field<'_> for $type {
            fn put(&self, writer: &mut Writer<'_>) -> Option<()> {
                writer.put(&self.to_le_bytes())
            }

            fn get(reader: &mut Reader<'_>) -> Option<Self> {
                let bytes = reader.take(size_of::<Self>())?;
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }
        }
    )*};
}

numbers!(u8, u32, i32, u64, i64);

impl<'a> Field<'a> for &'a [u8] {
    fn put(&self, writer: &mut Writer<'_>) -> Option<()> {
        u32::try_from(self.len()).ok()?.put(writer)?;
        writer.put(self)
    }

    fn get(reader: &mut Reader<'a>) -> Option<Self> {
        let len: u32 = reader.get()?;
        reader.take(usize::try_from(len).ok()?)
    }
}

/// A path, from a directory on. An empty path is the inode itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    /// The inode at which it starts.
    pub start: u64,
    /// The path. A slash at its end demands a directory.
    pub path: &'a [u8],
}

impl<'a> Field<'a> for Place<'a> {
    fn put(&self, writer: &mut Writer<'_>) -> Option<()> {
        self.start.put(writer)?;
        self.path.put(writer)
    }

    fn get(reader: &mut Reader<'a>) -> Option<Self> {
        let start = reader.get()?;
        let path = reader.get()?;
        Some(Self { start, path })
    }
}

/// Defines structs of numbers, and their fields in a message.
macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl Field<'_> for $name {
            fn put(&self, writer: &mut Writer<'_>) -> Option<()> {
                $(self.$field.put(writer)?;)*
                Some(())
            }

            fn get(reader: &mut Reader<'_>) -> Option<Self> {
                Some(Self { $($field: reader.get()?,)* })
            }
        }
    )*};
}

structs! {
    /// All that `stat` tells. A time is seconds and nanoseconds.
    Status {
        /// The inode.
        ino: u64,
        /// The type and the permissions, as in `st_mode`.
        mode: u32,
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
        /// The number of names.
        links: u64,
        /// The length in bytes.
        size: u64,
        /// The last access.
        atime: i64,
        /// Its nanoseconds.
        atime_ns: u32,
        /// The last change of the data.
        mtime: i64,
        /// Its nanoseconds.
        mtime_ns: u32,
        /// The last change of data or attributes.
        ctime: i64,
        /// Its nanoseconds.
        ctime_ns: u32,
    }

    /// The changes of attributes. The bits of `set` say which of them apply.
    Changes {
        /// A set of [`set`](crate::wire::set).
        set: u32,
        /// The permissions.
        mode: u32,
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
        /// The length in bytes.
        size: u64,
        /// The last access.
        atime: i64,
        /// Its nanoseconds.
        atime_ns: u32,
        /// The last change of the data.
        mtime: i64,
        /// Its nanoseconds.
        mtime_ns: u32,
    }
}

/// The bits of [`Changes::set`].
pub mod set {
    /// The permissions.
    pub const MODE: u32 = 1;
    /// The user.
    pub const UID: u32 = 2;
    /// The group.
    pub const GID: u32 = 4;
    /// The length.
    pub const SIZE: u32 = 8;
    /// The last access, to the given time.
    pub const ATIME: u32 = 16;
    /// The last access, to now.
    pub const ATIME_NOW: u32 = 32;
    /// The last change, to the given time.
    pub const MTIME: u32 = 64;
    /// The last change, to now.
    pub const MTIME_NOW: u32 = 128;
}

/// Defines the requests: a code of one byte, then the fields.
macro_rules! requests {
    ($($(#[$doc:meta])* $code:literal $name:ident { $($field:ident: $type:ty),* })*) => {
        /// A call. Flags, modes and whence are Linux's numbers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)] // The fields are the arguments of the system calls.
        pub enum Request<'a> {
            $($(#[$doc])* $name { $($field: $type),* },)*
        }

        impl<'a> Request<'a> {
            /// Writes it to `bytes` and returns its length; `None` if it does not fit.
            pub fn encode(&self, bytes: &mut [u8]) -> Option<usize> {
                let mut writer = Writer::new(bytes);
                match self {
                    $(Self::$name { $($field),* } => {
                        writer.put(&[$code])?;
                        $($field.put(&mut writer)?;)*
                    })*
                }
                Some(writer.len())
            }

            /// Reads one; `None` if the bytes are not exactly one request.
            pub fn decode(bytes: &'a [u8]) -> Option<Self> {
                let mut reader = Reader::new(bytes);
                let code: u8 = reader.get()?;
                let request = match code {
                    $($code => Self::$name { $($field: reader.get()?),* },)*
                    _ => return None,
                };
                reader.rest().is_empty().then_some(request)
            }
        }
    };
}

requests! {
    /// Opens, and creates if the flags say so. Reply: the inode (u64) and its type bits (u32).
    1 Open { place: Place<'a>, flags: u32, mode: u32, uid: u32, gid: u32 }
    /// A process has locked the file, or has found it free. Reply: nothing.
    2 Locked { ino: u64 }
    /// Reply: [`Status`].
    3 Stat { place: Place<'a>, follows: u8 }
    /// Reply: the data, to the end of the reply.
    4 Read { ino: u64, offset: u64, count: u32 }
    /// Reply: nothing.
    5 Write { ino: u64, offset: u64, data: &'a [u8] }
    /// A write at the end of the file. Reply: nothing.
    6 Append { ino: u64, data: &'a [u8] }
    /// Changes attributes. Reply: nothing.
    7 Change { place: Place<'a>, follows: u8, changes: Changes }
    /// Reply: nothing.
    8 Mkdir { place: Place<'a>, mode: u32, uid: u32, gid: u32 }
    /// Reply: nothing.
    9 Rmdir { place: Place<'a> }
    /// Reply: nothing.
    10 Unlink { place: Place<'a> }
    /// Reply: nothing.
    11 Rename { from: Place<'a>, to: Place<'a>, flags: u32 }
    /// Reply: nothing.
    12 Link { from: Place<'a>, follows: u8, to: Place<'a> }
    /// Reply: nothing.
    13 Symlink { target: &'a [u8], place: Place<'a>, uid: u32, gid: u32 }
    /// Reply: the target, to the end of the reply.
    14 Readlink { place: Place<'a> }
    /// Entries after `cookie` of a listing, which 0 starts. Reply: the listing (u64), whether it is
    /// complete (u8), and entries: cookie (u64), inode (u64), type (u8), name.
    15 List { ino: u64, listing: u64, cookie: u64 }
    /// Reply: nothing.
    16 Allocate { ino: u64, mode: u32, offset: u64, count: u64 }
    /// `SEEK_DATA` and `SEEK_HOLE`. Reply: the offset (u64).
    17 Seek { ino: u64, offset: u64, whence: u32 }
    /// Waits until all so far is durable; in a transaction it returns at once. Reply: nothing.
    18 Sync {}
    /// Reply: block bytes (u32), blocks, free blocks, keys (u64 each).
    19 Space {}
    /// Reply: the value, to the end of the reply.
    20 GetXattr { place: Place<'a>, follows: u8, name: &'a [u8] }
    /// Reply: nothing.
    21 SetXattr { place: Place<'a>, follows: u8, name: &'a [u8], value: &'a [u8], flags: u32 }
    /// Reply: nothing.
    22 RemoveXattr { place: Place<'a>, follows: u8, name: &'a [u8] }
    /// Reply: the names, each with a NUL, to the end of the reply.
    23 ListXattr { place: Place<'a>, follows: u8 }
    /// The path without symbolic links. Reply: the path in the volume, to the end of the reply.
    24 Canonical { place: Place<'a> }
}

impl<'a> Place<'a> {
    /// An inode itself.
    pub fn inode(ino: u64) -> Self {
        Self::new(ino, b"")
    }

    /// A path from `start` on.
    pub fn new(start: u64, path: &'a [u8]) -> Self {
        Self { start, path }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_bytes(random: &mut fastrand::Rng, len_max: usize) -> Vec<u8> {
        let len = random.usize(..=len_max);
        (0..len).map(|_| random.u8(..)).collect()
    }

    #[test]
    fn requests_survive_the_way() {
        let place = Place::new(7, b"a/b");
        for request in [
            Request::Open {
                place,
                flags: 0o102,
                mode: 0o644,
                uid: 1,
                gid: 2,
            },
            Request::Write {
                ino: 9,
                offset: u64::MAX,
                data: b"data",
            },
            Request::Rename {
                from: place,
                to: Place::inode(1),
                flags: 1,
            },
            Request::Sync {},
        ] {
            let mut buffer = [0; 100];
            let len = request.encode(&mut buffer).expect("it fits");
            assert_eq!(Request::decode(&buffer[..len]), Some(request));
            assert_eq!(Request::decode(&buffer[..len - 1]), None);
            assert_eq!(Request::decode(&buffer[..=len]), None);
            assert_eq!(request.encode(&mut buffer[..len - 1]), None);
        }
    }

    /// A decoded request is encoded to the same bytes, and no bytes make the decoder panic.
    #[test]
    fn random_bytes_are_refused_or_are_a_request() {
        let mut random = fastrand::Rng::with_seed(31);
        let mut decoded = 0;
        for _ in 0..200_000 {
            let mut bytes = random_bytes(&mut random, 60);
            if let Some(first) = bytes.first_mut() {
                *first %= 26;
            }
            // Lengths that are likely to fit.
            for byte in bytes.iter_mut().skip(1) {
                *byte = if random.bool() { 0 } else { *byte % 9 };
            }
            if let Some(request) = Request::decode(&bytes) {
                decoded += 1;
                let mut buffer = [0; 100];
                let len = request.encode(&mut buffer).expect("it fits");
                assert_eq!(&buffer[..len], bytes);
            }
        }
        assert!(decoded > 100, "only {decoded}");
    }
}
