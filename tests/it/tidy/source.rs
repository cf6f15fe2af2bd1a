//! The text of the sources: lengths, and unfinished code.

use std::{collections::BTreeMap, path::Path};

use super::{assert_tidy, files, read};

const FILE_LINES_MAX: usize = 700;
const FUNCTION_LINES_MAX: usize = 60;
/// Lists today's exceptions to the lengths, one `path` or `path::function` to a line. It may only
/// shrink.
const ALLOWED: &str = "tests/tidy_allowed.txt";

#[test]
fn files_and_functions_are_short() {
    let sources = files(&[".rs", ".py", ".java", ".lua", ".c", ".sh"]);
    let long: BTreeMap<String, String> = sources
        .iter()
        .flat_map(|path| long(path, &read(path)))
        .collect();
    let list = read(ALLOWED);
    let allowed: Vec<&str> = list
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let unlisted = long
        .iter()
        .filter(|(name, _)| !allowed.contains(&name.as_str()));
    let mut complaints: Vec<String> = unlisted
        .map(|(name, lines)| format!("{name}: {lines}; split it"))
        .collect();
    let done = allowed.iter().filter(|name| !long.contains_key(**name));
    complaints.extend(done.map(|name| format!("{ALLOWED}: {name} is short now; remove it")));
    assert_tidy(&complaints);
}

#[test]
fn nothing_is_left_undone() {
    // Written in two parts, so that this file does not find itself.
    let words = ["todo", "unimplemented", "dbg"].map(|name| format!("{name}!("));
    let notes = ["TODO", "FIXME", "XXX"].map(|name| format!("// {name}"));
    let mut complaints = Vec::new();
    for path in files(&[".rs"]) {
        for (line, text) in numbered(&read(&path)) {
            let found = words.iter().find(|word| code(text).contains(word.as_str()));
            if let Some(word) =
                found.or_else(|| notes.iter().find(|note| text.contains(note.as_str())))
            {
                complaints.push(format!("{path}:{line}: {word}"));
            }
        }
    }
    assert_tidy(&complaints);
}

#[test]
fn a_file_is_long_whatever_it_is_written_in() {
    let text = |lines| "x = 1\n".repeat(lines);
    for path in ["tests/clients/long.py", "services/coordination/src/long.rs"] {
        assert_eq!(long(path, &text(FILE_LINES_MAX)), [], "{path}");
        assert_eq!(
            long(path, &text(FILE_LINES_MAX + 1)),
            [(path.to_owned(), "701 lines".to_owned())]
        );
    }
    let function = format!(
        "fn long() {{\n{}}}\n",
        "    x();\n".repeat(FUNCTION_LINES_MAX)
    );
    assert_eq!(
        long("src/long.rs", &function),
        [("src/long.rs::long".to_owned(), "62 lines".to_owned())]
    );
}

#[test]
fn the_length_of_a_function_is_measured_by_its_indentation() {
    let text = "trait T {\n    fn declared(\n        &self,\n    ) -> u8;\n    fn short() {}\n}\n\
                pub(crate) async fn long(\n    a: u8,\n) -> u8\nwhere\n    u8: Copy,\n{\n    if true {\n    }\n    a\n}\n";
    let found: Vec<_> = functions(text)
        .into_iter()
        .map(|f| (f.name, f.lines))
        .collect();
    assert_eq!(found, [("short".to_owned(), 1), ("long".to_owned(), 10)]);
}

/// The items of a file that are too long, the file itself included, and their lengths.
fn long(path: &str, text: &str) -> Vec<(String, String)> {
    let lines = text.lines().count();
    let file = (lines > FILE_LINES_MAX).then(|| (path.to_owned(), format!("{lines} lines")));
    let functions = if Path::new(path)
        .extension()
        .is_some_and(|ending| ending == "rs")
    {
        functions(text)
    } else {
        Vec::new()
    };
    let functions = functions
        .into_iter()
        .filter(|function| function.lines > FUNCTION_LINES_MAX);
    let functions = functions.map(|function| {
        (
            format!("{path}::{}", function.name),
            format!("{} lines", function.lines),
        )
    });
    file.into_iter().chain(functions).collect()
}

struct Function {
    name: String,
    lines: usize,
}

/// The functions of a formatted file: each ends with the first `}` at the indentation it began with.
fn functions(text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let measured = lines.iter().enumerate().filter_map(|(start, line)| {
        let name = function_name(line.trim_start())?;
        let indentation = line.len() - line.trim_start().len();
        let is_end = |line: &&&str| {
            let at_start = line.len() > indentation && line.as_bytes()[indentation] != b' ';
            let is_level = line[..indentation.min(line.len())].trim().is_empty();
            let closes =
                line.ends_with('}') || line.ends_with(';') || line.trim_start().starts_with('}');
            at_start && is_level && closes
        };
        let length = lines[start..].iter().position(|line| is_end(&line))? + 1;
        let last = lines[start + length - 1];
        (!last.ends_with(';') || last.trim_start().starts_with('}')).then(|| Function {
            name: name.to_owned(),
            lines: length,
        })
    });
    measured.collect()
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_qualifier = |word: &str| {
        matches!(word, "async" | "const" | "unsafe" | "extern" | "\"C\"") || word.starts_with("pub")
    };
    before.split_whitespace().all(is_qualifier).then_some(())?;
    let name = after
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()?;
    (!name.is_empty()).then_some(name)
}

pub(super) fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

/// A line without its comment.
pub(super) fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// A file without its inline tests.
pub(super) fn shipped(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default()
}
