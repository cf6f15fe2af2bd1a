//! The files of a code folder that are deployed, and those that are left out.
//!
//! Three kinds of rules decide, the first one that has a say: `.landfastignore` files, `.gitignore`
//! files, and the default exclusions. A `.landfastignore` may therefore bring back a file that the
//! others leave out (`!.env`). All have the syntax of `.gitignore`, and within a kind the rule
//! nearest to the file decides.
//!
//! `.gitignore` files have no say in three places. Git leaves out `node_modules` almost everywhere,
//! and the function needs it. In a folder into which pip has installed packages, usual rules
//! (`*.so`, `lib/`) would tear these apart. And [handlers](Handlers) are built files in many
//! projects.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder, Glob},
};

use super::handlers::{Handlers, code_folder};

/// The rules of a user for deployments.
pub(super) const OWN: &str = ".landfastignore";
const GIT: &str = ".gitignore";
const MODULES: &str = "node_modules";
/// The extension of the folder in which pip describes a package, beside the package.
const DIST_INFO: &str = "dist-info";
/// Files of a server's data directory. The second says so in its first line.
const DATA_LOCK: &str = "LOCK";
const DATA_FORMAT: &str = "format";
const DATA_FORMAT_BEGIN: &[u8] = b"landfast ";
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
    /// Whether git leaves out the whole folder, which is entered for the executables in it.
    is_left_out_by_git: bool,
    /// Rules of git that leave out a folder as a whole, in which the module of a handler lies.
    void: Vec<String>,
}

/// The rule that leaves out a file or a folder on its path.
#[derive(Debug)]
pub(super) enum Reason {
    /// A line of a user's file for deployments.
    Own {
        file: PathBuf,
        line: usize,
        rule: String,
    },
    Git,
    Default {
        rule: String,
        /// The file or folder that it leaves out.
        path: PathBuf,
    },
}

/// All deployed files of the code folder `folder`, whose manifest lies in `home`.
pub(super) fn deployed_files(
    home: &Path,
    folder: &str,
    handlers: &Handlers,
) -> anyhow::Result<Vec<PathBuf>> {
    // Rules are compared with whole paths, and `..` would name folders that are not above the code.
    let home = home.canonicalize()?;
    let code = code_folder(&home, folder);
    let rules = Rules::above(&home, &code)?;
    let mut files = Vec::new();
    rules.walk(&code, handlers, &mut files)?;
    Ok(files)
}

/// Why `file` of the folder `code` is not deployed; none: no rule leaves it out. `home` is
/// canonical.
pub(super) fn reason(
    home: &Path,
    code: &Path,
    file: &Path,
    handlers: &Handlers,
) -> anyhow::Result<Option<Reason>> {
    let mut rules = Rules::above(home, code)?;
    let mut path = code.to_owned();
    for part in file
        .strip_prefix(code)
        .unwrap_or(Path::new(""))
        .components()
    {
        rules.enter(&path, &entries(&path)?, handlers)?;
        path.push(part);
        let is_folder = path != file;
        if let Some(reason) = rules.against(&path, is_folder, handlers) {
            return Ok(Some(reason));
        }
        rules = rules.below(&path, handlers);
    }
    Ok(None)
}

/// All files below `folder`, without regard to its rules.
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
            is_left_out_by_git: false,
            void: Vec::new(),
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
    fn walk(
        mut self,
        folder: &Path,
        handlers: &Handlers,
        files: &mut Vec<PathBuf>,
    ) -> anyhow::Result<()> {
        let entries = entries(folder)?;
        self.enter(folder, &entries, handlers)?;
        for (path, is_folder) in entries {
            if self.against(&path, is_folder, handlers).is_some() {
                continue;
            }
            if is_folder {
                self.below(&path, handlers).walk(&path, handlers, files)?;
            } else {
                files.push(path);
            }
        }
        Ok(())
    }

    /// Adds the rules in `folder`, which has these entries.
    fn enter(
        &mut self,
        folder: &Path,
        entries: &[(PathBuf, bool)],
        handlers: &Handlers,
    ) -> anyhow::Result<()> {
        self.own.extend(rules_in(folder, OWN)?);
        let is_description = |path: &Path| path.extension().is_some_and(|kind| kind == DIST_INFO);
        let has_packages = entries.iter().any(|(path, _)| is_description(path));
        if has_packages || folder.ends_with(MODULES) {
            self.are_modules = true;
            self.is_left_out_by_git = false;
            self.git.clear();
        }
        if !self.are_modules {
            self.git.extend(rules_in(folder, GIT)?);
        }
        for (path, is_folder) in entries {
            let is_on_the_way = if *is_folder {
                handlers.have_module_below(path)
            } else {
                handlers.has(path) && handlers.have_module_below(folder)
            };
            let rule = self.git_rule(path, *is_folder).filter(|_| is_on_the_way);
            let rule = rule.map(Glob::original).filter(|rule| is_about_all(rule));
            let rule = rule.map(str::to_owned);
            self.void.extend(rule);
        }
        Ok(())
    }

    /// The rules in the folder `path`, before its own.
    fn below(&self, path: &Path, handlers: &Handlers) -> Self {
        let by_git = self.is_left_out_by_git || self.git_rule(path, true).is_some();
        let is_brought_back = last_match(&self.own, path, true).is_whitelist();
        let mut below = self.clone();
        below.is_left_out_by_git = by_git && !is_brought_back && !handlers.have_module_below(path);
        below
    }

    /// The rule that leaves out the entry `path`.
    fn against(&self, path: &Path, is_folder: bool, handlers: &Handlers) -> Option<Reason> {
        match last_match(&self.own, path, is_folder) {
            Match::Ignore(rule) => return Some(of_user(rule)),
            Match::Whitelist(_) => return None,
            Match::None => {}
        }
        let is_needed = if is_folder {
            path.ends_with(MODULES) || handlers.are_below(path)
        } else {
            handlers.has(path)
        };
        if is_folder && is_data_directory(path) {
            return Some(Reason::Default {
                rule: "the data directory of a server".to_owned(),
                path: path.to_owned(),
            });
        }
        let by_git = self.is_left_out_by_git || self.git_rule(path, is_folder).is_some();
        if by_git && !is_needed {
            return Some(Reason::Git);
        }
        match self.defaults.matched(path, is_folder) {
            Match::Ignore(rule) => Some(Reason::Default {
                rule: rule.original().to_owned(),
                path: path.to_owned(),
            }),
            Match::Whitelist(_) | Match::None => None,
        }
    }

    /// The rule by which git leaves out the entry `path`.
    fn git_rule(&self, path: &Path, is_folder: bool) -> Option<&Glob> {
        match last_match(&self.git, path, is_folder) {
            Match::Ignore(rule) => {
                Some(rule).filter(|rule| !self.void.iter().any(|void| void == rule.original()))
            }
            Match::Whitelist(_) | Match::None => None,
        }
    }
}
/// Whether a server keeps its store in `folder`, as `landfast serve` does in the current directory.
fn is_data_directory(folder: &Path) -> bool {
    let mut begin = [0; DATA_FORMAT_BEGIN.len()];
    let format = fs::File::open(folder.join(DATA_FORMAT));
    let read = format.and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && begin == DATA_FORMAT_BEGIN && folder.join(DATA_LOCK).is_file()
}

/// The match of the rule nearest to `path`.
fn last_match<'r>(rules: &'r [Gitignore], path: &Path, is_folder: bool) -> Match<&'r Glob> {
    let all = rules.iter().rev();
    let mut all = all.map(|rules| rules.matched(path, is_folder));
    all.find(|found| !found.is_none()).unwrap_or(Match::None)
}

/// Whether a rule of git leaves out a folder as a whole by its content, as `dist/*` does.
fn is_about_all(rule: &str) -> bool {
    let last = rule.trim_end_matches('/').rsplit('/').next();
    matches!(last, Some("*" | "**"))
}

/// A rule in the file of a user, with its line.
fn of_user(rule: &Glob) -> Reason {
    let file = rule.from().map(Path::to_owned).unwrap_or_default();
    let text = fs::read_to_string(&file).unwrap_or_default();
    let is_it = |(_, line): &(usize, &str)| line.trim_end() == rule.original().trim_end();
    let line = text.lines().enumerate().filter(is_it).last();
    Reason::Own {
        line: line.map_or(0, |(index, _)| index + 1),
        rule: rule.original().to_owned(),
        file,
    }
}

/// The rules in the file `name` of a folder, if there is one.
///
/// As git does, it leaves out a malformed line of a `.gitignore`. Errors: the file cannot be read,
/// or a line of a `.landfastignore` is malformed.
fn rules_in(folder: &Path, name: &str) -> anyhow::Result<Option<Gitignore>> {
    let file = folder.join(name);
    if !file.is_file() {
        return Ok(None);
    }
    let shown = || file.display().to_string();
    let text = fs::read(&file).with_context(shown)?;
    let text = String::from_utf8_lossy(&text);
    let mut builder = GitignoreBuilder::new(folder);
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let added = builder.add_line(Some(file.clone()), line);
        if name == OWN {
            added.with_context(|| format!("{}: line {}", file.display(), index + 1))?;
        }
    }
    builder.build().with_context(shown).map(Some)
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
        let mut files: Vec<_> = deployed_files(home, code, &Handlers::default())
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

    /// The first steps of a user start the server beside the code.
    #[test]
    fn the_data_of_a_server_is_left_out() {
        let folder = folder(&[
            ("app.py", ""),
            ("landfast-data/LOCK", ""),
            ("landfast-data/format", "landfast embedded\nformat 3\n"),
            ("landfast-data/journal/1.log", ""),
            ("other/LOCK", ""),
            ("other/format", "png"),
        ]);
        assert_eq!(
            deployed(folder.path(), "."),
            ["app.py", "other/LOCK", "other/format"]
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
        let refused = deployed_files(folder.path(), ".", &Handlers::default());
        let error = refused.expect_err("no rule");
        assert!(
            format!("{error:#}").contains(".landfastignore"),
            "{error:#}"
        );
    }

    /// As git does.
    #[test]
    fn a_malformed_line_of_git_is_passed_over() {
        let folder = folder(&[
            (".git/HEAD", ""),
            (".gitignore", "[z-a]\n*.{log\nfoo[\n*.tmp\n"),
            ("app.py", ""),
            ("x.tmp", ""),
        ]);
        assert_eq!(deployed(folder.path(), "."), [".gitignore", "app.py"]);
    }
}
