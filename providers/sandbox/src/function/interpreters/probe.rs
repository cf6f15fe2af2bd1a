//! The probe of an interpreter that a manifest names: it runs the interpreter to learn its real
//! path.
//!
//! A user who may deploy must not thereby run arbitrary programs as the server. The probe therefore
//! runs an interpreter only if nothing but root and the server's own user could have put it there.
//! It runs like a function: in a sandbox without a network, which shows it the system and the
//! folders around itself.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use nix::unistd::Uid;
use ports::instances::Death;
use tokio::io::AsyncReadExt as _;

use crate::{
    order::{Launch, is_of_the_system},
    process::Launcher,
};

const ANSWER_MAX: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// The most symbolic links on the way to an interpreter.
const LINKS_MAX: usize = 32;
/// The mode bit of a folder in which others may write but not replace files that are not theirs.
const STICKY: u32 = 0o1000;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const MEMORY_BYTES: u64 = 256 << 20;
const SCRATCH_BYTES: u64 = 1 << 20;
const PROCESSES_MAX: u32 = 64;

/// The folders around `program`, and around each link that leads to it, if only root or the server's
/// user can have put it there. `own` is the folder with the files of functions. Errors: why it is
/// not trusted.
pub(crate) fn trusted(program: &Path, own: &Path) -> Result<Vec<PathBuf>, String> {
    if !program.is_absolute() {
        return Err("the path of an interpreter begins with /".to_owned());
    }
    let mut folders = Vec::new();
    let mut next = program.to_owned();
    for _ in 0..LINKS_MAX {
        // By the link's name of the folder, and by the folder's own.
        let place = next.parent().unwrap_or(Path::new("/"));
        folders.extend([
            around(&normalised(place)),
            around(&place.canonicalize().unwrap_or_default()),
        ]);
        let Some(further) = followed(&next, own)? else {
            folders.retain(|folder| folder.is_dir() && !is_of_the_system(folder));
            folders.sort();
            folders.dedup();
            return Ok(folders);
        };
        next = further;
    }
    Err(format!("more than {LINKS_MAX} links lead to it"))
}

/// The output of a command in a sandbox with these folders. Errors: why there is none.
pub(crate) async fn query(
    launcher: &Launcher,
    runtime: &Path,
    folders: Vec<PathBuf>,
    command: Vec<OsString>,
) -> Result<Vec<u8>, String> {
    let launch = Launch {
        command,
        folders,
        environment: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        code: runtime.to_owned(),
        runtime: runtime.to_owned(),
        memory_bytes: MEMORY_BYTES,
        processes_max: PROCESSES_MAX,
        scratch_bytes: SCRATCH_BYTES,
        ..Launch::default()
    };
    // Dropping the future ends the process.
    let output = tokio::time::timeout(ANSWER_MAX, output(launcher, launch));
    let late = |_| {
        let seconds = ANSWER_MAX.as_secs();
        format!("it has not answered within {seconds} seconds")
    };
    output.await.map_err(late)?
}

async fn output(launcher: &Launcher, launch: Launch) -> Result<Vec<u8>, String> {
    let process = launcher.start(launch).await;
    let mut process = process.map_err(|error| error.to_string())?;
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let mut stdout = (&mut process.stdout).take(ANSWER_BYTES_MAX);
    let mut stderr = (&mut process.stderr).take(ANSWER_BYTES_MAX);
    let read = futures_util::try_join!(
        stdout.read_to_end(&mut output),
        stderr.read_to_end(&mut errors)
    );
    read.map_err(|error| error.to_string())?;
    let death = process.exit.wait().await;
    match death {
        Death::Exited(0) => Ok(output),
        _ => Err(String::from_utf8_lossy(&errors).trim().to_owned()),
    }
}

/// The folder that an interpreter in `place` may need.
fn around(place: &Path) -> PathBuf {
    let is_bin = place.file_name().is_some_and(|name| name == "bin");
    place
        .parent()
        .filter(|_| is_bin)
        .unwrap_or(place)
        .to_owned()
}

/// `path` with `..` resolved by name.
fn normalised(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut reached, part| {
        if part == Component::ParentDir {
            reached.pop();
        } else {
            reached.push(part);
        }
        reached
    })
}

/// The path after following the first link in `path`; none: it is a file without links on the way,
/// and every folder is trusted.
fn followed(path: &Path, own: &Path) -> Result<Option<PathBuf>, String> {
    let mut reached = PathBuf::new();
    let mut parts = path.components();
    while let Some(part) = parts.next() {
        match part {
            Component::ParentDir => {
                reached.pop();
                continue;
            }
            part => reached.push(part),
        }
        if reached.starts_with(own) {
            return Err(format!(
                "{} was deployed; an interpreter must belong to the machine",
                path.display()
            ));
        }
        let about = |error| format!("{}: {error}", reached.display());
        let found = fs::symlink_metadata(&reached).map_err(about)?;
        let is_theirs = found.uid() != 0 && found.uid() != Uid::effective().as_raw();
        if is_theirs {
            return Err(format!("{} is another user's", reached.display()));
        }
        if found.is_symlink() {
            // A link's own mode means nothing. The folder's mode says who may replace it.
            let to = fs::read_link(&reached).map_err(about)?;
            let from = reached.parent().unwrap_or(Path::new("/"));
            return Ok(Some(from.join(to).join(parts.as_path())));
        }
        let is_guarded = found.is_dir() && found.mode() & STICKY != 0;
        if found.mode() & WRITABLE_BY_OTHERS != 0 && !is_guarded {
            return Err(format!(
                "{} may be written by users other than its owner",
                reached.display()
            ));
        }
    }
    if !fs::metadata(&reached).is_ok_and(|found| found.is_file()) {
        return Err(format!("{} is not a file", reached.display()));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    fn executable(path: &Path) {
        fs::create_dir_all(path.parent().expect("below a folder")).expect("made");
        fs::write(path, "#!/bin/sh\n").expect("written");
        set_mode(path, 0o755);
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    }

    #[test]
    fn a_file_only_root_and_the_server_can_write_is_trusted_with_the_folders_around_its_links() {
        let home = tempfile::tempdir().expect("a directory");
        let home = home.path().canonicalize().expect("there");
        let (real, link) = (
            home.join("python-3/bin/python3"),
            home.join("venv/bin/python"),
        );
        executable(&real);
        fs::create_dir_all(link.parent().expect("below a folder")).expect("made");
        symlink("../../python-3/bin/python3", &link).expect("made");
        let folders = trusted(&link, &home.join("own")).expect("all of it is ours");
        assert_eq!(folders, [home.join("python-3"), home.join("venv")]);
    }

    #[test]
    fn a_file_that_others_can_write_or_have_deployed_is_not_trusted() {
        let home = tempfile::tempdir().expect("a directory");
        let home = home.path().canonicalize().expect("there");
        let own = home.join("own");
        let (real, link) = (home.join("bin/python"), home.join("link"));
        let deployed = own.join("archives/1/code/evil");
        let refused = |path: &Path| trusted(path, &own).expect_err("it is not trusted");
        executable(&real);
        executable(&deployed);
        symlink(&deployed, &link).expect("made");
        trusted(&real, &own).expect("no other user may write it");
        assert!(refused(Path::new("bin/python")).contains("begins with /"));
        assert!(refused(&deployed).contains("was deployed"));
        assert!(refused(&link).contains("was deployed"));
        assert!(refused(&home.join("bin/../own/archives/1/code/evil")).contains("deployed"));
        assert!(refused(&home.join("bin")).contains("not a file"));
        assert!(refused(&home.join("nothing")).contains("No such file"));
        for mode in [0o775, 0o757] {
            set_mode(&real, mode);
            assert!(refused(&real).contains("may be written"), "{mode:o}");
        }
        set_mode(&real, 0o755);
        set_mode(real.parent().expect("below a folder"), 0o777);
        assert!(refused(&real).contains("may be written"));
        set_mode(real.parent().expect("below a folder"), 0o1777);
        trusted(&real, &own).expect("no other user may replace it");
        if Uid::effective().is_root() {
            chown(&real, Some(1), None).expect("root may");
            assert!(refused(&real).contains("another user's"));
        }
    }
}
