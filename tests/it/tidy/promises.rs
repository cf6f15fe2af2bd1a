//! Every numbered promise is cited by a test.
//!
//! A promise is a number in bold (two asterisks on each side) where a port, a foundation or a service's page
//! in `docs/` states it. A citation is the same number as a word in a comment of a test or of a contract.

use std::collections::BTreeMap;

use super::{assert_tidy, files, read};

#[test]
fn every_numbered_promise_is_cited_by_a_test() {
    let promised = promised();
    assert!(
        promised.len() > 20,
        "the promises are not found any more: {promised:?}"
    );
    let cited: String = files(&[".rs", ".py", ".sh"])
        .iter()
        .filter(|path| is_test(path) && !path.starts_with("tests/it/tidy"))
        .flat_map(|path| {
            read(path)
                .lines()
                .filter(|line| is_comment(line))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .map(|line| line + "\n")
        .collect();
    let words: std::collections::BTreeSet<&str> = cited.split(|c: char| !is_of_number(c)).collect();
    let missing = promised
        .iter()
        .filter(|(number, _)| !words.contains(number.as_str()));
    assert_tidy(
        &missing
            .map(|(number, path)| format!("{path}: no test cites {number}"))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn a_promises_number_is_recognised() {
    let text = "- **K1** one\n//! - **C-2** two **bold** **12** **K** **Q10**, **L3**: **X1 y**";
    assert_eq!(
        numbers(text).collect::<Vec<_>>(),
        ["K1", "C-2", "Q10", "L3"]
    );
}

/// Each number with the file that states it.
fn promised() -> BTreeMap<String, String> {
    let states = |path: &str| {
        let is_page = path.starts_with("docs/") && !path.starts_with("docs/design/");
        let is_below = path.starts_with("ports/src/") || path.starts_with("foundations/");
        (is_page || is_below) && !is_test(path)
    };
    let mut promised = BTreeMap::new();
    for path in files(&[".rs", ".md"])
        .into_iter()
        .filter(|path| states(path))
    {
        for number in numbers(&read(&path)) {
            promised
                .entry(number.to_owned())
                .or_insert_with(|| path.clone());
        }
    }
    promised
}

fn numbers(text: &str) -> impl Iterator<Item = &str> {
    text.split("**").skip(1).filter(|word| is_number(word))
}

/// Capital letters, perhaps a hyphen, digits: `K1`, `C-2`.
fn is_number(word: &str) -> bool {
    let digits = word.trim_start_matches(|c: char| c.is_ascii_uppercase());
    let letters = word.len() - digits.len();
    let digits = digits.strip_prefix('-').unwrap_or(digits);
    (1..=2).contains(&letters)
        && !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_of_number(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '-' || letter == '_'
}

fn is_test(path: &str) -> bool {
    path.starts_with("tests/")
        || path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || path.starts_with("ports/src/contract")
        || path.starts_with("simulation/")
}

fn is_comment(line: &str) -> bool {
    line.contains("//") || line.contains('#') || line.contains("\"\"\"")
}
