//! How a function is started: its command and its environment, as Lambda functions expect them.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use parking_lot::Mutex;
use ports::runtime::{Function, Language};

use crate::{asking::Trusted, process::Launcher};

/// Where a function's code is, for itself.
pub(crate) const TASK_ROOT: &str = "/var/task";
/// Where the runtime clients are, for a function.
pub(crate) const RUNTIME_ROOT: &str = "/var/runtime";
/// Where a spare is told which of its descriptors it hears from. A function that has it in its own environment is started the ordinary way.
pub(crate) const SPARE_VARIABLE: &str = "LANDFAST_SPARE";

/// The clients of the Runtime API that are carried along, by file name.
const CLIENTS: [(&str, &str); 2] = [
    (
        "landfast_runtime.py",
        include_str!("clients/landfast_runtime.py"),
    ),
    (
        "landfast_runtime.mjs",
        include_str!("clients/landfast_runtime.mjs"),
    ),
];

/// Has a Python say where it is, and compile the clients, so that instances need not: where it may write beside them.
const ASK_PYTHON: &str = "
import compileall, sys
print(sys.executable); print(sys.prefix); print(sys.base_prefix)
compileall.compile_dir(sys.argv[1], ddir=sys.argv[2], quiet=2)
";
/// Has a Python serve, with the client that is where its first argument says, the handler that its second one names. Without a second one
/// it is a spare, and waits for that.
const START_PYTHON: &str =
    "import sys; sys.path[0] = sys.argv.pop(1); import landfast_runtime; landfast_runtime.main()";

/// Puts the clients, and what is `carried` beside them, into `directory`.
pub(crate) fn put_clients(directory: &Path, carried: &[(&str, &str)]) -> io::Result<()> {
    for (name, text) in CLIENTS.iter().chain(carried) {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap_or(directory))?;
        // What is compiled of it stays good while it is as it was.
        if fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
            continue;
        }
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

/// How `function` is started, whose code lies in `code` here. Errors: what is missing, and what to do about it.
pub(crate) async fn command(
    function: &Function,
    code: &Path,
    interpreters: &Interpreters,
) -> Result<Command, String> {
    let client = |name: &str| OsString::from(format!("{RUNTIME_ROOT}/{name}"));
    let handler = OsString::from(&function.handler);
    match &function.language {
        Language::Python(chosen) => {
            let clients = interpreters.runtime.to_string_lossy();
            let ask = ["-c", ASK_PYTHON, &clients, RUNTIME_ROOT];
            let (python, folders) = interpreters
                .find(chosen.as_deref(), "python3", &ask)
                .await?;
            let command = vec![
                python,
                "-u".into(),
                "-c".into(),
                START_PYTHON.into(),
                RUNTIME_ROOT.into(),
                handler,
            ];
            Ok(Command { command, folders })
        }
        Language::Node(chosen) => {
            let ask = [
                "-e",
                "console.log(process.execPath); console.log(require('path').dirname(require('path').dirname(process.execPath)))",
            ];
            let (node, folders) = interpreters.find(chosen.as_deref(), "node", &ask).await?;
            Ok(Command {
                command: vec![node, client("landfast_runtime.mjs"), handler],
                folders,
            })
        }
        Language::Executable => {
            if !code.join(&function.handler).is_file() {
                return Err(format!(
                    "{:?} is not in the code of {:?}",
                    function.handler, function.name
                ));
            }
            let command = vec![format!("{TASK_ROOT}/{}", function.handler).into()];
            Ok(Command {
                command,
                folders: Vec::new(),
            })
        }
    }
}

/// Where interpreters really are, and the folders that they need: each says so itself, once, since what the path finds may
/// be a script that looks for it.
#[derive(Debug)]
pub(crate) struct Interpreters {
    launcher: Arc<Launcher>,
    /// Where functions have their files.
    own: PathBuf,
    /// Where the runtime clients are.
    runtime: PathBuf,
    found: Mutex<HashMap<PathBuf, Found>>,
}

type Found = (OsString, Vec<PathBuf>);

impl Interpreters {
    pub(crate) fn new(launcher: Arc<Launcher>, own: PathBuf, runtime: PathBuf) -> Self {
        Self {
            launcher,
            own,
            runtime,
            found: Mutex::default(),
        }
    }

    /// The one that the manifest has `chosen`, which is asked in a sandbox, or else the one that the server's own path finds.
    async fn find(&self, chosen: Option<&Path>, name: &str, ask: &[&str]) -> Result<Found, String> {
        let program = chosen.map_or_else(|| PathBuf::from(name), Path::to_owned);
        if let Some(found) = self.found.lock().get(&program) {
            return Ok(found.clone());
        }
        let said = if chosen.is_some() {
            self.ask_inside(&program, ask).await
        } else {
            asked(name, ask).await
        };
        let found = said.and_then(understood).map_err(|why| {
            let program = program.display();
            format!("{program} cannot be run ({why}): install it, or name an interpreter in the manifest")
        })?;
        self.found.lock().insert(program, found.clone());
        Ok(found)
    }

    async fn ask_inside(&self, program: &Path, ask: &[&str]) -> Result<Vec<u8>, String> {
        let trusted = Trusted::find(&placed(program), &self.own)?;
        trusted.ask(&self.launcher, &self.runtime, ask).await
    }
}

/// Where the path has what is called by its name alone.
fn placed(program: &Path) -> PathBuf {
    let is_name = program.components().count() == 1 && !program.is_absolute();
    let path = std::env::var_os("PATH")
        .filter(|_| is_name)
        .unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(program));
    places
        .find(|place| place.is_file())
        .unwrap_or_else(|| program.to_owned())
}

/// What the server's own interpreter answers. Errors: why it does not.
async fn asked(name: &str, ask: &[&str]) -> Result<Vec<u8>, String> {
    let output = tokio::process::Command::new(name)
        .args(ask)
        .stdin(Stdio::null())
        .output()
        .await;
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    Ok(output.stdout)
}

/// What an interpreter has answered.
fn understood(said: Vec<u8>) -> Result<Found, String> {
    let said = String::from_utf8(said).map_err(|error| error.to_string())?;
    let mut lines = said.lines();
    let executable = lines
        .next()
        .filter(|path| path.starts_with('/'))
        .ok_or("it does not say where it is")?;
    let mut folders: Vec<PathBuf> = lines
        .map(PathBuf::from)
        .filter(|folder| !is_of_the_system(folder))
        .collect();
    folders.sort();
    folders.dedup();
    Ok((executable.into(), folders))
}

/// Whether every sandbox shows it.
pub(crate) fn is_of_the_system(folder: &Path) -> bool {
    folder == Path::new("/")
        || ["/usr", "/opt"]
            .iter()
            .any(|system| folder.starts_with(system))
}

/// What every instance has in its environment, unless its function has another value for it.
const COMMON: [(&str, &str); 8] = [
    ("LAMBDA_TASK_ROOT", TASK_ROOT),
    ("LAMBDA_RUNTIME_DIR", RUNTIME_ROOT),
    ("LANG", "C.UTF-8"),
    ("TZ", ":UTC"),
    ("HOME", "/tmp"),
    ("TMPDIR", "/tmp"),
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("PYTHONDONTWRITEBYTECODE", "1"),
];
/// What the interpreter, packages that it imports by itself, or the system's libraries may have read by the time they have started; beside
/// what all have.
const READ_EARLY: [&str; 15] = [
    "COVERAGE_",
    "GCONV_PATH",
    "GLIBC_",
    "LANGUAGE",
    "LC_",
    "LD_",
    "LOCPATH",
    "MALLOC_",
    "NLSPATH",
    "OPENSSL_",
    "PYTHON",
    "SETUPTOOLS_",
    SPARE_VARIABLE,
    "SSL_",
    "TZDIR",
];

/// The environment of an interpreter that is nobody's yet.
pub(crate) fn spare_environment() -> Vec<(OsString, OsString)> {
    COMMON
        .map(|(name, value)| (name.into(), value.into()))
        .into()
}

/// Whether an interpreter with [`spare_environment`] starts as one with that of `function`, whose own is told to it later.
pub(crate) fn starts_alike(function: &Function) -> bool {
    function.environment.keys().all(|name| {
        !COMMON.iter().any(|(common, _)| common == name)
            && !READ_EARLY.iter().any(|early| name.starts_with(early))
    })
}

/// Where an instance finds the server, which its launcher alone knows: the variables that say so, for the `address` of its listener.
pub(crate) fn served_at(address: &str) -> [(&'static str, String); 2] {
    [
        ("AWS_LAMBDA_RUNTIME_API", address.to_owned()),
        ("LANDFAST_URL", format!("http://{address}")),
    ]
}

/// The environment of an instance, but for [where it finds the server](served_at).
pub(crate) fn environment(function: &Function) -> Vec<(OsString, OsString)> {
    let memory_mb = function.memory_bytes >> 20;
    let stream = format!("{}/[$LATEST]", function.name);
    let mut variables = vec![
        ("AWS_LAMBDA_FUNCTION_NAME", function.name.clone()),
        ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".to_owned()),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory_mb.to_string()),
        (
            "AWS_LAMBDA_LOG_GROUP_NAME",
            format!("/aws/lambda/{}", function.name),
        ),
        ("AWS_LAMBDA_LOG_STREAM_NAME", stream),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand".to_owned()),
        ("AWS_REGION", REGION.to_owned()),
        ("AWS_DEFAULT_REGION", REGION.to_owned()),
        ("_HANDLER", function.handler.clone()),
    ];
    variables.extend(COMMON.map(|(name, value)| (name, value.to_owned())));
    variables.retain(|(name, _)| !function.environment.contains_key(*name));
    let own = function
        .environment
        .iter()
        .map(|(name, value)| (OsString::from(name), value.into()));
    variables
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .chain(own)
        .collect()
}

const REGION: &str = "us-east-1";

/// What a function is called in full.
pub(crate) fn arn(function: &Function) -> String {
    format!(
        "arn:aws:lambda:{REGION}:000000000000:function:{}",
        function.name
    )
}
