//! The operations that a client can request, by ZooKeeper's numbers.

/// The operation of a request, as far as decoding and answering differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Creates a znode and returns its path.
    Create,
    /// Creates a znode and returns its path and Stat.
    Create2,
    /// Deletes a znode.
    Delete,
    /// Returns a znode's Stat.
    Exists,
    /// Returns a znode's data and Stat.
    GetData,
    /// Sets a znode's data and returns its Stat.
    SetData,
    /// Returns the names of a znode's children.
    GetChildren,
    /// Returns the names of a znode's children, and its Stat.
    GetChildren2,
    /// Returns once all earlier updates are applied.
    Sync,
    /// Keeps the session alive.
    Ping,
    /// Ends the session.
    CloseSession,
    /// Sets watches again.
    SetWatches,
    /// Sets watches again, with lists of persistent watches.
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
    /// All operations, in the order of [`Operation::index`].
    pub const ALL: [Self; 16] = [
        Self::Create,
        Self::Create2,
        Self::Delete,
        Self::Exists,
        Self::GetData,
        Self::SetData,
        Self::GetChildren,
        Self::GetChildren2,
        Self::Sync,
        Self::Ping,
        Self::CloseSession,
        Self::SetWatches,
        Self::SetWatches2,
        Self::NotOffered,
        Self::Authenticate,
        Self::Unknown,
    ];

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

    /// Its index in [`Operation::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Its name in ZooKeeper's terms, for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Create2 => "create2",
            Self::Delete => "delete",
            Self::Exists => "exists",
            Self::GetData => "getData",
            Self::SetData => "setData",
            Self::GetChildren => "getChildren",
            Self::GetChildren2 => "getChildren2",
            Self::Sync => "sync",
            Self::Ping => "ping",
            Self::CloseSession => "closeSession",
            Self::SetWatches => "setWatches",
            Self::SetWatches2 => "setWatches2",
            Self::NotOffered => "notOffered",
            Self::Authenticate => "authenticate",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_the_position_in_the_list() {
        for (place, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation.index(), place, "{}", operation.name());
        }
    }
}
