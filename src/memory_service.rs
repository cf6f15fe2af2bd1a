//! Wires the memory service: its stores, the program of its instances, and the keys of its clients.

use std::{
    env, fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, ensure};
use embedded::ObjectDirectory;
use in_process::{SystemClock, SystemEntropy};
use memory::{Config, Parts, Service};
use ports::{
    Condition, Entropy as _, Instances, Key, KeyValue, Update,
    key_value::Value,
    metering::{Meter, MeteredKeyValue, MeteredObjects},
    objects::ObjectStore,
};
use s3_frontend::Credentials;

use crate::{
    provider::{NamedObjects, Provider},
    settings,
};

/// The file of generated keys, as AWS's tools read it.
pub(crate) const CREDENTIALS_FILE: &str = "s3-credentials";
/// The folder in the data directory for objects that a distant store does not have yet.
pub(crate) const BUFFER_DIRECTORY: &str = "memory-buffer";
const ACCESS_KEY_VARIABLE: &str = "LANDFAST_S3_ACCESS_KEY";
const SECRET_KEY_VARIABLE: &str = "LANDFAST_S3_SECRET_KEY";
const ACCESS_KEY_LINE: &str = "aws_access_key_id = ";
const SECRET_KEY_LINE: &str = "aws_secret_access_key = ";
/// The attribute of the row of keys in a shared store.
const KEYS: &str = "keys";
/// The memory of an instance of function memory, if the bound on all allows some groups of them.
const INSTANCE_BYTES: u64 = 512 << 20;
/// The groups that the bound allows, if instances are not too small then. With fewer groups, full
/// memory would release much at a time.
const GROUPS_MIN: u64 = 4;
/// The least memory of an instance.
const INSTANCE_BYTES_MIN: u64 = 64 << 20;

/// The buffer before a distant store of objects. None: objects are on a disk, or with everything else.
pub(crate) async fn buffer(
    provider: &Provider,
    objects: Option<&NamedObjects>,
    settings: &settings::Settings,
) -> anyhow::Result<Option<ObjectDirectory>> {
    if !matches!(objects, Some(NamedObjects::Distant(_))) {
        return Ok(None);
    }
    ensure!(
        !provider.is_shared(),
        "--objects s3: with a shared store, objects of S3 clients would wait in a folder that other processes do not reach; give --objects file:///DIR with a shared DIR, or --s3 off"
    );
    let directory = settings.data_dir.join(BUFFER_DIRECTORY);
    let named = format!("{}: the buffer of objects", directory.display());
    let opened = embedded::open_objects(directory).await.context(named)?;
    Ok(Some(opened))
}

/// The service over the provider's stores, on an object store and the buffer before it.
pub(crate) fn service(
    provider: &Provider,
    (objects, buffer): (Arc<dyn ObjectStore>, Option<Arc<dyn ObjectStore>>),
    instances: Arc<dyn Instances>,
    meter: &Arc<Meter>,
    settings: settings::Memory,
) -> anyhow::Result<Service> {
    let program =
        env::current_exe().context("the path of this program, which serves as function memory")?;
    let items: Arc<dyn KeyValue> = Arc::clone(&provider.memory_rows);
    let parts = Parts {
        key_value: Arc::new(MeteredKeyValue::new(items, Arc::clone(meter))),
        objects: MeteredObjects::around(objects, Arc::clone(meter)),
        buffer,
        instances,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy::default()),
    };
    let mut config = Config {
        command: vec![
            program.to_string_lossy().into_owned(),
            "memory-function".to_owned(),
        ],
        memory_bytes_max: settings.bytes_max,
        gc_interval: settings.gc_interval,
        active_intervals: settings.active_intervals,
        degraded_intervals: settings.degraded_intervals,
        upload_age_max: settings.upload_age_max,
        buffer_bytes_max: settings.buffer_bytes_max,
        is_shared: provider.is_shared(),
        ..Config::default()
    };
    let group = u64::from(config.data_units) + u64::from(config.parity_units);
    let instance_bytes = settings.bytes_max / group / GROUPS_MIN;
    config.instance_bytes = instance_bytes.clamp(INSTANCE_BYTES_MIN, INSTANCE_BYTES);
    Ok(Service::new(parts, &config))
}

/// The keys of S3 clients, and the file that has them, if the environment does not. None: S3 is not
/// served.
pub(crate) async fn keys(
    settings: &settings::Settings,
    provider: &Provider,
) -> anyhow::Result<Option<(Credentials, Option<PathBuf>)>> {
    if settings.s3 == settings::Listen::Off {
        return Ok(None);
    }
    if let Some(keys) = given_keys()? {
        return Ok(Some((keys, None)));
    }
    let path = settings.data_dir.join(CREDENTIALS_FILE);
    let named = || format!("{}: the keys of S3 clients", path.display());
    if !provider.is_shared() {
        let keys = keys_in(&path).with_context(named)?;
        return Ok(Some((keys, Some(path))));
    }
    let items = &*provider.key_value;
    let keys = keys_in_store(items)
        .await
        .context("the keys of S3 clients")?;
    // Clients read the file as with any other provider. The server does not need it.
    let written = fs::create_dir_all(&settings.data_dir).and_then(|()| write(&path, &keys));
    if let Err(error) = written {
        tracing::warn!(%error, "{}: cannot be written. Set {ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE} at each server, or give another --data-dir", named());
        return Ok(Some((keys, None)));
    }
    Ok(Some((keys, Some(path))))
}

/// The keys of a shared store, which the first server makes.
async fn keys_in_store(items: &dyn KeyValue) -> anyhow::Result<Credentials> {
    let key = Key::new("landfast/process", "s3-keys");
    // Repeated, since the response to the first attempt may be lost, and another server may be first.
    loop {
        let read = items.get(&key).await?;
        if let Some(item) = read.value {
            items.externalize(read.point).await?;
            let text = item.bytes(KEYS).cloned().unwrap_or_default();
            return parse(&String::from_utf8_lossy(&text));
        }
        let value = Value::Bytes(text(&generate()).into());
        let update = Update::put(key.clone(), vec![(KEYS.into(), value)]);
        items.update(update.when(Condition::Absent)).await?;
    }
}

/// The keys in the environment. Errors: there is only half of them.
pub(crate) fn given_keys() -> anyhow::Result<Option<Credentials>> {
    let given = |variable| env::var(variable).ok().filter(|key| !key.is_empty());
    match (given(ACCESS_KEY_VARIABLE), given(SECRET_KEY_VARIABLE)) {
        (Some(access_key), Some(secret_key)) => Ok(Some(Credentials {
            access_key,
            secret_key,
        })),
        (None, None) => Ok(None),
        _ => anyhow::bail!("{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}: set both or none"),
    }
}

/// The keys of the file, which is made if it is missing.
fn keys_in(path: &Path) -> anyhow::Result<Credentials> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let keys = generate();
            write(path, &keys)?;
            Ok(keys)
        }
        read => parse(&read?),
    }
}

fn parse(text: &str) -> anyhow::Result<Credentials> {
    let value = |name| text.lines().find_map(|line| line.strip_prefix(name));
    let (access_key, secret_key) = (value(ACCESS_KEY_LINE), value(SECRET_KEY_LINE));
    let credentials = Credentials {
        access_key: access_key.unwrap_or_default().trim().to_owned(),
        secret_key: secret_key.unwrap_or_default().trim().to_owned(),
    };
    ensure!(
        !credentials.access_key.is_empty() && !credentials.secret_key.is_empty(),
        "the file has no keys; remove it, and the next start makes new ones"
    );
    Ok(credentials)
}

fn generate() -> Credentials {
    let entropy = SystemEntropy::default();
    let letters = |count: usize, alphabet: &[u8]| -> String {
        let letter = |_| char::from(alphabet[entropy.below(alphabet.len() as u64) as usize]);
        (0..count).map(letter).collect()
    };
    let capitals = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let all = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    Credentials {
        access_key: letters(20, capitals),
        secret_key: letters(40, all),
    }
}

fn text(keys: &Credentials) -> String {
    let (access_key, secret_key) = (&keys.access_key, &keys.secret_key);
    format!("[default]\n{ACCESS_KEY_LINE}{access_key}\n{SECRET_KEY_LINE}{secret_key}\n")
}

/// Writes keys. The file appears whole, and only its owner reads it.
fn write(path: &Path, keys: &Credentials) -> io::Result<()> {
    // Several servers may do it at the same time.
    let staged = path.with_extension(format!("{}.new", std::process::id()));
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&staged)?;
    file.write_all(text(keys).as_bytes())?;
    file.sync_all()?;
    fs::rename(&staged, path)?;
    path.parent()
        .map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_are_made_once_and_only_their_owner_reads_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(CREDENTIALS_FILE);
        let first = keys_in(&path).expect("made");
        assert_eq!((first.access_key.len(), first.secret_key.len()), (20, 40));
        assert_eq!(
            path.metadata().expect("there").permissions().mode() & 0o777,
            0o600
        );
        let second = keys_in(&path).expect("read");
        assert_eq!(second.secret_key, first.secret_key);
        assert!(parse("[default]\n").is_err());
    }
}
