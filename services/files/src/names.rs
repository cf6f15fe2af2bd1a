//! Names for keys: the path by which a user knows the object of a conflict.

use std::collections::VecDeque;

use bytes::Bytes;
use transactions::serializable::model::Key;

use crate::{
    FileSystem, Listing,
    error::Result,
    inode,
    model::{Ino, Kind},
};

/// The most entries that a search for a name reads. Beyond it the inode's number has to do.
const ENTRIES_MAX: usize = 20_000;
const ENTRIES_AT_ONCE: usize = 1_000;

impl FileSystem {
    /// The cause of a conflict on `key`, as a sentence. As slow as [`name_of`](Self::name_of).
    pub async fn cause_of(&self, key: &Key) -> String {
        let name = self.name_of(key).await;
        // While an inode lives, nothing writes the key that its locks are on.
        match inode::owner_of(key) {
            Some((ino, _)) if *key == inode::lock_key(ino) => {
                format!("another client locked {name}, or removed it")
            }
            _ => format!("another transaction changed {name}"),
        }
    }

    /// The current path, from the root of the volume, of the object that `key` belongs to; or its
    /// inode's number. A search of the volume finds it, so call it for errors only.
    pub async fn name_of(&self, key: &Key) -> String {
        let Some((ino, entry)) = inode::owner_of(key) else {
            return format!("the key {:?}", key.name());
        };
        let found = self.path_of(ino, ENTRIES_MAX).await.unwrap_or_default();
        match (found, entry) {
            (Some(path), Some(entry)) => joined(&path, &entry),
            (Some(path), None) => path,
            (None, Some(entry)) => {
                let entry = String::from_utf8_lossy(&entry);
                format!("{entry:?} in the directory with inode {}", ino.0)
            }
            (None, None) => format!("the file with inode {}", ino.0),
        }
    }

    /// A path to `ino`, if one is among the first `left` names.
    pub(crate) async fn path_of(&self, ino: Ino, mut left: usize) -> Result<Option<String>> {
        if ino == Ino::ROOT {
            return Ok(Some("/".to_owned()));
        }
        let mut directories = VecDeque::from([(Ino::ROOT, "/".to_owned())]);
        while let Some((directory, path)) = directories.pop_front() {
            let (mut listing, mut cookie) = (Listing::new(directory), 0);
            loop {
                let count = left.min(ENTRIES_AT_ONCE);
                let entries = self.list(&mut listing, cookie, count).await?;
                let Some(last) = entries.last() else { break };
                cookie = last.cookie;
                left -= entries.len();
                for entry in &entries {
                    if [&b"."[..], b".."].contains(&&*entry.name) {
                        continue;
                    }
                    if entry.ino == ino {
                        return Ok(Some(joined(&path, &entry.name)));
                    }
                    if entry.kind == Kind::Directory {
                        directories.push_back((entry.ino, joined(&path, &entry.name)));
                    }
                }
                if left == 0 {
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }
}

fn joined(path: &str, name: &Bytes) -> String {
    let separator = if path.ends_with('/') { "" } else { "/" };
    format!("{path}{separator}{}", String::from_utf8_lossy(name))
}
