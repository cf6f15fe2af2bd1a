//! The rules of the code base that a compiler does not know: permitted imports, paths and promises
//! that the documents name, licences, lengths, and banned words.

mod crates;
mod cycles;
mod documents;
mod promises;
mod purity;
mod source;
mod words;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folders that hold none of our files.
const NOT_OURS: [&str; 6] = [
    "target",
    "node_modules",
    "landfast-data",
    "__pycache__",
    "venv",
    "corpus",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every file of ours with one of the endings, as a path from the root, sorted.
fn files(endings: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)
            .expect("a folder of ours")
            .map(|entry| entry.expect("an entry"))
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().expect("a file's type");
            if name.starts_with('.') || NOT_OURS.contains(&name.as_str()) {
                continue;
            }
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(from_root(&entry.path()));
            }
        }
    }
    found.sort_unstable();
    found
}

fn from_root(path: &Path) -> String {
    let inside: PathBuf = path
        .strip_prefix(root())
        .expect("a path below the root")
        .to_owned();
    inside.to_string_lossy().into_owned()
}

/// Fails with every complaint at once, so that one run shows all of them.
fn assert_tidy(complaints: &[String]) {
    assert!(
        complaints.is_empty(),
        "{} complaints:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}
