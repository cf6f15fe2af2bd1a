//! The interface to the volumes of one store, the same in the server's process and in a client's.

use std::{fmt, sync::Arc};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    serializable::{
        VolumeStore,
        model::{BlockBytes, Slot, Usage},
    },
};

/// The longest name of a volume, in bytes.
pub const VOLUME_NAME_BYTES_MAX: usize = 63;

/// The name of a volume: 1 to [`VOLUME_NAME_BYTES_MAX`] of the characters `a-z`, `0-9`, `-`, `_` and
/// `.`. The first is a letter or a digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct VolumeName(String);

impl VolumeName {
    /// Errors: `Invalid` if `name` is not one.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_allowed = |byte: u8| is_word(byte) || b"-_.".contains(&byte);
        let bytes = name.as_bytes();
        let is_name = bytes.len() <= VOLUME_NAME_BYTES_MAX
            && bytes.first().is_some_and(|first| is_word(*first))
            && bytes.iter().all(|byte| is_allowed(*byte));
        if is_name {
            Ok(Self(name))
        } else {
            Err(Error::Invalid(
                "the name of a volume has 1 to 63 of the characters a-z, 0-9, '-', '_' and '.', \
                 and begins with a letter or a digit",
            ))
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for VolumeName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(name)
    }
}

/// The settings of a volume at its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSettings {
    /// The size of its blocks, which never changes.
    pub block_bytes: BlockBytes,
    /// The most bytes that it may take; `None`: no bound.
    pub quota_bytes: Option<u64>,
}

/// A volume, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// Its name.
    pub name: VolumeName,
    /// The size of its blocks.
    pub block_bytes: BlockBytes,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
    /// The space that it takes, and its quota.
    pub usage: Usage,
}

/// The volumes of one store.
///
/// Changes are durable when their call returns. Errors of all calls: `Unavailable`, `Corrupt`, and
/// `NoSuchVolume` where a volume is named.
pub trait Volumes: fmt::Debug + Send + Sync {
    /// Creates an empty volume. Errors: `VolumeExists`, `NoRoom`.
    fn create(&self, name: VolumeName, settings: VolumeSettings) -> BoxFuture<'_, Result<()>>;

    /// The volume `name`. Calls on it fail with `NoSuchVolume` once it is deleted.
    fn open<'a>(&'a self, name: &'a VolumeName) -> BoxFuture<'a, Result<Arc<dyn VolumeStore>>>;

    /// All volumes in the order of their names.
    fn list(&self) -> BoxFuture<'_, Result<Vec<VolumeInfo>>>;

    /// Changes the most bytes that a volume may take. Its present data stay.
    fn set_quota<'a>(
        &'a self,
        name: &'a VolumeName,
        quota_bytes: Option<u64>,
    ) -> BoxFuture<'a, Result<()>>;

    /// Creates volume `to` with the content of `from` at `at` (`None`: now), without copying it.
    /// Errors: `VolumeExists`, `SnapshotTooOld`.
    fn clone_volume<'a>(
        &'a self,
        from: &'a VolumeName,
        at: Option<Slot>,
        to: VolumeName,
    ) -> BoxFuture<'a, Result<()>>;

    /// Deletes a volume. Its space is freed afterwards, in the background. Errors: `VolumeInUse` if
    /// it was cloned and a clone still reads from it.
    fn delete<'a>(&'a self, name: &'a VolumeName) -> BoxFuture<'a, Result<()>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_volumes_are_plain() {
        for name in ["demo", "0", "a-b_c.d", &"v".repeat(63)] {
            assert_eq!(VolumeName::new(name).expect("a name").as_str(), name);
        }
        for name in ["", ".", "-x", "A", "a/b", "ü", &"v".repeat(64)] {
            assert!(VolumeName::new(name).is_err(), "{name:?}");
        }
    }
}
