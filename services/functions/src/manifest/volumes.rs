//! The volume that a function sees as a directory.

use std::collections::BTreeMap;

use ports::volume_mounts::VolumeAt;
use serde::{Deserialize, Serialize};
use transactions::serializable::volumes::VolumeName;

/// The directory below which volumes are mounted.
const ROOT: &str = "/mnt/";
/// The most volumes of a function: an invocation is one transaction, and that is of one volume.
const VOLUMES_MAX: usize = 1;
const PATH_BYTES_MAX: usize = 255;

/// A volume, as its name or as a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Volume {
    /// Its name.
    Name(VolumeName),
    /// Its name, and how it is used.
    Table {
        /// Its name.
        volume: VolumeName,
        /// Whether the function only reads, so that its invocations never conflict.
        #[serde(default)]
        read_only: bool,
    },
}

/// The volume for the runtime, if there is one.
pub(super) fn for_runtime(volumes: &BTreeMap<String, Volume>) -> Option<VolumeAt> {
    let (folder, volume) = volumes.first_key_value()?;
    let (volume, is_read_only) = match volume {
        Volume::Name(volume) => (volume, false),
        Volume::Table { volume, read_only } => (volume, *read_only),
    };
    Some(VolumeAt {
        folder: folder.clone(),
        volume: volume.as_str().to_owned(),
        is_read_only,
    })
}

/// Errors: there are several volumes, or a path is no mount point.
pub(super) fn check(volumes: &BTreeMap<String, Volume>) -> Result<(), String> {
    if volumes.len() > VOLUMES_MAX {
        return Err(format!(
            "volumes: a function has {VOLUMES_MAX} at most, because an invocation is a transaction of one volume"
        ));
    }
    for path in volumes.keys() {
        let is_part = |part: &str| !["", ".", ".."].contains(&part);
        let is_point = path
            .strip_prefix(ROOT)
            .is_some_and(|rest| rest.split('/').all(is_part));
        if !is_point || path.len() > PATH_BYTES_MAX || path.chars().any(char::is_control) {
            return Err(format!(
                "volumes: {path:?} must be a path below /mnt, as \"/mnt/data\", of at most {PATH_BYTES_MAX} bytes"
            ));
        }
    }
    Ok(())
}
