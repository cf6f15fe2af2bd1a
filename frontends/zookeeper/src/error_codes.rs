//! ZooKeeper's numbers for the service's errors; nothing else here or below knows them.

use coordination::Error;

/// No error.
pub const OK: i32 = 0;

const SYSTEM_ERROR: i32 = -1;

/// The code a reply header carries for an error.
pub fn code(error: Error) -> i32 {
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
        // `System`, and whatever the service learns to say before this table does. Also `NoRoom`: ZooKeeper has no number
        // for a full disk, and older clients break on numbers that they do not know. This one all of them report, keep
        // their session, and do not repeat the request by themselves.
        _ => SYSTEM_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_the_code_that_clients_know_it_by() {
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
        ];
        for (error, expected) in codes {
            assert_eq!(code(error), expected, "{error}");
        }
    }
}
