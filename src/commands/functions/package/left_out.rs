//! The files of a code folder that are deployed, and those that are left out.
//!
//! Three kinds of rules decide, the first one that has a say: `.landfastignore` files, `.gitignore`
//! files, and the default exclusions. A `.landfastignore` may therefore bring back a file that the
//! others leave out (`!.env`). All have the syntax of `.gitignore`, and within a kind the rule
//! nearest to the file decides.
//!
//! A `node_modules` folder is left out of git almost everywhere and needed by the function, so
//! `.gitignore` files have no say inside it, nor in a folder into which pip has installed packages:
//! usual rules (`*.so`, `lib/`) would tear them apart.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};

/// The rules of a user for deployments.
const OWN: &str = ".landfastignore";
const GIT: &str = ".gitignore";
const MODULES: &str = "node_modules";
/// The extension of the folder in which pip describes a package, beside the package.
const DIST_INFO: &str = "dist-info";
/// Secrets, caches, environments and metadata that no function reads.
const DEFAULTS: [&str; 14] = [
    ".git",
    ".DS_Store",
    ".env",
    ".env.*",
    ".npmrc",
    ".venv/",
    "venv/",
    "__pycache__/",
    ".pytest_cache/",
    ".mypy_cache/",
    ".ruff_cache/",
    "**/node_modules/.cache/",
    "*.egg-info/",
    OWN,
];

/// The rules that hold in a folder, the outermost first.
#[derive(Debug, Clone)]
struct Rules {
    own: Vec<Gitignore>,
    git: Vec<Gitignore>,
    defaults: Gitignore,
    /// Whether it is a folder of installed packages, or inside one.
    are_modules: bool,
}

/// All deployed files of the code folder `folder`, whose manifest lies in `home`.
pub(super) fn deployed_files(home: &Path, folder: &str) -> anyhow::Result<Vec<PathBuf>> {
    // Rules are compared with whole paths, and `..` would name folders that are not above the code.
    let home = home.canonicalize()?;
    let code = match folder {
        "." => home.clone(),
        folder => home.join(folder),
    };
    let rules = Rules::above(&home, &code)?;
    let mut files = Vec::new();
    rules.walk(&code, &mut files)?;
    Ok(files)
}

/// All files below `folder`, whatever its rules say.
pub(super) fn all_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for (path, is_folder) in entries(folder)? {
        if is_folder {
            files.extend(all_files(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

/// The entries of a folder, and whether each is a folder.
fn entries(folder: &Path) -> anyhow::Result<Vec<(PathBuf, bool)>> {
    let found = fs::read_dir(folder)
        .with_context(|| format!("{}: the folder with code", folder.display()))?;
    let mut entries = Vec::new();
    for entry in found {
        let entry = entry?;
        entries.push((entry.path(), entry.file_type()?.is_dir()));
    }
    Ok(entries)
}

impl Rules {
    /// The rules of the folders above `code`: its repository's, or those from the manifest on.
    fn above(home: &Path, code: &Path) -> anyhow::Result<Self> {
        let repository = code.ancestors().find(|folder| folder.join(".git").exists());
        let outermost = repository.filter(|folder| home.starts_with(folder));
        let mut defaults = GitignoreBuilder::new(code);
        for pattern in DEFAULTS {
            defaults.add_line(None, pattern)?;
        }
        let mut rules = Self {
            own: Vec::new(),
            git: Vec::new(),
            defaults: defaults.build()?,
            are_modules: false,
        };
        let mut above: Vec<_> = code.ancestors().skip(1).collect();
        above.reverse();
        for folder in above {
            if folder.starts_with(outermost.unwrap_or(home)) {
                rules.git.extend(rules_in(folder, GIT)?);
            }
            if folder.starts_with(home) {
                rules.own.extend(rules_in(folder, OWN)?);
            }
        }
        Ok(rules)
    }

    /// Adds the files below `folder` that are not left out.
    fn walk(mut self, folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
        self.own.extend(rules_in(folder, OWN)?);
        let entries = entries(folder)?;
        let has_packages = entries.iter().any(|(path, _)| {
            path.extension()
                .is_some_and(|extension| extension == DIST_INFO)
        });
        if has_packages || folder.ends_with(MODULES) {
            self.are_modules = true;
            self.git.clear();
        }
        if !self.are_modules {
            self.git.extend(rules_in(folder, GIT)?);
        }
        for (path, is_folder) in entries {
            if self.leave_out(&path, is_folder) {
                continue;
            }
            if !is_folder {
                files.push(path);
                continue;
            }
            self.clone().walk(&path, files)?;
        }
        Ok(())
    }

    fn leave_out(&self, path: &Path, is_folder: bool) -> bool {
        let say = |rules: &[Gitignore]| {
            let mut said = rules.iter().rev();
            said.find_map(|rules| match rules.matched(path, is_folder) {
                Match::None => None,
                Match::Ignore(_) => Some(true),
                Match::Whitelist(_) => Some(false),
            })
        };
        let is_modules = is_folder && path.ends_with(MODULES);
        if let Some(left_out) = say(&self.own) {
            return left_out;
        }
        let by_git = say(&self.git).unwrap_or(false) && !is_modules;
        by_git || self.defaults.matched(path, is_folder).is_ignore()
    }
}

/// The rules in the file `name` of a folder, if there is one. Errors: a rule is malformed.
fn rules_in(folder: &Path, name: &str) -> anyhow::Result<Option<Gitignore>> {
    let file = folder.join(name);
    if !file.is_file() {
        return Ok(None);
    }
    let mut builder = GitignoreBuilder::new(folder);
    match builder.add(&file) {
        Some(error) => Err(anyhow!(error)),
        None => Ok(Some(builder.build()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files, each with this text.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            fs::write(path, text).expect("written");
        }
        folder
    }

    fn deployed(home: &Path, code: &str) -> Vec<String> {
        let base = home.join(code);
        let mut files: Vec<_> = deployed_files(home, code)
            .expect("it is read")
            .iter()
            .map(|file| {
                let file = file
                    .strip_prefix(&base)
                    .or_else(|_| file.strip_prefix(home));
                file.expect("it is inside").display().to_string()
            })
            .collect();
        files.sort();
        files
    }

    #[test]
    fn secrets_caches_and_environments_are_left_out() {
        let folder = folder(&[
            ("app.py", ""),
            (".env", "SECRET=1"),
            (".env.local", ""),
            (".git/config", ""),
            (".venv/lib/x.py", ""),
            ("venv/lib/x.py", ""),
            ("__pycache__/app.pyc", ""),
            ("package/__pycache__/x.pyc", ""),
            ("package/x.py", ""),
            (".pytest_cache/x", ""),
            ("node_modules/.cache/x", ""),
            ("node_modules/a/index.js", ""),
            ("environment.py", ""),
        ]);
        assert_eq!(
            deployed(folder.path(), "."),
            [
                "app.py",
                "environment.py",
                "node_modules/a/index.js",
                "package/x.py"
            ]
        );
    }

    #[test]
    fn what_git_ignores_is_left_out_except_for_node_modules() {
        let folder = folder(&[
            (".gitignore", "*.log\n/code/build/\nnode_modules/\n"),
            (".git/HEAD", ""),
            ("code/.gitignore", "!kept.log\nsecret.txt\n"),
            ("code/app.js", ""),
            ("code/a.log", ""),
            ("code/kept.log", ""),
            ("code/secret.txt", ""),
            ("code/build/x", ""),
            ("code/node_modules/a/build.log", ""),
            ("code/node_modules/a/.gitignore", "*"),
            ("code/lib/secret.txt", ""),
        ]);
        assert_eq!(
            deployed(folder.path(), "code"),
            [
                ".gitignore",
                "app.js",
                "kept.log",
                "node_modules/a/.gitignore",
                "node_modules/a/build.log"
            ]
        );
    }

    #[test]
    fn git_has_no_say_where_pip_has_installed_packages() {
        let folder = folder(&[
            (".gitignore", "*.so\nlib/\n"),
            (".git/HEAD", ""),
            ("code/app.py", ""),
            ("code/own.so", ""),
            ("code/vendor/numpy-2.0.dist-info/RECORD", ""),
            ("code/vendor/numpy/core.so", ""),
            ("code/vendor/numpy/lib/x.py", ""),
        ]);
        assert_eq!(
            deployed(folder.path(), "code"),
            [
                "app.py",
                "vendor/numpy-2.0.dist-info/RECORD",
                "vendor/numpy/core.so",
                "vendor/numpy/lib/x.py"
            ]
        );
    }

    #[test]
    fn a_landfastignore_leaves_out_more_and_brings_back() {
        let folder = folder(&[
            (".landfastignore", "*.md\n"),
            (".gitignore", "data/\n"),
            (
                "code/.landfastignore",
                "!.env\n!/data/\nlarge/*\n!large/small\n",
            ),
            ("code/app.py", ""),
            ("code/.env", ""),
            ("code/readme.md", ""),
            ("code/data/x", ""),
            ("code/large/big", ""),
            ("code/large/small", ""),
        ]);
        assert_eq!(
            deployed(folder.path(), "code"),
            [".env", "app.py", "data/x", "large/small"]
        );
    }

    #[test]
    fn a_malformed_rule_is_named() {
        let folder = folder(&[(".landfastignore", "[z-a]\n"), ("app.py", "")]);
        let error = deployed_files(folder.path(), ".").expect_err("no rule");
        assert!(
            format!("{error:#}").contains(".landfastignore"),
            "{error:#}"
        );
    }
}
