//! The path and the query of a request for files. Both are bytes, percent-encoded.

use std::collections::BTreeMap;

use axum::http::Uri;
use bytes::Bytes;
use files::{
    Errno,
    path_rules::{check_name, check_path, is_dots},
};

use crate::{problem::Problem, segment};

/// The path of a file within its volume: names without `.` and `..`. The root has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilePath {
    names: Vec<Bytes>,
}

impl FilePath {
    /// The part of the path after `/v1/volumes/NAME/files`. Errors: a segment that is no name.
    pub(super) fn of(uri: &Uri) -> Result<Self, Problem> {
        let rest = uri.path().splitn(6, '/').nth(5).unwrap_or_default();
        let segments = rest.split('/').filter(|segment| !segment.is_empty());
        let names = segments.map(|segment| {
            let why = "in a path, % is followed by two hexadecimal digits; write % as %25";
            segment::decode(segment).ok_or_else(|| Problem::invalid(why))
        });
        Self::new(names.collect::<Result<_, _>>()?)
    }

    /// A path in a parameter. Errors: as of [`of`](Self::of).
    pub(super) fn parsed(path: &[u8]) -> Result<Self, Problem> {
        let names = path.split(|byte| *byte == b'/');
        let names = names.filter(|name| !name.is_empty());
        Self::new(names.map(<[u8]>::to_vec).collect())
    }

    fn new(names: Vec<Vec<u8>>) -> Result<Self, Problem> {
        if names.iter().any(|name| is_dots(name)) {
            let why = "the path has . or .. in it: give the path that is meant";
            return Err(Problem::invalid(why));
        }
        for name in &names {
            check_name(name)?;
        }
        let names = names.into_iter().map(Bytes::from).collect();
        let path = Self { names };
        check_path(&path.whole())?;
        Ok(path)
    }

    /// From the root, as `resolve` takes it.
    pub(super) fn whole(&self) -> Bytes {
        joined(&self.names)
    }

    /// The path of the directory, and the name in it. Errors: `refusal` for the root.
    pub(super) fn parent_and_name(&self, refusal: Errno) -> Result<(Bytes, &Bytes), Errno> {
        let (name, parents) = self.names.split_last().ok_or(refusal)?;
        Ok((joined(parents), name))
    }

    /// The names above the last one.
    pub(super) fn parents(&self) -> &[Bytes] {
        self.names.split_last().map_or(&[], |(_, parents)| parents)
    }
}

fn joined(names: &[Bytes]) -> Bytes {
    let mut path = vec![b'/'];
    path.extend_from_slice(&names.join(&b"/"[..]));
    path.into()
}

/// The parameters of a query, each at most once.
#[derive(Debug)]
pub(super) struct Parameters<'a>(BTreeMap<&'a str, Vec<u8>>);

impl<'a> Parameters<'a> {
    /// Errors: one that is not in `known`, or is there twice, or malformed.
    pub(super) fn of(uri: &'a Uri, known: &[&str]) -> Result<Self, Problem> {
        let wrong = |part: &str| {
            let known = known.join(", ");
            Problem::invalid(format!(
                "{part:?} in the query: this takes {known}, each at most once, percent-encoded"
            ))
        };
        let mut found = BTreeMap::new();
        let parts = uri.query().unwrap_or_default().split('&');
        for part in parts.filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = segment::decode(value).ok_or_else(|| wrong(part))?;
            if !known.contains(&name) || found.insert(name, value).is_some() {
                return Err(wrong(part));
            }
        }
        Ok(Self(found))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// A parameter in ASCII or UTF-8. Errors: it is not.
    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, Problem> {
        let text = self.bytes(name).map(std::str::from_utf8).transpose();
        text.map_err(|_| Problem::invalid(format!("{name} is UTF-8")))
    }

    /// A number in this `radix`. Errors: it is none.
    pub(super) fn number(&self, name: &str, radix: u32) -> Result<Option<u64>, Problem> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        let digits = Some(text).filter(|text| !text.starts_with('+'));
        let number = digits.and_then(|text| u64::from_str_radix(text, radix).ok());
        let wrong = || Problem::invalid(format!("{name} is a number of base {radix}"));
        number.map(Some).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Result<FilePath, Problem> {
        FilePath::of(&text.parse().expect("a target"))
    }

    #[test]
    fn a_path_is_names_of_any_bytes() {
        for (asked, whole) in [
            ("/v1/volumes/v/files", &b"/"[..]),
            ("/v1/volumes/v/files/", b"/"),
            ("/v1/volumes/v/files/a", b"/a"),
            ("/v1/volumes/v/files//a//b%20c/%ff?x=/y", b"/a/b c/\xff"),
            ("/v1/volumes/v/files/...", b"/..."),
        ] {
            assert_eq!(path(asked).expect("a path").whole(), whole, "{asked}");
        }
    }

    #[test]
    fn a_path_cannot_leave_the_volume_or_hide_a_slash() {
        let long = "a".repeat(256);
        for hostile in ["..", ".", "a/..", "%2e%2E/a", "a%2Fb", "a%00b", "%4", &long] {
            let asked = format!("/v1/volumes/v/files/{hostile}");
            assert!(path(&asked).is_err(), "{hostile}");
        }
        FilePath::parsed(b"a/../b").expect_err("it leaves");
        FilePath::parsed(&b"a/".repeat(3_000)).expect_err("it is too long");
    }

    #[test]
    fn unknown_and_repeated_parameters_are_refused() {
        let parse = |query: &str| {
            let uri: Uri = format!("/x?{query}").parse().expect("a target");
            Parameters::of(&uri, &["list", "mode"]).map(|parameters| {
                let mode = parameters.number("mode", 8);
                (parameters.has("list"), mode.map_err(|_| ()))
            })
        };
        assert_eq!(
            parse("list&mode=0644").expect("known"),
            (true, Ok(Some(0o644)))
        );
        assert_eq!(parse("mode=9").expect("known"), (false, Err(())));
        for refused in ["lists", "list&list", "list=%"] {
            assert!(parse(refused).is_err(), "{refused}");
        }
    }
}
