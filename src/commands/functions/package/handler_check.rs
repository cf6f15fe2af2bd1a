//! Refuses an application whose package lacks a handler, with the reason and the remedy.
//!
//! The server checks the same. It cannot know which rule has left out a file.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::bail;
use functions::manifest::Table;

use super::{
    Entries,
    handlers::{Handlers, code_folder, expected, linked},
    left_out::{OWN, Reason, reason},
};

/// Errors: no file that may hold the handler of a function is among `entries`.
pub(super) fn check_handler(
    home: &Path,
    table: &Table,
    handlers: &Handlers,
    entries: &Entries,
) -> anyhow::Result<()> {
    let code = table.code.as_str();
    let inside = |found: &PathBuf| match code {
        "." => Some(found.clone()),
        code => found.strip_prefix(code).ok().map(Path::to_owned),
    };
    let there: BTreeSet<_> = entries.keys().filter_map(inside).collect();
    let expected = expected(table);
    let has = |file: &PathBuf| file.to_str().is_some_and(|file| expected.has(file));
    let is_elsewhere = expected.may_be_elsewhere() && !there.is_empty();
    if is_elsewhere || there.iter().any(has) {
        return Ok(());
    }
    let home = home.canonicalize()?;
    let folder = code_folder(&home, code);
    let found = if expected.leads_outside() {
        Vec::new()
    } else {
        expected.found_in(&folder)
    };
    let found = found.iter().map(|file| {
        let linked = linked(&home, &folder, file);
        linked.unwrap_or_else(|| folder.join(file))
    });
    let found: Vec<_> = found.collect();
    let place = |file: &PathBuf| file.strip_prefix(&home).map(Path::to_owned);
    let is_deployed = |file: &PathBuf| place(file).is_ok_and(|place| entries.contains_key(&place));
    if found.iter().any(is_deployed) {
        return Ok(());
    }
    match found.first() {
        Some(file) => bail!(
            "{expected} to deploy: {}",
            why(&home, code, file, handlers)?
        ),
        None if there.is_empty() => bail!("the code folder {code:?} has no files to deploy"),
        None => bail!("{expected}"),
    }
}

/// Why a handler's file, which exists, is not deployed, and what to do.
fn why(home: &Path, code: &str, file: &Path, handlers: &Handlers) -> anyhow::Result<String> {
    let folder = code_folder(home, code);
    let shown = |path: &Path| {
        let shown = path.strip_prefix(home).unwrap_or(path);
        shown.display().to_string()
    };
    let name = shown(file);
    Ok(match reason(home, &folder, file, handlers)? {
        Some(Reason::Own { file, line, rule }) => {
            let file = shown(&file);
            format!(
                "{name} is left out by line {line} of {file}, `{rule}`: change that line, which holds \
                 for handlers too"
            )
        }
        Some(Reason::Default { rule, path }) => {
            let mut back = path.strip_prefix(&folder)?.display().to_string();
            if path != file {
                back.push('/');
            }
            let own = shown(&folder.join(OWN));
            format!(
                "{name} is left out by default, as `{rule}` is: a line `!/{back}` in {own} brings it back"
            )
        }
        Some(Reason::Git) | None => {
            format!(
                "{name} lies behind a link whose target is not deployed: put the file there, or deploy the target too"
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use functions::manifest::Manifest;

    /// The deployed files of the folder `code` with these files, each with its text. `-> PLACE` is
    /// a link.
    fn deployed(
        runtime: &str,
        handler: &str,
        files: &[(&str, &str)],
    ) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let code = folder.path().join("code");
        fs::create_dir(&code).expect("made");
        for (name, text) in files {
            let path = code.join(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            match text.strip_prefix("-> ") {
                Some(place) => symlink(place, path).expect("linked"),
                None => fs::write(path, text).expect("written"),
            }
        }
        let table = format!("runtime = \"{runtime}\"\ncode = \"code\"\nhandler = \"{handler}\"");
        let manifest = format!("[functions.f]\n{table}\n");
        let manifest = Manifest::parse(&manifest).expect("a manifest");
        let found = super::super::entries(folder.path(), &manifest);
        let (entries, _) = found.map_err(|error| format!("{error:#}"))?;
        let places = entries.keys().map(|place| {
            let inside = place.strip_prefix("code").expect("it is code");
            inside.display().to_string()
        });
        Ok(places.filter(|place| !place.starts_with('.')).collect())
    }

    fn is(handler: (&str, &str), files: &[(&str, &str)], places: &[&str]) {
        let places = places.iter().map(|place| (*place).to_owned()).collect();
        let (runtime, handler) = handler;
        assert_eq!(deployed(runtime, handler, files), Ok(places), "{files:?}");
    }

    const BOOTSTRAP: (&str, &str) = ("executable", "bootstrap");

    #[test]
    fn an_executable_that_git_leaves_out_is_deployed_without_its_folder() {
        for rule in ["bootstrap*", "/boot*", "*"] {
            let files = [(".gitignore", rule), ("bootstrap", ""), ("bootstrap.d", "")];
            is(BOOTSTRAP, &files, &["bootstrap"]);
        }
        let files = [
            (".gitignore", "/target/"),
            ("bootstrap", "-> target/release/shop"),
            ("data", ""),
            ("target/release/shop", ""),
            ("target/release/deps/x.o", ""),
            ("target/x", ""),
        ];
        is(
            BOOTSTRAP,
            &files,
            &["bootstrap", "data", "target/release/shop"],
        );
    }

    #[test]
    fn a_module_that_git_leaves_out_is_deployed_with_its_folder() {
        for rules in ["dist/\n*.log\n", "dist/*\n*.log\n", "dist/**\n*.log\n"] {
            let files = [
                (".gitignore", rules),
                ("dist/index.js", ""),
                ("dist/lib/more.js", ""),
                ("dist/a.log", ""),
                ("own.js", ""),
            ];
            let places = ["dist/index.js", "dist/lib/more.js", "own.js"];
            is(("node", "dist/index.handler"), &files, &places);
        }
        is(
            ("python3", "app.f"),
            &[
                (".gitignore", "app.py\nother.py"),
                ("app.py", ""),
                ("other.py", ""),
            ],
            &["app.py"],
        );
    }

    #[test]
    fn a_list_of_what_git_takes_keeps_its_say() {
        let files = [
            (".gitignore", "*\n!*.py\n"),
            ("app.py", ""),
            ("secret.json", ""),
        ];
        is(("python3", "app.f"), &files, &["app.py"]);
    }

    #[test]
    fn what_a_landfastignore_leaves_out_is_refused_with_its_line() {
        let refused = |runtime, handler, files: &[(&str, &str)]| {
            deployed(runtime, handler, files).expect_err("it has no handler")
        };
        let said = refused(
            "executable",
            "bootstrap",
            &[
                (".landfastignore", "# built\n*.md\nboot*\n"),
                ("bootstrap", ""),
                ("x", ""),
            ],
        );
        assert!(
            said.contains("code/bootstrap is left out by line 3 of code/.landfastignore, `boot*`"),
            "{said}"
        );
        let said = refused(
            "node",
            "dist/index.handler",
            &[
                (".landfastignore", "dist/"),
                ("dist/index.js", ""),
                ("x", ""),
            ],
        );
        assert!(
            said.contains("line 1 of code/.landfastignore, `dist/`"),
            "{said}"
        );
        let said = refused("python3", "venv.app.f", &[("venv/app.py", ""), ("x", "")]);
        assert!(
            said.contains("a line `!/venv/` in code/.landfastignore brings it back"),
            "{said}"
        );
    }

    #[test]
    fn a_handler_may_be_compiled_or_lie_below_a_link() {
        let native = "app/__init__.cpython-311-x86_64-linux-gnu.so";
        is(("python3", "app.f"), &[(native, "")], &[native]);
        is(
            ("python3", "lib.app.f"),
            &[("lib", "-> src"), ("src/app.py", "")],
            &["lib", "src/app.py"],
        );
        is(
            ("node", "dist/index.handler"),
            &[
                (".gitignore", "/build/\n"),
                ("dist", "-> build/now"),
                ("build/now/index.js", ""),
                ("build/now/more.js", ""),
            ],
            &["build/now/index.js", "build/now/more.js", "dist"],
        );
        let outside = tempfile::tempdir().expect("a folder");
        fs::write(outside.path().join("app.py"), "").expect("written");
        let link = format!("-> {}", outside.path().display());
        let said = deployed("python3", "lib.app.f", &[("lib", &link), ("x", "")]);
        let said = said.expect_err("it is elsewhere");
        assert!(
            said.contains("behind a link whose target is not deployed"),
            "{said}"
        );
    }

    #[test]
    fn a_folder_without_the_file_of_a_handler_is_refused_with_its_name() {
        let refused = |runtime, handler, files: &[(&str, &str)]| {
            deployed(runtime, handler, files).expect_err("it has no handler")
        };
        let empty = refused("python3", "app.f", &[]);
        assert!(
            empty.contains("functions.f") && empty.contains("has no files"),
            "{empty}"
        );
        let missing = refused("python3", "app.f", &[("other.py", "")]);
        assert!(missing.contains("has neither app.py"), "{missing}");
        let missing = refused("executable", "run", &[("bootstrap", "")]);
        assert!(missing.contains("there is no file run"), "{missing}");
    }
}
