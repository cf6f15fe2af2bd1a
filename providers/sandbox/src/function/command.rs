//! The command and the environment of an instance, as Lambda functions expect them.

use std::{
    ffi::OsString,
    iter,
    path::{Path, PathBuf},
};

use ports::runtime::{Function, Language};

use super::interpreters::{Interpreter, Interpreters};
use crate::order::{RUNTIME_ROOT, SPARE_VARIABLE, TASK_ROOT};

/// Makes Python report its path, prefixes and version, and compile the clients, so that instances need not.
const QUERY_PYTHON: &str = "
import compileall, sys
print(sys.executable); print(sys.prefix); print(sys.base_prefix); print('version %d.%d' % sys.version_info[:2])
compileall.compile_dir(sys.argv[1], ddir=sys.argv[2], quiet=2)
";
/// Makes Python serve the handler in its second argument, with the client in the folder of its
/// first. Without a second argument it is a spare, and waits for its handler.
const START_PYTHON: &str =
    "import sys; sys.path[0] = sys.argv.pop(1); import landfast_runtime; landfast_runtime.main()";
/// The same without the packages of the interpreter (with `-S`), so that a function on the machine's
/// own interpreter sees only what it brings. The names that packages expect among the builtins are
/// set as the interpreter would.
const START_PYTHON_ALONE: &str = "import sys; sys.path[0] = sys.argv.pop(1); import site; site.setquit(); site.setcopyright(); site.sethelper(); \
     import landfast_runtime; landfast_runtime.main()";
/// Makes Node.js report its path, its folder and its version.
const QUERY_NODE: &str = "console.log(process.execPath); \
    console.log(require('path').dirname(require('path').dirname(process.execPath))); \
    console.log('version ' + process.versions.node.split('.')[0])";

/// The program of `function`, whose code is in the host's folder `code`, with its arguments as seen
/// inside; and the folders of the machine that it needs, beside the system's. Errors: what is
/// missing, and what to do about it.
pub(crate) async fn command(
    function: &Function,
    code: &Path,
    interpreters: &Interpreters,
) -> Result<(Vec<OsString>, Vec<PathBuf>), String> {
    let handler = &function.handler;
    let found = interpreter(function, interpreters).await?;
    match (&function.language, found) {
        (Language::Python(chosen), Some(python)) => {
            // An interpreter that the manifest names is there for its packages.
            let start = match chosen {
                Some(_) => &["-u", "-c", START_PYTHON][..],
                None => &["-u", "-S", "-c", START_PYTHON_ALONE],
            };
            let arguments = start.iter().copied().chain([RUNTIME_ROOT, handler]);
            let arguments = arguments.map(OsString::from);
            let command = iter::once(python.program).chain(arguments).collect();
            Ok((command, python.folders))
        }
        (Language::Node(_), Some(node)) => {
            let client = format!("{RUNTIME_ROOT}/landfast_runtime.mjs");
            let command = vec![node.program, client.into(), handler.into()];
            Ok((command, node.folders))
        }
        _ if code.join(handler).is_file() => {
            let command = vec![format!("{TASK_ROOT}/{handler}").into()];
            Ok((command, Vec::new()))
        }
        _ => Err(format!(
            "{handler:?} is not in the code of {:?}",
            function.name
        )),
    }
}

/// The interpreter of `function`; none: its handler is an executable.
async fn interpreter(
    function: &Function,
    interpreters: &Interpreters,
) -> Result<Option<Interpreter>, String> {
    match &function.language {
        Language::Python(chosen) => {
            let clients = interpreters.runtime.to_string_lossy();
            let query = ["-c", QUERY_PYTHON, &clients, RUNTIME_ROOT];
            let found = interpreters.find(chosen.as_deref(), "python3", &query);
            found.await.map(Some)
        }
        Language::Node(chosen) => {
            let query = ["-e", QUERY_NODE];
            let found = interpreters.find(chosen.as_deref(), "node", &query);
            found.await.map(Some)
        }
        Language::Executable => Ok(None),
    }
}

/// Errors: the manifest wants another version of the interpreter than there is.
pub(crate) async fn check_version(
    function: &Function,
    interpreters: &Interpreters,
) -> Result<(), String> {
    let Some(wanted) = &function.runtime_version else {
        return Ok(());
    };
    let Some(found) = interpreter(function, interpreters).await? else {
        return Ok(());
    };
    let is = &found.version;
    if is == wanted {
        return Ok(());
    }
    let (asked, any, own, field) = match &function.language {
        Language::Python(_) => (
            format!("python{wanted}"),
            "python3",
            format!("python{is}"),
            "python",
        ),
        _ => (
            format!("nodejs{wanted}.x"),
            "node",
            format!("nodejs{is}.x"),
            "node",
        ),
    };
    let program = found.program.to_string_lossy();
    Err(format!(
        "runtime = {asked:?}, and {program} is of version {is}: write runtime = {any:?} or {own:?}, or name an interpreter \
         of version {wanted} as {field} = \"/PATH\""
    ))
}

/// The variables of every instance, unless its function sets them.
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
/// Variables that the interpreter, packages it imports by itself, or the system's libraries may
/// read before the function starts; in addition to the common ones.
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

/// The environment of a spare interpreter.
pub(crate) fn spare_environment() -> Vec<(OsString, OsString)> {
    COMMON
        .map(|(name, value)| (name.into(), value.into()))
        .into()
}

/// Whether an interpreter with [`spare_environment`] starts like one with the environment of
/// `function`, which it gets later.
pub(crate) fn starts_alike(function: &Function) -> bool {
    function.environment.keys().all(|name| {
        !COMMON.iter().any(|(common, _)| common == name)
            && !READ_EARLY.iter().any(|early| name.starts_with(early))
    })
}

/// The environment of an instance, except the [server's address](crate::order::served_at).
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

pub(crate) fn arn(function: &Function) -> String {
    format!(
        "arn:aws:lambda:{REGION}:000000000000:function:{}",
        function.name
    )
}
