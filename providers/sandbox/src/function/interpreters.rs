//! The interpreters of this machine: their real paths, and the folders they need.
//!
//! An interpreter reports both itself, once, because the program on the path may be a script that
//! searches for it. The server runs its own interpreters directly. One that a manifest names is run
//! by a [probe] in a sandbox.

mod probe;

use std::{
    collections::HashMap,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{order::is_of_the_system, process::Launcher};

#[derive(Debug)]
pub(crate) struct Interpreters {
    pub(crate) launcher: Arc<Launcher>,
    /// The folder with the files of functions.
    pub(crate) own: PathBuf,
    pub(crate) runtime: PathBuf,
    pub(crate) found: Mutex<HashMap<PathBuf, Interpreter>>,
}

/// An interpreter of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interpreter {
    /// Its real path.
    pub(super) program: OsString,
    /// The folders it needs beside the system's.
    pub(super) folders: Vec<PathBuf>,
    /// `3.11` of Python, `20` of Node.
    pub(super) version: String,
}

/// The beginning of the line in which an interpreter reports its version.
const VERSION: &str = "version ";

impl Interpreters {
    /// The interpreter that a manifest has `chosen`, or the one called `name` on the server's path.
    /// It reports itself when it is run with the arguments `query`.
    pub(super) async fn find(
        &self,
        chosen: Option<&Path>,
        name: &str,
        query: &[&str],
    ) -> Result<Interpreter, String> {
        let program = chosen.map_or_else(|| PathBuf::from(name), Path::to_owned);
        if let Some(found) = self.found.lock().get(&program) {
            return Ok(found.clone());
        }
        let output = if chosen.is_some() {
            self.query_inside(&program, query).await
        } else {
            query_directly(name, query).await
        };
        let found = output.and_then(parse).map_err(|why| {
            let program = program.display();
            format!("{program} cannot be run ({why}): install it, or name an interpreter in the manifest")
        })?;
        self.found.lock().insert(program, found.clone());
        Ok(found)
    }

    async fn query_inside(&self, program: &Path, query: &[&str]) -> Result<Vec<u8>, String> {
        let program = on_path(program);
        let folders = probe::trusted(&program, &self.own)?;
        let mut command = vec![program.into_os_string()];
        command.extend(query.iter().map(OsString::from));
        probe::query(&self.launcher, &self.runtime, folders, command).await
    }
}

/// The file for `program`, which the path is searched for if it is a mere name.
fn on_path(program: &Path) -> PathBuf {
    let is_name = program.components().count() == 1 && !program.is_absolute();
    let path = std::env::var_os("PATH")
        .filter(|_| is_name)
        .unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|folder| folder.join(program));
    files
        .find(|file| file.is_file())
        .unwrap_or_else(|| program.to_owned())
}

/// The output of the server's own interpreter. Errors: why there is none.
async fn query_directly(name: &str, query: &[&str]) -> Result<Vec<u8>, String> {
    let output = tokio::process::Command::new(name)
        .args(query)
        .stdin(Stdio::null())
        .output()
        .await;
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    Ok(output.stdout)
}

/// The interpreter that this output reports.
fn parse(output: Vec<u8>) -> Result<Interpreter, String> {
    let output = String::from_utf8(output).map_err(|error| error.to_string())?;
    let mut lines = output.lines();
    let executable = lines
        .next()
        .filter(|path| path.starts_with('/'))
        .ok_or("it does not report its path")?;
    let mut version = String::new();
    let folders = lines.filter(|line| match line.strip_prefix(VERSION) {
        Some(reported) => {
            reported.clone_into(&mut version);
            false
        }
        None => true,
    });
    let mut folders: Vec<PathBuf> = folders
        .map(PathBuf::from)
        .filter(|folder| !is_of_the_system(folder))
        .collect();
    folders.sort();
    folders.dedup();
    Ok(Interpreter {
        program: executable.into(),
        folders,
        version,
    })
}
