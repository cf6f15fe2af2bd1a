//! The place of this server's own rows in a store that it shares with other servers.

use std::sync::OnceLock;

use bytes::Bytes;
use parking_lot::Mutex;
use ports::Key;

/// A start of a server. It never appears again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MemberId(pub(crate) u128);

/// This server among the others of its store.
#[derive(Debug)]
pub(crate) struct Own {
    id: Mutex<MemberId>,
    /// Where other servers reach it. It stays the same over restarts.
    pub(crate) address: OnceLock<String>,
}

impl Own {
    pub(crate) fn new(id: MemberId) -> Self {
        Self {
            id: Mutex::new(id),
            address: OnceLock::new(),
        }
    }

    pub(crate) fn id(&self) -> MemberId {
        *self.id.lock()
    }

    pub(crate) fn set_id(&self, id: MemberId) {
        *self.id.lock() = id;
    }
}

/// The partition `base` of one server; none: no other server shares the store.
pub(crate) fn partition(base: &str, member: Option<MemberId>) -> Bytes {
    match member {
        Some(MemberId(id)) => format!("{base}/{id:032x}").into(),
        None => Bytes::copy_from_slice(base.as_bytes()),
    }
}

/// The key of the row without which `member` adds no rows of its own.
pub(crate) fn life(member: MemberId) -> Key {
    Key::new("memory/l", member.0.to_be_bytes())
}
