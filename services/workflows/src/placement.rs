//! In which store each workflow's runs are: near, or in the shard of a far store.
//!
//! A workflow's new runs are stored where its deployed definition says. Earlier definitions may have
//! named other stores, and their runs stay there. Rows in the near store list all these stores. We
//! read the list at the start, and add to it in memory. Among several processes another one may have
//! added to it since, so we read it again before a run begins under a client's id, and before we
//! report that a run does not exist.
//!
//! We considered to refuse a deployment that changes `far` while runs are active, and to keep one
//! store per workflow. Only the owner of a far store's shard can read which runs are active there,
//! and that may be another process, or the far store may be gone. So the refusal cannot be decided
//! where the deployment arrives.

mod far_store;
mod location;
mod shard;
mod shards;
mod store_identity;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use functions::manifest::workflow::Workflow;
use parking_lot::Mutex;
use ports::key_value::SharedKeyValue;
use tokio::sync::mpsc;
use transactions::Engine;

pub use far_store::{FarStore, FarStores};

pub(crate) use location::StoreLocation;
pub(crate) use shards::ShardEvent;

use crate::{Error, Result, env::Env, model::RunKey, runner::Runner, storage::Store};
use shards::Shards;

/// Shard events that wait for the scheduler; further senders wait.
const EVENTS_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Placement {
    near: Store,
    pub(crate) shards: Arc<Shards>,
    /// The stores in which each workflow has rows, as far as this process knows.
    listed: Mutex<BTreeMap<String, BTreeSet<StoreLocation>>>,
}

impl Placement {
    pub(crate) fn new(
        near_rows: SharedKeyValue,
        engine: Engine,
        runner: Arc<dyn Runner>,
        far_stores: Arc<dyn FarStores>,
        env: &Arc<Env>,
    ) -> (Self, mpsc::Receiver<ShardEvent>) {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let near = Store::of_transactions(Arc::clone(&near_rows), engine.clone(), &env.options);
        let shards = Arc::new(Shards {
            near_rows,
            engine,
            runner,
            far_stores,
            env: Arc::clone(env),
            slots: Mutex::default(),
            events: sender,
        });
        let placement = Self {
            near,
            shards,
            listed: Mutex::default(),
        };
        (placement, events)
    }

    #[cfg(test)]
    pub(crate) fn near(&self) -> &Store {
        &self.near
    }

    /// Reads which workflows have rows where; returns the far stores, those of deployed workflows
    /// included.
    pub(crate) async fn load(&self) -> Result<BTreeSet<StoreLocation>> {
        for name in self.near.listed().await? {
            self.note(&name, StoreLocation::Near);
        }
        let mut far = BTreeSet::new();
        for (name, address) in self.near.listed_far_stores().await? {
            let location = self.far_at(&address);
            self.note(&name, location.clone());
            far.insert(location);
        }
        // The addresses of deployed workflows are the latest.
        let deployed = self.shards.runner.workflows();
        far.extend(deployed.values().map(|workflow| self.of(workflow)));
        far.remove(&StoreLocation::Near);
        Ok(far)
    }

    fn note(&self, name: &str, location: StoreLocation) {
        let mut listed = self.listed.lock();
        listed.entry(name.to_owned()).or_default().insert(location);
    }

    fn is_listed(&self, name: &str, location: &StoreLocation) -> bool {
        let listed = self.listed.lock();
        let locations = listed.get(name);
        locations.is_some_and(|locations| locations.contains(location))
    }

    pub(crate) fn of(&self, workflow: &Workflow) -> StoreLocation {
        let far = workflow.far.as_deref();
        far.map_or(StoreLocation::Near, |address| self.far_at(address))
    }

    /// The far store at `address`, which is its address from now on.
    fn far_at(&self, address: &str) -> StoreLocation {
        let slot = self.shards.add(address);
        slot.set_address(address);
        StoreLocation::Far(Arc::clone(&slot.place))
    }

    /// A store for one run or one request.
    ///
    /// Errors: `Unavailable` if it does not open in time, while the opening continues; those of
    /// opening.
    pub(crate) async fn store(&self, location: &StoreLocation) -> Result<Store> {
        match location {
            StoreLocation::Near => Ok(self.near.clone()),
            StoreLocation::Far(place) => self.shards.store(place).await,
        }
    }

    /// The same to search for rows; none: this store can have none.
    pub(crate) async fn store_to_search(&self, location: &StoreLocation) -> Result<Option<Store>> {
        match self.store(location).await {
            Err(Error::FarIsNear(_)) => Ok(None),
            store => store.map(Some),
        }
    }

    /// The known stores of a workflow's runs; the one of its deployed definition comes first.
    /// Errors: `NoSuchWorkflow`.
    pub(crate) fn known(&self, name: &str) -> Result<Vec<StoreLocation>> {
        let deployed = self.shards.runner.workflow(name);
        let now = deployed.map(|workflow| self.of(&workflow));
        let mut earlier = self.listed.lock().get(name).cloned().unwrap_or_default();
        earlier.retain(|location| Some(location) != now.as_ref());
        let locations: Vec<StoreLocation> = now.into_iter().chain(earlier).collect();
        if locations.is_empty() {
            return Err(Error::NoSuchWorkflow(name.to_owned()));
        }
        Ok(locations)
    }

    /// The same, and the stores that other processes have listed.
    pub(crate) async fn all(&self, name: &str) -> Result<Vec<StoreLocation>> {
        if self.shards.env.options.among_others {
            self.reload(name).await?;
        }
        self.known(name)
    }

    /// Costs one read, and a second one where the workflow is not known to have rows near.
    async fn reload(&self, name: &str) -> Result<()> {
        for address in self.near.far_stores_of(name).await? {
            // A known store keeps its address, as this one may be older.
            let place = Arc::clone(&self.shards.add(&address).place);
            self.note(name, StoreLocation::Far(place));
        }
        let deployed = self.shards.runner.workflow(name);
        let is_near = deployed.is_some_and(|workflow| workflow.far.is_none());
        let is_known = self.is_listed(name, &StoreLocation::Near);
        if !is_near && !is_known && self.near.is_listed(name).await? {
            self.note(name, StoreLocation::Near);
        }
        Ok(())
    }

    /// The store of its workflow, other than `now`, that has a run of this id; none: no other has.
    pub(crate) async fn found_elsewhere(
        &self,
        (name, id): &RunKey,
        now: &StoreLocation,
    ) -> Result<Option<Store>> {
        let all = self.all(name).await?;
        for location in all.iter().filter(|location| *location != now) {
            let Some(store) = self.store_to_search(location).await? else {
                continue;
            };
            if store.run(name, id).await?.is_some() {
                return Ok(Some(store));
            }
        }
        Ok(None)
    }

    /// Lists that a workflow has rows in a store, so that the next start finds its runs.
    pub(crate) async fn list(&self, store: &Store, name: &str, workflow: &Workflow) -> Result<()> {
        let location = self.of(workflow);
        if self.is_listed(name, &location) {
            return Ok(());
        }
        store.list(name).await?;
        if let Some(address) = &workflow.far {
            self.near.list_far_store(name, address).await?;
        }
        self.note(name, location);
        Ok(())
    }

    /// Why a far store does not make writes durable, by its last response; none: it has no trouble.
    pub(crate) fn trouble(&self, location: &StoreLocation) -> Option<String> {
        let place = location.to_string();
        let trouble = self.shards.health().remove(&place)?.trouble?;
        Some(format!("the far store {place} does not take it: {trouble}"))
    }

    /// Whether the last request to a store failed. Does not block.
    pub(crate) fn is_failing(&self, location: &StoreLocation) -> bool {
        matches!(location, StoreLocation::Far(place) if self.shards.is_failing(place))
    }
}
