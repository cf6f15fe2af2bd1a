//! The services behind the routes, as they start.
//!
//! The listener accepts before any store is open, so that a probe can watch a long recovery. Until
//! the program provides a service, calls to it get 503 `unavailable`: nothing has changed, and
//! clients may repeat them.
//!
//! A server that stops waits for functions at work, and they may need its other services. So it
//! still serves those, and refuses only requests of clients that run a function.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use ports::{Clock, Entropy};
use transactions::{Engine, serializable::Volumes};

use crate::{
    backups::Backups, open_volumes::OpenVolumes, volume_peers::VolumePeers,
    volume_transactions::VolumeTransactions,
};

/// Holds the services once they run.
#[derive(Debug, Default)]
pub struct Services {
    pub(crate) transactions: OnceLock<Engine>,
    pub(crate) functions: OnceLock<functions::Service>,
    pub(crate) workflows: OnceLock<workflows::Service>,
    pub(crate) volumes: OnceLock<OpenVolumes>,
    pub(crate) volume_transactions: OnceLock<VolumeTransactions>,
    pub(crate) volume_peers: OnceLock<Arc<dyn VolumePeers>>,
    pub(crate) backups: OnceLock<Arc<dyn Backups>>,
    is_stopping: AtomicBool,
}

const ONCE: &str = "a service is provided once";

impl Services {
    /// Serves transactions and state with `engine` from now on. Call it once.
    pub fn provide_transactions(&self, engine: Engine) {
        self.transactions.set(engine).expect(ONCE);
    }

    /// Deploys and invokes functions with `service` from now on. Call it once.
    pub fn provide_functions(&self, service: functions::Service) {
        self.functions.set(service).expect(ONCE);
    }

    /// Runs workflows with `service` from now on. Call it once.
    pub fn provide_workflows(&self, service: workflows::Service) {
        self.workflows.set(service).expect(ONCE);
    }

    /// Serves volumes and their files from now on. Call it once.
    pub fn provide_volumes(
        &self,
        volumes: Arc<dyn Volumes>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) {
        let transactions = VolumeTransactions::new(clock.clone(), entropy.clone());
        let open = OpenVolumes::new(volumes, clock, entropy);
        self.volume_transactions.set(transactions).expect(ONCE);
        self.volumes.set(open).expect(ONCE);
    }

    /// Serves volumes to other servers of the store from now on. Call it once.
    pub fn provide_volume_peers(&self, peers: Arc<dyn VolumePeers>) {
        self.volume_peers.set(peers).expect(ONCE);
    }

    /// Takes backups from now on. Call it once.
    pub fn provide_backups(&self, backups: Arc<dyn Backups>) {
        self.backups.set(backups).expect(ONCE);
    }

    /// Refuses, from now on, requests of clients that run a function.
    pub fn begin_stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }
}
