//! Configuration to a running house: the provider, the services on it, the front ends before them.
//! One function per box of the picture; the only place that opens a provider.

use std::{env, future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use coordination::{Gateway, Parts, Region, Service, user_store::DataPlacement};
use embedded::Embedded;
use http_frontend::{Limits, Services};
use in_process::{Functions, SystemClock, SystemEntropy};
use ports::metering::{Meter, MeteredFunctions, MeteredKeyValue, MeteredObjects, MeteredQueue};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    config::{Listen, Settings, UserStore},
    overview::{Overview, Sources},
};

/// What a function would be given on a cloud; in one process it decides only what the usage would cost.
const FUNCTION_MEMORY_MB: u32 = 512;
/// How long ZooKeeper connections may take to finish what they do when the server stops.
const ZOOKEEPER_STOP_MAX: Duration = Duration::from_secs(2);

/// Everything that runs.
#[derive(Debug)]
pub(crate) struct House {
    provider: Arc<Embedded>,
    functions: Arc<Functions>,
    /// What services do for ever beside the front ends.
    background: JoinSet<()>,
    front_ends: FrontEnds,
}

/// The front ends that run, and how to stop them.
#[derive(Debug)]
struct FrontEnds {
    running: JoinSet<(&'static str, io::Result<()>)>,
    bound: Vec<(&'static str, SocketAddr)>,
    stop: watch::Sender<bool>,
}

impl House {
    /// Opens everything; returns when every listener accepts.
    ///
    /// HTTP comes first, so that a probe can watch a long recovery.
    pub(crate) async fn open(settings: &Settings, overview: &Arc<Overview>) -> anyhow::Result<Self> {
        let mut front_ends = FrontEnds::new();
        let services = Arc::<Services>::default();
        if let Listen::At(address) = settings.http {
            front_ends.start_http(address, overview, &services).await?;
        }
        let provider = Arc::new(open_provider(settings).await?);
        let meter = Arc::new(Meter::default());
        let mut background = JoinSet::new();
        let functions = Arc::new(Functions::new(provider.queue()));
        let coordination = start_coordination(&provider, &functions, &meter, settings).await?;
        let gateway = coordination.gateway();
        background.spawn(async move { coordination.run().await });
        let transactions = start_transactions(&provider, &meter).await?;
        let engine = transactions.engine();
        background.spawn(async move { transactions.run().await });
        services.provide_transactions(engine.clone());
        if let Listen::At(address) = settings.zookeeper {
            front_ends.start_zookeeper(address, gateway.clone(), overview).await?;
        }
        overview.knows(Sources { provider: Arc::clone(&provider), gateway, engine, meter });
        Ok(Self { provider, functions, background, front_ends })
    }

    /// The line that says where to connect, with its line end.
    pub(crate) fn ready_line(&self) -> String {
        let bound = |front_end| self.front_ends.bound.iter().filter(move |(name, _)| *name == front_end);
        let words = ["zookeeper", "s3", "http"].into_iter().flat_map(bound);
        let words: String =
            words.map(|(front_end, address)| [" ", front_end, "=", &address.to_string()].concat()).collect();
        format!("ready{words}\n")
    }

    /// Returns when a front end ended by itself, which it should not; never, if there is none.
    pub(crate) async fn front_end_ended(&mut self) -> anyhow::Result<()> {
        match self.front_ends.running.join_next().await {
            Some(Ok((name, ended))) => {
                ended.with_context(|| format!("{name} failed"))?;
                Err(anyhow!("{name} ended by itself"))
            }
            Some(Err(error)) => Err(error).context("a front end failed"),
            None => std::future::pending().await,
        }
    }

    /// Ends every connection, then the services, then the provider.
    pub(crate) async fn close(mut self) {
        self.front_ends.stop.send_replace(true);
        while self.front_ends.running.join_next().await.is_some() {}
        self.background.abort_all();
        self.functions.stop();
        self.provider.close().await;
    }
}

async fn open_provider(settings: &Settings) -> anyhow::Result<Embedded> {
    let opened = Embedded::open(embedded::Config::new(&settings.data_dir)).await;
    let provider = opened.with_context(|| format!("--data-dir {}", settings.data_dir.display()))?;
    let recovery = provider.status().recovery;
    if let Some(cut) = recovery.cut {
        tracing::warn!(
            file = %cut.file.display(),
            offset = cut.offset,
            bytes = cut.bytes,
            "the journal ended in the middle of a record, which was cut off: a crash tore it before it was acknowledged, or the disk has damaged it since"
        );
    }
    Ok(provider)
}

/// Coordination on metered ports, with its functions registered and its triggers armed.
async fn start_coordination(
    provider: &Embedded,
    functions: &Arc<Functions>,
    meter: &Arc<Meter>,
    settings: &Settings,
) -> anyhow::Result<Service> {
    let metered = || Arc::clone(meter);
    // It asks for room before it takes what stays, so that sessions go on when the disk is full (rule P6).
    let items = Arc::new(MeteredKeyValue::new(provider.key_value_with_reserve(), metered()));
    let region = Region {
        items: items.clone(),
        objects: Arc::new(MeteredObjects::new(provider.objects(), metered())),
    };
    let parts = Parts {
        system: items,
        regions: vec![region],
        queue: Arc::new(MeteredQueue::new(provider.queue(), metered())),
        functions: Arc::new(MeteredFunctions::new(Arc::clone(functions) as Arc<_>, metered())),
        clock: Arc::new(SystemClock::new()),
        entropy: Arc::new(SystemEntropy::default()),
    };
    let service =
        Service::new(parts, coordination::Config { placement: placement(settings), ..Default::default() });
    for definition in service.functions() {
        let clock = Arc::new(SystemClock::new());
        let counted = MeteredFunctions::metered(definition, FUNCTION_MEMORY_MB, metered(), clock);
        functions.register(counted);
    }
    service.start().await.context("the coordination service could not start")?;
    Ok(service)
}

/// Transactions on metered ports; what earlier starts left is finished when this returns.
async fn start_transactions(
    provider: &Embedded,
    meter: &Arc<Meter>,
) -> anyhow::Result<transactions::Service> {
    let parts = transactions::Parts {
        // It asks for room too, and a start finishes what earlier ones began, also when the disk is full.
        key_value: Arc::new(MeteredKeyValue::new(provider.key_value_with_reserve(), Arc::clone(meter))),
        clock: Arc::new(SystemClock::new()),
        entropy: Arc::new(SystemEntropy::default()),
    };
    let service = transactions::Service::new(parts, transactions::Config::default());
    service.start().await.context("the transactions service could not start")?;
    Ok(service)
}

/// A body longer than any value that would be kept is refused before it is received.
fn http_limits() -> Limits {
    Limits { value_bytes_max: transactions::Config::default().inline_bytes_max, ..Limits::default() }
}

impl FrontEnds {
    fn new() -> Self {
        Self { running: JoinSet::new(), bound: Vec::new(), stop: watch::Sender::new(false) }
    }

    async fn start_http(
        &mut self,
        address: SocketAddr,
        overview: &Arc<Overview>,
        services: &Arc<Services>,
    ) -> anyhow::Result<()> {
        let token = env::var("LANDFAST_TOKEN").ok();
        let config = http_frontend::Config { address, token, limits: http_limits() };
        let server = http_frontend::bind(config).await.with_context(|| format!("--http {address}"))?;
        self.bind("http", server.local_address(), overview);
        let running = server.run(Arc::clone(overview) as Arc<_>, Arc::clone(services), self.stopped());
        self.running.spawn(async { ("http", running.await) });
        Ok(())
    }

    async fn start_zookeeper(
        &mut self,
        address: SocketAddr,
        gateway: Gateway,
        overview: &Arc<Overview>,
    ) -> anyhow::Result<()> {
        let config = zookeeper_frontend::Config {
            stop_timeout: ZOOKEEPER_STOP_MAX,
            ..zookeeper_frontend::Config::new(address)
        };
        let bound = zookeeper_frontend::bind(config, Arc::new(gateway)).await;
        let server = bound.with_context(|| format!("--zookeeper {address}"))?;
        self.bind("zookeeper", server.local_address(), overview);
        overview.counts(server.statistics());
        let stopped = self.stopped();
        self.running.spawn(async {
            server.run(stopped).await;
            ("zookeeper", Ok(()))
        });
        Ok(())
    }

    fn bind(&mut self, front_end: &'static str, address: SocketAddr, overview: &Overview) {
        self.bound.push((front_end, address));
        overview.listens(front_end, address);
    }

    fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stop = self.stop.subscribe();
        async move {
            // An error means that the house is gone, which is a stop too.
            let _ = stop.wait_for(|is_stopped| *is_stopped).await;
        }
    }
}

/// The largest data that `hybrid` keeps in items: up to here reading an item costs no more than reading an
/// object (`faaskeeper.txt`, section 5.3).
const INLINE_BYTES_MAX: usize = 4 * 1024;

fn placement(settings: &Settings) -> DataPlacement {
    match settings.user_store {
        UserStore::Kv => DataPlacement::KeyValue,
        UserStore::Objects => DataPlacement::Objects,
        UserStore::Hybrid => DataPlacement::Hybrid { inline_bytes_max: INLINE_BYTES_MAX },
    }
}
