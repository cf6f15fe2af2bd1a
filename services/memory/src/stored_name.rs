//! The names of fragments in object stores.

use ports::objects::{self, ObjectError, ObjectPath};

use crate::fragment::{FragmentName, SegmentId};

/// The folder of all fragments.
const FOLDER: &str = "memory";

/// The folder as a path.
pub(crate) fn folder() -> ObjectPath {
    FOLDER.into()
}

/// The path of a fragment.
pub(crate) fn path(name: FragmentName) -> ObjectPath {
    // Folders by the last digits, which are random. The first are the time.
    let segment = format!("{:032x}", name.segment.0);
    format!("{FOLDER}/{}/{segment}-{}", &segment[30..], name.index).into()
}

/// The fragment of this path.
pub(crate) fn name(path: &ObjectPath) -> Option<FragmentName> {
    let (segment, index) = path.filename()?.split_once('-')?;
    Some(FragmentName {
        segment: SegmentId(u128::from_str_radix(segment, 16).ok()?),
        index: index.parse().ok()?,
    })
}

/// The error of a call for a fragment.
pub(crate) fn failed(attempted: &str, name: FragmentName, cause: ObjectError) -> crate::Error {
    let attempted = format!("{attempted} {}", path(name));
    objects::failed(attempted, cause).into()
}
