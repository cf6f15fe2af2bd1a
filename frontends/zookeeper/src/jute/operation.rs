//! The operations that a client can request, by ZooKeeper's numbers.

/// The operation of a request, as far as decoding and answering differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    /// Returns the new znode's path.
    Create,
    /// Returns the new znode's path and Stat.
    Create2,
    Delete,
    Exists,
    GetData,
    SetData,
    /// Returns the names of the children.
    GetChildren,
    /// Returns the names of the children, and the Stat of their parent.
    GetChildren2,
    Sync,
    Ping,
    CloseSession,
    SetWatches,
    /// As `SetWatches`, with lists of persistent watches.
    SetWatches2,
    /// ZooKeeper has it, this server does not. It is answered with an error and the connection
    /// stays open, so that the client's other requests are not lost.
    NotOffered,
    /// Authenticates the client, which is not offered. It is answered as failed, then the
    /// connection closes.
    Authenticate,
    /// An unknown operation, or one that must not be ignored (`sasl`). It is answered with an
    /// error, then the connection closes.
    Unknown,
}

impl Operation {
    /// The operation of an opcode.
    pub fn of(opcode: i32) -> Self {
        match opcode {
            1 => Self::Create,
            2 => Self::Delete,
            3 => Self::Exists,
            4 => Self::GetData,
            5 => Self::SetData,
            8 => Self::GetChildren,
            9 => Self::Sync,
            11 => Self::Ping,
            12 => Self::GetChildren2,
            15 => Self::Create2,
            100 => Self::Authenticate,
            101 => Self::SetWatches,
            105 => Self::SetWatches2,
            -11 => Self::CloseSession,
            // getACL, setACL, multi, reconfig to multiRead, getEphemerals, getAllChildrenNumber,
            // addWatch, whoAmI. Not `check`, which is unknown outside a multi in ZooKeeper too.
            6 | 7 | 14 | 16..=22 | 103 | 104 | 106 | 107 => Self::NotOffered,
            _ => Self::Unknown,
        }
    }
}
