//! The word for a function's runtime: the kind of its interpreter, with or without a version.
//!
//! Lambda's names, such as `python3.11` and `nodejs20.x`, are a kind with a version. Whether the
//! machine has that version is checked at the deployment.

use serde::{Deserialize, Deserializer, de::Error as _};

/// The words that refusals name.
const WORDS: &str = "write \"python3\", \"node\" or \"executable\", or a version of an interpreter as \"python3.11\" or \"nodejs20.x\"";

/// The interpreter of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Python, with the bundled runtime client or the code's own awslambdaric.
    Python3,
    /// Node.js, with the bundled runtime client or the code's own aws-lambda-ric.
    Node,
    /// An executable that speaks the Lambda Runtime API itself.
    Executable,
}

impl Kind {
    /// Its name in a manifest.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Python3 => "python3",
            Self::Node => "node",
            Self::Executable => "executable",
        }
    }
}

/// The runtime that a manifest names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeName {
    /// The kind of the interpreter.
    pub kind: Kind,
    /// The version that it must have, `3.11` or `20`; none: any.
    pub version: Option<String>,
}

impl RuntimeName {
    fn parse(name: &str) -> Result<Self, String> {
        let of = |kind, version| Ok(Self { kind, version });
        let is_number =
            |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let python = name.strip_prefix("python3.").filter(is_number);
        let node = name
            .strip_prefix("nodejs")
            .and_then(|rest| rest.strip_suffix(".x"));
        match (name, python, node.filter(is_number)) {
            ("python3", ..) => of(Kind::Python3, None),
            ("node", ..) => of(Kind::Node, None),
            ("executable", ..) => of(Kind::Executable, None),
            (_, Some(minor), _) => of(Kind::Python3, Some(format!("3.{minor}"))),
            (_, _, Some(major)) => of(Kind::Node, Some(major.to_owned())),
            // Such as provided.al2023: the code brings its own runtime.
            _ if name.starts_with("provided") => Err(format!(
                "runtime = {name:?}: write \"executable\", with the file's name as the handler"
            )),
            _ => Err(format!("runtime = {name:?}: {WORDS}")),
        }
    }
}

impl<'de> Deserialize<'de> for RuntimeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_is_a_kind_with_or_without_a_version() {
        let is = |name: &str, kind, version: Option<&str>| {
            let version = version.map(str::to_owned);
            assert_eq!(RuntimeName::parse(name), Ok(RuntimeName { kind, version }));
        };
        is("python3", Kind::Python3, None);
        is("python3.11", Kind::Python3, Some("3.11"));
        is("node", Kind::Node, None);
        is("nodejs20.x", Kind::Node, Some("20"));
        is("executable", Kind::Executable, None);
    }

    #[test]
    fn another_word_is_refused_with_those_that_are_right() {
        for name in [
            "ruby3.2",
            "python",
            "python2.7",
            "python3.",
            "python3.x",
            "nodejs",
            "nodejs.x",
            "nodejs20",
            "Python3",
            "",
        ] {
            let refused = RuntimeName::parse(name).expect_err(name);
            assert!(refused.contains("nodejs20.x"), "{refused}");
        }
        let refused = RuntimeName::parse("provided.al2023").expect_err("another word");
        assert!(refused.contains("\"executable\""), "{refused}");
    }
}
