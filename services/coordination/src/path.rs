//! Znode paths: their validity, and how they split into parent and name.
//!
//! The rules are ZooKeeper's `PathUtils.validatePath`. A path is absolute, has no trailing slash,
//! no empty, `.` or `..` element, and no control, surrogate, private-use or special characters.
//! Characters beyond U+FFFF are two surrogates in Java, so they are refused too.

/// The longest path, in bytes. A decided create contains its path three times in its session's row,
/// and a log slot contains it once more. Both must fit into an item, a message and a function call
/// (256 KiB and 400 KiB with the smallest providers).
pub const PATH_BYTES_MAX: usize = 64 * 1024;

/// The znode in which ZooKeeper stores its members.
pub const CONFIG: &str = "/zookeeper/config";

/// Whether `path` is a valid path of a znode.
pub fn is_valid(path: &str) -> bool {
    if path == "/" {
        return true;
    }
    let Some(rest) = path.strip_prefix('/') else {
        return false;
    };
    path.len() <= PATH_BYTES_MAX
        && rest
            .split('/')
            .all(|element| !matches!(element, "" | "." | ".."))
        && path.chars().all(is_allowed)
}

fn is_allowed(character: char) -> bool {
    !matches!(u32::from(character), 0x0000..=0x001f | 0x007f..=0x009f | 0xd800..=0xf8ff | 0xfff0..)
}

/// The parent of `path` and the name within it: `/a/b` is `b` in `/a`, and `/a` is `a` in `/`. The
/// part before the last slash is not checked: `/a//b` is `b` in `/a/`, which does not exist, as in
/// ZooKeeper. `None` for a path without a slash, and for the root.
pub fn split(path: &str) -> Option<(&str, &str)> {
    let slash = path.rfind('/')?;
    match slash {
        0 if path.len() == 1 => None,
        0 => Some(("/", &path[1..])),
        slash => Some((&path[..slash], &path[slash + 1..])),
    }
}

/// The ancestors of `path`, topmost first: for `/a/b`, `/` and `/a`.
pub fn ancestors(path: &str) -> Vec<&str> {
    let mut ancestors = Vec::new();
    let mut below = path;
    while let Some((parent, _)) = split(below) {
        ancestors.push(parent);
        below = parent;
    }
    ancestors.reverse();
    ancestors
}

/// Whether `path` is below `above`. Neither is checked.
pub fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| rest.starts_with('/') || (above == "/" && !rest.is_empty()))
}

/// The path of `name` in `parent`.
pub fn join(parent: &str, name: &str) -> String {
    if parent == "/" {
        format!("/{name}")
    } else {
        format!("{parent}/{name}")
    }
}

/// Znodes that are part of the service and cannot be deleted.
pub fn is_reserved(path: &str) -> bool {
    matches!(path, "/" | "/zookeeper" | "/zookeeper/quota" | CONFIG)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes on ZooKeeper's behaviour, point 18.
    #[test]
    fn paths_are_valid_as_zookeeper_says() {
        for valid in ["/", "/a", "/a/b", "/...", "/a b", "/a%", "/漢字", "/a/.b"] {
            assert!(is_valid(valid), "{valid}");
        }
        for invalid in [
            "",
            "a",
            "/a/",
            "//",
            "/a//b",
            "/.",
            "/a/..",
            "/a\u{1}",
            "/\u{7f}",
            "/\u{e000}",
            "/\u{fff0}",
            "/\u{1f600}",
        ] {
            assert!(!is_valid(invalid), "{invalid:?}");
        }
    }

    #[test]
    fn a_path_splits_at_its_last_slash() {
        assert_eq!(split("/a/b"), Some(("/a", "b")));
        assert_eq!(split("/a"), Some(("/", "a")));
        assert_eq!(split("/a//b"), Some(("/a/", "b")));
        assert_eq!(split("/q/"), Some(("/q", "")));
        assert_eq!(split("/"), None);
        assert_eq!(split("a"), None);
        assert_eq!(ancestors("/a//b"), ["/", "/a", "/a/"]);
        assert!(ancestors("/").is_empty() && ancestors("a").is_empty());
        assert_eq!(join("/", "a"), "/a");
        assert_eq!(join("/a", "b"), "/a/b");
    }
}
