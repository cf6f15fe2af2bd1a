//! A cluster: which server serves which slot, and when a reply may be returned.
//!
//! Every reply is as safe as configured when it is returned, so all points are
//! [`DurabilityPoint::DURABLE`]: no order spans the servers that another point could name. Where
//! safety requires a wait, each server has its own fences, which concurrent calls share. A fence is
//! a script whose text contains a random number, the run marker. If the server no longer knows the
//! script, it restarted or was replaced after the reply. It is then unknown whether it kept the
//! change.
//!
//! We do not use the client library's own cluster connection: it repeats commands whose replies
//! were lost, and a command that ran twice cannot be recognised. We send a command again only if it
//! certainly did not run: it was redirected, refused, or never sent.
//!
//! While a slot moves to another server, its keys lie on both. A call that creates something in it
//! waits until the move ends, for at most [`RETRY_DURATION_MAX`].
//!
//! Not promised: that a failover to a lagging replica is noticed. Its lost writes are not reported.
//! With [`Acknowledged::Replicas`](crate::Acknowledged::Replicas) this needs a replica that had not
//! confirmed; with the append-only file alone, any failover may lose writes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::RwLock;
use ports::{DurabilityPoint, LogThrottle, Monotonic};
use redis::{
    Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ServerErrorKind, Value, aio::PubSub,
    cmd, pipe,
};

use crate::{
    config::Config,
    error::{Effect, Failure, OpenError},
    redis_keys::{SLOTS, fence_key_for, slot},
    servers::{
        durability_wait::DurabilityWait,
        node::Node,
        preflight,
        reply::{self, Reply},
        scripts::{Script, Scripts, load_run_marker},
    },
};

/// How long a command is retried while no server serves its slot.
const RETRY_DURATION_MAX: Duration = Duration::from_secs(5);

/// The pause between two such attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The lifetime of a fence's key.
const FENCE_KEY_LIFETIME_MS: u64 = 60_000;

/// The servers of a cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) config: Config,
    seeds: Vec<ConnectionInfo>,
    routes: RwLock<Arc<Routes>>,
    opened: Instant,
    /// Held during a lookup of the slots; throttles the log while it fails.
    refreshing: tokio::sync::Mutex<LogThrottle>,
    durability_wait: DurabilityWait,
    pub(crate) warnings: Vec<String>,
    scripts: Scripts,
}

/// Which server serves which slot.
#[derive(Debug, Default)]
struct Routes {
    number: u64,
    primaries: BTreeMap<String, Arc<Primary>>,
    slots: Vec<Option<Arc<Primary>>>,
}

/// A server that takes writes for some slots.
#[derive(Debug)]
struct Primary {
    node: Node,
    run_marker: tokio::sync::Mutex<Option<Arc<RunMarker>>>,
}

/// One run of a server process, and which of its replies are confirmed.
#[derive(Debug)]
struct RunMarker {
    digest: String,
    answered: AtomicU64,
    confirmed: AtomicU64,
    fencing: tokio::sync::Mutex<()>,
}

/// The next step after a command that did not run.
enum Recovery {
    /// Look up the server of the slot, and send the command there.
    Refresh,
    /// The same after a pause.
    Wait,
    /// Send the command to this server, which is importing the slot.
    Ask(String),
    /// Give up.
    Fail(Failure),
}

impl Cluster {
    /// Discovers the cluster through its seeds and checks every server that takes writes.
    pub(crate) async fn open(config: &Config) -> Result<Self, OpenError> {
        let seeds: Result<Vec<_>, _> = config
            .urls
            .iter()
            .map(|url| url.as_str().into_connection_info())
            .collect();
        let seeds =
            seeds.map_err(|error| OpenError::Configuration(format!("read a URL: {error}")))?;
        let found = discover(config, &seeds, &Routes::default()).await;
        let routes = found.map_err(OpenError::unreachable("ask the cluster for its slots"))?;
        if routes.slots.iter().any(Option::is_none) {
            let reason = "no server serves some of the slots".to_owned();
            return Err(OpenError::Unfit {
                server: config.urls.len().to_string() + " addresses",
                reason,
            });
        }
        let (mut durability_wait, mut warnings, mut scripts) =
            (DurabilityWait::Never, Vec::new(), None);
        for primary in routes.primaries.values() {
            let preflight = preflight::check(&primary.node, config).await?;
            durability_wait = preflight.durability_wait;
            warnings.extend(preflight.warnings);
            let loading =
                OpenError::unreachable(format!("load scripts into {}", primary.node.address()));
            scripts = Some(Scripts::load(&primary.node, 0).await.map_err(loading)?);
        }
        Ok(Self {
            config: config.clone(),
            seeds,
            routes: RwLock::new(Arc::new(routes)),
            opened: Instant::now(),
            refreshing: tokio::sync::Mutex::default(),
            durability_wait,
            warnings,
            scripts: scripts.expect("every slot has a server"),
        })
    }

    /// Each server that takes writes, and why its last use failed, if it did.
    pub(crate) fn health(&self) -> Vec<(String, Option<String>)> {
        self.routes
            .read()
            .primaries
            .values()
            .map(|primary| primary.node.health())
            .collect()
    }

    /// Runs a script over `keys`, which lie in one slot.
    pub(crate) async fn run(
        &self,
        script: Script,
        keys: &[Bytes],
        arguments: &[Bytes],
        effect: Effect,
    ) -> Result<(DurabilityPoint, Vec<Value>), Failure> {
        // A cluster has no clock, so the first key takes its place. An absent key would be one more
        // to wait for while the slot moves.
        let all: Vec<&Bytes> = std::iter::once(&keys[0]).chain(keys).collect();
        let command = self.scripts.command(script, &all, arguments);
        let reply = Reply::parse(self.send(&keys[0], &command, effect).await?)?;
        Ok((DurabilityPoint::DURABLE, reply.rest))
    }

    /// The bytes under `name`.
    pub(crate) async fn get(&self, name: &Bytes) -> Result<(DurabilityPoint, Bytes), Failure> {
        let bytes = match self.value(name).await? {
            Value::Nil => Bytes::new(),
            value => reply::bytes(value)?,
        };
        Ok((DurabilityPoint::DURABLE, bytes))
    }

    /// The reply to a read of `name`, which is `Nil` if the key is absent.
    pub(crate) async fn value(&self, name: &Bytes) -> Result<Value, Failure> {
        self.send(name, cmd("GET").arg(&name[..]), Effect::Reads)
            .await
    }

    /// The messages published on `channel`, received through one of the servers.
    pub(crate) async fn subscribe(&self, channel: &str, rotation: usize) -> Option<PubSub> {
        let routes = Arc::clone(&self.routes.read());
        let index = rotation % routes.primaries.len().max(1);
        let primary = routes.primaries.values().nth(index)?;
        primary.node.subscribe(channel).await.ok()
    }

    async fn send(&self, name: &Bytes, command: &Cmd, effect: Effect) -> Result<Value, Failure> {
        let slot = usize::from(slot(name));
        let started = Instant::now();
        let mut asked: Option<Arc<Primary>> = None;
        loop {
            let routes = Arc::clone(&self.routes.read());
            let result = match (asked.take(), &routes.slots[slot]) {
                (Some(primary), _) => self.send_to(&primary, name, command, IsAsking::Yes).await,
                (None, Some(primary)) => self.send_to(primary, name, command, IsAsking::No).await,
                (None, None) => Err(unassigned_slot()),
            };
            let failure = match result {
                Ok(value) => return Ok(value),
                Err(failure) if started.elapsed() > RETRY_DURATION_MAX => return Err(failure),
                Err(failure) => failure,
            };
            match recovery(failure, effect) {
                Recovery::Fail(failure) => return Err(failure),
                Recovery::Refresh => self.refresh(routes.number).await,
                Recovery::Wait => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                    self.refresh(routes.number).await;
                }
                Recovery::Ask(address) => asked = Some(self.primary_at(&routes, &address)?),
            }
        }
    }

    /// Sends a command to one server, and waits until its reply is safe.
    async fn send_to(
        &self,
        primary: &Primary,
        name: &Bytes,
        command: &Cmd,
        is_asking: IsAsking,
    ) -> Result<Value, Failure> {
        let run_marker = if self.durability_wait.needs_write() {
            Some(
                primary
                    .run_marker()
                    .await
                    .map_err(Failure::before_sending)?,
            )
        } else {
            None
        };
        let value = match primary.run(command, is_asking).await {
            Err(failure) if failure.is_no_script() => {
                Scripts::load(&primary.node, 0)
                    .await
                    .map_err(Failure::before_sending)?;
                primary.run(command, is_asking).await
            }
            answered => answered,
        }?;
        if let Some(run_marker) = run_marker {
            primary
                .confirm(
                    &run_marker,
                    &fence_key_for(name),
                    self.durability_wait,
                    self.config.durability_timeout,
                )
                .await?;
        }
        Ok(value)
    }

    fn primary_at(&self, routes: &Routes, address: &str) -> Result<Arc<Primary>, Failure> {
        if let Some(primary) = routes.primaries.get(address) {
            return Ok(Arc::clone(primary));
        }
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let port = port
            .parse()
            .map_err(|_| Failure::UnexpectedReply(format!("{address:?} is not an address")))?;
        primary_at(&self.config, &self.seeds, host, port)
    }

    /// Looks up the slots again, unless another call did so since lookup `number`.
    async fn refresh(&self, number: u64) {
        let mut outage = self.refreshing.lock().await;
        let present = Arc::clone(&self.routes.read());
        if present.number != number {
            return;
        }
        let now = || Monotonic(self.opened.elapsed());
        match discover(&self.config, &self.seeds, &present).await {
            Ok(routes) => {
                *self.routes.write() = Arc::new(routes);
                if let Some(lasted) = outage.ended(now()) {
                    tracing::info!(?lasted, "the cluster reports its slots again");
                }
            }
            Err(failure) => {
                if let Some(lasts) = outage.failed(now(), &format!("{failure:?}")) {
                    tracing::warn!(
                        ?failure,
                        ?lasts,
                        "no server of the cluster reports its slots; trying again"
                    );
                }
            }
        }
    }
}

/// Whether a command goes to a server that is importing its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IsAsking {
    Yes,
    No,
}

fn unassigned_slot() -> Failure {
    let error = (
        redis::ErrorKind::Server(ServerErrorKind::ClusterDown),
        "no server serves the slot",
    );
    Failure::Refused(redis::RedisError::from(error))
}

fn recovery(failure: Failure, effect: Effect) -> Recovery {
    if let Failure::Refused(error) = &failure
        && failure.is_server(ServerErrorKind::Ask)
        && let Some((address, _)) = error.redirect_node()
    {
        return Recovery::Ask(address.to_owned());
    }
    if failure.is_server(ServerErrorKind::Moved) {
        return Recovery::Refresh;
    }
    let transient = [
        ServerErrorKind::TryAgain,
        ServerErrorKind::ClusterDown,
        ServerErrorKind::MasterDown,
        ServerErrorKind::ReadOnly,
        ServerErrorKind::BusyLoading,
    ];
    match failure {
        Failure::NotSent(_) => Recovery::Wait,
        Failure::NoReply(_) if effect == Effect::Reads => Recovery::Wait,
        failure if transient.into_iter().any(|kind| failure.is_server(kind)) => Recovery::Wait,
        failure => Recovery::Fail(failure),
    }
}

impl Primary {
    async fn run(&self, command: &Cmd, is_asking: IsAsking) -> Result<Value, Failure> {
        if is_asking == IsAsking::No {
            return self.node.command(command).await;
        }
        let mut pipeline = pipe();
        pipeline.cmd("ASKING").add_command(command.clone());
        let answers = self.node.pipeline(&pipeline, 2).await?;
        Ok(answers.into_iter().nth(1).unwrap_or(Value::Nil))
    }

    /// The marker of the server's present run.
    async fn run_marker(&self) -> Result<Arc<RunMarker>, Failure> {
        let mut run_marker = self.run_marker.lock().await;
        if let Some(run_marker) = &*run_marker {
            return Ok(Arc::clone(run_marker));
        }
        let number = getrandom::u64().expect("a system that ran so far has randomness");
        let digest = load_run_marker(&self.node, number).await?;
        let loaded = RunMarker {
            digest,
            answered: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            fencing: tokio::sync::Mutex::default(),
        };
        Ok(Arc::clone(run_marker.insert(Arc::new(loaded))))
    }

    /// Waits until all replies of the server so far are safe. If the run ended meanwhile, it is
    /// unknown which of them the server kept.
    async fn confirm(
        &self,
        run_marker: &Arc<RunMarker>,
        fence_key: &Bytes,
        durability_wait: DurabilityWait,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let reply_number = run_marker.answered.fetch_add(1, Ordering::SeqCst) + 1;
        let _guard = run_marker.fencing.lock().await;
        if run_marker.confirmed.load(Ordering::SeqCst) >= reply_number {
            return Ok(());
        }
        let covered = run_marker.answered.load(Ordering::SeqCst);
        let mut fence = cmd("EVALSHA");
        fence
            .arg(&run_marker.digest)
            .arg(1)
            .arg(&fence_key[..])
            .arg(FENCE_KEY_LIFETIME_MS);
        match durability_wait.run(&self.node, fence, timeout).await {
            Ok(_) => {
                run_marker.confirmed.fetch_max(covered, Ordering::SeqCst);
                Ok(())
            }
            Err(failure) => {
                self.forget(run_marker).await;
                Err(as_no_reply(failure))
            }
        }
    }

    async fn forget(&self, gone: &Arc<RunMarker>) {
        let mut run_marker = self.run_marker.lock().await;
        if run_marker
            .as_ref()
            .is_some_and(|run_marker| Arc::ptr_eq(run_marker, gone))
        {
            *run_marker = None;
        }
    }
}

/// The command ran before the fence failed, so its outcome is unknown.
fn as_no_reply(failure: Failure) -> Failure {
    match failure {
        Failure::NotSent(error) | Failure::Refused(error) => Failure::NoReply(error),
        other => other,
    }
}

fn primary(config: &Config, info: ConnectionInfo) -> Result<Arc<Primary>, Failure> {
    Ok(Arc::new(Primary {
        node: Node::new(info, config)?,
        run_marker: tokio::sync::Mutex::new(None),
    }))
}

/// The server at an address, reached like the configured ones.
fn primary_at(
    config: &Config,
    seeds: &[ConnectionInfo],
    host: &str,
    port: u16,
) -> Result<Arc<Primary>, Failure> {
    let address = ConnectionAddr::Tcp(host.to_owned(), port);
    primary(config, seeds[0].clone().set_addr(address))
}

/// Asks the servers, one after the other, for the slots. Known servers keep their connections.
async fn discover(
    config: &Config,
    seeds: &[ConnectionInfo],
    present: &Routes,
) -> Result<Routes, Failure> {
    let seeds_now = seeds.iter().map(|seed| primary(config, seed.clone()));
    let known = present
        .primaries
        .values()
        .map(|known| Ok(Arc::clone(known)));
    let mut last = unassigned_slot();
    for primary in known.chain(seeds_now) {
        let node = &primary?.node;
        match node.command(cmd("CLUSTER").arg("SLOTS")).await {
            Ok(slots_reply) => return routes(config, seeds, present, node.address(), slots_reply),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

fn routes(
    config: &Config,
    seeds: &[ConnectionInfo],
    present: &Routes,
    source: &str,
    slots_reply: Value,
) -> Result<Routes, Failure> {
    let mut routes = Routes {
        number: present.number + 1,
        primaries: BTreeMap::new(),
        slots: vec![None; usize::from(SLOTS)],
    };
    for range in reply::array(slots_reply)? {
        let mut parts = reply::array(range)?.into_iter();
        let (Some(first), Some(last), Some(master)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(Failure::UnexpectedReply(
                "a malformed range of slots".to_owned(),
            ));
        };
        let mut master = reply::array(master)?.into_iter();
        let host = reply::text(master.next().unwrap_or(Value::Nil)).unwrap_or_default();
        let port = reply::number(&master.next().unwrap_or(Value::Nil))? as u16;
        // A server that does not know its own address has the one that we asked.
        let asked = source.rsplit_once(':').map_or(source, |(host, _)| host);
        let host = if host.is_empty() || host == "?" {
            asked
        } else {
            &host
        };
        let address = format!("{host}:{port}");
        let known = routes
            .primaries
            .get(&address)
            .or_else(|| present.primaries.get(&address))
            .cloned();
        let primary = match known {
            Some(primary) => primary,
            None => primary_at(config, seeds, host, port)?,
        };
        routes.primaries.insert(address, Arc::clone(&primary));
        let (first, last) = (
            reply::number(&first)? as usize,
            reply::number(&last)? as usize,
        );
        let range = routes.slots.get_mut(first..=last);
        range
            .ok_or_else(|| Failure::UnexpectedReply("slots beyond the last".to_owned()))?
            .fill(Some(primary));
    }
    Ok(routes)
}
