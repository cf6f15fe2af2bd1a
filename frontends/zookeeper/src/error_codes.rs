//! ZooKeeper's numbers for the service's errors. No other module knows them.

use coordination::Error;

pub(crate) const OK: i32 = 0;

const SYSTEM_ERROR: i32 = -1;
const RUNTIME_INCONSISTENCY: i32 = -2;

/// The code of an error in a reply header.
pub(crate) fn code(error: Error) -> i32 {
    match error {
        Error::Marshalling => -5,
        Error::Unimplemented => -6,
        Error::BadArguments => -8,
        Error::NoNode => -101,
        Error::NotAuthorized => -102,
        Error::BadVersion => -103,
        Error::NoChildrenForEphemerals => -108,
        Error::NodeExists => -110,
        Error::NotEmpty => -111,
        Error::SessionExpired => -112,
        Error::InvalidAcl => -114,
        Error::AuthenticationFailed => -115,
        Error::SessionMoved => -118,
        Error::NoWatcher => -121,
        Error::ReconfigurationDisabled => -123,
        Error::AuthenticationRequired => -124,
        Error::QuotaExceeded => -125,
        Error::NotDone => OK,
        Error::NotAttempted => RUNTIME_INCONSISTENCY,
        // `System`, and errors that the service adds before this table does. Also `NoRoom`:
        // ZooKeeper has no number for a full disk, and older clients break on unknown numbers. All
        // clients report this one, keep their session, and do not retry by themselves.
        _ => SYSTEM_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_zookeeper_code() {
        let codes = [
            (Error::System, -1),
            (Error::Marshalling, -5),
            (Error::Unimplemented, -6),
            (Error::BadArguments, -8),
            (Error::NoNode, -101),
            (Error::NotAuthorized, -102),
            (Error::BadVersion, -103),
            (Error::NoChildrenForEphemerals, -108),
            (Error::NodeExists, -110),
            (Error::NotEmpty, -111),
            (Error::SessionExpired, -112),
            (Error::InvalidAcl, -114),
            (Error::AuthenticationFailed, -115),
            (Error::SessionMoved, -118),
            (Error::NoRoom, -1),
            (Error::NoWatcher, -121),
            (Error::ReconfigurationDisabled, -123),
            (Error::AuthenticationRequired, -124),
            (Error::QuotaExceeded, -125),
            (Error::NotDone, 0),
            (Error::NotAttempted, -2),
        ];
        for (error, expected) in codes {
            assert_eq!(code(error), expected, "{error}");
        }
    }
}
