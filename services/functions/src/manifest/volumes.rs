//! The volumes that a function sees as directories.

use std::collections::BTreeMap;

use transactions::serializable::volumes::VolumeName;

/// The directory below which volumes are mounted.
const ROOT: &str = "/mnt/";
/// The most volumes of a function. Each is a mount in every instance.
const VOLUMES_MAX: usize = 4;
const PATH_BYTES_MAX: usize = 255;

/// Errors: a path is no mount point, paths overlap, or a volume occurs twice.
pub(super) fn check(volumes: &BTreeMap<String, VolumeName>) -> Result<(), String> {
    if volumes.len() > VOLUMES_MAX {
        return Err(format!("volumes: a function has {VOLUMES_MAX} at most"));
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
    for (path, volume) in volumes {
        let others = || volumes.iter().filter(|(other, _)| *other != path);
        if let Some((inner, _)) = others().find(|(other, _)| other.starts_with(&format!("{path}/")))
        {
            return Err(format!("volumes: {inner:?} lies below {path:?}"));
        }
        if others().any(|(_, other)| other == volume) {
            return Err(format!(
                "volumes: the volume {volume} occurs twice: a transaction sees it once"
            ));
        }
    }
    Ok(())
}
