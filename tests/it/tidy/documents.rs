//! Documents name only things that exist.

use super::{assert_tidy, files, read, root};

/// Names of files that stand for themselves in `ARCHITECTURE.md`, without a folder before them.
const FILE_ENDINGS: [&str; 5] = [".rs", ".md", ".toml", ".txt", ".lock"];

#[test]
fn every_path_that_the_architecture_names_exists() {
    let text = read("ARCHITECTURE.md");
    let named: Vec<&str> = quoted(&text).filter(|word| is_path(word)).collect();
    assert!(
        named.len() > 20,
        "the paths are not found any more: {named:?}"
    );
    let missing = named.iter().filter(|path| !root().join(path).exists());
    assert_tidy(
        &missing
            .map(|path| format!("ARCHITECTURE.md: {path} is not there"))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn every_folder_of_the_house_is_in_the_architecture() {
    let text = read("ARCHITECTURE.md");
    let named: Vec<&str> = quoted(&text)
        .map(|word| word.trim_end_matches('/'))
        .collect();
    let mut complaints = Vec::new();
    for manifest in files(&["Cargo.toml"]) {
        let folder = manifest
            .trim_end_matches("Cargo.toml")
            .trim_end_matches('/');
        if !folder.is_empty() && !named.contains(&folder) {
            complaints.push(format!("ARCHITECTURE.md does not name {folder}"));
        }
    }
    assert_tidy(&complaints);
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut complaints = Vec::new();
    for document in files(&[".md"]) {
        let text = read(&document);
        let folder = root()
            .join(&document)
            .parent()
            .expect("a folder")
            .to_owned();
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let target = link.split('#').next().unwrap_or_default();
            let is_local = !target.is_empty()
                && !target.contains(':')
                && !target.contains(char::is_whitespace);
            if is_local && !folder.join(target).exists() {
                complaints.push(format!("{document}: {target} is not there"));
            }
        }
    }
    assert_tidy(&complaints);
}

/// The text between single backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.starts_with("```"))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
}

fn is_path(word: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
    let is_file = FILE_ENDINGS.iter().any(|ending| word.ends_with(ending));
    let is_inside = word.contains('/') && !word.starts_with('/') && !word.contains("NAME");
    word.chars().all(plain) && (is_file || is_inside)
}
