//! Appends numbers to a message, in the byte order of the machine.

use std::mem;

pub(super) struct Writer<'a>(pub(super) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn zeros(&mut self, count: usize) -> &mut Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }
}

/// Fills `head` with a header and the output of `body`. Counts `payload`, which follows it, in the
/// length.
pub(super) fn message(
    head: &mut Vec<u8>,
    code: i32,
    unique: u64,
    payload: &[u8],
    body: impl FnOnce(&mut Writer<'_>),
) {
    head.clear();
    let mut writer = Writer(head);
    writer.u32(0).bytes(&code.to_ne_bytes()).u64(unique);
    body(&mut writer);
    let length = u32::try_from(head.len() + payload.len()).expect("a reply is shorter than 4 GiB");
    head[..mem::size_of::<u32>()].copy_from_slice(&length.to_ne_bytes());
}
