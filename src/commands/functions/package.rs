//! An application packed for its deployment: its manifest and the folders that it names, as a tar
//! compressed by gzip.
//!
//! The same files give the same bytes, so that deploying an unchanged application again changes
//! nothing.
//!
//! Where a folder has a file of its own at the place of an installed one, its own file is deployed,
//! as with `sam build`. A folder that `pip install -t .` has filled is thus deployed as it is.

mod handler_check;
mod handlers;
mod install;
mod left_out;
mod locate;
mod versions;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, ensure};
use flate2::{Compression, GzBuilder};
use functions::manifest::{FILE_NAME, Kind, Manifest};
use tar::{Builder, Header, HeaderMode};

pub(super) use self::locate::manifest_at;
use self::{
    handler_check::check_handler,
    handlers::{Handlers, code_folder},
    install::{Installed, MODULES, Packages},
    left_out::{all_files, deployed_files},
};

/// The longest package: the server's limit.
const PACKAGE_BYTES_MAX: usize = 64 << 20;
/// The interval of checks for changed files.
const LOOK_EVERY: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub(super) struct Package {
    /// The name of the application.
    pub(super) name: String,
    pub(super) content: Vec<u8>,
    /// The files in it, with their lengths.
    pub(super) files: Vec<(PathBuf, u64)>,
}

/// The files to send, by their places in the package.
type Entries = BTreeMap<PathBuf, PathBuf>;

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
        // The server takes files as they are; the compression makes the zeros small.
        builder.sparse(false);
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, FILE_NAME, text.as_bytes())?;
        let home = folder_of(path);
        let (entries, _installed) = entries(&home, &manifest)?;
        let mut files = vec![(PathBuf::from(FILE_NAME), text.len() as u64)];
        for (place, file) in &entries {
            let length = fs::symlink_metadata(file).map(|found| found.len());
            files.push((place.clone(), length.unwrap_or_default()));
            builder
                .append_path_with_name(file, place)
                .with_context(|| file.display().to_string())?;
        }
        builder.into_inner()?.finish()?;
        ensure!(
            content.len() <= PACKAGE_BYTES_MAX,
            "{}: packed it has {} bytes, and {PACKAGE_BYTES_MAX} at most may be deployed",
            path.display(),
            content.len()
        );
        Ok(Self {
            name,
            content,
            files,
        })
    }
}

impl State {
    /// The state of the application whose manifest lies at `path`.
    pub(super) fn of(path: &Path) -> anyhow::Result<Self> {
        let (_, manifest) = read(path)?;
        let home = folder_of(path);
        let handlers = Handlers::find(&home, &manifest)?;
        let folders = folders(&manifest);
        let mut files = vec![path.to_owned()];
        for folder in outermost(&folders) {
            files.extend(deployed_files(&home, folder, &handlers)?);
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
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
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

/// The files of the application: those of its code folders, then the installed packages.
///
/// Errors: a file cannot be deployed, a handler is not there, or a package would be a mixture of
/// two versions.
fn entries(home: &Path, manifest: &Manifest) -> anyhow::Result<(Entries, Vec<Installed>)> {
    let (mut entries, mut installed) = (Entries::new(), Vec::new());
    let handlers = Handlers::find(home, manifest)?;
    let folders = folders(manifest);
    for folder in outermost(&folders) {
        let files = deployed_files(home, folder, &handlers)?;
        let from = home.canonicalize()?;
        // The package has its manifest there, under any local name.
        let own = places(&files, &from, Path::new("."))?;
        entries.extend(own.filter(|(place, _)| place != Path::new(FILE_NAME)));
    }
    for folder in folders {
        let tables = manifest.functions.values();
        let packages = Packages {
            code: &code_folder(home, folder),
            tables: tables.filter(|table| table.code == folder).collect(),
            has_modules: has_modules(&entries, folder),
        };
        for (kind, packages) in packages.install()? {
            let files = all_files(&packages.folder)?;
            let places = places(&files, &packages.folder, Path::new(folder))?;
            let places: Vec<_> = places.collect();
            if kind == Kind::Python3 {
                versions::check(
                    folder,
                    entries.keys(),
                    places.iter().map(|(place, _)| place),
                )?;
            }
            let free = places.into_iter();
            let free: Vec<_> = free
                .filter(|(place, _)| !is_taken(&entries, place))
                .collect();
            entries.extend(free);
            installed.push(packages);
        }
    }
    for (name, table) in &manifest.functions {
        check_handler(home, table, &handlers, &entries)
            .with_context(|| format!("functions.{name}"))?;
    }
    Ok((entries, installed))
}

/// Whether the code folder `folder` has packages of npm.
fn has_modules(entries: &Entries, folder: &str) -> bool {
    let modules = match folder {
        "." => PathBuf::from(MODULES),
        folder => Path::new(folder).join(MODULES),
    };
    let mut following = entries.range(modules.clone()..);
    following
        .next()
        .is_some_and(|(place, _)| place.starts_with(modules))
}

/// Pairs of a place below `to` and a file, for files below `from`.
fn places<'a>(
    files: &'a [PathBuf],
    from: &'a Path,
    to: &'a Path,
) -> anyhow::Result<impl Iterator<Item = (PathBuf, PathBuf)> + 'a> {
    for file in files {
        let kind = fs::symlink_metadata(file)
            .with_context(|| file.display().to_string())?
            .file_type();
        ensure!(
            kind.is_file() || kind.is_symlink(),
            "{}: it is no file, folder or link, and nothing else can be deployed: remove it, or move it out of the folder",
            file.display()
        );
    }
    Ok(files.iter().map(move |file| {
        let place = to.join(file.strip_prefix(from).expect("it was found there"));
        let parts = place.components();
        let place = parts.filter(|part| part.as_os_str() != ".").collect();
        (place, file.clone())
    }))
}

/// Whether `place`, a folder on its path, or something below it has an entry.
fn is_taken(entries: &Entries, place: &Path) -> bool {
    let is_below = |found: &Path| found.starts_with(place);
    let mut following = entries.range(place.to_owned()..);
    following.next().is_some_and(|(found, _)| is_below(found))
        || place.ancestors().any(|folder| entries.contains_key(folder))
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

    /// A file with holes, such as a database, was sent in a form that the server refuses.
    #[test]
    fn a_sparse_file_is_packed_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let (manifest, data) = (folder.path().join("app.toml"), folder.path().join("data"));
        let text = "[functions.f]\nruntime = \"executable\"\ncode = \".\"\nhandler = \"data\"\n";
        fs::write(&manifest, text).expect("written");
        let file = fs::File::create(&data).expect("made");
        file.set_len(1 << 20).expect("made longer");
        let package = Package::make(&manifest).expect("it is packed");
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&package.content[..]));
        let kinds = archive.entries().expect("it is an archive").map(|entry| {
            let header = entry.expect("it is whole").header().clone();
            (header.entry_type(), header.size().expect("it has one"))
        });
        let kinds: Vec<_> = kinds.collect();
        assert!(
            kinds.contains(&(tar::EntryType::Regular, 1 << 20)),
            "{kinds:?}"
        );
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
        let path = folder.path().join("s");
        let _socket = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let refused = places(&[path], folder.path(), Path::new("code")).map(|_| ());
        let said = refused.expect_err("it is a socket").to_string();
        assert!(said.contains("/s: it is no file, folder or link"), "{said}");
    }

    /// A file of one name with a folder would be refused by the server.
    #[test]
    fn an_installed_file_gives_way_to_what_the_folder_has_itself() {
        let own = ["code/six.py", "code/pkg", "code/deep/own.py"];
        let own = own.map(|place| (PathBuf::from(place), PathBuf::new()));
        let entries = Entries::from(own);
        for taken in ["code/six.py", "code/pkg/x.py", "code/deep"] {
            assert!(is_taken(&entries, Path::new(taken)), "{taken}");
        }
        for free in [
            "code/six.pyi",
            "code/pkg2/x.py",
            "code/deep/other.py",
            "six.py",
        ] {
            assert!(!is_taken(&entries, Path::new(free)), "{free}");
        }
    }
}
