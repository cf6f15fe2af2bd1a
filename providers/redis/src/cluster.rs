//! Several servers that share the keys: who has which slot, and when an answer may be given.
//!
//! Every answer is as safe as configured when it is given, so points are all [`DurabilityPoint::DURABLE`]: there is
//! no order over the servers that a point could name. Where that takes waiting, each server has fences of its own,
//! shared by all who wait there. A fence is a script under a random mark that nobody else loads: if the server no
//! longer knows it, it restarted or another took its place since the command was answered, and whether it kept the
//! change is unknown.
//!
//! The client library's own cluster connection is not used: it repeats commands whose answers were lost, and what
//! was done twice cannot be told from what was done once. Here a command is sent again only if it was certainly
//! not run: it was redirected, refused, or never sent.
//!
//! While a slot moves to another server, a call about it that makes something new waits until it has moved, at most
//! for [`PATIENCE`], because its keys lie on both sides.
//!
//! Not promised: what a failover to a replica that was behind loses, is lost without anybody being told. With
//! [`Acknowledged::Replicas`](crate::Acknowledged::Replicas) that takes a replica that had not confirmed; with the
//! append-only file alone, any failover may.

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
    Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ServerErrorKind, Value, cmd, pipe,
};

use crate::{
    answer::{self, Answer},
    config::{Acknowledged, Config},
    error::{Effect, Failure, OpenError},
    fitness::{self, Waits},
    names::{SLOTS, fence_beside, slot},
    node::Node,
    scripts::{Script, Scripts, load_mark},
};

/// How long a command is sent anew while the cluster has nobody for its slot.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait before it is.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long a fence's key lives in the store.
const FENCE_MS: u64 = 60_000;

/// The servers of a cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    config: Config,
    seeds: Vec<ConnectionInfo>,
    routes: RwLock<Arc<Routes>>,
    opened: Instant,
    /// Held while it is looked up who has which slot; and that nobody says so.
    refreshing: tokio::sync::Mutex<LogThrottle>,
    waits: Waits,
    warnings: Vec<String>,
    scripts: Scripts,
}

/// Who has which slot.
#[derive(Debug, Default)]
struct Routes {
    number: u64,
    members: BTreeMap<String, Arc<Member>>,
    slots: Vec<Option<Arc<Member>>>,
}

/// A server that takes writes for some slots.
#[derive(Debug)]
struct Member {
    node: Node,
    mark: tokio::sync::Mutex<Option<Arc<Mark>>>,
}

/// One life of a server, and how much of it is confirmed.
#[derive(Debug)]
struct Mark {
    digest: String,
    answered: AtomicU64,
    confirmed: AtomicU64,
    fencing: tokio::sync::Mutex<()>,
}

/// What to do after a command that was not run.
enum Next {
    /// Look up who has its slot, and send it there.
    Refresh,
    /// The same after a while.
    Wait,
    /// Send it to this server, which is about to have its slot.
    Ask(String),
    /// Give up.
    Fail(Failure),
}

impl Cluster {
    /// Finds the cluster through its seeds and judges every server that takes writes.
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
            let reason = "some slots belong to nobody".to_owned();
            return Err(OpenError::Unfit {
                server: config.urls.len().to_string() + " addresses",
                reason,
            });
        }
        let (mut waits, mut warnings, mut scripts) = (Waits::Never, Vec::new(), None);
        for member in routes.members.values() {
            let fit = fitness::judge(&member.node, config).await?;
            waits = fit.waits;
            warnings.extend(fit.warnings);
            let loading =
                OpenError::unreachable(format!("load scripts into {}", member.node.address()));
            scripts = Some(Scripts::load(&member.node, 0).await.map_err(loading)?);
        }
        Ok(Self {
            config: config.clone(),
            seeds,
            routes: RwLock::new(Arc::new(routes)),
            opened: Instant::now(),
            refreshing: tokio::sync::Mutex::default(),
            waits,
            warnings,
            scripts: scripts.expect("somebody has the slots"),
        })
    }

    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub(crate) fn acknowledged(&self) -> Acknowledged {
        self.config.acknowledged
    }

    /// Each server that takes writes, and why it could not be used when it was last needed, if so.
    pub(crate) fn health(&self) -> Vec<(String, Option<String>)> {
        self.routes
            .read()
            .members
            .values()
            .map(|member| member.node.health())
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
        // There is no clock. A key that is not there would be one more to wait for while its slot moves.
        let all: Vec<&Bytes> = std::iter::once(&keys[0]).chain(keys).collect();
        let command = self.scripts.command(script, &all, arguments);
        let answer = Answer::of(self.send(&keys[0], &command, effect).await?)?;
        Ok((DurabilityPoint::DURABLE, answer.rest))
    }

    /// The bytes under `name`.
    pub(crate) async fn get(&self, name: &Bytes) -> Result<(DurabilityPoint, Bytes), Failure> {
        match self
            .send(name, cmd("GET").arg(&name[..]), Effect::Reads)
            .await?
        {
            Value::Nil => Ok((DurabilityPoint::DURABLE, Bytes::new())),
            value => Ok((DurabilityPoint::DURABLE, answer::bytes(value)?)),
        }
    }

    /// Any server that takes writes, for what is not about a key.
    pub(crate) fn any_node(
        &self,
        turn: usize,
    ) -> Option<impl std::ops::Deref<Target = Node> + use<>> {
        let routes = self.routes.read();
        let member = routes
            .members
            .values()
            .nth(turn % routes.members.len().max(1))?;
        Some(NodeOf(Arc::clone(member)))
    }

    async fn send(&self, name: &Bytes, command: &Cmd, effect: Effect) -> Result<Value, Failure> {
        let slot = usize::from(slot(name));
        let started = Instant::now();
        let mut asked: Option<Arc<Member>> = None;
        loop {
            let routes = Arc::clone(&self.routes.read());
            let result = match (asked.take(), &routes.slots[slot]) {
                (Some(member), _) => self.send_to(&member, name, command, IsAsking::Yes).await,
                (None, Some(member)) => self.send_to(member, name, command, IsAsking::No).await,
                (None, None) => Err(nobody()),
            };
            let failure = match result {
                Ok(value) => return Ok(value),
                Err(failure) if started.elapsed() > PATIENCE => return Err(failure),
                Err(failure) => failure,
            };
            match next(failure, effect) {
                Next::Fail(failure) => return Err(failure),
                Next::Refresh => self.refresh(routes.number).await,
                Next::Wait => {
                    tokio::time::sleep(LOOK_AGAIN).await;
                    self.refresh(routes.number).await;
                }
                Next::Ask(address) => asked = Some(self.member_at(&routes, &address)?),
            }
        }
    }

    /// Sends a command to one server, and waits until its answer is safe.
    async fn send_to(
        &self,
        member: &Member,
        name: &Bytes,
        command: &Cmd,
        is_asking: IsAsking,
    ) -> Result<Value, Failure> {
        let mark = if self.waits.needs_write() {
            Some(member.mark().await.map_err(Failure::before_sending)?)
        } else {
            None
        };
        let value = match member.run(command, is_asking).await {
            Err(failure) if failure.is_no_script() => {
                Scripts::load(&member.node, 0)
                    .await
                    .map_err(Failure::before_sending)?;
                member.run(command, is_asking).await
            }
            answered => answered,
        }?;
        if let Some(mark) = mark {
            member
                .confirm(
                    &mark,
                    &fence_beside(name),
                    self.waits,
                    self.config.durability_timeout,
                )
                .await?;
        }
        Ok(value)
    }

    fn member_at(&self, routes: &Routes, address: &str) -> Result<Arc<Member>, Failure> {
        if let Some(member) = routes.members.get(address) {
            return Ok(Arc::clone(member));
        }
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let port = port
            .parse()
            .map_err(|_| Failure::Garbled(format!("{address:?} is no address")))?;
        member(&self.config, &self.seeds[0], host, port).map(Arc::new)
    }

    /// Looks up anew who has which slot, unless somebody did since `number`.
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
                    tracing::info!(?lasted, "the cluster says again who has which slot");
                }
            }
            Err(failure) => {
                if let Some(lasts) = outage.failed(now(), &format!("{failure:?}")) {
                    tracing::warn!(
                        ?failure,
                        ?lasts,
                        "nobody in the cluster says who has which slot"
                    );
                }
            }
        }
    }
}

/// A server, kept as long as somebody uses it.
struct NodeOf(Arc<Member>);

impl std::ops::Deref for NodeOf {
    type Target = Node;
    fn deref(&self) -> &Node {
        &self.0.node
    }
}

/// Whether a command goes to a server that is about to have its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IsAsking {
    Yes,
    No,
}

fn nobody() -> Failure {
    let error = (
        redis::ErrorKind::Server(ServerErrorKind::ClusterDown),
        "nobody has the slot",
    );
    Failure::Refused(redis::RedisError::from(error))
}

fn next(failure: Failure, effect: Effect) -> Next {
    if let Failure::Refused(error) = &failure
        && failure.is_server(ServerErrorKind::Ask)
        && let Some((address, _)) = error.redirect_node()
    {
        return Next::Ask(address.to_owned());
    }
    if failure.is_server(ServerErrorKind::Moved) {
        return Next::Refresh;
    }
    let passes = [
        ServerErrorKind::TryAgain,
        ServerErrorKind::ClusterDown,
        ServerErrorKind::MasterDown,
        ServerErrorKind::ReadOnly,
        ServerErrorKind::BusyLoading,
    ];
    match failure {
        Failure::NotSent(_) => Next::Wait,
        Failure::Unanswered(_) if effect == Effect::Reads => Next::Wait,
        failure if passes.into_iter().any(|kind| failure.is_server(kind)) => Next::Wait,
        failure => Next::Fail(failure),
    }
}

impl Member {
    async fn run(&self, command: &Cmd, is_asking: IsAsking) -> Result<Value, Failure> {
        if is_asking == IsAsking::No {
            return self.node.command(command).await;
        }
        let mut pipeline = pipe();
        pipeline.cmd("ASKING").add_command(command.clone());
        let answers = self.node.pipeline(&pipeline, 2).await?;
        Ok(answers.into_iter().nth(1).unwrap_or(Value::Nil))
    }

    /// The mark of the server's present life.
    async fn mark(&self) -> Result<Arc<Mark>, Failure> {
        let mut mark = self.mark.lock().await;
        if let Some(mark) = &*mark {
            return Ok(Arc::clone(mark));
        }
        let number = getrandom::u64().expect("a system that ran so far has randomness");
        let digest = load_mark(&self.node, number).await?;
        let made = Mark {
            digest,
            answered: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            fencing: tokio::sync::Mutex::default(),
        };
        Ok(Arc::clone(mark.insert(Arc::new(made))))
    }

    /// Waits until everything that the server answered so far is safe. A life that ended meanwhile has taken with
    /// it the knowledge of what it kept.
    async fn confirm(
        &self,
        mark: &Arc<Mark>,
        beside: &Bytes,
        waits: Waits,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let mine = mark.answered.fetch_add(1, Ordering::SeqCst) + 1;
        let _turn = mark.fencing.lock().await;
        if mark.confirmed.load(Ordering::SeqCst) >= mine {
            return Ok(());
        }
        let covered = mark.answered.load(Ordering::SeqCst);
        let mut fence = cmd("EVALSHA");
        fence
            .arg(&mark.digest)
            .arg(1)
            .arg(&beside[..])
            .arg(FENCE_MS);
        match waits.run(&self.node, fence, timeout).await {
            Ok(_) => {
                mark.confirmed.fetch_max(covered, Ordering::SeqCst);
                Ok(())
            }
            Err(failure) => {
                self.forget(mark).await;
                Err(unconfirmed(failure))
            }
        }
    }

    async fn forget(&self, gone: &Arc<Mark>) {
        let mut mark = self.mark.lock().await;
        if mark.as_ref().is_some_and(|mark| Arc::ptr_eq(mark, gone)) {
            *mark = None;
        }
    }
}

/// The command was run, so whatever the fence met, its outcome is unknown.
fn unconfirmed(failure: Failure) -> Failure {
    match failure {
        Failure::NotSent(error) | Failure::Refused(error) => Failure::Unanswered(error),
        other => other,
    }
}

fn member(
    config: &Config,
    like: &ConnectionInfo,
    host: &str,
    port: u16,
) -> Result<Member, Failure> {
    let info = like
        .clone()
        .set_addr(ConnectionAddr::Tcp(host.to_owned(), port));
    Ok(Member {
        node: Node::new(info, config)?,
        mark: tokio::sync::Mutex::new(None),
    })
}

/// Asks one server after the other who has which slot. Servers that stay keep their connections.
async fn discover(
    config: &Config,
    seeds: &[ConnectionInfo],
    present: &Routes,
) -> Result<Routes, Failure> {
    let mut last = nobody();
    for member in present.members.values() {
        match member.node.command(cmd("CLUSTER").arg("SLOTS")).await {
            Ok(told) => return routes(config, seeds, present, member.node.address(), told),
            Err(failure) => last = failure,
        }
    }
    for seed in seeds {
        let node = Node::new(seed.clone(), config)?;
        match node.command(cmd("CLUSTER").arg("SLOTS")).await {
            Ok(told) => return routes(config, seeds, present, node.address(), told),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

fn routes(
    config: &Config,
    seeds: &[ConnectionInfo],
    present: &Routes,
    told_by: &str,
    told: Value,
) -> Result<Routes, Failure> {
    let mut routes = Routes {
        number: present.number + 1,
        members: BTreeMap::new(),
        slots: vec![None; usize::from(SLOTS)],
    };
    for range in answer::array(told)? {
        let mut parts = answer::array(range)?.into_iter();
        let (Some(first), Some(last), Some(master)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(Failure::Garbled("a range of slots that is none".to_owned()));
        };
        let mut master = answer::array(master)?.into_iter();
        let host = answer::text(master.next().unwrap_or(Value::Nil)).unwrap_or_default();
        let port = answer::number(&master.next().unwrap_or(Value::Nil))? as u16;
        // A server that does not know its own address is where we asked.
        let asked = told_by.rsplit_once(':').map_or(told_by, |(host, _)| host);
        let host = if host.is_empty() || host == "?" {
            asked
        } else {
            &host
        };
        let address = format!("{host}:{port}");
        let known = routes
            .members
            .get(&address)
            .or_else(|| present.members.get(&address))
            .cloned();
        let member = match known {
            Some(member) => member,
            None => Arc::new(member(config, &seeds[0], host, port)?),
        };
        routes.members.insert(address, Arc::clone(&member));
        let (first, last) = (
            answer::number(&first)? as usize,
            answer::number(&last)? as usize,
        );
        let range = routes.slots.get_mut(first..=last);
        range
            .ok_or_else(|| Failure::Garbled("slots beyond the last".to_owned()))?
            .fill(Some(member));
    }
    Ok(routes)
}
