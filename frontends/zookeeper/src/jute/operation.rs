//! The operations that a client can request, by ZooKeeper's numbers.

/// Defines [`Operation`]: each has an opcode, and ZooKeeper's name in the command `cons`.
macro_rules! operations {
    ($($(#[$doc:meta])* $operation:ident = $opcode:literal $short_name:literal,)*) => {
        /// The operation of a request, as far as decoding and answering differ.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        #[repr(i32)]
        pub enum Operation {
            $($(#[$doc])* $operation = $opcode,)*
            /// An unknown operation, or one that must not be ignored (`sasl`). It is answered with an
            /// error, then the connection closes.
            Unknown = i32::MIN,
        }

        impl Operation {
            fn of_any(opcode: i32) -> Self {
                match opcode {
                    $($opcode => Self::$operation,)*
                    _ => Self::Unknown,
                }
            }

            /// ZooKeeper's name in the command `cons`.
            pub(crate) fn short_name(self) -> &'static str {
                match self {
                    $(Self::$operation => $short_name,)*
                    Self::Unknown => "NA",
                }
            }
        }
    };
}

operations! {
    /// Returns the new znode's path.
    Create = 1 "CREA",
    Delete = 2 "DELE",
    Exists = 3 "EXIS",
    GetData = 4 "GETD",
    SetData = 5 "SETD",
    GetAcl = 6 "GETA",
    SetAcl = 7 "SETA",
    /// Returns the names of the children.
    GetChildren = 8 "GETC",
    Sync = 9 "SYNC",
    Ping = 11 "PING",
    /// Returns the names of the children, and the Stat of their parent.
    GetChildren2 = 12 "GETC",
    /// Only in a multi.
    Check = 13 "CHEC",
    Multi = 14 "MULT",
    /// Returns the new znode's path and Stat.
    Create2 = 15 "CREA",
    /// Refused as by a ZooKeeper whose configuration does not enable it.
    Reconfigure = 16 "RECO",
    CheckWatches = 17 "CHKW",
    RemoveWatches = 18 "REMW",
    /// As `Create2`. The znode is a container, whatever its flags say of the lifetime.
    CreateContainer = 19 "CREA",
    /// Not for clients (`deleteContainer`). It is answered with an error and the connection stays
    /// open.
    NotOffered = 20 "NA",
    /// As `Create2`, with a time to live.
    CreateTtl = 21 "CREA",
    MultiRead = 22 "MLTR",
    Authenticate = 100 "NA",
    SetWatches = 101 "SETW",
    GetEphemerals = 103 "GETE",
    /// `getAllChildrenNumber`.
    CountDescendants = 104 "GETACN",
    /// As `SetWatches`, with lists of persistent watches.
    SetWatches2 = 105 "STW2",
    AddWatch = 106 "ADDW",
    WhoAmI = 107 "HOMI",
    CloseSession = -11 "CLOS",
}

impl Operation {
    /// The operation of an opcode.
    pub fn of(opcode: i32) -> Self {
        match Self::of_any(opcode) {
            // As in ZooKeeper.
            Self::Check => Self::Unknown,
            operation => operation,
        }
    }

    /// The operation of a part of a multi.
    pub fn of_part(opcode: i32) -> Option<Self> {
        let part = Self::of_any(opcode);
        let may_be = matches!(part, Self::Check | Self::Delete | Self::SetData) || part.creates();
        may_be.then_some(part)
    }

    /// The operation of a part of a multi read.
    pub fn of_read_part(opcode: i32) -> Option<Self> {
        Some(Self::of(opcode)).filter(|part| matches!(part, Self::GetData | Self::GetChildren))
    }

    pub(super) fn creates(self) -> bool {
        matches!(
            self,
            Self::Create | Self::Create2 | Self::CreateContainer | Self::CreateTtl
        )
    }

    /// The opcode in the header of a part's result.
    pub fn result_opcode(self) -> i32 {
        match self {
            Self::CreateContainer | Self::CreateTtl => Self::Create2 as i32,
            part => part as i32,
        }
    }
}
