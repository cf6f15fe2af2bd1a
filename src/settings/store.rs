//! The settings of stores: the provider, and the places of znodes and packed values.

use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};
use serde::Deserialize;

use super::{Options, Settings};

/// The places of data alone, for a command that opens the store without a server. The rest comes
/// from the configuration file.
#[derive(Debug, Clone, Args)]
pub(crate) struct Places {
    /// The data directory [default: ./landfast-data]
    #[arg(long, env = "LANDFAST_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The server's configuration file [default: landfast.toml, if it is there]
    #[arg(long, env = "LANDFAST_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The server's --objects
    #[arg(
        long,
        env = "LANDFAST_OBJECTS",
        value_name = "URL",
        hide_env_values = true
    )]
    objects: Option<String>,
    #[arg(long, env = "LANDFAST_PROVIDER", hide = true)]
    provider: Option<Provider>,
    #[arg(long, env = "LANDFAST_STORE", hide = true)]
    store: Option<String>,
}

impl Places {
    /// The settings of a server with these places.
    pub(crate) fn settle(&self) -> anyhow::Result<Settings> {
        let Self {
            data_dir,
            config,
            objects,
            provider,
            store,
        } = self.clone();
        let options = Options {
            data_dir,
            config,
            provider,
            store,
            objects,
            is_without_server: true,
            ..Options::default()
        };
        options.settle()
    }
}

/// The place of a znode's data. The rest of a znode is always in items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum UserStore {
    /// In items: cheapest to read while data is small
    #[default]
    Kv,
    /// In objects: cheapest to keep
    Objects,
    /// In items up to 4 KiB, in objects beyond, where objects become cheaper to read
    Hybrid,
}

/// When functions bring what they cache of volumes up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum VolumesCache {
    /// All of it as an invocation begins.
    #[default]
    Eager,
    /// Each file as it is first read.
    Lazy,
}

impl From<VolumesCache> for files::cache::Policy {
    fn from(cache: VolumesCache) -> Self {
        match cache {
            VolumesCache::Eager => Self::Eager,
            VolumesCache::Lazy => Self::Lazy,
        }
    }
}

/// The provider of items and queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Provider {
    /// One process, one data directory
    #[default]
    Embedded,
    /// PostgreSQL (not in this build)
    Postgres,
    /// Redis or Valkey, one server or a cluster, at --store
    Redis,
    /// Amazon's services (not in this build)
    Aws,
}

/// The place of items and queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreSettings {
    /// In the data directory.
    Embedded,
    Redis(redis_provider::Config),
}

impl StoreSettings {
    /// The name for `--provider`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Redis(_) => "redis",
        }
    }
}

/// The place of objects that is not that of the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ObjectSettings {
    Directory(PathBuf),
    S3(s3_objects::Config),
}

impl Options {
    pub(super) fn refuse_what_is_not_here(&self) -> anyhow::Result<()> {
        let provider = self.provider.unwrap_or_default();
        if matches!(provider, Provider::Postgres | Provider::Aws) {
            let name = format!("{provider:?}").to_lowercase();
            bail!("provider {name:?} is not in this build, which offers embedded and redis");
        }
        Ok(())
    }

    pub(super) fn object_settings(&self) -> anyhow::Result<Option<ObjectSettings>> {
        let Some(url) = &self.objects else {
            return Ok(None);
        };
        if url.starts_with("s3:") {
            let config = s3_objects::Config::from_url(url).context("--objects s3")?;
            return Ok(Some(ObjectSettings::S3(config)));
        }
        let Some(path) = url.strip_prefix("file://") else {
            let scheme = url.split(':').next().unwrap_or_default();
            bail!("--objects {scheme}: not in this build, which takes file:///DIR and s3://BUCKET");
        };
        let is_plain = path.starts_with('/') && !path.contains(['%', '?', '#']);
        ensure!(
            is_plain,
            "--objects {url}: give file:/// and a path as it is, from the root"
        );
        Ok(Some(ObjectSettings::Directory(PathBuf::from(path))))
    }

    pub(super) fn store_settings(&self) -> anyhow::Result<StoreSettings> {
        match (self.provider.unwrap_or_default(), &self.store) {
            (Provider::Redis, None) => {
                bail!("--provider redis takes its address from --store redis://HOST:PORT")
            }
            (Provider::Redis, Some(url)) => {
                ensure!(
                    self.user_store.unwrap_or_default() == UserStore::Kv,
                    "--user-store: with redis the data of znodes is kept in items, kv"
                );
                let config = redis_provider::Config::from_url(url).context("--store")?;
                Ok(StoreSettings::Redis(config))
            }
            (_, None) => Ok(StoreSettings::Embedded),
            (_, Some(_)) => bail!(
                "--store is the address of a shared provider; embedded keeps everything in --data-dir"
            ),
        }
    }
}
