//! The settings of the server: flags over `LANDFAST_*` environment over the file over defaults.
//!
//! One struct is the command line, the environment and the file at once, so that no setting can
//! exist in one of them only. This build refuses settings that it lacks by name if going on without
//! them would surprise (another provider, TLS). Otherwise it leaves them out with a warning (the S3
//! listener).

use std::{
    env, fmt,
    net::{SocketAddr, ToSocketAddrs as _},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use clap::{
    Args, Command, ValueEnum,
    error::{ContextKind, ContextValue},
};
use http::uri::Authority;
use serde::Deserialize;

use crate::machine;

/// The file that is read if it exists and `--config` names no other.
const DEFAULT_FILE: &str = "landfast.toml";
/// The longest configuration file that is read.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The most worker threads.
const THREADS_MAX: usize = 1024;
/// How long a stop waits for functions at work by default.
const STOP_WAIT: Duration = Duration::from_secs(10);
/// The longest wait for functions when the server stops. None runs longer.
const STOP_WAIT_S_MAX: u64 = 15 * 60;
/// The lowest limit for packets of ZooKeeper clients.
const PACKET_BYTES_MIN: usize = 1024;

/// All settings, each possibly absent.
#[derive(Debug, Clone, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Options {
    /// Where everything is kept [default: ./landfast-data]
    #[arg(long, env = "LANDFAST_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The configuration file: options by their names with underscores, as data_dir = "DIR" [default: landfast.toml, if it is there]
    #[arg(long, env = "LANDFAST_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// The store of items and queues [default: embedded]
    #[arg(long, env = "LANDFAST_PROVIDER")]
    provider: Option<Provider>,
    /// The address of a shared provider: redis://HOST:PORT, redis+cluster://HOST:PORT,HOST:PORT, each with
    /// ?acknowledged=append-only-file|replicas-N|memory and &namespace=NAME
    #[arg(long, env = "LANDFAST_STORE", value_name = "URL")]
    #[arg(hide_env_values = true)]
    store: Option<String>,
    /// Where values of transactions over 1 KiB lie, many in one object: file:///DIR [default: none, they lie with everything else]
    #[arg(long, env = "LANDFAST_OBJECTS", value_name = "URL")]
    #[arg(hide_env_values = true)]
    objects: Option<String>,
    /// Where ZooKeeper clients connect, or `off` [default: 127.0.0.1:2181]
    #[arg(long, env = "LANDFAST_ZOOKEEPER", value_name = "HOST:PORT")]
    zookeeper: Option<Listen>,
    /// ZooKeeper connections that one address may have open, like maxClientCnxns; 0 for any number [default: 1000]
    #[arg(long, value_name = "COUNT")]
    #[arg(env = "LANDFAST_ZOOKEEPER_CONNECTIONS_PER_ADDRESS")]
    zookeeper_connections_per_address: Option<usize>,
    /// The longest packet of a ZooKeeper client in bytes, like jute.maxbuffer [default: 1048575]
    #[arg(long, value_name = "BYTES")]
    #[arg(env = "LANDFAST_ZOOKEEPER_PACKET_BYTES_MAX")]
    zookeeper_packet_bytes_max: Option<usize>,
    /// Where S3 clients connect, or `off` [default: 127.0.0.1:7601; off with a shared store]
    #[arg(long, env = "LANDFAST_S3", value_name = "HOST:PORT")]
    s3: Option<Listen>,
    /// Where transactions, state, health and status are served, or `off` [default: 127.0.0.1:7600]
    #[arg(long, env = "LANDFAST_HTTP", value_name = "HOST:PORT")]
    http: Option<Listen>,
    /// Where the routes of functions are served, at the root and with nothing else, or `off` [default: 127.0.0.1:7602]
    #[arg(long, env = "LANDFAST_ROUTES", value_name = "HOST:PORT")]
    routes: Option<Listen>,
    /// The names that requests for routes may have in `Host`, beside localhost and loopback addresses; `*` for any, also those
    /// of sites that use DNS rebinding
    #[arg(
        long,
        env = "LANDFAST_ROUTES_HOSTS",
        value_name = "HOST,HOST",
        value_delimiter = ','
    )]
    routes_hosts: Option<Vec<HostName>>,
    /// Where the other processes on a shared store reach the HTTP listener [default: where it is bound to; by the machine's name,
    /// if that is everywhere]
    #[arg(long, env = "LANDFAST_ADVERTISE", value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// The certificate chain, PEM (TLS is not in this build)
    #[arg(long, env = "LANDFAST_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The certificate's key, PEM (TLS is not in this build)
    #[arg(long, env = "LANDFAST_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Listen beyond this machine without TLS: HTTP asks for the token in LANDFAST_TOKEN, if it is set, ZooKeeper and routes
    /// for nothing
    #[arg(long, env = "LANDFAST_INSECURE", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    insecure: Option<bool>,
    /// Worker threads [default: one for each core but one, which syncs and the system use]
    #[arg(long, env = "LANDFAST_THREADS", value_name = "COUNT")]
    threads: Option<usize>,
    /// Where the data of znodes is kept [default: kv]
    #[arg(long, env = "LANDFAST_USER_STORE")]
    user_store: Option<UserStore>,
    /// The most memory of all function memory instances together, in MiB [default: a quarter of this machine's]
    #[arg(long, env = "LANDFAST_MEMORY_TOTAL_MB", value_name = "MIB")]
    memory_total_mb: Option<u64>,
    /// Seconds between two steps in which function memory ages; unused memory is released after 18 to 36 [default: 600]
    #[arg(long, env = "LANDFAST_MEMORY_GC_INTERVAL_S", value_name = "SECONDS")]
    memory_gc_interval_s: Option<u64>,
    /// Steps in which new function memory is active: an instance that dies is replaced [default: 6]
    #[arg(long, env = "LANDFAST_MEMORY_ACTIVE_INTERVALS", value_name = "COUNT")]
    memory_active_intervals: Option<u32>,
    /// Steps in which it is degraded after that: a read moves its object to new memory [default: 12]
    #[arg(long, env = "LANDFAST_MEMORY_DEGRADED_INTERVALS", value_name = "COUNT")]
    memory_degraded_intervals: Option<u32>,
    /// Days after which an upload in parts that is neither completed nor aborted is removed [default: 7]
    #[arg(long, env = "LANDFAST_MEMORY_UPLOAD_AGE_DAYS", value_name = "DAYS")]
    memory_upload_age_days: Option<u32>,
    /// Seconds that a stop waits for functions at work; their callers then learn that the server stopped [default: 10]
    #[arg(long, env = "LANDFAST_STOP_WAIT_S", value_name = "SECONDS")]
    stop_wait_s: Option<u64>,
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

/// The address of a front end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Listen {
    /// Nowhere.
    Off,
    /// At this address; port 0 picks a free one.
    At(SocketAddr),
}

/// A host without a port, in lower case, or `*`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct HostName(pub(crate) String);

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

/// The complete settings, limited to what this build can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) data_dir: PathBuf,
    pub(crate) store: StoreSettings,
    /// The directory for packed values of transactions; `None`: they are not packed.
    pub(crate) objects: Option<PathBuf>,
    pub(crate) zookeeper: Listen,
    /// Zero: no bound of its own.
    pub(crate) zookeeper_connections_per_address: usize,
    /// The store determines the upper bound, which is not known yet.
    pub(crate) zookeeper_packet_bytes_max: usize,
    pub(crate) http: Listen,
    pub(crate) s3: Listen,
    pub(crate) memory: Memory,
    pub(crate) routes: Listen,
    /// The names that `Host` may have there, beside those of this machine.
    pub(crate) routes_hosts: Vec<HostName>,
    /// The address for other processes, if it differs from the bound one.
    pub(crate) advertise: Option<String>,
    pub(crate) threads: usize,
    pub(crate) user_store: UserStore,
    /// How long a stop waits for functions at work.
    pub(crate) stop_wait: Duration,
}

/// The settings of function memory; all but the first as in [`memory::Config`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The bound on the memory of all instances.
    pub(crate) bytes_max: u64,
    pub(crate) gc_interval: Duration,
    pub(crate) active_intervals: u32,
    pub(crate) degraded_intervals: u32,
    pub(crate) upload_age_max: Duration,
}

impl Options {
    /// These options over those of the file over the defaults, checked.
    pub(crate) fn settle(self) -> anyhow::Result<Settings> {
        let file = match &self.config {
            Some(path) => Self::read(path)?,
            None if Path::new(DEFAULT_FILE).exists() => Self::read(Path::new(DEFAULT_FILE))?,
            None => Self::default(),
        };
        let options = self.over(file);
        options.refuse_what_is_not_here()?;
        let settings = Settings {
            data_dir: options
                .data_dir
                .clone()
                .unwrap_or_else(|| PathBuf::from("landfast-data")),
            store: options.store_settings()?,
            objects: options.objects_directory()?,
            zookeeper: options.zookeeper.unwrap_or(Listen::loopback(2181)),
            zookeeper_connections_per_address: options
                .zookeeper_connections_per_address
                .unwrap_or(zookeeper_frontend::Config::CONNECTIONS_PER_ADDRESS_DEFAULT),
            zookeeper_packet_bytes_max: options
                .zookeeper_packet_bytes_max
                .unwrap_or(zookeeper_frontend::Config::PACKET_BYTES_DEFAULT),
            http: options.http.unwrap_or(Listen::loopback(7600)),
            s3: options.s3_listener()?,
            memory: options.memory()?,
            routes: options.routes.unwrap_or(Listen::loopback(7602)),
            routes_hosts: options.routes_hosts.clone().unwrap_or_default(),
            advertise: options.advertised()?,
            threads: options.threads.unwrap_or_else(workers),
            user_store: options.user_store.unwrap_or_default(),
            stop_wait: options.stop_wait_s.map_or(STOP_WAIT, Duration::from_secs),
        };
        settings.check_bounds()?;
        let insecure = options.insecure == Some(true);
        let listeners = [
            ("--zookeeper", settings.zookeeper),
            ("--http", settings.http),
            ("--s3", settings.s3),
            ("--routes", settings.routes),
        ];
        for (flag, listener) in listeners {
            listener.refuse_strangers(flag, insecure)?;
        }
        ensure!(
            listeners
                .iter()
                .any(|(_, listener)| *listener != Listen::Off),
            "--zookeeper, --http, --s3 and --routes are all off: nothing would be served"
        );
        Ok(settings)
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let named = || format!("--config {}", path.display());
        let bytes = std::fs::metadata(path).with_context(named)?.len();
        ensure!(
            bytes <= FILE_BYTES_MAX,
            "{}: larger than {FILE_BYTES_MAX} bytes",
            named()
        );
        toml::from_str(&std::fs::read_to_string(path).with_context(named)?).with_context(named)
    }

    fn over(self, lower: Self) -> Self {
        macro_rules! first_set {
            ($($option:ident)*) => {
                Self {
                    config: self.config,
                    $($option: self.$option.or(lower.$option),)*
                }
            };
        }
        first_set! {
            data_dir provider store objects
            zookeeper zookeeper_connections_per_address zookeeper_packet_bytes_max
            s3 http routes routes_hosts advertise tls_cert tls_key insecure threads user_store
            memory_total_mb memory_gc_interval_s memory_active_intervals memory_degraded_intervals
            memory_upload_age_days stop_wait_s
        }
    }

    fn memory(&self) -> anyhow::Result<Memory> {
        let defaults = memory::Config::default();
        let gc_interval = self.memory_gc_interval_s.map(Duration::from_secs);
        let upload_age = self.memory_upload_age_days;
        let days = |count: u32| Duration::from_hours(24 * u64::from(count));
        let (active, degraded) = (self.memory_active_intervals, self.memory_degraded_intervals);
        ensure!(
            gc_interval.is_none_or(|interval| (1..=86_400).contains(&interval.as_secs())),
            "--memory-gc-interval-s: 1 to 86400"
        );
        ensure!(
            active.is_none_or(|count| (1..=1000).contains(&count)),
            "--memory-active-intervals: 1 to 1000"
        );
        ensure!(
            degraded.is_none_or(|count| count <= 1000),
            "--memory-degraded-intervals: 0 to 1000"
        );
        ensure!(
            upload_age.is_none_or(|days| (1..=3650).contains(&days)),
            "--memory-upload-age-days: 1 to 3650"
        );
        Ok(Memory {
            bytes_max: self
                .memory_total_mb
                .map_or_else(machine::memory_bytes_by_default, |mib| mib << 20),
            gc_interval: gc_interval.unwrap_or(defaults.gc_interval),
            active_intervals: active.unwrap_or(defaults.active_intervals),
            degraded_intervals: degraded.unwrap_or(defaults.degraded_intervals),
            upload_age_max: upload_age.map_or(defaults.upload_age_max, days),
        })
    }

    fn refuse_what_is_not_here(&self) -> anyhow::Result<()> {
        let provider = self.provider.unwrap_or_default();
        if matches!(provider, Provider::Postgres | Provider::Aws) {
            let name = format!("{provider:?}").to_lowercase();
            bail!("provider {name:?} is not in this build, which offers embedded and redis");
        }
        if self.tls_cert.is_some() || self.tls_key.is_some() {
            bail!("--tls-cert and --tls-key: TLS is not in this build; put a TLS proxy in front");
        }
        Ok(())
    }

    /// The address of `--advertise`. It is not resolved here, where its name may mean something
    /// else than to others.
    fn advertised(&self) -> anyhow::Result<Option<String>> {
        let Some(address) = &self.advertise else {
            return Ok(None);
        };
        let is_right = address.parse::<Authority>().is_ok_and(|parsed| {
            let is_whole = !parsed.host().is_empty() && !address.contains('@');
            is_whole && parsed.port_u16().is_some_and(|port| port > 0)
        });
        ensure!(
            is_right,
            "--advertise {address}: give HOST:PORT, as the other processes reach it"
        );
        Ok(Some(address.clone()))
    }

    fn objects_directory(&self) -> anyhow::Result<Option<PathBuf>> {
        let Some(url) = &self.objects else {
            return Ok(None);
        };
        let Some(path) = url.strip_prefix("file://") else {
            let scheme = url.split(':').next().unwrap_or_default();
            bail!("--objects {scheme}: not in this build, which takes file:///DIR");
        };
        let is_plain = path.starts_with('/') && !path.contains(['%', '?', '#']);
        ensure!(
            is_plain,
            "--objects {url}: give file:/// and a path as it is, from the root"
        );
        Ok(Some(PathBuf::from(path)))
    }

    fn store_settings(&self) -> anyhow::Result<StoreSettings> {
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

    /// Objects need a store that this process has to itself.
    fn s3_listener(&self) -> anyhow::Result<Listen> {
        match (self.provider.unwrap_or_default(), self.s3) {
            (Provider::Embedded, listen) => Ok(listen.unwrap_or(Listen::loopback(7601))),
            (_, None | Some(Listen::Off)) => Ok(Listen::Off),
            (_, Some(Listen::At(address))) => bail!(
                "--s3 {address}: with a shared store S3 is not in this build; leave it out, or use the embedded provider"
            ),
        }
    }
}

impl Settings {
    fn check_bounds(&self) -> anyhow::Result<()> {
        ensure!(
            (1..=THREADS_MAX).contains(&self.threads),
            "--threads {}: give 1 to {THREADS_MAX}",
            self.threads
        );
        ensure!(
            self.zookeeper_packet_bytes_max >= PACKET_BYTES_MIN,
            "--zookeeper-packet-bytes-max {}: give {PACKET_BYTES_MIN} or more, or few requests would fit",
            self.zookeeper_packet_bytes_max
        );
        let stop_wait_s = self.stop_wait.as_secs();
        ensure!(
            stop_wait_s <= STOP_WAIT_S_MAX,
            "--stop-wait-s {stop_wait_s}: give at most {STOP_WAIT_S_MAX}, as no function runs longer"
        );
        Ok(())
    }

    /// The store for people to read; without passwords.
    pub(crate) fn place(&self) -> String {
        match &self.store {
            StoreSettings::Embedded => self.data_dir.display().to_string(),
            StoreSettings::Redis(config) => config.to_string(),
        }
    }
}

impl Listen {
    fn loopback(port: u16) -> Self {
        Self::At(SocketAddr::from(([127, 0, 0, 1], port)))
    }

    fn refuse_strangers(self, flag: &str, insecure: bool) -> anyhow::Result<()> {
        match self {
            Self::At(address) if !address.ip().is_loopback() && !insecure => bail!(
                "{flag} {address}: beyond this machine TLS and authentication are required, and TLS is not in this build; \
                 use a loopback address, or --insecure, upon which HTTP asks for LANDFAST_TOKEN, if it is set, and \
                 the ports of ZooKeeper and of routes for nothing"
            ),
            _ => Ok(()),
        }
    }
}

/// The environment variable with the value that `error` is about, if it is from there.
pub(crate) fn variable_to_blame(error: &clap::Error, program: &Command) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    };
    let (named, value) = text(ContextKind::InvalidArg).zip(text(ContextKind::InvalidValue))?;
    let mut options = program.get_subcommands().flat_map(Command::get_arguments);
    let option = options.find(|option| option.to_string() == *named)?;
    let variable = option.get_env()?.to_str()?;
    (env::var(variable).as_ref() == Ok(value)).then(|| variable.to_owned())
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let wrong = |error| format!("expected HOST:PORT or off: {error}");
        let address = text.to_socket_addrs().map_err(wrong)?.next();
        address
            .map(Self::At)
            .ok_or("the host has no address".into())
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.parse::<Authority>();
        // An authority with a port or a user is longer than its host.
        if text == "*" || parsed.is_ok_and(|authority| authority.host() == text) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        Err(
            "expected a host without a port, such as shop.example or [2001:db8::1], or *"
                .to_owned(),
        )
    }
}

impl TryFrom<String> for HostName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

/// The journal and the system's part of network and disk need a core too. An update is a chain of
/// short steps that gain nothing from a further worker: waking one costs more than the step
/// (`BENCHMARKS.md`).
fn workers() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    cores.saturating_sub(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(file: &str) -> Options {
        toml::from_str(file).expect("a configuration file")
    }

    #[test]
    fn an_option_given_above_hides_the_file_and_the_rest_shows_through() {
        let above = Options {
            http: Some(Listen::Off),
            threads: Some(3),
            ..Options::default()
        };
        let below = written(
            "http = \"127.0.0.1:1\"\nzookeeper = \"127.0.0.1:2\"\ndata_dir = \"d\"\nthreads = 9",
        );
        let settings = above.over(below).settle().expect("settings");
        assert_eq!(settings.http, Listen::Off);
        assert_eq!(
            settings.zookeeper,
            "127.0.0.1:2".parse().expect("an address")
        );
        assert_eq!(settings.data_dir, Path::new("d"));
        assert_eq!(settings.threads, 3);
    }

    #[test]
    fn the_hosts_of_routes_are_names_without_a_port() {
        let file = "routes_hosts = [\"Shop.example\", \"[2001:DB8::1]\", \"10.0.0.1\", \"*\"]";
        let hosts = written(file).settle().expect("settings").routes_hosts;
        let hosts: Vec<_> = hosts.into_iter().map(|HostName(host)| host).collect();
        assert_eq!(hosts, ["shop.example", "[2001:db8::1]", "10.0.0.1", "*"]);
        for wrong in [
            "shop.example:80",
            "http://shop.example",
            "a b",
            "",
            "me@shop.example",
            "/",
        ] {
            let refused = wrong.parse::<HostName>().expect_err(wrong);
            assert!(refused.contains("a host without a port"), "{refused}");
        }
    }

    #[test]
    fn what_this_build_lacks_is_refused_by_name() {
        for (file, complaint) in [
            (
                "provider = \"postgres\"",
                "provider \"postgres\" is not in this build",
            ),
            ("provider = \"redis\"", "--store redis://HOST:PORT"),
            ("provider = \"redis\"\nstore = \"http://h\"", "--store"),
            (
                "provider = \"redis\"\nstore = \"redis://h\"\nuser_store = \"objects\"",
                "--user-store",
            ),
            ("store = \"redis://h\"", "--store"),
            (
                "objects = \"s3://key:secret@b\"",
                "--objects s3: not in this build",
            ),
            (
                "objects = \"file://host/b\"",
                "a path as it is, from the root",
            ),
            (
                "objects = \"file:///a%20b\"",
                "a path as it is, from the root",
            ),
            ("tls_cert = \"c\"", "TLS is not in this build"),
            (
                "zookeeper = \"off\"\nhttp = \"off\"\nroutes = \"off\"\ns3 = \"off\"",
                "nothing would be served",
            ),
            ("zookeeper = \"0.0.0.0:0\"", "--zookeeper 0.0.0.0:0"),
            ("http = \"[::]:0\"", "--insecure"),
            ("routes = \"0.0.0.0:0\"", "--routes 0.0.0.0:0"),
            ("advertise = \"host\"", "--advertise host: give HOST:PORT"),
            ("advertise = \"http://host:1/x\"", "--advertise"),
            ("advertise = \"host:0\"", "--advertise"),
            ("threads = 0", "--threads 0"),
            ("stop_wait_s = 901", "--stop-wait-s 901: give at most 900"),
            (
                "zookeeper_packet_bytes_max = 1023",
                "--zookeeper-packet-bytes-max 1023",
            ),
        ] {
            let refused = written(file).settle().expect_err(file).to_string();
            assert!(refused.contains(complaint), "{file}: {refused}");
        }
    }

    #[test]
    fn the_address_for_others_is_taken_as_it_is() {
        for address in ["node-1.example:7600", "[2001:db8::1]:7600", "10.0.0.1:1"] {
            let settings = written(&format!("advertise = \"{address}\""))
                .settle()
                .expect("settings");
            assert_eq!(settings.advertise.as_deref(), Some(address));
        }
    }

    #[test]
    fn objects_are_files_in_a_directory() {
        let settings = written("objects = \"file:///var/lib/landfast\"")
            .settle()
            .expect("settings");
        assert_eq!(
            settings.objects.as_deref(),
            Some(Path::new("/var/lib/landfast"))
        );
        assert_eq!(Options::default().objects_directory().expect("none"), None);
    }

    #[test]
    fn a_shared_store_is_named_without_its_password() {
        let file = "provider = \"redis\"\nstore = \"redis://:hunter2@h:1?namespace=shop\"";
        let settings = written(file).settle().expect("settings");
        assert_eq!(settings.store.name(), "redis");
        assert_eq!(settings.place(), "redis h:1, namespace shop");
        assert!(!format!("{settings:?}").contains("hunter2"));
    }

    #[test]
    fn listening_to_strangers_is_possible_when_asked_for() {
        let settings = written("http = \"0.0.0.0:0\"\ninsecure = true")
            .settle()
            .expect("settings");
        assert_eq!(settings.http, "0.0.0.0:0".parse().expect("an address"));
    }

    #[test]
    fn s3_is_served_on_the_embedded_store_alone() {
        let s3 = |text: &str| written(text).settle().map(|settings| settings.s3);
        assert_eq!(s3("").expect("settings"), Listen::loopback(7601));
        let redis = "provider = \"redis\"\nstore = \"redis://h\"\n";
        assert_eq!(s3(redis).expect("settings"), Listen::Off);
        let refused = s3(&format!("{redis}s3 = \"127.0.0.1:0\"")).expect_err("refused");
        assert!(
            refused.to_string().contains("--s3 127.0.0.1:0"),
            "{refused}"
        );
    }

    #[test]
    fn a_misspelt_setting_is_an_error() {
        assert!(toml::from_str::<Options>("htpp = \"off\"").is_err());
        assert!(toml::from_str::<Options>("config = \"other.toml\"").is_err());
        assert!(toml::from_str::<Options>("http = \"7600\"").is_err());
    }
}
