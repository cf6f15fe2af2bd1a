//! Access control lists: what they allow to which identities. No I/O.
//!
//! Updates are checked by the writer against the ACL in the znode's row, reads by the gateway
//! against the one in the user store, and events by the tail against the one that travels with the
//! change. The rules are ZooKeeper's (`PrepRequestProcessor.checkACL` and `fixupACL`).
//!
//! Invariant: the encoding of ZooKeeper's open ACL, which allows everything to all, is empty. Most
//! znodes have it, and checking it costs nothing.

use bytes::Bytes;

use crate::{
    Error,
    model::{Acl, Identity},
    records,
};

/// Read data and children.
pub const READ: i32 = 1;
/// Set data.
pub const WRITE: i32 = 2;
/// Create children.
pub const CREATE: i32 = 4;
/// Delete children.
pub const DELETE: i32 = 8;
/// Set the ACL.
pub const ADMIN: i32 = 16;

const ALL: i32 = READ | WRITE | CREATE | DELETE | ADMIN;

/// The ACL that allows everything to all.
pub fn open() -> Vec<Acl> {
    vec![Acl {
        permissions: ALL,
        scheme: "world".to_owned(),
        id: "anyone".to_owned(),
    }]
}

/// The encoding of an ACL, empty if it is the open one.
pub fn encode(acl: &[Acl]) -> Bytes {
    if acl == open() {
        Bytes::new()
    } else {
        records::encode(&acl)
    }
}

/// The ACL that [`encode`] encoded.
///
/// Errors: `Corrupt` if it does not decode.
pub fn decode(encoded: &[u8]) -> ports::Result<Vec<Acl>> {
    if encoded.is_empty() {
        Ok(open())
    } else {
        records::decode(encoded, "an ACL")
    }
}

/// Refuses unless the encoded ACL gives one of `permissions` to one of `identities`. An ACL that
/// does not decode gives nothing to any.
///
/// Errors: [`Error::NotAuthorized`].
pub fn check(acl: &Bytes, identities: &[Identity], permissions: i32) -> Result<(), Error> {
    if acl.is_empty() || identities.iter().any(|identity| identity.scheme == "super") {
        return Ok(());
    }
    let acl = decode(acl).map_err(|_| Error::NotAuthorized)?;
    let applies = |entry: &Acl| {
        entry.permissions & permissions != 0
            && ((entry.scheme == "world" && entry.id == "anyone")
                || identities
                    .iter()
                    .any(|identity| identity.scheme == entry.scheme && identity.id == entry.id))
    };
    if acl.iter().any(applies) {
        Ok(())
    } else {
        Err(Error::NotAuthorized)
    }
}

/// The ACL that a znode gets for the one that a client with these identities sent.
///
/// Errors: [`Error::InvalidAcl`].
pub fn resolve(acl: &[Acl], _identities: &[Identity]) -> Result<Vec<Acl>, Error> {
    let is_world = |entry: &Acl| entry.scheme == "world" && entry.id == "anyone";
    if acl.is_empty() || !acl.iter().all(is_world) {
        return Err(Error::InvalidAcl);
    }
    Ok(acl.to_vec())
}
