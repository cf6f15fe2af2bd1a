//! Words that comments, documents and messages do not use: their sentences name an actor instead.

use super::{
    assert_tidy, files, read,
    source::{numbered, shipped},
};

const BANNED: [&str; 4] = ["whoever", "whomever", "nobody", "somebody"];
/// This file has to name them.
const EXEMPT: &str = "tests/it/tidy/words.rs";

#[test]
fn sentences_name_an_actor() {
    let mut complaints = Vec::new();
    for path in files(&[".rs", ".py", ".lua", ".md"]) {
        if path == EXEMPT {
            continue;
        }
        let text = read(&path);
        let is_shipped = ending(&path) == "rs" && !path.contains("tests");
        for (line, prose) in prose(&path, &text, is_shipped) {
            let found = BANNED.iter().filter(|word| has(&prose, word));
            complaints.extend(found.map(|word| format!("{path}:{line}: {word}")));
        }
    }
    assert_tidy(&complaints);
}

#[test]
fn a_banned_word_is_found_in_comments_and_messages_alone() {
    let source =
        "/// Nobody asks.\nlet nobody = get(\"nobody\");\nwarn!(\"whoever reads\"); // somebody\n";
    let found: Vec<_> = prose("src/a.rs", source, true)
        .filter(|(_, prose)| BANNED.iter().any(|word| has(prose, word)))
        .map(|(line, _)| line)
        .collect();
    assert_eq!(found, [1, 3]);
    let page = "A page.\n```sh\nnobody\n```\nFor `nobody` and somebody.\n";
    let found: Vec<_> = prose("docs/a.md", page, false)
        .filter(|(_, prose)| BANNED.iter().any(|word| has(prose, word)))
        .map(|(line, _)| line)
        .collect();
    assert_eq!(found, [5]);
}

fn has(prose: &str, word: &str) -> bool {
    prose
        .split(|letter: char| !letter.is_alphanumeric())
        .any(|part| part.eq_ignore_ascii_case(word))
}

/// The lines of a file that people read: pages without their code, comments, and messages of shipped code.
fn prose(path: &str, text: &str, is_shipped: bool) -> impl Iterator<Item = (usize, String)> {
    let is_page = ending(path) == "md";
    let mark = match ending(path) {
        "py" => "#",
        "lua" => "--",
        _ => "//",
    };
    let messages = if is_shipped {
        shipped(text).lines().count()
    } else {
        0
    };
    let mut is_code = false;
    let lines: Vec<(usize, String)> = numbered(text)
        .map(|(number, line)| {
            if is_page {
                let is_fence = line.trim_start().starts_with("```");
                is_code ^= is_fence;
                let shown = if is_code || is_fence { "" } else { line };
                return (number, without_code(shown));
            }
            let comment = line.split_once(mark).map_or("", |(_, comment)| comment);
            let message = if number <= messages {
                message(line)
            } else {
                String::new()
            };
            (number, format!("{} {message}", without_code(comment)))
        })
        .collect();
    lines.into_iter()
}

fn ending(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(_, ending)| ending)
}

/// A line without what stands in backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

/// The string literals of a line that are sentences.
fn message(line: &str) -> String {
    let literals = line.split('"').skip(1).step_by(2);
    let sentences = literals.filter(|literal| literal.contains(' '));
    sentences.collect::<Vec<_>>().join(" ")
}
