//! What an application's file says: its functions, how each is run, and what starts it.
//!
//! ```toml
//! name = "shop"                    # of the application; the file's name without its ending, if absent
//!
//! [functions.resize]
//! runtime = "python3"              # python3 | node | executable
//! code = "functions"               # folder beside the manifest
//! handler = "app.resize"           # module.function, or the executable's file name
//! memory_mb = 256
//! timeout_s = 30
//! concurrency = 8                  # instances at a time
//! retries = 2                      # further attempts of events
//! on_failure = "tell"              # the function that is told of events that failed for good
//! environment = { SIZE = "64" }
//! triggers = [{ queue = "pictures", batch = 10 }, { every_s = 60 }, { http = "/pictures/{id}", methods = ["GET"] }]
//! ```

mod form;
#[cfg(test)]
mod hostile;
pub mod workflow;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use ports::runtime::{Function, Language};
use serde::Deserialize;

use crate::routes::Route;
use workflow::Workflow;

/// The longest manifest.
pub const MANIFEST_BYTES_MAX: usize = 256 * 1024;
/// The longest that is said of what is wrong with one, which may repeat what it says.
const REFUSAL_BYTES_MAX: usize = 2 * 1024;
/// What the manifest is called in an archive.
pub const FILE_NAME: &str = "landfast-application.toml";
/// Functions of one application.
const FUNCTIONS_MAX: usize = 1000;
/// Routes of one application; each method that a trigger names is one.
const ROUTES_MAX: usize = 1000;
const NAME_BYTES_MAX: usize = 64;
const MEMORY_MB: std::ops::RangeInclusive<u64> = 16..=65_536;
const TIMEOUT_S: std::ops::RangeInclusive<u64> = 1..=900;
const CONCURRENCY: std::ops::RangeInclusive<usize> = 1..=1000;
const RETRIES_MAX: u32 = 100;
const BATCH: std::ops::RangeInclusive<usize> = 1..=10;
const PERIOD_S_MAX: u64 = 366 * 24 * 3600;
/// The longest `NAME=value` with its end that Linux gives a process (`MAX_ARG_STRLEN`). All together are bounded by the manifest.
const VARIABLE_BYTES_MAX: usize = 128 * 1024;
/// Variables that tell an instance what it is and where it is served: with others in their place it could not be invoked, or not reach its
/// state. Lambda reserves the same, and the region and credentials, which here are a function's own to say.
const RESERVED_VARIABLES: [&str; 11] = [
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
    "AWS_LAMBDA_FUNCTION_NAME",
    "AWS_LAMBDA_FUNCTION_VERSION",
    "AWS_LAMBDA_INITIALIZATION_TYPE",
    "AWS_LAMBDA_LOG_GROUP_NAME",
    "AWS_LAMBDA_LOG_STREAM_NAME",
    "AWS_LAMBDA_RUNTIME_API",
    "LAMBDA_RUNTIME_DIR",
    "LAMBDA_TASK_ROOT",
    "LANDFAST_URL",
    "_HANDLER",
];

/// An application as its file says it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// What it is called.
    pub name: Option<String>,
    /// Its functions by name.
    #[serde(default)]
    pub functions: BTreeMap<String, Table>,
    /// Its workflows by name, each of functions of the same application.
    #[serde(default)]
    pub workflows: BTreeMap<String, Workflow>,
}

/// What a manifest says of one function.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// What runs it.
    pub runtime: Kind,
    /// The folder with its code, beside the manifest.
    pub code: String,
    /// `module.function`, or the executable's file name.
    pub handler: String,
    /// The interpreter of a `python3` function, if not the machine's `python3`.
    pub python: Option<PathBuf>,
    /// The interpreter of a `node` function, if not the machine's `node`.
    pub node: Option<PathBuf>,
    /// What an instance may use.
    #[serde(default = "defaults::memory_mb")]
    pub memory_mb: u64,
    /// What an invocation may take.
    #[serde(default = "defaults::timeout_s")]
    pub timeout_s: u64,
    /// Instances at a time.
    #[serde(default = "defaults::concurrency")]
    pub concurrency: usize,
    /// Further attempts of events.
    #[serde(default = "defaults::retries")]
    pub retries: u32,
    /// Processes and threads of an instance.
    #[serde(default = "defaults::processes")]
    pub processes: u32,
    /// The size of its `/tmp`.
    #[serde(default = "defaults::scratch_mb")]
    pub scratch_mb: u64,
    /// Whether it reaches the network of the machine.
    #[serde(default)]
    pub network: bool,
    /// What its environment has beside what all have.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The function that is told of events and messages that failed for good.
    pub on_failure: Option<String>,
    /// What starts it.
    #[serde(default)]
    pub triggers: Vec<Trigger>,
}

/// What runs a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Python, by a runtime client that is carried along or by the code's own awslambdaric.
    Python3,
    /// Node.js, the same with aws-lambda-ric.
    Node,
    /// An executable that speaks the Lambda Runtime API by itself.
    Executable,
}

impl Kind {
    /// As a manifest has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Python3 => "python3",
            Self::Node => "node",
            Self::Executable => "executable",
        }
    }
}

/// What starts a function.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    expecting = "a trigger is { queue = NAME, batch = 10 }, { every_s = 60 } or { http = PATH, methods = [\"GET\"] }"
)]
pub enum Trigger {
    /// Messages of a queue, which is made if it is not there.
    Queue(QueueTrigger),
    /// Time.
    Timer(TimerTrigger),
    /// Requests over HTTP.
    Http(HttpTrigger),
}

/// Messages of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueTrigger {
    /// The queue.
    pub queue: String,
    /// Messages of one group at a time at most.
    #[serde(default = "defaults::batch")]
    pub batch: usize,
}

/// Time.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimerTrigger {
    /// The period in seconds.
    pub every_s: u64,
}

/// Requests over HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpTrigger {
    /// Their paths: `/orders/{id}`, `/files/{path+}`.
    pub http: String,
    /// Their methods; none: any.
    pub methods: Option<Vec<String>>,
}

mod defaults {
    pub(super) fn memory_mb() -> u64 {
        128
    }
    pub(super) fn timeout_s() -> u64 {
        30
    }
    pub(super) fn concurrency() -> usize {
        8
    }
    pub(super) fn retries() -> u32 {
        2
    }
    pub(super) fn processes() -> u32 {
        128
    }
    pub(super) fn scratch_mb() -> u64 {
        512
    }
    pub(super) fn batch() -> usize {
        10
    }
}

impl Manifest {
    /// What `text` says. Errors: what is wrong, where, and what would be right.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_whole(text).map_err(|mut why| {
            why.truncate(why.floor_char_boundary(REFUSAL_BYTES_MAX));
            why
        })
    }

    fn parse_whole(text: &str) -> Result<Self, String> {
        if text.len() > MANIFEST_BYTES_MAX {
            return Err(format!("a manifest has {MANIFEST_BYTES_MAX} bytes at most"));
        }
        let mut manifest: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if let Some(name) = &manifest.name {
            check_name("the application", name)?;
        }
        if manifest.functions.is_empty() || manifest.functions.len() > FUNCTIONS_MAX {
            return Err(format!(
                "an application has 1 to {FUNCTIONS_MAX} functions, as [functions.NAME]"
            ));
        }
        for (name, table) in &manifest.functions {
            table
                .check(name)
                .map_err(|why| format!("functions.{name}: {why}"))?;
        }
        for table in manifest.functions.values_mut() {
            table.code = one_way_to_write(&table.code);
        }
        manifest.routes()?;
        for (name, workflow) in &manifest.workflows {
            let said = |why| format!("workflows.{name}: {why}");
            workflow.check(name).map_err(said)?;
            let named = workflow.functions();
            if let Some(function) = named
                .iter()
                .find(|named| !manifest.functions.contains_key(**named))
            {
                return Err(said(format!(
                    "{function:?} is no function of the application"
                )));
            }
        }
        Ok(manifest)
    }

    /// Whether this, as `text` says it, may be deployed as `application`, beyond what is asked of one that is. Errors: what is to be
    /// otherwise.
    pub(crate) fn check_as_new(&self, application: &str, text: &str) -> Result<(), String> {
        form::check(text)?;
        if let Some(name) = self.name.as_ref().filter(|name| *name != application) {
            return Err(format!(
                "the manifest is of the application {name:?}, and it is deployed as {application:?}: let both be one"
            ));
        }
        for (name, table) in &self.functions {
            table
                .check_as_new()
                .map_err(|why| format!("functions.{name}: {why}"))?;
        }
        Ok(())
    }

    /// The routes of its functions. Errors: one that cannot be, or that is there twice.
    pub(crate) fn routes(&self) -> Result<Vec<Route>, String> {
        let mut routes: Vec<Route> = Vec::new();
        for (name, table) in &self.functions {
            for HttpTrigger { http, methods } in table.requests() {
                let parsed = Route::parse(name, http, methods.as_deref());
                for route in parsed.map_err(|why| format!("functions.{name}: {why}"))? {
                    if let Some(same) = routes.iter().find(|known| known.is_same(&route)) {
                        let of = same.function();
                        return Err(format!(
                            "functions.{name}: the route {route} is {same} of functions.{of}"
                        ));
                    }
                    routes.push(route);
                }
            }
        }
        if routes.len() > ROUTES_MAX {
            return Err(format!("an application has {ROUTES_MAX} routes at most"));
        }
        Ok(routes)
    }
}

impl Table {
    fn check(&self, name: &str) -> Result<(), String> {
        check_name("a function", name)?;
        check_folder(&self.code)?;
        within("memory_mb", &self.memory_mb, &MEMORY_MB)?;
        within("timeout_s", &self.timeout_s, &TIMEOUT_S)?;
        within("concurrency", &self.concurrency, &CONCURRENCY)?;
        within("retries", &self.retries, &(0..=RETRIES_MAX))?;
        within("processes", &self.processes, &(1..=10_000))?;
        within("scratch_mb", &self.scratch_mb, &(1..=65_536))?;
        let interpreters = [
            (Kind::Python3, "python", &self.python),
            (Kind::Node, "node", &self.node),
        ];
        for (kind, field, interpreter) in interpreters {
            if interpreter.is_some() && self.runtime != kind {
                return Err(format!("{field} is for runtime = {kind:?} only").to_lowercase());
            }
        }
        match self.runtime {
            Kind::Python3 | Kind::Node
                if self
                    .handler
                    .rsplit_once('.')
                    .is_none_or(|(a, b)| a.is_empty() || b.is_empty()) =>
            {
                return Err(format!(
                    "handler {:?} is to be module.function",
                    self.handler
                ));
            }
            Kind::Executable if self.handler.is_empty() || self.handler.contains('/') => {
                return Err(format!(
                    "handler {:?} is to be the name of a file in {:?}",
                    self.handler, self.code
                ));
            }
            _ => {}
        }
        let is_variable = |name: &String| {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        if let Some(name) = self.environment.keys().find(|name| !is_variable(name)) {
            return Err(format!(
                "environment: {name:?} is no name of a variable (letters, digits, _)"
            ));
        }
        if self.environment.values().any(|value| value.contains('\0')) {
            return Err("environment: a value contains a zero byte".to_owned());
        }
        if let Some(told) = &self.on_failure {
            check_name("on_failure", told)?;
        }
        self.triggers.iter().try_for_each(Trigger::check)?;
        if self
            .triggers
            .iter()
            .filter(|trigger| matches!(trigger, Trigger::Timer(_)))
            .count()
            > 1
        {
            return Err("triggers: one timer at most".to_owned());
        }
        Ok(())
    }

    fn check_as_new(&self) -> Result<(), String> {
        if self.handler.chars().any(char::is_control) {
            return Err(format!(
                "handler {:?} is to have no control characters",
                self.handler
            ));
        }
        for (variable, value) in &self.environment {
            if RESERVED_VARIABLES.contains(&variable.as_str()) {
                return Err(format!(
                    "environment: {variable} is reserved: the server sets it; call it otherwise"
                ));
            }
            // Both sides of an equals sign, and a zero byte.
            let bytes = variable.len() + value.len() + 2;
            if bytes > VARIABLE_BYTES_MAX {
                return Err(format!(
                    "environment: {variable:.64} has {bytes} bytes with its name, and no process can be given more than \
                     {VARIABLE_BYTES_MAX}: let the function read it from a file in its code"
                ));
            }
        }
        Ok(())
    }

    /// The function of this name, whose code is in `archive`.
    pub fn function(&self, name: &str, archive: &str, revision: &str) -> Arc<Function> {
        Arc::new(Function {
            name: name.to_owned(),
            revision: revision.to_owned(),
            language: match self.runtime {
                Kind::Python3 => Language::Python(self.python.clone()),
                Kind::Node => Language::Node(self.node.clone()),
                Kind::Executable => Language::Executable,
            },
            handler: self.handler.clone(),
            archive: archive.to_owned(),
            folder: self.code.clone(),
            memory_bytes: self.memory_mb << 20,
            timeout: Duration::from_secs(self.timeout_s),
            concurrency: self.concurrency,
            processes_max: self.processes,
            scratch_bytes: self.scratch_mb << 20,
            environment: self.environment.clone(),
            network: self.network,
        })
    }

    /// The period of its timer, if it has one.
    pub fn period(&self) -> Option<Duration> {
        self.triggers.iter().find_map(|trigger| match trigger {
            Trigger::Timer(timer) => Some(Duration::from_secs(timer.every_s)),
            Trigger::Queue(_) | Trigger::Http(_) => None,
        })
    }

    /// The queues that start it.
    pub fn queues(&self) -> impl Iterator<Item = &QueueTrigger> {
        self.triggers.iter().filter_map(|trigger| match trigger {
            Trigger::Queue(queue) => Some(queue),
            Trigger::Timer(_) | Trigger::Http(_) => None,
        })
    }

    /// The requests that start it.
    fn requests(&self) -> impl Iterator<Item = &HttpTrigger> {
        self.triggers.iter().filter_map(|trigger| match trigger {
            Trigger::Http(trigger) => Some(trigger),
            Trigger::Queue(_) | Trigger::Timer(_) => None,
        })
    }
}

impl Trigger {
    fn check(&self) -> Result<(), String> {
        match self {
            Self::Queue(trigger) => {
                check_name("a queue", &trigger.queue)?;
                within("batch", &trigger.batch, &BATCH)
            }
            Self::Timer(trigger) => check_period(trigger.every_s),
            // With all routes of the application, which are compared.
            Self::Http(_) => Ok(()),
        }
    }
}

fn within<T: PartialOrd + std::fmt::Display>(
    what: &str,
    value: &T,
    range: &std::ops::RangeInclusive<T>,
) -> Result<(), String> {
    if range.contains(value) {
        return Ok(());
    }
    Err(format!(
        "{what} = {value} is to be {} to {}",
        range.start(),
        range.end()
    ))
}

/// A timer's period, whoever says it.
pub fn check_period(every_s: u64) -> Result<(), String> {
    within("every_s", &every_s, &(1..=PERIOD_S_MAX))
}

/// Names are those of files, of queues and of paths of URLs at once.
pub fn check_name(what: &str, name: &str) -> Result<(), String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_good) {
        return Err(format!(
            "{what}: {name:?} is to be 1 to {NAME_BYTES_MAX} letters, digits, - and _"
        ));
    }
    Ok(())
}

fn check_folder(folder: &str) -> Result<(), String> {
    let is_inside = !folder.is_empty()
        && !folder.starts_with('/')
        && folder.split('/').all(|part| part != "..");
    if !is_inside || folder.contains('\0') {
        return Err(format!(
            "code = {folder:?} is to be a folder beside the manifest, without .."
        ));
    }
    Ok(())
}

/// A folder that [`check_folder`] lets pass, so written that it has one name only; where the manifest lies is `.`.
fn one_way_to_write(folder: &str) -> String {
    let parts: Vec<_> = folder
        .split('/')
        .filter(|part| !matches!(*part, "" | "."))
        .collect();
    if parts.is_empty() {
        ".".to_owned()
    } else {
        parts.join("/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        name = "shop"
        [functions.resize]
        runtime = "python3"
        code = "functions"
        handler = "app.resize"
        memory_mb = 256
        timeout_s = 3
        concurrency = 2
        retries = 0
        on_failure = "tell"
        environment = { SIZE = "64" }
        triggers = [{ queue = "pictures", batch = 5 }, { every_s = 60 }, { http = "/pictures/{id}", methods = ["GET", "PUT"] }]
        [functions.tell]
        runtime = "executable"
        code = "bin"
        handler = "tell"
        triggers = [{ http = "/tell" }]
    "#;

    #[test]
    fn a_manifest_says_what_a_function_is_and_when_it_runs() {
        let manifest = Manifest::parse(WHOLE).expect("whole");
        let resize = &manifest.functions["resize"];
        let function = resize.function("resize", "archive", "1");
        assert_eq!(
            (function.memory_bytes, function.timeout),
            (256 << 20, Duration::from_secs(3))
        );
        assert_eq!(
            (function.concurrency, function.language.clone()),
            (2, Language::Python(None))
        );
        assert_eq!(resize.period(), Some(Duration::from_mins(1)));
        assert_eq!(
            resize
                .queues()
                .map(|queue| (&*queue.queue, queue.batch))
                .collect::<Vec<_>>(),
            [("pictures", 5)]
        );
        assert_eq!((resize.retries, manifest.functions["tell"].retries), (0, 2));
        let routes: Vec<_> = manifest
            .routes()
            .expect("routes")
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            routes,
            ["GET /pictures/{id}", "PUT /pictures/{id}", "ANY /tell"]
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        for (instead, of, said) in [
            (
                "memory_mb = 1",
                "memory_mb = 256",
                "memory_mb = 1 is to be 16 to 65536",
            ),
            (
                "timeout_s = 901",
                "timeout_s = 3",
                "timeout_s = 901 is to be 1 to 900",
            ),
            (
                "code = \"../x\"",
                "code = \"functions\"",
                "a folder beside the manifest",
            ),
            (
                "code = \"/etc\"",
                "code = \"functions\"",
                "a folder beside the manifest",
            ),
            (
                "handler = \"app\"",
                "handler = \"app.resize\"",
                "is to be module.function",
            ),
            (
                "environment = { \"A-B\" = \"\" }",
                "environment = { SIZE = \"64\" }",
                "no name of a variable",
            ),
            ("[functions.\"a b\"]", "[functions.tell]", "letters, digits"),
            ("cores = 2", "retries = 0", "unknown field `cores`"),
            (
                "{ http = \"/tell/\" }",
                "{ http = \"/tell\" }",
                "functions.tell: http = \"/tell/\" is to have no empty",
            ),
            (
                "{ http = \"/pictures/{other}\", methods = [\"PUT\"] }",
                "{ http = \"/tell\" }",
                "functions.tell: the route PUT /pictures/{other} is PUT /pictures/{id} of functions.resize",
            ),
            (
                "{ https = \"/tell\" }",
                "{ http = \"/tell\" }",
                "a trigger is { queue = NAME",
            ),
            (
                "python = \"/p\"\nhandler = \"tell\"",
                "handler = \"tell\"",
                "python is for runtime",
            ),
        ] {
            assert!(WHOLE.contains(of), "{of}");
            let refused = Manifest::parse(&WHOLE.replace(of, instead)).expect_err(instead);
            assert!(refused.contains(said), "{instead}: {refused}");
        }
        assert!(
            Manifest::parse(&WHOLE.replace("\"functions\"", "\"\"")).is_err(),
            "no folder"
        );
        assert!(
            Manifest::parse("")
                .expect_err("empty")
                .contains("1 to 1000 functions")
        );
    }

    #[test]
    fn a_folder_has_one_name_however_it_is_written() {
        for (written, name) in [
            ("code/", "code"),
            ("./code", "code"),
            ("a//b/./", "a/b"),
            (".", "."),
            ("./", "."),
            ("..a", "..a"),
        ] {
            let text = WHOLE.replace("code = \"functions\"", &format!("code = {written:?}"));
            assert_eq!(
                Manifest::parse(&text).expect(written).functions["resize"].code,
                name
            );
        }
    }

    /// One that is deployed is read whatever an earlier build took.
    #[test]
    fn what_cannot_be_run_or_shown_is_refused_to_who_deploys_it_alone() {
        let refusal = |of: &str, instead: &str| {
            assert!(WHOLE.contains(of), "{of}");
            let text = WHOLE.replace(of, instead);
            Manifest::parse(&text)
                .expect("it is read")
                .check_as_new("shop", &text)
        };
        let sized = |bytes: usize| format!("SIZE = \"{}\"", "x".repeat(bytes));
        refusal("SIZE = \"64\"", &sized(128 * 1024 - 6)).expect("as long as may be");
        for (of, instead, said) in [
            (
                "SIZE = \"64\"",
                &*sized(128 * 1024 - 5),
                "functions.resize: environment: SIZE has 131073 bytes",
            ),
            (
                "\"app.resize\"",
                r#""app.re\u001b[2Jsize""#,
                "functions.resize: handler",
            ),
            (
                "\"tell\"\n        triggers",
                "\"te\\u009bll\"\n        triggers",
                "functions.tell: handler",
            ),
            (
                "name = \"shop\"",
                "name = \"zz\"",
                "the application \"zz\", and it is deployed as \"shop\"",
            ),
        ] {
            let why = refusal(of, instead).expect_err(said);
            assert!(why.contains(said), "{why}");
        }
        refusal("name = \"shop\"", "").expect("who deploys it names it");
    }
}
