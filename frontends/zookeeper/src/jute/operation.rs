//! The operations that a client can request, by ZooKeeper's numbers.

/// The operation of a request, as far as decoding and answering differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    /// Returns the new znode's path.
    Create,
    /// Returns the new znode's path and Stat.
    Create2,
    /// As `Create2`. The znode is a container, whatever its flags say of the lifetime.
    CreateContainer,
    /// As `Create2`, with a time to live.
    CreateTtl,
    Delete,
    Exists,
    GetData,
    SetData,
    GetAcl,
    SetAcl,
    /// Only in a multi.
    Check,
    Multi,
    MultiRead,
    WhoAmI,
    GetEphemerals,
    /// `getAllChildrenNumber`.
    CountDescendants,
    AddWatch,
    CheckWatches,
    RemoveWatches,
    /// Refused as by a ZooKeeper whose configuration does not enable it.
    Reconfigure,
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
    /// Not for clients (`deleteContainer`). It is answered with an error and the connection stays
    /// open.
    NotOffered,
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
            6 => Self::GetAcl,
            7 => Self::SetAcl,
            8 => Self::GetChildren,
            9 => Self::Sync,
            11 => Self::Ping,
            12 => Self::GetChildren2,
            14 => Self::Multi,
            15 => Self::Create2,
            16 => Self::Reconfigure,
            17 => Self::CheckWatches,
            18 => Self::RemoveWatches,
            19 => Self::CreateContainer,
            20 => Self::NotOffered,
            21 => Self::CreateTtl,
            22 => Self::MultiRead,
            100 => Self::Authenticate,
            101 => Self::SetWatches,
            103 => Self::GetEphemerals,
            104 => Self::CountDescendants,
            105 => Self::SetWatches2,
            106 => Self::AddWatch,
            107 => Self::WhoAmI,
            -11 => Self::CloseSession,
            // Also `check` outside a multi, as in ZooKeeper.
            _ => Self::Unknown,
        }
    }

    /// The operation of a part of a multi.
    pub fn of_part(opcode: i32) -> Option<Self> {
        match (opcode, Self::of(opcode)) {
            (13, _) => Some(Self::Check),
            (
                _,
                part @ (Self::Create
                | Self::Create2
                | Self::CreateContainer
                | Self::CreateTtl
                | Self::Delete
                | Self::SetData),
            ) => Some(part),
            _ => None,
        }
    }

    /// The operation of a part of a multi read.
    pub fn of_read_part(opcode: i32) -> Option<Self> {
        Some(Self::of(opcode)).filter(|part| matches!(part, Self::GetData | Self::GetChildren))
    }

    /// The opcode in the header of a part's result.
    pub fn result_opcode(self) -> i32 {
        match self {
            Self::Create => 1,
            Self::Delete => 2,
            Self::GetData => 4,
            Self::SetData => 5,
            Self::GetChildren => 8,
            Self::Check => 13,
            _ => 15,
        }
    }
}
