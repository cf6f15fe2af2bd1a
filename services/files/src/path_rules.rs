//! The rules of names and paths. Names are any bytes but `/` and NUL.

use bytes::Bytes;

use crate::error::{Errno, Result};

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest path with the NUL that ends it in C, in bytes.
pub const PATH_BYTES_MAX: usize = 4_096;
/// The most symbolic links that one path leads over.
pub const SYMLINKS_MAX: usize = 40;

/// Checks a name, `.` and `..` included. Errors: `ENOENT` if it is empty, `ENAMETOOLONG`, `EINVAL`.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        Err(Errno::ENOENT)
    } else if name.len() > NAME_BYTES_MAX {
        Err(Errno::ENAMETOOLONG)
    } else if name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        Err(Errno::EINVAL)
    } else {
        Ok(())
    }
}

/// Whether the name is `.` or `..`.
pub fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Checks a name that is about to be bound or unbound. Errors: those of [`check_name`], and
/// `refusal` for `.` and `..`.
pub fn check_entry_name(name: &[u8], refusal: Errno) -> Result<()> {
    check_name(name)?;
    if is_dots(name) { Err(refusal) } else { Ok(()) }
}

/// Checks the length of a path or of a link's target. Errors: `ENOENT` if it is empty,
/// `ENAMETOOLONG`, `EINVAL` if it has a NUL.
pub fn check_path(path: &[u8]) -> Result<()> {
    if path.is_empty() {
        Err(Errno::ENOENT)
    } else if path.len() >= PATH_BYTES_MAX {
        Err(Errno::ENAMETOOLONG)
    } else if path.contains(&0) {
        Err(Errno::EINVAL)
    } else {
        Ok(())
    }
}

/// The components of a path in their order. A slash at the end gives a last component `.`, since
/// the component before it must be a directory.
pub fn components(path: &Bytes) -> Vec<Bytes> {
    let parts = path.split(|byte| *byte == b'/');
    let mut found: Vec<Bytes> = parts
        .filter(|part| !part.is_empty())
        .map(|part| path.slice_ref(part))
        .collect();
    if path.ends_with(b"/") {
        found.push(Bytes::from_static(b"."));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_limits() {
        assert_eq!(check_name(b""), Err(Errno::ENOENT));
        assert_eq!(check_name(&[b'a'; 256]), Err(Errno::ENAMETOOLONG));
        assert_eq!(check_name(&[0xff; 255]), Ok(()));
        assert_eq!(check_name(b"a/b"), Err(Errno::EINVAL));
        assert_eq!(check_name(b"a\0"), Err(Errno::EINVAL));
        assert_eq!(check_entry_name(b"..", Errno::EBUSY), Err(Errno::EBUSY));
        assert_eq!(check_path(&[b'a'; 4096]), Err(Errno::ENAMETOOLONG));
        assert_eq!(check_path(&[b'a'; 4095]), Ok(()));
    }

    #[test]
    fn a_slash_at_the_end_asks_for_a_directory() {
        let found = components(&Bytes::from_static(b"//a///b/"));
        assert_eq!(found, ["a", "b", "."].map(Bytes::from));
    }
}
