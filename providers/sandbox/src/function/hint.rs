//! The line in the log of an invocation that names the setting which its function lacks: a network,
//! or a package.
//!
//! The interpreter's own message, such as "Temporary failure in name resolution" or "No module
//! named 'boto3'", says nothing of the sandbox. The search is bounded: it covers the end of the
//! output of an invocation, and its error.

use ports::runtime::{Function, Language};

const NETWORK: &str = "landfast: this function has no network; `network = true` in its table of the manifest gives it the machine's";
const PYTHON_PACKAGE: &str = "landfast: functions see Python's standard library and their own code; add other packages, boto3 too, to requirements.txt in \
                              the code folder";
const NODE_PACKAGE: &str = "landfast: functions see Node's own modules and their own code; add other packages, @aws-sdk too, to package.json in the \
                            code folder";

/// Parts of the errors of the C library, Python, Node and boto3 where a host cannot be reached.
const UNREACHABLE: [&[u8]; 6] = [
    b"failure in name resolution",
    b"Name or service not known",
    b"etwork is unreachable",
    b"EAI_AGAIN",
    b"ENETUNREACH",
    b"Could not connect to the endpoint URL",
];
/// The message of Node's `fetch` for each failure of its connection. The cause is not in the log.
const FETCH_FAILED: &[u8] = b"fetch failed";
/// Parts of the errors of Python and Node where a package cannot be found.
const NO_PYTHON_PACKAGE: &[u8] = b"No module named";
const NO_NODE_PACKAGE: [&[u8]; 2] = [b"Cannot find module", b"Cannot find package"];

/// The hint for an invocation of `function`, if the end of its output or its error has a sign of
/// what the function lacks.
pub(crate) fn hint(function: &Function, output: &[u8], error: &[u8]) -> Option<&'static str> {
    let has = |text: &[u8], signs: &[&[u8]]| signs.iter().any(|sign| contains(text, sign));
    let is_node = matches!(function.language, Language::Node(_));
    let is_unreachable =
        |text: &&[u8]| has(text, &UNREACHABLE) || is_node && contains(text, FETCH_FAILED);
    if !function.network && [output, error].iter().any(is_unreachable) {
        return Some(NETWORK);
    }
    match function.language {
        Language::Python(None) if contains(error, NO_PYTHON_PACKAGE) => Some(PYTHON_PACKAGE),
        Language::Node(_) if has(error, &NO_NODE_PACKAGE) => Some(NODE_PACKAGE),
        _ => None,
    }
}

fn contains(text: &[u8], sign: &[u8]) -> bool {
    text.windows(sign.len()).any(|part| part == sign)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler_files;

    fn function(language: Language, network: bool) -> Function {
        Function {
            network,
            buckets: Vec::new(),
            volume: None,
            incarnation: 0,
            ..handler_files::tests::function(language, "index.handler")
        }
    }

    #[test]
    fn a_failed_fetch_of_node_without_a_network_names_the_setting() {
        let node = || Language::Node(None);
        let failed = b"TypeError: fetch failed";
        assert_eq!(hint(&function(node(), false), failed, b""), Some(NETWORK));
        assert_eq!(hint(&function(node(), false), b"", failed), Some(NETWORK));
        assert_eq!(hint(&function(node(), true), failed, failed), None);
        let python = function(Language::Python(None), false);
        assert_eq!(hint(&python, failed, failed), None);
    }

    #[test]
    fn a_sign_is_found_anywhere() {
        for text in [
            "Network is unreachable",
            "dial: network is unreachable\n",
            "x\ngetaddrinfo EAI_AGAIN host",
        ] {
            let has = |sign: &&[u8]| contains(text.as_bytes(), sign);
            assert!(UNREACHABLE.iter().any(has), "{text}");
        }
        assert!(!contains(b"the name", b"name resolution"));
        assert!(!contains(b"", b"EAI_AGAIN"));
    }
}
