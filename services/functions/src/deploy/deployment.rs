//! A stored application: a row with its manifest, and the archive with its code among the objects.
//!
//! The row decides. An archive is put before the row that names it, and removed after no row does.
//! Its name is the digest of its content, so putting it again changes nothing. A death in between
//! leaves an archive that no row names, and the next start removes it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use ports::{
    Condition, Error, ErrorKind, Item, Key, Result, Update,
    key_value::{Outcome, Scan, SharedKeyValue, Test, Updated, Value},
    objects::{
        ObjectError, ObjectPath, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload,
        failed,
    },
    runtime::Function,
};
use sha2::{Digest as _, Sha256};

use crate::{
    ids::hexadecimal,
    manifest::{Manifest, Table, TimerRule},
};

const PARTITION: &str = "landfast.applications";
const FOLDER: &str = "landfast.applications";
const PAGE_ITEMS: usize = 100;

const MANIFEST: &str = "manifest";
const ARCHIVE: &str = "archive";
const GENERATION: &str = "generation";
const DEPLOYED: &str = "deployed";
const INCARNATION: &str = "incarnation";
/// The prefix of the attributes with the timer periods of functions, in milliseconds; 0: disarmed.
const TIMER: &str = "timer/";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Deployment {
    pub(crate) manifest: Manifest,
    /// Why this build refuses the manifest, which is empty then: another build took it.
    pub(crate) refused: Option<String>,
    pub(crate) text: String,
    pub(crate) archive: String,
    /// Grows with each change.
    pub(crate) generation: u64,
    /// The generation of the last deployment. Setting a timer changes only the generation.
    pub(crate) deployed: u64,
    /// Chosen by the first deployment after a removal. 0: an earlier version of this program made it.
    pub(crate) incarnation: u64,
    /// Timers that were armed or disarmed at run time, by function.
    pub(crate) timers: BTreeMap<String, u64>,
}

/// The rows as this process knows them, by application.
pub(crate) type Rows = BTreeMap<String, Deployment>;

impl Deployment {
    /// When the timer of `function` fires, if it is armed.
    pub(crate) fn timer(&self, function: &str) -> Option<TimerRule> {
        match self.timers.get(function) {
            Some(0) => None,
            Some(ms) => Some(Duration::from_millis(*ms).into()),
            None => self.manifest.functions.get(function)?.timer(),
        }
    }

    pub(crate) fn revision(&self) -> String {
        format!("{}-{}", self.deployed, self.archive)
    }

    pub(crate) fn functions(&self) -> impl Iterator<Item = Arc<Function>> {
        let revision = self.revision();
        let tables = self.manifest.functions.iter();
        tables.map(move |(name, table)| {
            table.function(name, &self.archive, &revision, self.incarnation)
        })
    }

    /// The timers that were set at run time and that are the same in `manifest` as in this one.
    pub(crate) fn kept_timers(&self, manifest: &Manifest) -> BTreeMap<String, u64> {
        let timer =
            |manifest: &Manifest, name: &str| manifest.functions.get(name).map(Table::timer);
        let kept = self
            .timers
            .iter()
            .filter(|(name, _)| timer(&self.manifest, name) == timer(manifest, name));
        kept.map(|(name, ms)| (name.clone(), *ms)).collect()
    }
}

/// Errors: a queue of `manifest`, as `application`, starts another function already.
pub(crate) fn check_queues(
    all: &Rows,
    application: &str,
    manifest: &Manifest,
) -> Result<(), String> {
    let mut owners = BTreeMap::new();
    for (other, deployment) in all.iter().filter(|(other, _)| *other != application) {
        for (function, queue) in queues(&deployment.manifest) {
            owners.insert(queue, format!("{function:?} of the application {other:?}"));
        }
    }
    for (function, queue) in queues(manifest) {
        if let Some(owner) = owners.insert(queue, format!("{function:?}")) {
            return Err(format!(
                "functions.{function}: the queue {queue:?} starts the function {owner}"
            ));
        }
    }
    Ok(())
}

/// Pairs of a function and a queue that starts it.
fn queues(manifest: &Manifest) -> impl Iterator<Item = (&str, &str)> {
    let functions = manifest.functions.iter();
    functions.flat_map(|(name, table)| {
        table
            .queues()
            .map(|trigger| (name.as_str(), trigger.queue.as_str()))
    })
}

/// The outcome of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Changed {
    /// The row is as wanted, durably.
    Done,
    /// The row was not as the caller knew it. This is in the row, or nothing, and it stays.
    Otherwise(Option<Deployment>),
}

/// The name of an archive with this content.
pub(crate) fn digest(content: &[u8]) -> String {
    hexadecimal(&Sha256::digest(content))
}

#[derive(Debug)]
pub(crate) struct Deployments {
    pub(super) key_value: SharedKeyValue,
    pub(super) objects: Arc<dyn ObjectStore>,
}

impl Deployments {
    pub(crate) async fn all(&self) -> Result<BTreeMap<String, Deployment>> {
        let mut all = BTreeMap::new();
        let mut scan = Scan::partition(Bytes::from_static(PARTITION.as_bytes()), PAGE_ITEMS);
        loop {
            let page = self.key_value.scan(&scan).await?.value;
            for (sort, item) in page.items {
                let name = String::from_utf8_lossy(&sort).into_owned();
                let decoded = decoded(&name, &item)?;
                all.insert(name, decoded);
            }
            match page.next {
                Some(next) => scan.from = next,
                None => return Ok(all),
            }
        }
    }

    /// Stores `deployment` as `name`, unless the row's generation is no longer `known`.
    pub(crate) async fn put(
        &self,
        name: &str,
        deployment: &Deployment,
        known: Option<u64>,
    ) -> Result<Changed> {
        let timers = deployment.timers.iter();
        let attributes = [
            (
                MANIFEST.into(),
                Value::Bytes(Bytes::from(deployment.text.clone())),
            ),
            (
                ARCHIVE.into(),
                Value::Bytes(Bytes::from(deployment.archive.clone())),
            ),
            (
                GENERATION.into(),
                Value::Integer(deployment.generation as i64),
            ),
            (DEPLOYED.into(), Value::Integer(deployment.deployed as i64)),
            (
                INCARNATION.into(),
                Value::Integer(deployment.incarnation as i64),
            ),
        ]
        .into_iter()
        .chain(timers.map(|(name, ms)| ([TIMER, name].concat().into(), Value::Integer(*ms as i64))))
        .collect();
        let update = Update::put(key(name), attributes).when(unchanged(known));
        self.change(name, update, Some(deployment)).await
    }

    /// Removes the row of `name`, unless its generation is no longer `known`.
    pub(crate) async fn delete(&self, name: &str, known: u64) -> Result<Changed> {
        self.change(
            name,
            Update::delete(key(name)).when(unchanged(Some(known))),
            None,
        )
        .await
    }

    /// Applies `update`, which makes the row of `name` `wanted`.
    async fn change(
        &self,
        name: &str,
        update: Update,
        wanted: Option<&Deployment>,
    ) -> Result<Changed> {
        let (item, point) = match self.key_value.update(update).await {
            Ok(Updated {
                outcome: Outcome::Done(_),
                receipt,
            }) => {
                self.key_value.externalize(receipt.point).await?;
                return Ok(Changed::Done);
            }
            Ok(Updated {
                outcome: Outcome::Conflict(item),
                receipt,
            }) => (item, receipt.point),
            // The row tells whether the update happened.
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                let read = self.key_value.get(&key(name)).await?;
                (read.value, read.point)
            }
            Err(error) => return Err(error),
        };
        self.key_value.externalize(point).await?;
        let there = item.map(|item| decoded(name, &item)).transpose()?;
        Ok(if there.as_ref() == wanted {
            Changed::Done
        } else {
            Changed::Otherwise(there)
        })
    }

    pub(crate) async fn put_archive(&self, name: &str, content: Bytes) -> Result<()> {
        let create = PutOptions::from(PutMode::Create);
        match self
            .objects
            .put_opts(&path(name), PutPayload::from(content), create)
            .await
        {
            Ok(_) | Err(ObjectError::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(failed(format!("put the archive {name}"), error)),
        }
    }

    pub(crate) async fn archive(&self, name: &str) -> Result<Bytes> {
        let attempted = || format!("get the archive {name}");
        let found = self
            .objects
            .get(&path(name))
            .await
            .map_err(|error| failed(attempted(), error))?;
        found
            .bytes()
            .await
            .map_err(|error| failed(attempted(), error))
    }

    /// Removes the archive `name`, if it is there.
    pub(crate) async fn delete_archive(&self, name: &str) -> Result<()> {
        match self.objects.delete(&path(name)).await {
            Ok(()) | Err(ObjectError::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(format!("delete the archive {name}"), error)),
        }
    }

    pub(crate) async fn archives(&self) -> Result<Vec<String>> {
        let folder = ObjectPath::from(FOLDER);
        let listed = self.objects.list_with_delimiter(Some(&folder)).await;
        let listed = listed.map_err(|error| failed("list the archives".to_owned(), error))?;
        Ok(listed
            .objects
            .iter()
            .filter_map(|object| object.location.filename().map(str::to_owned))
            .collect())
    }
}

fn unchanged(known: Option<u64>) -> Condition {
    match known {
        Some(generation) => {
            Condition::attribute(GENERATION, Test::Equals(Value::Integer(generation as i64)))
        }
        None => Condition::Absent,
    }
}

fn key(name: &str) -> Key {
    Key::new(
        Bytes::from_static(PARTITION.as_bytes()),
        Bytes::copy_from_slice(name.as_bytes()),
    )
}

fn path(archive: &str) -> ObjectPath {
    ObjectPath::from_iter([FOLDER, archive])
}

fn decoded(name: &str, item: &Item) -> Result<Deployment> {
    decode(item).map_err(|why| Error::corrupt(format!("read the application {name:?}: {why}")))
}

fn decode(item: &Item) -> Result<Deployment, String> {
    let attribute = |name: &str| {
        let bytes = item
            .bytes(name)
            .ok_or_else(|| format!("it has no {name}"))?;
        String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string())
    };
    let (text, archive) = (attribute(MANIFEST)?, attribute(ARCHIVE)?);
    let generation = item.integer(GENERATION).ok_or("it has no generation")? as u64;
    let timers = item.attributes().iter().filter_map(|(name, value)| {
        let function = name.as_str().strip_prefix(TIMER)?;
        match value {
            Value::Integer(ms) => Some((function.to_owned(), *ms as u64)),
            _ => None,
        }
    });
    let timers = timers.collect();
    let deployed = item.integer(DEPLOYED).ok_or("it has no deployment")? as u64;
    let (manifest, refused) = match Manifest::parse(&text) {
        Ok(manifest) => (manifest, None),
        Err(why) => (Manifest::default(), Some(why)),
    };
    Ok(Deployment {
        manifest,
        refused,
        text,
        archive,
        generation,
        deployed,
        incarnation: item.integer(INCARNATION).unwrap_or_default() as u64,
        timers,
    })
}
