//! The packages that a code folder declares: `requirements.txt` for Python, `package.json` for Node.
//!
//! They are installed in a temporary folder, so that the user's folder stays as it is. A package
//! that the folder names by a relative path, such as `./libs/mine`, lies beside the file that names
//! it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context as _, bail, ensure};
use functions::manifest::{Kind, Table};
use serde::Deserialize;

/// The dependencies of a Python function.
const REQUIREMENTS: &str = "requirements.txt";
/// Those of a Node function, and their exact versions.
const PACKAGE: &str = "package.json";
const LOCKS: [&str; 2] = ["package-lock.json", "npm-shrinkwrap.json"];
/// The lock files of other programs, and the command that installs by each.
const FOREIGN_LOCKS: [(&str, &str); 4] = [
    ("pnpm-lock.yaml", "pnpm install --prod"),
    ("yarn.lock", "yarn install"),
    ("bun.lock", "bun install --production"),
    ("bun.lockb", "bun install --production"),
];
pub(super) const MODULES: &str = "node_modules";
const REGISTRIES: &str = ".npmrc";

/// Packages in a temporary folder, which goes when this is dropped.
#[derive(Debug)]
pub(super) struct Installed {
    pub(super) folder: PathBuf,
}

impl Drop for Installed {
    fn drop(&mut self) {
        // If that fails, the packages stay in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Installed {
    fn new() -> anyhow::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("landfast-packages-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self { folder })
    }
}

/// A code folder whose functions declare packages.
pub(super) struct Packages<'m> {
    pub(super) code: &'m Path,
    pub(super) tables: Vec<&'m Table>,
    /// Whether a `node_modules` of its own is deployed, so that nothing is installed for Node.
    pub(super) has_modules: bool,
}

impl Packages<'_> {
    /// Installs them, as they lie in that folder.
    pub(super) fn install(&self) -> anyhow::Result<Vec<(Kind, Installed)>> {
        let code = self.code;
        let of = |kind| self.tables.iter().find(|table| table.runtime.kind == kind);
        let mut all = Vec::new();
        if let Some(table) = of(Kind::Python3).filter(|_| code.join(REQUIREMENTS).is_file()) {
            all.push((Kind::Python3, pip(code, table)?));
        }
        if of(Kind::Node).is_some() && code.join(PACKAGE).is_file() && !self.has_modules {
            all.extend(npm(code)?.map(|installed| (Kind::Node, installed)));
        }
        Ok(all)
    }
}

fn pip(code: &Path, table: &Table) -> anyhow::Result<Installed> {
    let python = table.python.clone().unwrap_or_else(|| "python3".into());
    // Relative to the user's folder, not to the code.
    let python = match python.components().count() {
        1 => python,
        _ => std::path::absolute(python)?,
    };
    let installed = Installed::new()?;
    let output = Command::new(&python)
        .current_dir(code)
        .args(["-m", "pip", "install", "--quiet", "--no-compile"])
        .args(["--disable-pip-version-check", "--target"])
        .arg(&installed.folder)
        .args(["--requirement", REQUIREMENTS])
        .output()
        .with_context(|| format!("{} -m pip", python.display()))?;
    check(&output, "pip", &code.join(REQUIREMENTS))?;
    check_editable(&installed.folder)
        .with_context(|| code.join(REQUIREMENTS).display().to_string())?;
    Ok(installed)
}

/// Errors: a distribution in `folder` is only a reference to a folder of this machine.
fn check_editable(folder: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let place = entry?.path().join("direct_url.json");
        let place = fs::read(place).unwrap_or_default();
        let place: serde_json::Value = serde_json::from_slice(&place).unwrap_or_default();
        if place["dir_info"]["editable"] == true {
            bail!(
                "the project at {} is editable (-e), so pip installs a reference to it, and its files would not be deployed: \
                 write its path without -e",
                place["url"].as_str().unwrap_or("a path")
            );
        }
    }
    Ok(())
}

/// The packages that a `package.json` declares for functions at work.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Declared {
    #[serde(default)]
    dependencies: BTreeMap<String, String>,
    #[serde(default)]
    optional_dependencies: BTreeMap<String, String>,
}

/// The modules of `package.json`; none: it declares none.
fn npm(code: &Path) -> anyhow::Result<Option<Installed>> {
    let file = code.join(PACKAGE);
    let text = fs::read(&file).with_context(|| file.display().to_string())?;
    let declared: Declared =
        serde_json::from_slice(&text).with_context(|| file.display().to_string())?;
    let mut all = declared
        .dependencies
        .iter()
        .chain(&declared.optional_dependencies);
    if all.clone().next().is_none() {
        return Ok(None);
    }
    let is_beside = |place: &str| place.starts_with("file:") || place.starts_with(['.', '/']);
    if let Some((name, place)) = all.find(|(_, place)| is_beside(place)) {
        bail!(
            "{}: {name} is at {place:?}, and a folder beside the code is not installed: run `npm install --install-links` \
             there, and its {MODULES} is deployed",
            file.display()
        );
    }
    let is_locked = is_locked(code)?;
    let installed = Installed::new()?;
    fs::write(installed.folder.join(PACKAGE), without_scripts(&text)?)?;
    // It may name the registry of private packages.
    if code.join(REGISTRIES).is_file() {
        fs::copy(code.join(REGISTRIES), installed.folder.join(REGISTRIES))?;
    }
    for lock in LOCKS {
        if code.join(lock).is_file() {
            fs::copy(code.join(lock), installed.folder.join(lock))?;
        }
    }
    let output = Command::new("npm")
        .current_dir(&installed.folder)
        .arg(if is_locked { "ci" } else { "install" })
        .args([
            "--omit=dev",
            "--no-audit",
            "--no-fund",
            "--no-update-notifier",
            "--loglevel=error",
        ])
        .output()
        .context("npm, which installs the packages of package.json")?;
    check(&output, "npm", &file)?;
    for name in [PACKAGE, REGISTRIES].into_iter().chain(LOCKS) {
        let copied = installed.folder.join(name);
        if copied.exists() {
            fs::remove_file(copied)?;
        }
    }
    Ok(Some(installed))
}

/// Whether the code folder has a lock file for npm. Errors: it has only that of another program.
fn is_locked(code: &Path) -> anyhow::Result<bool> {
    if LOCKS.iter().any(|lock| code.join(lock).is_file()) {
        return Ok(true);
    }
    let mut foreign = FOREIGN_LOCKS.iter();
    if let Some((lock, install)) = foreign.find(|(lock, _)| code.join(lock).is_file()) {
        bail!(
            "{}: npm installs its packages, and does not read their versions in {lock}: run `{install}` there, and its \
             {MODULES} is deployed, or write a lock file for npm with `npm install --package-lock-only`",
            code.join(PACKAGE).display()
        );
    }
    Ok(false)
}

/// A `package.json` without the project's own scripts: they expect the whole project. Those of its
/// packages still run.
fn without_scripts(package: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut package: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(package)?;
    package.remove("scripts");
    Ok(serde_json::to_vec(&package)?)
}

fn check(output: &Output, installer: &str, file: &Path) -> anyhow::Result<()> {
    ensure!(
        output.status.success(),
        "{}: {installer} could not install it: {}",
        file.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_to_a_project_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let described = folder.path().join("mine-1.dist-info");
        fs::create_dir(&described).expect("made");
        let place = described.join("direct_url.json");
        for (text, is_refused) in [
            (r#"{"dir_info": {}, "url": "file:///mine"}"#, false),
            (
                r#"{"dir_info": {"editable": true}, "url": "file:///mine"}"#,
                true,
            ),
        ] {
            fs::write(&place, text).expect("written");
            let checked = check_editable(folder.path()).map_err(|error| error.to_string());
            let said = checked.err().unwrap_or_default();
            assert_eq!(
                said.contains("file:///mine is editable"),
                is_refused,
                "{said}"
            );
        }
    }
}
