//! The extended attributes of files on this machine that import and export copy: those of the
//! namespace `user`, which any owner of a file may set. The others belong to the machine.

use std::{collections::BTreeMap, ffi::OsStr, io, os::unix::ffi::OsStrExt as _, path::Path};

use bytes::Bytes;
use nix::errno::Errno;

const NAMESPACE: &[u8] = b"user.";

/// Attributes with their values.
pub(super) type Xattrs = BTreeMap<Bytes, Bytes>;

/// Whether import and export copy the attribute `name`.
pub(super) fn is_copied(name: &[u8]) -> bool {
    name.starts_with(NAMESPACE)
}

/// Those of a file. A file system without attributes has none.
pub(super) fn read(path: &Path) -> io::Result<Xattrs> {
    let names = match xattr::list(path) {
        Ok(names) => names,
        Err(error) if error.raw_os_error() == Some(Errno::ENOTSUP as i32) => {
            return Ok(Xattrs::new());
        }
        Err(error) => return Err(error),
    };
    let mut found = Xattrs::new();
    for name in names.filter(|name| is_copied(name.as_bytes())) {
        // Another process may have removed it.
        if let Some(value) = xattr::get(path, &name)? {
            found.insert(Bytes::copy_from_slice(name.as_bytes()), value.into());
        }
    }
    Ok(found)
}

/// Gives a file these attributes and no others.
pub(super) fn write(path: &Path, wanted: &Xattrs) -> io::Result<()> {
    let there = read(path)?;
    for name in there.keys().filter(|name| !wanted.contains_key(*name)) {
        xattr::remove(path, OsStr::from_bytes(name))?;
    }
    let new = wanted
        .iter()
        .filter(|(name, value)| there.get(*name) != Some(value));
    for (name, value) in new {
        xattr::set(path, OsStr::from_bytes(name), value)?;
    }
    Ok(())
}
