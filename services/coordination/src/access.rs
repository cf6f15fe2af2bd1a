//! Access control lists: what they allow to which identities. No I/O.
//!
//! Updates are checked by the writer against the ACL in the znode's row, reads by the gateway
//! against the one in the user store, and events by the tail against the one that travels with the
//! change. The rules are ZooKeeper's (`PrepRequestProcessor.checkACL` and `fixupACL`).
//!
//! Invariant: the encoding of ZooKeeper's open ACL, which allows everything to all, is empty. Most
//! znodes have it, and checking it costs nothing.

mod address;

use bytes::Bytes;

use crate::{
    Error,
    model::{Acl, Identity},
    records::{self, Identities},
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

/// The most entries of an ACL, before `auth` is expanded. A longer list is refused.
pub const ENTRIES_MAX: usize = 256;

/// The most bytes of an encoded ACL. It travels with every event of its znode's changes, so a
/// longer one is refused.
pub const BYTES_MAX: usize = 4096;

/// The ACL that allows everything to all.
pub fn open() -> Vec<Acl> {
    vec![Acl {
        permissions: ALL,
        scheme: "world".to_owned(),
        id: "anyone".to_owned(),
    }]
}

/// The encoded ACL that allows all to read, and nothing else.
pub fn readable() -> Bytes {
    let acl = open().into_iter();
    encode(
        &acl.map(|entry| Acl {
            permissions: READ,
            ..entry
        })
        .collect::<Vec<_>>(),
    )
}

/// The encoding of an ACL, empty if it is the open one.
pub fn encode(acl: &[Acl]) -> Bytes {
    if is_open(acl) {
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

/// Refuses unless the encoded ACL gives one of `permissions` to one of `identities`.
///
/// Errors: [`Error::NotAuthorized`].
pub fn check(acl: &[u8], identities: &Identities, permissions: i32) -> Result<(), Error> {
    if acl.is_empty() || Rules::of(acl).allow(&identities.decode(), permissions) {
        Ok(())
    } else {
        Err(Error::NotAuthorized)
    }
}

/// A decoded ACL, to check for several connections. One that does not decode allows nothing.
#[derive(Debug)]
pub struct Rules {
    is_open: bool,
    entries: Vec<Acl>,
}

impl Rules {
    /// The rules of an encoded ACL.
    pub fn of(acl: &[u8]) -> Self {
        let is_open = acl.is_empty();
        let entries = if is_open {
            Vec::new()
        } else {
            decode(acl).unwrap_or_default()
        };
        Self { is_open, entries }
    }

    /// Whether one of `permissions` is given to one of `identities`.
    pub fn allow(&self, identities: &[Identity], permissions: i32) -> bool {
        let applies = |entry: &Acl| {
            entry.permissions & permissions != 0
                && (is_anyone(entry) || identities.iter().any(|identity| matches(entry, identity)))
        };
        self.is_open
            || identities.iter().any(|identity| identity.scheme == "super")
            || self.entries.iter().any(applies)
    }
}

fn is_open(acl: &[Acl]) -> bool {
    matches!(acl, [entry] if entry.permissions == ALL && is_anyone(entry))
}

fn is_anyone(entry: &Acl) -> bool {
    entry.scheme == "world" && entry.id == "anyone"
}

fn matches(entry: &Acl, identity: &Identity) -> bool {
    entry.scheme == identity.scheme
        && match entry.scheme.as_str() {
            "ip" => address::matches(&identity.id, &entry.id),
            _ => entry.id == identity.id,
        }
}

/// Whether an ACL has more entries or bytes than are stored.
pub fn is_too_long(acl: &[Acl]) -> bool {
    acl.len() > ENTRIES_MAX || encode(acl).len() > BYTES_MAX
}

/// The encoded ACL that a znode gets for the one that a client with these identities sent. The
/// scheme `auth` stands for all identities that the client has proved.
///
/// Errors: [`Error::InvalidAcl`].
pub fn resolve(acl: &[Acl], identities: &Identities) -> Result<Bytes, Error> {
    if acl.is_empty() || acl.len() > ENTRIES_MAX {
        return Err(Error::InvalidAcl);
    }
    if is_open(acl) {
        return Ok(Bytes::new());
    }
    let mut resolved = Vec::with_capacity(acl.len());
    for (number, entry) in acl.iter().enumerate() {
        if acl[..number].contains(entry) {
            continue;
        }
        if entry.scheme != "auth" {
            if !is_valid(entry) {
                return Err(Error::InvalidAcl);
            }
            resolved.push(entry.clone());
            continue;
        }
        let mut proved = identities.decode();
        proved.retain(|identity| matches!(identity.scheme.as_str(), "digest" | "x509"));
        if proved.is_empty() {
            return Err(Error::InvalidAcl);
        }
        resolved.extend(proved.into_iter().map(|Identity { scheme, id }| Acl {
            permissions: entry.permissions,
            scheme,
            id,
        }));
    }
    let encoded = encode(&resolved);
    if encoded.len() > BYTES_MAX {
        return Err(Error::InvalidAcl);
    }
    Ok(encoded)
}

fn is_valid(entry: &Acl) -> bool {
    match entry.scheme.as_str() {
        "world" => is_anyone(entry),
        // As Java splits it: empty parts at the end do not count.
        "digest" => entry.id.trim_end_matches(':').split(':').count() == 2,
        "ip" => address::is_valid(&entry.id),
        "x509" => entry.id.contains('='),
        _ => false,
    }
}

/// The ACL as a client sees it that may not set it: without the hashes of passwords.
pub fn without_hashes(mut acl: Vec<Acl>) -> Vec<Acl> {
    for entry in acl.iter_mut().filter(|entry| entry.scheme == "digest") {
        if let Some((user, _)) = entry.id.split_once(':') {
            entry.id = format!("{user}:x");
        }
    }
    acl
}

/// An identity as `whoAmI` shows it: the name of a user without the hash of the password.
pub fn without_hash(Identity { scheme, id }: Identity) -> Identity {
    let user = match id.split_once(':') {
        Some((user, _)) if scheme == "digest" => user.to_owned(),
        _ => id,
    };
    Identity { scheme, id: user }
}

#[cfg(test)]
mod tests;
