//! Wires a configuration into a running server: the provider, the services on it, the front ends
//! before them. One function per box of the picture. Only this file and its module open a provider.

mod quiet_store;

use std::{
    env,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, anyhow, ensure};
use coordination::{Gateway, Parts, Service, config::DataPlacement, model::Timeline};
use http_frontend::{HttpPeers, InProcessRouter, Services};
use in_process::{SystemClock, SystemEntropy};
use ports::{
    KeyValue, LogThrottle, Monotonic, Queue, QueueAdmin,
    metering::{Meter, MeteredFunctions, MeteredKeyValue, MeteredObjects, MeteredQueue},
};
use sandbox::{
    Sandbox,
    process::{Enforcement, Launcher},
};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};
use transactions::{
    membership::{Address, Coordinated},
    serializable::Volumes,
};

pub(crate) use self::quiet_store::QuietStore;
use crate::{
    backups::{self, ServedBackups},
    bundled_client::PYTHON_CLIENT,
    far_stores,
    from_functions::{FromFunctions, Objects},
    front_ends::{self, FrontEnds},
    function_directory::FunctionDirectory,
    function_volumes::FunctionVolumes,
    memory_service,
    object_events::ToFunctions,
    overview::{Meters, Overview, Sources},
    peer_volumes::PeerVolumes,
    provider::{self, NamedObjects, Provider},
    reaping::ReapedVolumes,
    same_store::SameStore,
    settings::{Listen, Secret, Security, Settings, UserStore},
};

/// The time for far stores to take the remaining writes when the server stops.
const WORKFLOWS_STOP_MAX: Duration = Duration::from_secs(2);
/// How long values gather for a pack in a file, where a put costs a sync and no money.
const FILES_WAIT: Duration = Duration::from_millis(2);
/// The folder in the data directory for the code, the logs and the runtime clients of functions.
const FUNCTIONS_DIRECTORY: &str = "functions";
/// How long an idle instance of a function stays warm.
const INSTANCE_IDLE_MAX: Duration = Duration::from_mins(10);
/// The interval for reading the updates of other processes from coordination's log, while this
/// process has clients.
const LOOK_AT_LOG: Duration = Duration::from_millis(500);
/// How long a start among other processes may fail because of them. On a busy machine one attempt to
/// join takes several seconds, because its lease of two seconds runs out meanwhile.
const START_MAX: Duration = Duration::from_mins(1);
/// The pause between two attempts.
const START_AGAIN: Duration = Duration::from_millis(250);
/// The interval for measuring the backlog of function queues.
const LOOK_AT_EVENTS: Duration = Duration::from_secs(5);
/// The interval for asking a shared store for blocked queue groups.
const LOOK_FOR_BLOCKED: Duration = Duration::from_secs(10);

/// Everything that runs.
#[derive(Debug)]
pub(crate) struct RunningServer {
    provider: Arc<Provider>,
    deployed: functions::Service,
    workflows: workflows::Service,
    memory: Option<memory::Service>,
    background: JoinSet<()>,
    transactions: Arc<transactions::Service>,
    /// Serves transactions. It ends when the process has to.
    serving: JoinHandle<anyhow::Error>,
    front_ends: FrontEnds,
    services: Arc<Services>,
    function_directory: FunctionDirectory,
}

impl RunningServer {
    /// Opens everything; returns when every listener accepts.
    ///
    /// HTTP comes before the recovery, so that a probe can watch a long one. The lock of the data
    /// directory comes before HTTP. An address that is still in use then belongs to no server of
    /// this directory, or to a server that has just ended.
    pub(crate) async fn open(
        settings: &Settings,
        overview: &Arc<Overview>,
    ) -> anyhow::Result<Self> {
        let mut front_ends = FrontEnds::none();
        let services = Arc::<Services>::default();
        let locked = provider::lock(settings).await?;
        front_ends.start_http(settings, overview, &services).await?;
        let provider = Arc::new(Provider::open(settings, locked).await?);
        let meters = Meters::default();
        let mut background = JoinSet::new();
        let coordination = start_coordination(&provider, &meters.coordination, settings).await?;
        let gateway = coordination.gateway();
        background.spawn(async move { coordination.run().await });
        let address = front_ends.address_for_others(settings);
        let member = member(&provider, &gateway, address, &settings.security)?;
        let inside = InProcessRouter::new(Arc::clone(&services), &front_ends.limits());
        // With a store elsewhere, all permanent data is there.
        let function_directory = if provider.is_shared() {
            FunctionDirectory::temporary()?
        } else {
            FunctionDirectory::lasting(settings.data_dir.join(FUNCTIONS_DIRECTORY))
        };
        let keys = memory_service::keys(settings, &provider).await?;
        let objects_inside = Objects::new(keys.as_ref().map(|(keys, _)| keys.clone()));
        let api = FromFunctions {
            inside,
            objects: Arc::clone(&objects_inside),
        };
        let function_volumes = FunctionVolumes::new(
            function_directory.path().join("volumes"),
            settings.volumes_cache.into(),
        )?;
        let function_volumes = Arc::new(function_volumes);
        let sandbox = sandbox(api, &function_volumes, function_directory.path())?;
        let (instances, files) = (sandbox.instances(), sandbox.shared_files());
        let deployed = deployed(&provider, sandbox, keys.is_some());
        let packs = NamedObjects::open(settings).await?;
        let among = member.clone();
        let transactions = transactions(
            &provider,
            &meters.transactions,
            packs.as_ref(),
            among,
            destinations(&provider, &meters.transactions, &deployed),
            transactions::Config::default(),
        );
        let transactions = Arc::new(transactions);
        let engine = transactions.engine();
        // Other nodes call it before it serves clients.
        services.provide_transactions(engine.clone());

        let peers = member.as_ref().map(|member| Arc::clone(&member.peers));
        let serving = start_transactions(&provider, &transactions, member).await?;
        let volumes = volumes(&engine, peers, &services, &mut background, &front_ends);
        function_volumes.provide(Arc::clone(&volumes));
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy::default()));
        services.provide_volumes(Arc::clone(&volumes), clock, entropy);
        let started = deployed.start().await;
        started.context("the deployed functions could not be put in place")?;
        services.provide_functions(deployed.clone());
        let workflows = workflows(&provider, &meters.workflows, &deployed, engine.clone());
        let started = workflows.start().await;
        started.context("the runs of workflows could not be taken up")?;
        services.provide_workflows(workflows.clone());
        objects_inside.provide(deployed.clone(), workflows.clone());
        if let Listen::At(address) = settings.zookeeper {
            let gateway = gateway.clone();
            let started = front_ends.start_zookeeper(address, settings, gateway, overview);
            started.await?;
        }
        front_ends.start_volumes(settings, volumes, overview)?;
        let objects = packs.as_ref().map_or_else(
            || Arc::clone(&provider.memory_objects),
            NamedObjects::objects,
        );
        let (mut memory, mut opened_buffer) = (None, None);
        if let (Listen::At(address), Some((keys, file))) = (settings.s3, keys) {
            let limits = settings.memory;
            let buffer = memory_service::buffer(&provider, packs.as_ref(), settings).await?;
            opened_buffer.clone_from(&buffer);
            let buffer = buffer.map(|buffer| buffer.objects());
            let service = memory_service::service(
                &provider,
                (objects, buffer),
                instances,
                &meters.memory,
                limits,
            )?;
            service.subscribe(Arc::new(ToFunctions(deployed.clone())));
            let served = (service.clone(), files);
            let inside = &objects_inside;
            let started = front_ends.start_s3(address, settings, inside, keys, served, overview);
            started.await?;
            memory = Some((service, file));
        }
        let mut beside = backups::beside(settings, packs.as_ref(), opened_buffer).await?;
        if !settings.identifies_http_clients() {
            // Every user of the machine could read the keys of S3 clients.
            beside.files.clear();
        }
        services.provide_backups(Arc::new(ServedBackups {
            provider: Arc::clone(&provider),
            beside: Arc::new(beside),
        }));
        if let Some((served, _)) = memory.clone() {
            background.spawn(async move { served.run().await });
        }
        let blocked_groups = keep_up(&mut background, &provider, &deployed);
        background.spawn(provider::look_at_objects(packs.clone()));
        overview.knows(Sources {
            provider: Arc::clone(&provider),
            packs,
            blocked_groups,
            gateway,
            engine,
            functions: deployed.clone(),
            workflows: workflows.clone(),
            memory: memory.clone(),
            meters,
        });
        Ok(Self {
            provider,
            deployed,
            workflows,
            background,
            memory: memory.map(|(service, _)| service),
            transactions,
            serving,
            front_ends,
            services,
            function_directory,
        })
    }

    /// The `ready` line with the addresses, and its line end.
    pub(crate) fn ready_line(&self) -> String {
        self.front_ends.ready_line()
    }

    /// Returns when something ended that should not: a front end, or the right to use the store.
    pub(crate) async fn ended(&mut self) -> anyhow::Result<()> {
        tokio::select! {
            biased;
            ended = self.front_ends.ended() => ended,
            ended = &mut self.serving => Err(ended.context("transactions failed")?),
        }
    }

    /// Waits for functions at work and runs that advance, for `stop_wait` at most. Then ends every
    /// connection, then the services, then the provider.
    pub(crate) async fn close(mut self, stop_wait: Duration) {
        // From here on the server ends transactions itself, and functions that fail because of it
        // are not to blame.
        self.deployed.begin_stop();
        self.workflows.begin_stop();
        self.services.begin_stop();
        let idle = async {
            self.deployed.idle().await;
            // No run begins a step any more, so the functions stay idle.
            self.workflows.idle().await;
        };
        if timeout(stop_wait, idle).await.is_err() {
            tracing::warn!(
                "functions or runs of workflows were still at work after {stop_wait:?} (--stop-wait-s) and are ended; their callers learn that the \
                 server stopped, and their events and steps are tried again after the next start"
            );
        }
        // Functions first: one that waits for a run must not fail because the run has stopped.
        self.deployed.interrupt();
        self.workflows.interrupt();
        self.front_ends.stop().await;
        let stopped = timeout(WORKFLOWS_STOP_MAX, self.workflows.stop());
        if stopped.await.is_err() {
            tracing::warn!(
                "a far store does not respond; the next start sends the remaining writes, if any"
            );
        }
        self.serving.abort();
        // Coordination runs on until the other processes know.
        self.transactions.leave().await;
        self.background.abort_all();
        if let Some(memory) = &self.memory {
            memory.end();
        }
        self.provider.functions.stop();
        self.deployed.stop().await;
        // Nothing writes there any more.
        drop(self.function_directory);
        self.provider.close().await;
    }
}

/// The volumes of the store: of this server, or of the one that leads among several.
fn volumes(
    engine: &transactions::Engine,
    peers: Option<Arc<HttpPeers>>,
    services: &Services,
    background: &mut JoinSet<()>,
    front_ends: &FrontEnds,
) -> Arc<dyn Volumes> {
    let Some(peers) = peers else {
        // One for all: it sees which commits leave files without a name.
        return ReapedVolumes::new(engine.volumes());
    };
    let among = PeerVolumes::new(engine.clone(), peers, front_ends.volume_connections());
    services.provide_volume_peers(Arc::<PeerVolumes>::clone(&among));
    background.spawn(Arc::clone(&among).lead());
    among.volumes()
}

/// Polls the sources that send no notification: the backlog of queues, and deployments of other
/// processes. Returns the number of blocked groups.
fn keep_up(
    background: &mut JoinSet<()>,
    provider: &Provider,
    deployed: &functions::Service,
) -> Arc<AtomicU64> {
    let blocked_groups = Arc::<AtomicU64>::default();
    if provider.blocked_groups().is_none() {
        let (admin, count) = (Arc::clone(&provider.queue_admin), blocked_groups.clone());
        background.spawn(count_blocked_groups(admin, count));
    }
    background.spawn(count_waiting(deployed.clone()));
    background.spawn(deployed.clone().keep_in_place());
    blocked_groups
}

/// Counts the blocked groups of coordination's queues from time to time (rule P1), where only the
/// store knows them.
async fn count_blocked_groups(admin: Arc<dyn QueueAdmin>, count: Arc<AtomicU64>) {
    use coordination::queue_names::{DISTRIBUTOR_QUEUE, REQUEST_QUEUE};
    loop {
        let mut blocked = 0;
        for name in [REQUEST_QUEUE, DISTRIBUTOR_QUEUE] {
            // While the store does not respond, the status shows that instead.
            let groups = admin.blocked(name).await;
            blocked += groups.map_or(0, |groups| groups.len() as u64);
        }
        count.store(blocked, Ordering::Relaxed);
        sleep(LOOK_FOR_BLOCKED).await;
    }
}

/// Measures the backlog of deployed functions from time to time. Without functions it asks nothing.
async fn count_waiting(deployed: functions::Service) {
    loop {
        if let Err(error) = deployed.poll_queues().await {
            tracing::debug!(%error, "cannot measure the backlog of functions at the moment");
        }
        sleep(LOOK_AT_EVENTS).await;
    }
}

/// Coordination on metered ports, with its functions registered and its triggers armed.
async fn start_coordination(
    provider: &Provider,
    meter: &Arc<Meter>,
    settings: &Settings,
) -> anyhow::Result<Service> {
    // Coordination checks for space before it takes data that stays, so that sessions go on when
    // the disk is full (rule P6).
    let items = metered_items(&provider.key_value_that_transacts, meter);
    let objects = MeteredObjects::around(Arc::clone(&provider.objects), Arc::clone(meter));
    let functions = Arc::clone(&provider.functions) as Arc<_>;
    let functions = MeteredFunctions::new(functions, Arc::clone(meter));
    let parts = Parts {
        system: items.clone(),
        items,
        objects,
        queue: metered_queue(&provider.queue, meter),
        functions: Arc::new(functions),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy::default()),
    };
    let config = coordination::Config {
        placement: placement(settings),
        timeline: provider.timeline().map(Timeline),
        session_timeout_min: settings.zookeeper_session_timeout_min,
        session_timeout_max: settings.zookeeper_session_timeout_max,
        container_check_period: settings.zookeeper_container_check,
        enforces_quotas: settings.zookeeper_enforces_quotas,
        log_poll_period: provider.is_shared().then_some(LOOK_AT_LOG),
        applies_directly: !provider.is_shared(),
        ..Default::default()
    };
    let service = Service::new(parts, config);
    let (asked, most) = (
        settings.zookeeper_packet_bytes_max,
        service.request_bytes_max(),
    );
    ensure!(
        asked <= most,
        "--zookeeper-packet-bytes-max {asked}: what one packet sets is kept in one item, and {} takes up to {most} bytes",
        settings.store.name()
    );
    for definition in service.functions() {
        let counted = MeteredFunctions::metered(definition, Arc::clone(meter));
        provider.functions.register(counted);
    }
    let started = service.start().await;
    started.context("the coordination service could not start")?;
    Ok(service)
}

fn metered_items(items: &Arc<dyn KeyValue>, meter: &Arc<Meter>) -> Arc<dyn KeyValue> {
    Arc::new(MeteredKeyValue::new(Arc::clone(items), Arc::clone(meter)))
}

fn metered_queue(queue: &Arc<dyn Queue>, meter: &Arc<Meter>) -> Arc<dyn Queue> {
    Arc::new(MeteredQueue::new(Arc::clone(queue), Arc::clone(meter)))
}

/// Transactions on metered ports: among other processes, if they reach the store too.
fn transactions(
    provider: &Provider,
    meter: &Arc<Meter>,
    packs: Option<&NamedObjects>,
    member: Option<Member>,
    destinations: transactions::Destinations,
    mut config: transactions::Config,
) -> transactions::Service {
    let parts = transactions::Parts {
        // It checks for space too, and a start finishes the work of earlier ones even when the disk
        // is full.
        key_value: metered_items(&provider.key_value, meter),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy::default()),
    };
    let mut service = transactions::Service::builder(parts).destinations(destinations);
    if let Some(packs) = packs {
        if packs.directory().is_some() {
            config.pack_wait = FILES_WAIT;
        } else {
            // A directory is restored to a new one; a bucket may be ahead of a restored store.
            config.keeps_unknown_packs = provider.timeline().is_some();
        }
        service = service.objects(MeteredObjects::around(packs.objects(), Arc::clone(meter)));
    }
    if !provider.is_shared() {
        let objects = Arc::clone(&provider.objects);
        service = service.volume_objects(MeteredObjects::around(objects, Arc::clone(meter)));
    }
    if let Some(Member { membership, peers }) = member {
        service = service.among(membership, peers);
    }
    service.build(config)
}

/// The destinations of effects: queues, and deployed functions. Clients may not invoke the internal
/// ones.
fn destinations(
    provider: &Provider,
    meter: &Arc<Meter>,
    deployed: &functions::Service,
) -> transactions::Destinations {
    let functions: Arc<dyn ports::Functions> = Arc::new(deployed.clone());
    let functions = MeteredFunctions::new(functions, Arc::clone(meter));
    transactions::Destinations {
        queue: Some(metered_queue(&provider.queue_of_effects, meter)),
        functions: Some(Arc::new(functions)),
    }
}

/// Processes of this machine, which run functions and serve as function memory.
fn sandbox(
    api: FromFunctions,
    volumes: &Arc<FunctionVolumes>,
    directory: &Path,
) -> anyhow::Result<Sandbox> {
    let program = env::current_exe().context("the path of this program, which starts functions")?;
    let enforcement = Enforcement::probe(&program);
    if let Some(why) = enforcement.lacks_isolation() {
        tracing::warn!(
            "functions are not isolated here: {why}; `landfast doctor` says what else is not bounded"
        );
    }
    let launcher =
        Launcher::new(program, enforcement).context("the thread that launches functions")?;
    let config = sandbox::Config {
        directory: directory.to_owned(),
        launcher,
        api: Arc::new(api),
        bundled: &PYTHON_CLIENT,
        idle_max: INSTANCE_IDLE_MAX,
        volumes: Arc::<FunctionVolumes>::clone(volumes),
    };
    Sandbox::open(config).with_context(|| format!("{}: functions", directory.display()))
}

/// Deployed functions in a sandbox; not yet in place.
fn deployed(provider: &Provider, sandbox: Sandbox, serves_objects: bool) -> functions::Service {
    functions::Service::new(functions::Parts {
        key_value: Arc::clone(&provider.key_value),
        objects: Arc::clone(&provider.objects),
        queue: Arc::clone(&provider.queue),
        queue_admin: Arc::clone(&provider.queue_admin),
        queue_name: transactions::queue_name,
        check_far: far_stores::check,
        serves_objects,
        among_others: provider.is_shared(),
        functions: Arc::clone(&provider.functions) as Arc<_>,
        code_store: sandbox.code_store(),
        logs: sandbox.logs(),
        runtime: Arc::new(sandbox),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy::default()),
    })
}

/// Workflows of deployed functions, over the store of transactions.
fn workflows(
    provider: &Provider,
    meter: &Arc<Meter>,
    deployed: &functions::Service,
    engine: transactions::Engine,
) -> workflows::Service {
    let parts = workflows::Parts {
        runner: Arc::new(deployed.clone()),
        key_value: metered_items(&provider.key_value, meter),
        transactions: engine,
        far_stores: Arc::new(far_stores::RedisStores),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy::default()),
    };
    let options = workflows::Options {
        among_others: provider.is_shared(),
        ..Default::default()
    };
    workflows::Service::new(parts, options)
}

/// The address of this process for others on its store, and its client for them.
#[derive(Debug, Clone)]
struct Member {
    membership: Arc<Coordinated>,
    peers: Arc<HttpPeers>,
}

/// This process, which others reach at `address`. `None`: no other process reaches its store.
fn member(
    provider: &Provider,
    gateway: &Gateway,
    address: Address,
    security: &Security,
) -> anyhow::Result<Option<Member>> {
    if !provider.is_shared() {
        return Ok(None);
    }
    let membership = Coordinated::new(gateway.clone(), Arc::new(SystemClock), address);
    let token = security.token.as_ref().map(|Secret(token)| token.as_str());
    let trust = front_ends::trusted(security)?;
    let peers = HttpPeers::new(token, trust).context("LANDFAST_TOKEN")?;
    Ok(Some(Member {
        membership: Arc::new(membership),
        peers: Arc::new(peers),
    }))
}

/// Has transactions served. Recovery of earlier starts is complete when this returns, unless other
/// nodes do it. The task ends only when the process has to.
async fn start_transactions(
    provider: &Arc<Provider>,
    service: &Arc<transactions::Service>,
    member: Option<Member>,
) -> anyhow::Result<JoinHandle<anyhow::Error>> {
    let (items, entropy) = (Arc::clone(&provider.key_value), SystemEntropy::default());
    let shared = match member {
        Some(member) => Some((SameStore::begin(items, &entropy).await?, member)),
        None => None,
    };
    let started = start_in_time(service, shared.is_some()).await;
    started.map_err(not_started)?;
    let runner = Arc::clone(service);
    Ok(tokio::spawn(async move {
        let lost = async {
            match shared {
                Some((same_store, member)) => same_store.is_lost(&*member.membership).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            lost = lost => lost,
            () = runner.run() => anyhow!("transactions ended by themselves"),
        }
    }))
}

/// Starts the service. Among other processes a start may fail because of them, and succeed a moment
/// later.
async fn start_in_time(
    service: &transactions::Service,
    is_among: bool,
) -> transactions::Result<()> {
    let began = Instant::now();
    let mut outage = LogThrottle::default();
    loop {
        match service.start().await {
            Err(error @ transactions::Error::Unavailable(_))
                if is_among && began.elapsed() < START_MAX =>
            {
                let now = Monotonic(began.elapsed());
                if let Some(lasts) = outage.failed(now, &error.to_string()) {
                    tracing::info!(%error, ?lasts, "cannot join the other nodes yet; trying for {START_MAX:?}");
                }
                sleep(START_AGAIN).await;
            }
            started => return started,
        }
    }
}

fn not_started(error: transactions::Error) -> anyhow::Error {
    let context = match &error {
        transactions::Error::WrongObjects(_) => {
            "the transactions service could not start: give it with --objects (LANDFAST_OBJECTS) the directory or bucket that the store was given first"
        }
        _ => "the transactions service could not start",
    };
    anyhow::Error::new(error).context(context)
}

/// The largest data that `hybrid` keeps in items: up to here reading an item costs no more than reading an
/// object (`faaskeeper.txt`, section 5.3).
const INLINE_BYTES_MAX: usize = 4 * 1024;

fn placement(settings: &Settings) -> DataPlacement {
    match settings.user_store {
        UserStore::Kv => DataPlacement::KeyValue,
        UserStore::Objects => DataPlacement::Objects,
        UserStore::Hybrid => DataPlacement::Hybrid {
            inline_bytes_max: INLINE_BYTES_MAX,
        },
    }
}
