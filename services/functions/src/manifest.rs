//! The manifest of an application: its functions with their settings and triggers, and its
//! workflows.
//!
//! ```toml
//! name = "shop"                    # of the application; default: the file's name without its extension
//!
//! [functions.resize]
//! runtime = "python3"              # python3 | node | executable
//! code = "functions"               # folder beside the manifest
//! handler = "app.resize"           # module.function, or the executable's file name
//! memory_mb = 256
//! timeout_s = 30
//! concurrency = 8                  # the most instances at a time
//! retries = 2                      # further attempts of events
//! on_failure = "tell"              # the function that gets a notice of each permanently failed event
//! environment = { SIZE = "64" }
//! objects = ["photos"]             # the buckets that it reaches over S3
//! volumes = { "/mnt/data" = "demo" } # the volume of files that it sees, in this directory
//! on_object = { bucket = "photos", prefix = "in/", suffix = ".jpg", events = ["created", "removed"] }
//! triggers = [{ queue = "pictures", batch = 10 }, { every_s = 60 }, { http = "/pictures/{id}", methods = ["GET"] }]
//!
//! [cors]                           # of all its routes
//! allow_origins = ["https://shop.example"]
//! ```

mod object_rule;
mod runtime_name;
mod table;
mod timer_rule;
mod volumes;
pub mod workflow;

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    marker::PhantomData,
    ops::RangeInclusive,
    sync::Arc,
};

use serde::{
    Deserialize, Deserializer,
    de::{IntoDeserializer as _, MapAccess, Visitor, value::MapAccessDeserializer},
};

pub use self::{
    object_rule::{Change, ObjectRule},
    runtime_name::{Kind, RuntimeName},
    table::{QueueTrigger, Table, Trigger, check_period},
    timer_rule::{CronRule, TimerRule},
};
use self::{
    table::{TIMEOUT_S, normalised},
    workflow::Workflow,
};
use crate::{
    cors::Cors,
    routes::{METHODS, Route},
};

/// The longest manifest.
pub const MANIFEST_BYTES_MAX: usize = 256 * 1024;
/// The longest error of a manifest. It may quote the manifest.
const REFUSAL_BYTES_MAX: usize = 2 * 1024;
/// The file name of the manifest in an archive.
pub const FILE_NAME: &str = "landfast-application.toml";
const FUNCTIONS_MAX: usize = 1000;
/// The most routes of an application. Each method that a trigger names is one route.
const ROUTES_MAX: usize = 1000;
const NAME_BYTES_MAX: usize = 64;

/// A parsed manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The application's name.
    pub name: Option<String>,
    /// The CORS settings of its routes. None: its functions answer CORS by themselves.
    #[serde(default, deserialize_with = "shared_table")]
    pub cors: Option<Arc<Cors>>,
    /// Its functions by name.
    #[serde(default, deserialize_with = "tables")]
    pub functions: BTreeMap<String, Table>,
    /// Its workflows by name. Their steps are functions of the same application.
    #[serde(default, deserialize_with = "tables")]
    pub workflows: BTreeMap<String, Workflow>,
}

impl Manifest {
    /// Parses `text`. Errors: the fault, its place, and what to write instead.
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
            table.code = normalised(&table.code);
        }
        manifest.routes()?;
        manifest
            .cors
            .as_ref()
            .map_or(Ok(()), |cors| cors.check(&METHODS))?;
        for (name, workflow) in &manifest.workflows {
            let checked = workflow.check(name, &manifest.functions);
            checked.map_err(|why| format!("workflows.{name}: {why}"))?;
        }
        Ok(manifest)
    }

    /// The routes of its functions. Errors: an invalid route, or one that occurs twice.
    pub(crate) fn routes(&self) -> Result<Vec<Route>, String> {
        let mut routes: Vec<Route> = Vec::new();
        for (name, table) in &self.functions {
            for trigger in &table.triggers {
                let Trigger::Http { paths, methods } = trigger else {
                    continue;
                };
                let parsed = Route::parse(name, paths, methods.as_deref());
                for route in parsed.map_err(|why| format!("functions.{name}: {why}"))? {
                    if let Some(same) = routes.iter().find(|known| known.is_same(&route)) {
                        let of = &same.function;
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

/// A value that is written as a table. Serde would also accept a list of its fields.
struct OnlyTable<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OnlyTable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = OnlyTable<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(members)).map(OnlyTable)
            }
        }
        deserializer.deserialize_map(Members(PhantomData))
    }
}

fn table<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    OnlyTable::deserialize(deserializer).map(|OnlyTable(table)| table)
}

fn optional_table<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    table(deserializer).map(Some)
}

fn shared_table<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Arc<T>>, D::Error> {
    table(deserializer).map(Arc::new).map(Some)
}

fn tables<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    let tables = BTreeMap::<_, OnlyTable<T>>::deserialize(deserializer)?;
    Ok(tables
        .into_iter()
        .map(|(name, OnlyTable(table))| (name, table))
        .collect())
}

/// One of a few words. Serde would also accept the table `{ WORD = {} }`.
fn word<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::deserialize(String::deserialize(deserializer)?.into_deserializer())
}

/// Checks a name, which also serves as a file name, a queue name and a URL segment.
pub fn check_name(what: &str, name: &str) -> Result<(), String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_good) {
        return Err(format!(
            "{what}: {name:?} must be 1 to {NAME_BYTES_MAX} letters, digits, - and _"
        ));
    }
    Ok(())
}

/// Errors: `value` is not in `range`.
fn within<T: PartialOrd + Display>(
    what: &str,
    value: &T,
    range: &RangeInclusive<T>,
) -> Result<(), String> {
    if range.contains(value) {
        return Ok(());
    }
    Err(format!(
        "{what} = {value} must be {} to {}",
        range.start(),
        range.end()
    ))
}

#[cfg(test)]
mod tests;
