//! Servers on a near store and a far one, one after the other or several at a time. Each is a
//! process that can die at any of its calls.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use fastrand::Rng;
use ports::{Clock, key_value::SharedKeyValue};
use simulated::World;
use tokio::task::JoinHandle;
use transactions::{Parts as TransactionParts, membership::Address};
use workflows::{FarStores, Options, Parts, Service};

use super::{
    checks::Far,
    code::Code,
    definitions::ADDRESS,
    far::{FarFaults, FarStore},
    lateness::{LateKeyValue, Lateness},
    receivers::Receivers,
};
use crate::transactions::{
    crashable::{CrashableKeyValue, Life},
    ensemble::{Ensemble, Seat},
    network::{Network, Trouble},
};

/// The pause before a refused start is tried again.
const START_AGAIN: Duration = Duration::from_millis(50);
/// The latency of the far store in one direction.
const FAR_LATENCY: Duration = Duration::from_millis(5);

/// The environment that outlives its servers.
#[derive(Debug)]
pub struct Cluster {
    /// The near store of the present server; see [`Cluster::lose_near`].
    pub near: World,
    /// None: workflows have no far store.
    pub far: Option<World>,
    /// The faults on the path to it.
    pub far_faults: FarFaults,
    /// The delay of begins in the near store.
    pub lateness: Lateness,
    /// The receivers of messages.
    pub receivers: Receivers,
    /// How often a step fails after all its work; zero: never.
    pub fails_one_in: usize,
    /// When a write to a range returns.
    pub synchrony: &'static str,
    /// Whether servers that start from now on deploy the workflows with the far store, if there is
    /// one.
    pub is_far: bool,
    /// The settings of transactions.
    pub transactions: transactions::Config,
    options: Options,
    rng: Rng,
    among: Option<Among>,
}

/// The membership and network of concurrent servers.
#[derive(Debug)]
struct Among {
    ensemble: Ensemble,
    network: Network,
    /// The number of servers so far.
    count: usize,
}

/// One server.
#[derive(Debug)]
pub struct Process {
    /// The workflows service.
    pub service: Service,
    /// Its transactions.
    pub engine: transactions::Engine,
    /// Its life.
    pub life: Life,
    /// Its membership, if there are several servers at a time.
    pub seat: Option<Arc<Seat>>,
    is_cut: Arc<AtomicBool>,
    background: JoinHandle<()>,
}

impl Cluster {
    /// With a near store only.
    pub async fn near(seed: u64, options: Options) -> Self {
        Self::of(seed, None, options).await
    }

    /// With a near store that several servers share.
    pub async fn shared(seed: u64, options: Options) -> Self {
        Self::of_several(seed, None, options).await
    }

    /// The same with a far store.
    pub async fn shared_and_far(seed: u64, options: Options) -> Self {
        Self::of_several(seed, Some(Self::far_world(seed)), options).await
    }

    async fn of_several(seed: u64, far: Option<World>, options: Options) -> Self {
        let mut cluster = Self::of(
            seed,
            far,
            Options {
                among_others: true,
                ..options
            },
        )
        .await;
        let ensemble = Ensemble::new(cluster.rng.fork());
        let network = Network::new(cluster.rng.fork(), Trouble::default());
        cluster.among = Some(Among {
            ensemble,
            network,
            count: 0,
        });
        cluster
    }

    /// With a far store.
    pub async fn far(seed: u64, options: Options) -> Self {
        Self::of(seed, Some(Self::far_world(seed)), options).await
    }

    fn far_world(seed: u64) -> World {
        let latency = Some(FAR_LATENCY..=FAR_LATENCY);
        let far = simulated::Options {
            latency,
            ..simulated::Options::default()
        };
        World::with_options(seed ^ 0xfa4, far)
    }

    /// With the near store configured as the far store.
    pub async fn far_is_near(seed: u64, options: Options) -> Self {
        let cluster = Self::near(seed, options).await;
        Self {
            far: Some(cluster.near.clone()),
            ..cluster
        }
    }

    async fn of(seed: u64, far: Option<World>, options: Options) -> Self {
        let near = World::new(seed);
        let far_faults = FarFaults::over(far.as_ref().unwrap_or(&near));
        let receivers = Receivers::new(seed ^ 0x0e7, far.clone(), far_faults.clone()).await;
        let options = Options {
            backoff: Duration::from_millis(1),
            ..options
        };
        let (fails_one_in, synchrony, rng) = (4, "external", Rng::with_seed(seed));
        let transactions = transactions::Config::default();
        let among = None;
        let is_far = true;
        Self {
            near,
            far,
            far_faults,
            lateness: Lateness::default(),
            receivers,
            fails_one_in,
            synchrony,
            is_far,
            transactions,
            options,
            rng,
            among,
        }
    }

    /// Replaces the near store: its disk and all data on it are lost.
    pub fn lose_near(&mut self) {
        self.near = World::new(self.rng.u64(..));
    }

    /// The contents of the far store, read directly.
    pub async fn look_far(&self) -> Far {
        Far::look(self.far.as_ref().expect("there is one")).await
    }

    /// Starts a server. None: it died before it served.
    pub async fn boot(&mut self, life: &Life) -> Option<Process> {
        let (clock, entropy) = (self.near.clock(), self.near.entropy());
        let near = LateKeyValue {
            inner: self.near.key_value(),
            lateness: self.lateness.clone(),
            clock: Arc::clone(&clock),
        };
        let key_value: SharedKeyValue =
            Arc::new(CrashableKeyValue::new(Arc::new(near), life.clone()));
        let parts = TransactionParts {
            key_value: Arc::clone(&key_value),
            clock: Arc::clone(&clock),
            entropy: Arc::clone(&entropy),
        };
        let (transactions, seat) = self.transactions(life, &clock, parts);
        let engine = transactions.engine();
        let code = Arc::new(self.code(life, &engine, &clock));
        let is_cut = Arc::new(AtomicBool::new(false));
        let far_stores = Arc::new(Found {
            far: self.far.clone(),
            far_faults: self.far_faults.clone(),
            life: life.clone(),
            is_cut: Arc::clone(&is_cut),
        });
        let parts = Parts {
            runner: Arc::clone(&code) as _,
            key_value,
            transactions: engine.clone(),
            far_stores,
            clock: Arc::clone(&clock),
            entropy,
        };
        let service = Service::new(parts, self.options.clone());
        code.service.set(service.clone()).expect("once");
        let served = tokio::select! {
            biased;
            () = life.over() => false,
            () = start(&transactions, &service, &*clock) => true,
        };
        if !served {
            if let Some(seat) = seat {
                seat.die();
            }
            forsake(&service).await;
            return None;
        }
        let background = tokio::spawn(async move { transactions.run().await });
        Some(Process {
            service,
            engine,
            life: life.clone(),
            seat,
            is_cut,
            background,
        })
    }

    /// Its transactions, and its membership.
    fn transactions(
        &mut self,
        life: &Life,
        clock: &Arc<dyn Clock>,
        parts: TransactionParts,
    ) -> (Arc<transactions::Service>, Option<Arc<Seat>>) {
        let builder =
            transactions::Service::builder(parts).destinations(self.receivers.destinations(life));
        let Some(among) = &mut self.among else {
            return (Arc::new(builder.build(self.transactions.clone())), None);
        };
        let (address, seat, network) = among.place(life, clock);
        let builder = builder.among(Arc::clone(&seat) as _, network.from(&address));
        let transactions = Arc::new(builder.build(self.transactions.clone()));
        network.listen(&address, transactions.engine(), life.clone());
        (transactions, Some(seat))
    }

    fn code(&mut self, life: &Life, engine: &transactions::Engine, clock: &Arc<dyn Clock>) -> Code {
        Code {
            service: OnceLock::new(),
            engine: engine.clone(),
            clock: Arc::clone(clock),
            receivers: self.receivers.clone(),
            life: life.clone(),
            rng: Mutex::new(self.rng.fork()),
            late: Mutex::default(),
            fails_one_in: self.fails_one_in,
            is_far: self.far.is_some() && self.is_far,
            synchrony: self.synchrony,
        }
    }
}

impl Among {
    /// The address, membership and network of the next server.
    fn place(&mut self, life: &Life, clock: &Arc<dyn Clock>) -> (Address, Arc<Seat>, Network) {
        self.count += 1;
        let address = Address(format!("server {}", self.count));
        let seat = self
            .ensemble
            .seat(&address, life.clone(), Arc::clone(clock));
        (address, seat, self.network.clone())
    }
}

/// Ends its tasks. Its pending calls to the stores are never answered, so nothing is released.
async fn forsake(service: &Service) {
    let given_back = tokio::time::timeout(Duration::from_millis(1), service.stop()).await;
    drop(given_back);
}

async fn start(transactions: &transactions::Service, service: &Service, clock: &dyn Clock) {
    while transactions.start().await.is_err() || service.start().await.is_err() {
        clock.sleep(START_AGAIN).await;
    }
}

impl Process {
    /// Ends the server, which loses its memory.
    pub async fn end(self) {
        self.life.end();
        if let Some(seat) = &self.seat {
            seat.die();
        }
        self.background.abort();
        forsake(&self.service).await;
    }

    /// Partitions it from the far store; it keeps running.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }

    /// Reconnects it to the far store.
    pub fn mend(&self) {
        self.is_cut.store(false, Ordering::Relaxed);
    }

    /// The result of `look`; none: it died before.
    pub async fn ask<T>(&self, look: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.life.over() => None,
            looked = look => Some(looked),
        }
    }

    /// Begins a run with the id `run`.
    ///
    /// Errors: those of the service.
    pub async fn begin(&self, workflow: &str, run: &str) -> workflows::Result<()> {
        self.service
            .begin(workflow, Some(run), Bytes::from(format!("\"{run}\"")))
            .await
            .map(drop)
    }
}

#[derive(Debug)]
struct Found {
    far: Option<World>,
    far_faults: FarFaults,
    life: Life,
    is_cut: Arc<AtomicBool>,
}

#[async_trait]
impl FarStores for Found {
    async fn open(&self, address: &str) -> ports::Result<SharedKeyValue> {
        let far = self.far.as_ref().filter(|_| address == ADDRESS);
        let far = far.ok_or_else(|| ports::Error::invalid(format!("open {address}")))?;
        let store = Arc::new(FarStore::of(far, &self.far_faults, &self.is_cut));
        Ok(Arc::new(CrashableKeyValue::new(store, self.life.clone())))
    }
}
