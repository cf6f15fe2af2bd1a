//! A function's table in a manifest: its settings and its triggers.

use std::{collections::BTreeMap, ops::RangeInclusive, path::PathBuf, sync::Arc, time::Duration};

use ports::runtime::{Function, Language};
use serde::Deserialize;

use super::{
    OnlyTable, check_name,
    object_rule::ObjectRule,
    runtime_name::{Kind, RuntimeName},
    timer_rule::TimerRule,
    volumes::{self, Volume},
    within,
};

const MEMORY_MB: RangeInclusive<u64> = 16..=65_536;
pub(super) const TIMEOUT_S: RangeInclusive<u64> = 1..=900;
const CONCURRENCY: RangeInclusive<usize> = 1..=1000;
const RETRIES_MAX: u32 = 100;
const BATCH: RangeInclusive<usize> = 1..=10;
/// The forms of an entry of `triggers`.
const TRIGGERS: &str = "a trigger is { queue = NAME, batch = 10 }, { every_s = 60 }, { cron = \"0 9 * * MON-FRI\", timezone = \"Europe/Vienna\" } or { http = PATH, methods = [\"GET\"] }";
/// The most buckets of a function.
const BUCKETS: RangeInclusive<usize> = 0..=100;
/// The variables of a function with buckets. With other values its S3 clients would not work.
const OBJECTS_VARIABLES: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
];
const PERIOD_S_MAX: u64 = 366 * 24 * 3600;
/// The longest `NAME=value` with its zero byte that Linux passes to a process (`MAX_ARG_STRLEN`).
/// The manifest's length bounds all variables together.
const VARIABLE_BYTES_MAX: usize = 128 * 1024;
/// Variables that tell an instance its identity and the server's address. With other values it
/// could not be invoked, or not reach its state. Lambda reserves these too. It also reserves the
/// region and credentials, which a function may set here.
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

/// A function's table in a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Its interpreter.
    pub runtime: RuntimeName,
    /// The folder with its code, relative to the manifest.
    pub code: String,
    /// `module.function`, or the executable's file name.
    pub handler: String,
    /// The interpreter of a `python3` function; default: the machine's `python3`.
    pub python: Option<PathBuf>,
    /// The interpreter of a `node` function; default: the machine's `node`.
    pub node: Option<PathBuf>,
    /// The memory limit of an instance.
    #[serde(default = "number::<128, _>")]
    pub memory_mb: u64,
    /// The timeout of an invocation.
    #[serde(default = "number::<30, _>")]
    pub timeout_s: u64,
    /// The most instances at a time.
    #[serde(default = "number::<8, _>")]
    pub concurrency: usize,
    /// Further attempts of events.
    #[serde(default = "number::<2, _>")]
    pub retries: u32,
    /// The most processes and threads of an instance.
    #[serde(default = "number::<128, _>")]
    pub processes: u32,
    /// The size of its `/tmp`.
    #[serde(default = "number::<512, _>")]
    pub scratch_mb: u64,
    /// Whether it reaches the machine's network.
    #[serde(default)]
    pub network: bool,
    /// Variables in addition to those of every function.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The buckets of objects that it reaches over S3.
    #[serde(default)]
    pub objects: Vec<String>,
    /// The volume of files that it sees, by its directory.
    #[serde(default)]
    pub volumes: BTreeMap<String, Volume>,
    /// The objects whose changes start it.
    #[serde(default, deserialize_with = "super::optional_table")]
    pub on_object: Option<ObjectRule>,
    /// The function that gets a notice of each permanently failed event or message.
    pub on_failure: Option<String>,
    /// Its triggers.
    #[serde(default)]
    pub triggers: Vec<Trigger>,
}

/// A trigger of a function.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "OnlyTable<Entry>")]
pub enum Trigger {
    /// Messages of a queue, which is created if it is missing.
    Queue(QueueTrigger),
    /// A period, or local times.
    Timer(TimerRule),
    /// Requests over HTTP.
    Http {
        /// Their paths: `/orders/{id}`, `/files/{path+}`.
        paths: String,
        /// Their methods; none: any method.
        methods: Option<Vec<String>>,
    },
}

/// Messages of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueTrigger {
    /// The queue.
    pub queue: String,
    /// The most messages in a batch, all of one group.
    pub batch: usize,
}

/// An entry of `triggers`, of any form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    queue: Option<String>,
    batch: Option<usize>,
    every_s: Option<u64>,
    cron: Option<String>,
    timezone: Option<String>,
    http: Option<String>,
    methods: Option<Vec<String>>,
}

impl TryFrom<OnlyTable<Entry>> for Trigger {
    type Error = String;

    fn try_from(OnlyTable(entry): OnlyTable<Entry>) -> Result<Self, Self::Error> {
        match entry {
            Entry {
                queue: Some(queue),
                batch,
                every_s: None,
                cron: None,
                timezone: None,
                http: None,
                methods: None,
            } => Ok(Self::Queue(QueueTrigger {
                queue,
                batch: batch.unwrap_or(*BATCH.end()),
            })),
            Entry {
                every_s: Some(every_s),
                queue: None,
                batch: None,
                cron: None,
                timezone: None,
                http: None,
                methods: None,
            } => {
                check_period(every_s)?;
                Ok(Self::Timer(Duration::from_secs(every_s).into()))
            }
            Entry {
                cron: Some(cron),
                timezone,
                queue: None,
                batch: None,
                every_s: None,
                http: None,
                methods: None,
            } => {
                let zone = timezone.as_deref().unwrap_or("UTC");
                TimerRule::cron(&cron, zone).map(Self::Timer)
            }
            Entry {
                http: Some(paths),
                methods,
                queue: None,
                batch: None,
                every_s: None,
                cron: None,
                timezone: None,
            } => Ok(Self::Http { paths, methods }),
            _ => Err(TRIGGERS.to_owned()),
        }
    }
}

/// A default of a number.
fn number<const N: u32, T: TryFrom<u32>>() -> T {
    T::try_from(N).ok().expect("defaults are small")
}

impl Table {
    pub(super) fn check(&self, name: &str) -> Result<(), String> {
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
            if interpreter.is_some() && self.runtime.kind != kind {
                return Err(format!("{field} is for runtime = {kind:?} only").to_lowercase());
            }
        }
        self.check_handler()?;
        self.check_environment()?;
        self.check_objects()?;
        volumes::check(&self.volumes)?;
        if let Some(notified) = &self.on_failure {
            check_name("on_failure", notified)?;
        }
        self.triggers.iter().try_for_each(Trigger::check)?;
        let is_timer = |trigger: &&Trigger| matches!(trigger, Trigger::Timer(_));
        if self.triggers.iter().filter(is_timer).count() > 1 {
            return Err("triggers: one timer at most".to_owned());
        }
        Ok(())
    }

    fn check_handler(&self) -> Result<(), String> {
        let (handler, code) = (&self.handler, &self.code);
        if handler.chars().any(char::is_control) {
            return Err(format!(
                "handler {handler:?} must have no control characters"
            ));
        }
        let is_executable = self.runtime.kind == Kind::Executable;
        if is_executable && (handler.is_empty() || handler.contains('/')) {
            return Err(format!(
                "handler {handler:?} must be the name of a file in {code:?}"
            ));
        }
        let parts = handler.rsplit_once('.');
        let is_qualified = parts.is_some_and(|(a, b)| !a.is_empty() && !b.is_empty());
        if !is_executable && !is_qualified {
            return Err(format!("handler {handler:?} must be module.function"));
        }
        Ok(())
    }

    fn check_objects(&self) -> Result<(), String> {
        within("the buckets of objects", &self.objects.len(), &BUCKETS)?;
        let is_good =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        let is_bucket =
            |bucket: &&String| (3..=63).contains(&bucket.len()) && bucket.bytes().all(is_good);
        let rule = self.on_object.iter();
        if rule.clone().any(|rule| rule.events.is_empty()) {
            return Err("on_object: events must name created, removed or both".to_owned());
        }
        let mut named = self.objects.iter().chain(rule.map(|rule| &rule.bucket));
        if let Some(bucket) = named.find(|bucket| !is_bucket(bucket)) {
            return Err(format!(
                "objects: {bucket:?} must be the name of a bucket: 3 to 63 lowercase letters, digits, - and ."
            ));
        }
        let mut set = OBJECTS_VARIABLES.iter();
        match set.find(|variable| self.environment.contains_key(**variable)) {
            Some(variable) if !self.objects.is_empty() => Err(format!(
                "environment: the server sets {variable} for objects; leave one of the two out"
            )),
            _ => Ok(()),
        }
    }

    fn check_environment(&self) -> Result<(), String> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        for (variable, value) in &self.environment {
            if variable.is_empty() || !variable.bytes().all(is_good) {
                return Err(format!(
                    "environment: {variable:?} is no name of a variable (letters, digits, _)"
                ));
            }
            if value.contains('\0') {
                return Err("environment: a value contains a zero byte".to_owned());
            }
            if RESERVED_VARIABLES.contains(&variable.as_str()) {
                return Err(format!(
                    "environment: {variable} is reserved: the server sets it; choose another name"
                ));
            }
            // The equals sign and a zero byte are two more.
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

    /// The function `name`, for the runtime. Its code is in `archive`.
    pub fn function(
        &self,
        name: &str,
        archive: &str,
        revision: &str,
        incarnation: u64,
    ) -> Arc<Function> {
        Arc::new(Function {
            name: name.to_owned(),
            revision: revision.to_owned(),
            language: match self.runtime.kind {
                Kind::Python3 => Language::Python(self.python.clone()),
                Kind::Node => Language::Node(self.node.clone()),
                Kind::Executable => Language::Executable,
            },
            runtime_version: self.runtime.version.clone(),
            handler: self.handler.clone(),
            archive: archive.to_owned(),
            folder: self.code.clone(),
            memory_bytes: self.memory_mb << 20,
            timeout: Duration::from_secs(self.timeout_s),
            concurrency: self.concurrency,
            processes_max: self.processes,
            scratch_bytes: self.scratch_mb << 20,
            environment: self.environment.clone(),
            buckets: self.objects.clone(),
            volume: volumes::for_runtime(&self.volumes),
            incarnation,
            network: self.network,
        })
    }

    /// When its timer fires, if it has one.
    pub fn timer(&self) -> Option<TimerRule> {
        self.triggers.iter().find_map(|trigger| match trigger {
            Trigger::Timer(rule) => Some(rule.clone()),
            Trigger::Queue(_) | Trigger::Http { .. } => None,
        })
    }

    /// The queues that start it.
    pub fn queues(&self) -> impl Iterator<Item = &QueueTrigger> {
        self.triggers.iter().filter_map(|trigger| match trigger {
            Trigger::Queue(queue) => Some(queue),
            Trigger::Timer(_) | Trigger::Http { .. } => None,
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
            // A timer is checked when it is parsed, and a route with all of the application.
            Self::Timer(_) | Self::Http { .. } => Ok(()),
        }
    }
}

/// Checks a timer's period, in seconds.
pub fn check_period(every_s: u64) -> Result<(), String> {
    within("every_s", &every_s, &(1..=PERIOD_S_MAX))
}

fn check_folder(folder: &str) -> Result<(), String> {
    let is_inside = !folder.is_empty()
        && !folder.starts_with('/')
        && folder.split('/').all(|part| part != "..");
    if !is_inside || folder.contains('\0') {
        return Err(format!(
            "code = {folder:?} must be a folder beside the manifest, without .."
        ));
    }
    Ok(())
}

/// A folder that [`check_folder`] accepts, in the one spelling that the store uses; the manifest's
/// own folder is `.`.
pub(super) fn normalised(folder: &str) -> String {
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
