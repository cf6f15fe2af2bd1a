//! The settings of the server: flags over `LANDFAST_*` environment over the file over defaults.
//!
//! One struct is the command line, the environment and the file at once, so that no setting can
//! exist in one of them only. This build refuses settings that it lacks by name if going on without
//! them would surprise (another provider). Otherwise it leaves them out with a warning (the S3
//! listener).

mod function_memory;
mod listen;
mod security;
mod store;
#[cfg(test)]
mod tests;

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use clap::{
    Args, Command,
    error::{ContextKind, ContextValue},
};
use serde::{Deserialize, Deserializer};

use self::store::Provider;
pub(crate) use self::{
    function_memory::Memory,
    listen::{HostName, Listen, VolumesSocket, is_host_and_port},
    security::{ClientCertificates, Port, Secret, Security},
    store::{ObjectSettings, Places, StoreSettings, UserStore, VolumesCache},
};

/// The file that is read if it exists and `--config` names no other.
const DEFAULT_FILE: &str = "landfast.toml";
/// Where everything is kept if no option says otherwise.
const DEFAULT_DATA_DIR: &str = "landfast-data";
/// The socket of volumes in the data directory.
pub(crate) const VOLUMES_SOCKET: &str = "volumes.sock";
/// The longest configuration file that is read.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The most worker threads.
const THREADS_MAX: usize = 1024;
/// How often containers and TTL znodes are checked by default.
const CONTAINER_CHECK: Duration = Duration::from_mins(1);
/// The longest time between two of these checks: one day.
const CONTAINER_CHECK_MS_MAX: u128 = 86_400_000;
/// How long a stop waits for functions at work by default.
const STOP_WAIT: Duration = Duration::from_secs(10);
/// The longest wait for functions when the server stops. None runs longer.
const STOP_WAIT_S_MAX: u64 = 15 * 60;
/// The bounds of the shortest session timeout. The service wakes four times in it while there are
/// sessions, and each wake also does what waits for the next, such as checks for containers.
const SESSION_TIMEOUT_MIN_MS_MIN: u128 = 1000;
const SESSION_TIMEOUT_MIN_MS_MAX: u128 = 60_000;
/// The bound of the longest session timeout: one day.
const SESSION_TIMEOUT_MS_MAX: u128 = 86_400_000;
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
    /// No server listens with them: the rules of ports do not hold, and the secrets are not read.
    #[arg(skip)]
    #[serde(skip)]
    is_without_server: bool,
    /// The store of items and queues [default: embedded]
    #[arg(long, env = "LANDFAST_PROVIDER")]
    provider: Option<Provider>,
    /// The address of a shared provider: redis://HOST:PORT, redis+cluster://HOST:PORT,HOST:PORT, each with
    /// ?acknowledged=append-only-file|replicas-N|memory and &namespace=NAME
    #[arg(long, env = "LANDFAST_STORE", value_name = "URL")]
    #[arg(hide_env_values = true)]
    store: Option<String>,
    /// Where objects of S3 clients and values of transactions over 1 KiB lie: file:///DIR, or
    /// s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME] with keys from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
    /// [default: none, they lie with everything else]
    #[arg(long, env = "LANDFAST_OBJECTS", value_name = "URL")]
    #[arg(hide_env_values = true)]
    objects: Option<String>,
    /// Where ZooKeeper clients connect, or `off` [default: 127.0.0.1:2181]
    #[arg(long, env = "LANDFAST_ZOOKEEPER", value_name = "HOST:PORT")]
    zookeeper: Option<Listen>,
    /// Where ZooKeeper clients connect with TLS, like secureClientPort, or `off` [default: off]
    #[arg(
        long,
        env = "LANDFAST_ZOOKEEPER_SECURE_LISTEN",
        value_name = "HOST:PORT"
    )]
    zookeeper_secure_listen: Option<Listen>,
    /// Refuse requests of ZooKeeper sessions that have not authenticated, like enforce.auth.enabled
    #[arg(long, env = "LANDFAST_ZOOKEEPER_REQUIRE_AUTH", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    zookeeper_require_auth: Option<bool>,
    /// The account that every ACL of znodes permits, like superDigest: super: and a digest
    #[arg(
        long,
        env = "LANDFAST_ZOOKEEPER_SUPER_DIGEST",
        value_name = "super:BASE64"
    )]
    #[arg(hide_env_values = true)]
    zookeeper_super_digest: Option<String>,
    /// A file with the only accounts whose passwords ZooKeeper's ports accept: lines of USER: and the Base64 of the SHA-1 of
    /// USER:PASSWORD; lines with # are comments. Read at the start
    #[arg(long, env = "LANDFAST_ZOOKEEPER_ACCOUNTS_FILE", value_name = "FILE")]
    zookeeper_accounts_file: Option<PathBuf>,
    /// ZooKeeper connections that one address may have open, like maxClientCnxns; 0 for any number [default: 1000]
    #[arg(long, value_name = "COUNT")]
    #[arg(env = "LANDFAST_ZOOKEEPER_CONNECTIONS_PER_ADDRESS")]
    zookeeper_connections_per_address: Option<usize>,
    /// The shortest session timeout of ZooKeeper clients in milliseconds, like minSessionTimeout [default: 4000]
    #[arg(long, value_name = "MS")]
    #[arg(env = "LANDFAST_ZOOKEEPER_SESSION_TIMEOUT_MIN")]
    zookeeper_session_timeout_min: Option<u64>,
    /// The longest session timeout of ZooKeeper clients in milliseconds, like maxSessionTimeout [default: 40000]
    #[arg(long, value_name = "MS")]
    #[arg(env = "LANDFAST_ZOOKEEPER_SESSION_TIMEOUT_MAX")]
    zookeeper_session_timeout_max: Option<u64>,
    /// The longest packet of a ZooKeeper client in bytes, like jute.maxbuffer [default: 1048575]
    #[arg(long, value_name = "BYTES")]
    #[arg(env = "LANDFAST_ZOOKEEPER_PACKET_BYTES_MAX")]
    zookeeper_packet_bytes_max: Option<usize>,
    /// Milliseconds between two checks for containers and TTL znodes to remove, like
    /// znode.container.checkIntervalMs [default: 60000]
    #[arg(long, value_name = "MS")]
    #[arg(env = "LANDFAST_ZOOKEEPER_CONTAINER_CHECK_MS")]
    zookeeper_container_check_ms: Option<u64>,
    /// Refuse updates beyond the hard limit of a quota, like enforceQuota [default: false]
    #[arg(long, env = "LANDFAST_ZOOKEEPER_ENFORCE_QUOTA", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    zookeeper_enforce_quota: Option<bool>,
    /// The four-letter words that ZooKeeper's port answers beyond this machine, or `*`, like 4lw.commands.whitelist
    /// [default: srvr]
    #[arg(
        long,
        env = "LANDFAST_ZOOKEEPER_FOUR_LETTER_WORDS",
        value_name = "WORD,WORD",
        value_delimiter = ','
    )]
    #[serde(deserialize_with = "words")]
    zookeeper_four_letter_words: Option<Vec<String>>,
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
    /// The socket over which mounts and `landfast files exec` reach volumes, for this user alone, or `off`
    /// [default: volumes.sock in the data directory; off with a shared store]
    #[arg(long, env = "LANDFAST_VOLUMES_SOCKET", value_name = "PATH")]
    volumes_socket: Option<PathBuf>,
    /// When functions bring what they cache of their volumes up to date: all of it as an invocation begins, or each file as it
    /// is first read [default: eager]
    #[arg(long, env = "LANDFAST_VOLUMES_CACHE", value_name = "eager|lazy")]
    volumes_cache: Option<VolumesCache>,
    /// Where the other processes on a shared store reach the HTTP listener [default: where it is bound to; by the machine's name,
    /// if that is everywhere]
    #[arg(long, env = "LANDFAST_ADVERTISE", value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// The certificate chain, PEM: HTTP, S3 and routes then have TLS. A new file is used without a restart
    #[arg(long, env = "LANDFAST_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The certificate's key, PEM
    #[arg(long, env = "LANDFAST_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// The authorities that sign the certificates of clients, PEM. Every port with TLS then requires one
    #[arg(long, env = "LANDFAST_TLS_CLIENT_CA", value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Which ports ask for client certificates, like ssl.clientAuth: required, optional or none for all, or for some as in
    /// routes=none,s3=optional; the ports are http, routes, s3 and zookeeper [default: required]
    #[arg(
        long,
        env = "LANDFAST_TLS_CLIENT_CERTIFICATES",
        value_name = "[PORT=]MODE,[PORT=]MODE"
    )]
    tls_client_certificates: Option<ClientCertificates>,
    /// The authorities that sign the certificates of the other servers of a shared store, PEM [default: those of this system]
    #[arg(long, env = "LANDFAST_TLS_CA", value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// A file with the token that HTTP requests must carry, also on loopback; beyond it LANDFAST_TOKEN does as well
    #[arg(long, env = "LANDFAST_HTTP_TOKEN_FILE", value_name = "FILE")]
    http_token_file: Option<PathBuf>,
    /// Listen beyond this machine without TLS or without authentication
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
    /// MiB of objects that wait in the data directory for a distant store (--objects s3) before PUTs fail [default: 4096]
    #[arg(long, env = "LANDFAST_MEMORY_BUFFER_MB", value_name = "MIB")]
    memory_buffer_mb: Option<u64>,
    /// Seconds that a stop waits for functions at work; their callers then learn that the server stopped [default: 10]
    #[arg(long, env = "LANDFAST_STOP_WAIT_S", value_name = "SECONDS")]
    stop_wait_s: Option<u64>,
}

/// Words of the file: a list, or one text as on the command line.
fn words<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a text or a list of texts")]
    enum Words {
        Text(String),
        List(Vec<String>),
    }
    Ok(Some(match Words::deserialize(value)? {
        Words::Text(text) => text.split(',').map(str::to_owned).collect(),
        Words::List(words) => words,
    }))
}

/// The complete settings, limited to the features of this build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) data_dir: PathBuf,
    pub(crate) store: StoreSettings,
    /// The place of S3 clients' objects and packed values of transactions; `None`: that of everything
    /// else, and values are not packed.
    pub(crate) objects: Option<ObjectSettings>,
    pub(crate) zookeeper: Listen,
    /// Zero: no bound of its own.
    pub(crate) zookeeper_connections_per_address: usize,
    pub(crate) zookeeper_session_timeout_min: Duration,
    pub(crate) zookeeper_session_timeout_max: Duration,
    /// The store determines the upper bound, which is not known yet.
    pub(crate) zookeeper_packet_bytes_max: usize,
    pub(crate) zookeeper_container_check: Duration,
    pub(crate) zookeeper_enforces_quotas: bool,
    pub(crate) zookeeper_four_letter_words: Vec<String>,
    pub(crate) http: Listen,
    pub(crate) s3: Listen,
    pub(crate) memory: Memory,
    pub(crate) routes: Listen,
    /// The names that `Host` may have there, beside those of this machine.
    pub(crate) routes_hosts: Vec<HostName>,
    pub(crate) volumes_socket: VolumesSocket,
    pub(crate) volumes_cache: VolumesCache,
    pub(crate) security: Security,
    /// The address for other processes, if it differs from the bound one.
    pub(crate) advertise: Option<String>,
    pub(crate) threads: usize,
    pub(crate) user_store: UserStore,
    /// How long a stop waits for functions at work.
    pub(crate) stop_wait: Duration,
}

impl Options {
    /// These options over those of the file over the defaults, checked.
    pub(crate) fn settle(self) -> anyhow::Result<Settings> {
        let file = self.file()?;
        let options = self.over(file);
        options.refuse_what_is_not_here()?;
        let timeouts = coordination::Config::default();
        let settings = Settings {
            data_dir: options
                .data_dir
                .clone()
                .unwrap_or_else(|| PathBuf::from(DEFAULT_DATA_DIR)),
            store: options.store_settings()?,
            objects: options.object_settings()?,
            zookeeper: options.zookeeper.unwrap_or(Listen::loopback(2181)),
            zookeeper_connections_per_address: options
                .zookeeper_connections_per_address
                .unwrap_or(zookeeper_frontend::Config::CONNECTIONS_PER_ADDRESS_DEFAULT),
            zookeeper_session_timeout_min: options
                .zookeeper_session_timeout_min
                .map_or(timeouts.session_timeout_min, Duration::from_millis),
            zookeeper_session_timeout_max: options
                .zookeeper_session_timeout_max
                .map_or(timeouts.session_timeout_max, Duration::from_millis),
            zookeeper_packet_bytes_max: options
                .zookeeper_packet_bytes_max
                .unwrap_or(zookeeper_frontend::Config::PACKET_BYTES_DEFAULT),
            zookeeper_container_check: options
                .zookeeper_container_check_ms
                .map_or(CONTAINER_CHECK, Duration::from_millis),
            zookeeper_enforces_quotas: options.zookeeper_enforce_quota.unwrap_or_default(),
            zookeeper_four_letter_words: options.four_letter_words(),
            http: options.http.unwrap_or(Listen::loopback(7600)),
            s3: options.s3.unwrap_or(Listen::loopback(7601)),
            memory: options.memory()?,
            routes: options.routes.unwrap_or(Listen::loopback(7602)),
            routes_hosts: options.routes_hosts.clone().unwrap_or_default(),
            volumes_socket: options.volumes_socket_setting(),
            volumes_cache: options.volumes_cache.unwrap_or_default(),
            security: options.security()?,
            advertise: options.advertised()?,
            threads: options.threads.unwrap_or_else(workers),
            user_store: options.user_store.unwrap_or_default(),
            stop_wait: options.stop_wait_s.map_or(STOP_WAIT, Duration::from_secs),
        };
        settings.check_bounds()?;
        let is_insecure = options.insecure == Some(true) || options.is_without_server;
        settings.check_addresses(is_insecure)?;
        Ok(settings)
    }

    /// The options of the file, if there is one.
    fn file(&self) -> anyhow::Result<Self> {
        match &self.config {
            Some(path) => Self::read(path),
            None if Path::new(DEFAULT_FILE).exists() => Self::read(Path::new(DEFAULT_FILE)),
            None => Ok(Self::default()),
        }
    }

    fn four_letter_words(&self) -> Vec<String> {
        let default = zookeeper_frontend::Config::FOUR_LETTER_WORDS_DEFAULT;
        let words = self.zookeeper_four_letter_words.as_deref();
        words.map_or_else(
            || vec![default.to_owned()],
            |words| words.iter().map(|word| word.trim().to_owned()).collect(),
        )
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
                    is_without_server: self.is_without_server,
                    $($option: self.$option.or(lower.$option),)*
                }
            };
        }
        first_set! {
            data_dir provider store objects
            zookeeper zookeeper_connections_per_address zookeeper_packet_bytes_max
            zookeeper_session_timeout_min zookeeper_session_timeout_max
            zookeeper_container_check_ms zookeeper_enforce_quota
            zookeeper_four_letter_words
            s3 http routes routes_hosts volumes_socket volumes_cache advertise insecure threads user_store
            tls_cert tls_key tls_client_ca tls_client_certificates tls_ca http_token_file
            zookeeper_secure_listen zookeeper_require_auth zookeeper_super_digest
            zookeeper_accounts_file
            memory_total_mb memory_gc_interval_s memory_active_intervals memory_degraded_intervals
            memory_upload_age_days memory_buffer_mb stop_wait_s
        }
    }

    /// The socket of `--volumes-socket`. A shared store has no volumes yet.
    fn volumes_socket_setting(&self) -> VolumesSocket {
        let data_dir = self.data_dir.as_deref();
        let data_dir = data_dir.unwrap_or(Path::new(DEFAULT_DATA_DIR));
        match &self.volumes_socket {
            Some(path) if path == Path::new("off") => VolumesSocket::Off,
            Some(path) => VolumesSocket::At(path.clone()),
            None if self.store.is_some() => VolumesSocket::Off,
            None => VolumesSocket::Usual(data_dir.join(VOLUMES_SOCKET)),
        }
    }

    /// The address of `--advertise`. It is not resolved here, where its name may mean something
    /// else than to others.
    fn advertised(&self) -> anyhow::Result<Option<String>> {
        let Some(address) = &self.advertise else {
            return Ok(None);
        };
        ensure!(
            is_host_and_port(address),
            "--advertise {address}: give HOST:PORT, as the other processes reach it"
        );
        Ok(Some(address.clone()))
    }
}

impl Settings {
    /// Checks that something is served, and only where it is protected unless that is asked for.
    fn check_addresses(&self, is_insecure: bool) -> anyhow::Result<()> {
        let (zookeeper, http, s3, routes) = (self.zookeeper, self.http, self.s3, self.routes);
        if !is_insecure {
            self.security.check(zookeeper, http, s3, routes)?;
        }
        ensure!(
            [zookeeper, http, s3, routes] != [Listen::Off; 4],
            "--zookeeper, --http, --s3 and --routes are all off: nothing would be served"
        );
        Ok(())
    }

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
        self.check_session_timeouts()?;
        self.check_four_letter_words()?;
        let container_check_ms = self.zookeeper_container_check.as_millis();
        ensure!(
            (100..=CONTAINER_CHECK_MS_MAX).contains(&container_check_ms),
            "--zookeeper-container-check-ms {container_check_ms}: give 100 to {CONTAINER_CHECK_MS_MAX}"
        );
        let stop_wait_s = self.stop_wait.as_secs();
        ensure!(
            stop_wait_s <= STOP_WAIT_S_MAX,
            "--stop-wait-s {stop_wait_s}: give at most {STOP_WAIT_S_MAX}, as no function runs longer"
        );
        Ok(())
    }

    fn check_session_timeouts(&self) -> anyhow::Result<()> {
        let min_ms = self.zookeeper_session_timeout_min.as_millis();
        let max_ms = self.zookeeper_session_timeout_max.as_millis();
        let named = format!("--zookeeper-session-timeout-min {min_ms}");
        ensure!(
            (SESSION_TIMEOUT_MIN_MS_MIN..=SESSION_TIMEOUT_MIN_MS_MAX).contains(&min_ms),
            "{named}: give {SESSION_TIMEOUT_MIN_MS_MIN} to {SESSION_TIMEOUT_MIN_MS_MAX} milliseconds"
        );
        ensure!(
            max_ms <= SESSION_TIMEOUT_MS_MAX,
            "--zookeeper-session-timeout-max {max_ms}: give at most {SESSION_TIMEOUT_MS_MAX} milliseconds"
        );
        ensure!(
            min_ms <= max_ms,
            "{named}: it exceeds --zookeeper-session-timeout-max {max_ms}; give both, the shorter as the minimum"
        );
        Ok(())
    }

    /// An empty word is that of an empty list.
    fn check_four_letter_words(&self) -> anyhow::Result<()> {
        let known = zookeeper_frontend::Config::FOUR_LETTER_WORDS;
        for word in &self.zookeeper_four_letter_words {
            ensure!(
                word.is_empty() || word == "*" || known.contains(&word.as_str()),
                "--zookeeper-four-letter-words {word}: give * for all words, or some of {}",
                known.join(",")
            );
        }
        Ok(())
    }

    /// Whether HTTP clients need a token or a certificate.
    pub(crate) fn identifies_http_clients(&self) -> bool {
        let security = &self.security;
        matches!(self.http, Listen::At(address)
            if security.token_at(address).is_some() || security.requires_certificate(Port::Http))
    }

    /// The store for people to read; without passwords.
    pub(crate) fn place(&self) -> String {
        match &self.store {
            StoreSettings::Embedded => self.data_dir.display().to_string(),
            StoreSettings::Redis(config) => config.to_string(),
        }
    }
}

/// Where a server with this configuration file, or with the default one, serves ZooKeeper clients.
pub(crate) fn zookeeper(config: Option<PathBuf>) -> anyhow::Result<Listen> {
    let zookeeper = env::var("LANDFAST_ZOOKEEPER").ok();
    let zookeeper = zookeeper.map(Listen::try_from).transpose();
    let options = Options {
        config,
        zookeeper: zookeeper.map_err(|error| anyhow::anyhow!("LANDFAST_ZOOKEEPER: {error}"))?,
        is_without_server: true,
        ..Options::default()
    };
    Ok(options.settle()?.zookeeper)
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

/// The journal and the system's part of network and disk need a core too. An update is a chain of
/// short steps that gain nothing from a further worker: waking one costs more than the step
/// (`BENCHMARKS.md`).
fn workers() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    cores.saturating_sub(1).max(1)
}
