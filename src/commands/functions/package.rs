//! An application packed for its deployment: its manifest and the folders that it names, as a tar
//! compressed by gzip.
//!
//! The same files give the same bytes, so that deploying an unchanged application again changes
//! nothing.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, ensure};
use flate2::{Compression, GzBuilder};
use functions::manifest::{FILE_NAME, Kind, Manifest};
use tar::{Builder, Header, HeaderMode};

/// The longest package: the server's limit.
const PACKAGE_BYTES_MAX: usize = 64 << 20;
/// The dependencies of a Python function.
const REQUIREMENTS: &str = "requirements.txt";
/// Files and folders that are never deployed.
const LEFT_OUT: [&str; 4] = ["__pycache__", ".git", ".venv", ".DS_Store"];
/// The interval of checks for changed files.
const LOOK_EVERY: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub(super) struct Package {
    /// The name of the application.
    pub(super) name: String,
    pub(super) content: Vec<u8>,
}

/// What tells that a file was changed: its modification time, length and mode. Making a file
/// executable does not change its contents.
type Stamp = (Option<SystemTime>, u64, u32);

/// The stamp of each file, if it exists.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct State(Vec<(PathBuf, Option<Stamp>)>);

impl Package {
    /// Packs the application whose manifest lies at `path`.
    pub(super) fn make(path: &Path) -> anyhow::Result<Self> {
        let (text, manifest) = read(path)?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = manifest.name.clone().unwrap_or(stem.into_owned());
        let mut content = Vec::new();
        let encoder = GzBuilder::new()
            .mtime(0)
            .write(&mut content, Compression::default());
        let mut builder = Builder::new(encoder);
        builder.mode(HeaderMode::Deterministic);
        builder.follow_symlinks(false);
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, FILE_NAME, text.as_bytes())?;
        let home = folder_of(path);
        let folders = folders(&manifest);
        for folder in outermost(&folders) {
            append(&mut builder, &home.join(folder), Path::new(folder))?;
        }
        for folder in folders {
            install_requirements(&mut builder, &manifest, &home, folder)?;
        }
        builder.into_inner()?.finish()?;
        ensure!(
            content.len() <= PACKAGE_BYTES_MAX,
            "{}: packed it has {} bytes, and {PACKAGE_BYTES_MAX} at most may be deployed",
            path.display(),
            content.len()
        );
        Ok(Self { name, content })
    }
}

impl State {
    /// The state of the application whose manifest lies at `path`.
    pub(super) fn of(path: &Path) -> anyhow::Result<Self> {
        let (_, manifest) = read(path)?;
        let home = folder_of(path);
        let folders = folders(&manifest);
        let mut files = vec![path.to_owned()];
        for folder in outermost(&folders) {
            files_in(&home.join(folder), &mut files)?;
        }
        files.sort();
        let state = |path: PathBuf| {
            let found = fs::symlink_metadata(&path).ok();
            let found = found.map(|found| {
                let mode = found.permissions().mode();
                (found.modified().ok(), found.len(), mode)
            });
            (path, found)
        };
        Ok(Self(files.into_iter().map(state).collect()))
    }
}

fn folders(manifest: &Manifest) -> BTreeSet<&str> {
    let tables = manifest.functions.values();
    tables.map(|table| table.code.as_str()).collect()
}

/// The state of an application that may be in the middle of an edit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It is complete.
    Whole(State),
    /// It cannot be read: the time of its manifest, and the reason.
    Broken(Option<SystemTime>, String),
}

impl Seen {
    fn now(path: &Path) -> Self {
        match State::of(path) {
            Ok(state) => Self::Whole(state),
            Err(error) => {
                let changed = fs::metadata(path).and_then(|found| found.modified());
                Self::Broken(changed.ok(), format!("{error:#}"))
            }
        }
    }
}

/// Returns the next state of the application once it differs; `None` after `most`. An unreadable
/// state counts only if it lasts for a moment, because an editor may be writing.
pub(super) fn wait_for_change(path: &Path, was: &Seen, most: Duration) -> Option<Seen> {
    let until = Instant::now() + most;
    let mut before = None;
    loop {
        std::thread::sleep(LOOK_EVERY);
        let now = Seen::now(path);
        let is_new = now != *was;
        if is_new && (matches!(now, Seen::Whole(_)) || before.as_ref() == Some(&now)) {
            return Some(now);
        }
        if !is_new && Instant::now() > until {
            return None;
        }
        before = Some(now);
    }
}

fn read(path: &Path) -> anyhow::Result<(String, Manifest)> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let manifest = Manifest::parse(&text).map_err(anyhow::Error::msg);
    let manifest = manifest.with_context(|| path.display().to_string())?;
    Ok((text, manifest))
}

fn folder_of(path: &Path) -> PathBuf {
    path.parent().map(Path::to_owned).unwrap_or_default()
}

/// Without the folders that are inside other ones.
fn outermost<'a>(folders: &BTreeSet<&'a str>) -> Vec<&'a str> {
    // A manifest's own folder is `.`, which is no prefix of a path.
    let is_in = |folder: &str, other: &str| other == "." || Path::new(folder).starts_with(other);
    let is_outermost = |folder: &&str| {
        let mut others = folders.iter().filter(|other| *other != folder);
        !others.any(|other| is_in(folder, other))
    };
    folders.iter().copied().filter(is_outermost).collect()
}

fn append<W: std::io::Write>(
    builder: &mut Builder<W>,
    from: &Path,
    to: &Path,
) -> anyhow::Result<()> {
    let mut files = Vec::new();
    files_in(from, &mut files)?;
    files.sort();
    for file in files {
        let kind = fs::symlink_metadata(&file)
            .with_context(|| file.display().to_string())?
            .file_type();
        ensure!(
            kind.is_file() || kind.is_symlink(),
            "{}: it is no file, folder or link, and nothing else can be deployed: remove it, or move it out of the folder",
            file.display()
        );
        let place = to.join(file.strip_prefix(from).expect("it was found there"));
        let parts = place.components();
        let place: PathBuf = parts.filter(|part| part.as_os_str() != ".").collect();
        // The package has its manifest there, under any local name.
        if place == Path::new(FILE_NAME) {
            continue;
        }
        builder
            .append_path_with_name(&file, place)
            .with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// All files below `folder`.
fn files_in(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder)
        .with_context(|| format!("{}: the folder with code", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        if LEFT_OUT.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            files_in(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Installs the packages of `requirements.txt` in `folder` beside the code.
fn install_requirements<W: std::io::Write>(
    builder: &mut Builder<W>,
    manifest: &Manifest,
    home: &Path,
    folder: &str,
) -> anyhow::Result<()> {
    let requirements = home.join(folder).join(REQUIREMENTS);
    let mut tables = manifest.functions.values();
    let python = tables.find(|table| table.code == folder && table.runtime == Kind::Python3);
    let Some(python) = python.filter(|_| requirements.is_file()) else {
        return Ok(());
    };
    let python = python.python.clone().unwrap_or_else(|| "python3".into());
    let name = format!("landfast-requirements-{}", std::process::id());
    let installed = std::env::temp_dir().join(name);
    if installed.exists() {
        fs::remove_dir_all(&installed)?;
    }
    let output = Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--no-compile"])
        .args(["--disable-pip-version-check", "--target"])
        .arg(&installed)
        .arg("--requirement")
        .arg(&requirements)
        .output()
        .with_context(|| format!("{} -m pip", python.display()))?;
    ensure!(
        output.status.success(),
        "{}: pip could not install it: {}",
        requirements.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let appended = append(builder, &installed, Path::new(folder));
    fs::remove_dir_all(&installed)?;
    appended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_another_is_packed_with_that_alone() {
        let outermost = |folders: &[&'static str]| outermost(&folders.iter().copied().collect());
        assert_eq!(outermost(&[".", "code", "code/more"]), ["."]);
        assert_eq!(
            outermost(&["code", "code/more", "codes"]),
            ["code", "codes"]
        );
        assert_eq!(outermost(&["."]), ["."]);
    }

    /// The server itself advises `chmod +x`.
    #[test]
    fn a_file_that_is_made_executable_is_a_change() {
        let folder = tempfile::tempdir().expect("a folder");
        let (manifest, run) = (folder.path().join("app.toml"), folder.path().join("run"));
        let text = "[functions.f]\nruntime = \"executable\"\ncode = \".\"\nhandler = \"run\"\n";
        fs::write(&manifest, text).expect("written");
        fs::write(&run, "").expect("written");
        fs::set_permissions(&run, fs::Permissions::from_mode(0o644)).expect("set");
        let before = State::of(&manifest).expect("read");
        assert_eq!(State::of(&manifest).expect("read"), before);
        fs::set_permissions(&run, fs::Permissions::from_mode(0o755)).expect("set");
        assert_ne!(State::of(&manifest).expect("read"), before);
    }

    /// The contents of a package in its order: path and text.
    fn entries(package: &Package) -> Vec<(String, String)> {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&package.content[..]));
        let entries = archive.entries().expect("it is an archive");
        let read = entries.map(|entry| {
            let mut entry = entry.expect("it is whole");
            let mut text = String::new();
            std::io::Read::read_to_string(&mut entry, &mut text).expect("it is text");
            (
                entry.path().expect("it has one").display().to_string(),
                text,
            )
        });
        read.collect()
    }

    /// A manifest may lie among the code, with other files beside it. A package with two files of
    /// one name is refused.
    #[test]
    fn a_package_has_the_manifest_that_is_deployed_once() {
        let manifest =
            "[functions.hello]\nruntime = \"python3\"\ncode = \".\"\nhandler = \"app.hello\"\n";
        let app = ("app.py", "code");
        for (name, code) in [
            (FILE_NAME, vec![app]),
            ("shop.toml", vec![app, ("shop.toml", manifest)]),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            for (file, text) in [(FILE_NAME, "another one"), (name, manifest), app] {
                fs::write(folder.path().join(file), text).expect("written");
            }
            let package = Package::make(&folder.path().join(name)).expect("it is packed");
            let expected = [(FILE_NAME, manifest)].into_iter().chain(code);
            let expected: Vec<_> = expected
                .map(|(file, text)| (file.to_owned(), text.to_owned()))
                .collect();
            assert_eq!(entries(&package), expected, "{name}");
        }
    }

    #[test]
    fn what_is_no_file_is_named_to_who_deploys_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let _socket =
            std::os::unix::net::UnixListener::bind(folder.path().join("s")).expect("a socket");
        let refused = append(
            &mut Builder::new(Vec::new()),
            folder.path(),
            Path::new("code"),
        );
        let said = refused.expect_err("it is a socket").to_string();
        assert!(said.contains("/s: it is no file, folder or link"), "{said}");
    }
}
