//! The manifest that a folder stands for, so that `deploy .` works.
//!
//! It is the first that exists of: the manifest with the folder's own name, `app.toml`, and the
//! only manifest in the folder. Other TOML files, such as `pyproject.toml`, have no `functions`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

const USUAL: &str = "app.toml";

/// The manifest at `path`: the file itself, or that of the folder. Errors: the folder has none, or
/// several of which none is first.
pub(in crate::commands::functions) fn manifest_at(path: &Path) -> anyhow::Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let whole = path
        .canonicalize()
        .with_context(|| path.display().to_string())?;
    let own = whole
        .file_name()
        .map(|name| format!("{}.toml", name.to_string_lossy()));
    let named = own.iter().map(String::as_str).chain([USUAL]);
    for name in named {
        let file = path.join(name);
        if is_manifest(&file) {
            return Ok(file);
        }
    }
    let entries = fs::read_dir(path).with_context(|| path.display().to_string())?;
    let mut found = Vec::new();
    for entry in entries {
        let file = entry?.path();
        if file.extension().is_some_and(|kind| kind == "toml") && is_manifest(&file) {
            found.push(file);
        }
    }
    found.sort();
    match &found[..] {
        [only] => Ok(only.clone()),
        [] => bail!(
            "{}: the folder has no manifest, a file such as {USUAL} with a table [functions.NAME]",
            path.display()
        ),
        several => {
            let names = several.iter().filter_map(|file| file.file_name());
            let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
            bail!(
                "{}: the folder has several manifests ({}): give the file of one",
                path.display(),
                names.join(", ")
            )
        }
    }
}

/// Whether a file has functions. One that cannot be parsed may be a manifest that is being edited:
/// then its first fault is what the user needs to hear.
fn is_manifest(file: &Path) -> bool {
    let Ok(text) = fs::read_to_string(file) else {
        return false;
    };
    match toml::from_str::<toml::Table>(&text) {
        Ok(table) => table.contains_key("functions"),
        Err(_) => text.contains("[functions"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[functions.f]\nruntime = \"python3\"\n";

    fn found(files: &[(&str, &str)]) -> Result<String, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().join("shop");
        fs::create_dir(&home).expect("made");
        for (name, text) in files {
            fs::write(home.join(name), text).expect("written");
        }
        let found = manifest_at(&home).map_err(|error| format!("{error:#}"))?;
        let name = found.file_name().expect("a file").to_string_lossy();
        Ok(name.into_owned())
    }

    #[test]
    fn a_folder_stands_for_its_manifest() {
        let other = ("pyproject.toml", "[project]\nname = \"x\"\n");
        let is = |files: &[(&str, &str)], name: &str| {
            assert_eq!(found(files), Ok(name.to_owned()), "{files:?}");
        };
        is(
            &[("shop.toml", MANIFEST), ("app.toml", MANIFEST), other],
            "shop.toml",
        );
        is(
            &[("app.toml", MANIFEST), ("more.toml", MANIFEST), other],
            "app.toml",
        );
        is(&[("more.toml", MANIFEST), other], "more.toml");
        is(&[("app.toml", "[functions.f\n"), other], "app.toml");
    }

    #[test]
    fn a_folder_without_one_manifest_is_refused() {
        let none = found(&[("pyproject.toml", "")]).expect_err("none");
        assert!(none.contains("no manifest"), "{none}");
        let several = found(&[("a.toml", MANIFEST), ("b.toml", MANIFEST)]).expect_err("two");
        assert!(several.contains("a.toml, b.toml"), "{several}");
    }
}
