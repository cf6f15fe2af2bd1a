//! How a function is started: its command and its environment, as Lambda functions expect them.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
};

use parking_lot::Mutex;
use ports::runtime::{Function, Language};

/// Where a function's code is, for itself.
pub(crate) const TASK_ROOT: &str = "/var/task";
/// Where the runtime clients are, for a function.
pub(crate) const RUNTIME_ROOT: &str = "/var/runtime";
/// Stands for the address of the Runtime API in an environment.
pub(crate) const API: &str = "{api}";

/// The clients of the Runtime API that are carried along, by file name.
const CLIENTS: [(&str, &str); 2] = [
    ("landfast_runtime.py", include_str!("clients/landfast_runtime.py")),
    ("landfast_runtime.mjs", include_str!("clients/landfast_runtime.mjs")),
];

/// Puts the clients, and what is `carried` beside them, into `directory`.
pub(crate) fn put_clients(directory: &Path, carried: &[(&str, &str)]) -> io::Result<()> {
    for (name, text) in CLIENTS.iter().chain(carried) {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap_or(directory))?;
        fs::write(path, text)?;
    }
    Ok(())
}

/// How a function is started.
#[derive(Debug)]
pub(crate) struct Command {
    /// A program and its arguments, as seen inside.
    pub(crate) command: Vec<OsString>,
    /// What the program needs of the machine beside the system's own folders.
    pub(crate) folders: Vec<PathBuf>,
}

/// How `function` is started, whose code lies in `code` here, below `deployed`. Errors: what is missing, and what to do about it.
pub(crate) async fn command(
    function: &Function,
    (deployed, code): (&Path, &Path),
    interpreters: &Interpreters,
) -> Result<Command, String> {
    let client = |name: &str| OsString::from(format!("{RUNTIME_ROOT}/{name}"));
    let handler = OsString::from(&function.handler);
    match &function.language {
        Language::Python(chosen) => {
            let ask = ["-c", "import sys; print(sys.executable); print(sys.prefix); print(sys.base_prefix)"];
            let (python, folders) = interpreters.find(chosen.as_deref(), "python3", &ask, deployed).await?;
            let command = vec![python, "-u".into(), client("landfast_runtime.py"), handler];
            Ok(Command { command, folders })
        }
        Language::Node(chosen) => {
            let ask = [
                "-e",
                "console.log(process.execPath); console.log(require('path').dirname(require('path').dirname(process.execPath)))",
            ];
            let (node, folders) = interpreters.find(chosen.as_deref(), "node", &ask, deployed).await?;
            Ok(Command { command: vec![node, client("landfast_runtime.mjs"), handler], folders })
        }
        Language::Executable => {
            if !code.join(&function.handler).is_file() {
                return Err(format!("{:?} is not in the code of {:?}", function.handler, function.name));
            }
            let command = vec![format!("{TASK_ROOT}/{}", function.handler).into()];
            Ok(Command { command, folders: Vec::new() })
        }
    }
}

/// Where interpreters really are, and the folders that they need: each says so itself, once, since what the path finds may
/// be a script that looks for it.
#[derive(Debug, Default)]
pub(crate) struct Interpreters {
    found: Mutex<HashMap<PathBuf, Found>>,
}

type Found = (OsString, Vec<PathBuf>);

impl Interpreters {
    /// The one that is `chosen`, or else called `name`; none of those that lie in `deployed`, which anybody may have deployed.
    async fn find(
        &self,
        chosen: Option<&Path>,
        name: &str,
        ask: &[&str],
        deployed: &Path,
    ) -> Result<Found, String> {
        let program = chosen.map_or_else(|| PathBuf::from(name), Path::to_owned);
        if program.canonicalize().is_ok_and(|program| program.starts_with(deployed)) {
            let program = program.display();
            return Err(format!(
                "{program} was deployed, and an interpreter is the machine's own: it is asked where it is outside of the sandbox"
            ));
        }
        if let Some(found) = self.found.lock().get(&program) {
            return Ok(found.clone());
        }
        let found = asked(&program, ask).await.map_err(|why| {
            let program = program.display();
            format!("{program} cannot be run ({why}): install it, or name an interpreter in the manifest")
        })?;
        self.found.lock().insert(program, found.clone());
        Ok(found)
    }
}

/// What an interpreter answers. Errors: why it does not.
async fn asked(program: &Path, ask: &[&str]) -> Result<Found, String> {
    let output = tokio::process::Command::new(program).args(ask).stdin(Stdio::null()).output().await;
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let said = String::from_utf8(output.stdout).map_err(|error| error.to_string())?;
    let mut lines = said.lines();
    let executable =
        lines.next().filter(|path| path.starts_with('/')).ok_or("it does not say where it is")?;
    let mut folders: Vec<PathBuf> =
        lines.map(PathBuf::from).filter(|folder| !is_of_the_system(folder)).collect();
    folders.sort();
    folders.dedup();
    Ok((executable.into(), folders))
}

/// Whether every sandbox shows it.
fn is_of_the_system(folder: &Path) -> bool {
    folder == Path::new("/") || ["/usr", "/opt"].iter().any(|system| folder.starts_with(system))
}

/// The whole environment of an instance.
pub(crate) fn environment(function: &Function) -> Vec<(OsString, OsString)> {
    let memory_mb = function.memory_bytes >> 20;
    let stream = format!("{}/[$LATEST]", function.name);
    let mut variables = vec![
        ("AWS_LAMBDA_RUNTIME_API", API.to_owned()),
        ("LANDFAST_URL", format!("http://{API}")),
        ("AWS_LAMBDA_FUNCTION_NAME", function.name.clone()),
        ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".to_owned()),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory_mb.to_string()),
        ("AWS_LAMBDA_LOG_GROUP_NAME", format!("/aws/lambda/{}", function.name)),
        ("AWS_LAMBDA_LOG_STREAM_NAME", stream),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand".to_owned()),
        ("AWS_REGION", REGION.to_owned()),
        ("AWS_DEFAULT_REGION", REGION.to_owned()),
        ("_HANDLER", function.handler.clone()),
        ("LAMBDA_TASK_ROOT", TASK_ROOT.to_owned()),
        ("LAMBDA_RUNTIME_DIR", RUNTIME_ROOT.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TZ", ":UTC".to_owned()),
        ("HOME", "/tmp".to_owned()),
        ("TMPDIR", "/tmp".to_owned()),
        ("PATH", "/usr/local/bin:/usr/bin:/bin".to_owned()),
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
    ];
    variables.retain(|(name, _)| !function.environment.contains_key(*name));
    let own = function.environment.iter().map(|(name, value)| (OsString::from(name), value.into()));
    variables.into_iter().map(|(name, value)| (name.into(), value.into())).chain(own).collect()
}

const REGION: &str = "us-east-1";

/// What a function is called in full.
pub(crate) fn arn(function: &Function) -> String {
    format!("arn:aws:lambda:{REGION}:000000000000:function:{}", function.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_deployed_is_no_interpreter() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let home = tempfile::tempdir().expect("a directory");
        let home = home.path().canonicalize().expect("there");
        let deployed = home.join("deployed");
        fs::create_dir(&deployed).expect("made");
        let (script, ran, link) = (deployed.join("python"), home.join("ran"), home.join("link"));
        fs::write(&script, format!("#!/bin/sh\ntouch {}\necho /usr/bin/python3\n", ran.display()))
            .expect("written");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("set");
        symlink(&script, &link).expect("made");
        for chosen in [&script, &link] {
            let found = Interpreters::default().find(Some(chosen), "python3", &[], &deployed).await;
            assert!(found.expect_err("it was deployed").contains("was deployed"));
            assert!(!ran.exists(), "it ran outside of the sandbox");
        }
        let elsewhere = home.join("elsewhere");
        Interpreters::default()
            .find(Some(&link), "python3", &[], &elsewhere)
            .await
            .expect("the machine's own");
        assert!(ran.exists());
    }
}
