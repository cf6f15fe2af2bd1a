//! Groups of instances: the unit by which function memory grows (`infinistore.txt`, section 5.3).
//!
//! A group has one instance for each chunk of a fragment. It is open for new chunks until one of its
//! instances is full; then it is sealed, and a new group is started, up to a bound on all memory.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use ports::Instances;
use tokio::sync::mpsc;

use crate::instance::{Epoch, Instance, InstanceId, InstanceOptions};

/// The deaths that wait to be handled.
const DEATHS_MAX: usize = 64;

/// The number of a group. Later groups have higher ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupId(u32);

/// An instance that has died.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lost {
    pub(crate) group: GroupId,
    pub(crate) index: usize,
}

/// One group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    is_sealed: AtomicBool,
    instances: Vec<Mutex<Arc<Instance>>>,
}

impl Group {
    pub(crate) fn instance(&self, index: usize) -> Arc<Instance> {
        Arc::clone(&self.instances[index].lock())
    }

    pub(crate) fn seal(&self) {
        self.is_sealed.store(true, Ordering::Relaxed);
    }
}

/// How groups are made.
#[derive(Debug, Clone)]
pub(crate) struct GroupOptions {
    /// The instances of a group.
    pub(crate) size: usize,
    pub(crate) groups_max: usize,
    pub(crate) instance: InstanceOptions,
}

/// All groups.
#[derive(Debug)]
pub(crate) struct Groups {
    instances: Arc<dyn Instances>,
    options: GroupOptions,
    all: Mutex<Vec<Arc<Group>>>,
    growing: tokio::sync::Mutex<()>,
    started: AtomicU64,
    deaths: mpsc::Sender<Lost>,
}

impl Groups {
    /// With the deaths of instances. No instance is started before the first object.
    pub(crate) fn new(
        instances: Arc<dyn Instances>,
        options: GroupOptions,
    ) -> (Arc<Self>, mpsc::Receiver<Lost>) {
        let (deaths, lost) = mpsc::channel(DEATHS_MAX);
        let groups = Self {
            instances,
            options,
            all: Mutex::default(),
            growing: tokio::sync::Mutex::default(),
            started: AtomicU64::new(0),
            deaths,
        };
        (Arc::new(groups), lost)
    }

    pub(crate) fn get(&self, id: GroupId) -> Option<Arc<Group>> {
        let groups = self.all.lock();
        groups.iter().find(|group| group.id == id).cloned()
    }

    /// The oldest open group after `after`; it is started if there is none. None: memory is full, or
    /// no instance can be started.
    pub(crate) async fn open(&self, after: Option<GroupId>) -> Option<Arc<Group>> {
        if let Some(group) = self.first_open(after) {
            return Some(group);
        }
        let _growing = self.growing.lock().await;
        if let Some(group) = self.first_open(after) {
            return Some(group);
        }
        let count = self.all.lock().len();
        if count >= self.options.groups_max {
            return None;
        }
        let group = self.start(GroupId(count as u32)).await?;
        self.all.lock().push(Arc::clone(&group));
        Some(group)
    }

    fn first_open(&self, after: Option<GroupId>) -> Option<Arc<Group>> {
        let groups = self.all.lock();
        let is_open = |group: &&Arc<Group>| {
            !group.is_sealed.load(Ordering::Relaxed) && after.is_none_or(|after| group.id > after)
        };
        groups.iter().find(is_open).cloned()
    }

    async fn start(&self, id: GroupId) -> Option<Arc<Group>> {
        let starts =
            (0..self.options.size).map(|index| self.start_instance(Lost { group: id, index }));
        let instances: Option<Vec<_>> = futures_util::future::join_all(starts)
            .await
            .into_iter()
            .collect();
        Some(Arc::new(Group {
            id,
            is_sealed: AtomicBool::new(false),
            instances: instances?.into_iter().map(Mutex::new).collect(),
        }))
    }

    async fn start_instance(&self, place: Lost) -> Option<Arc<Instance>> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let options = &self.options.instance;
        let started =
            Instance::start(&self.instances, options, InstanceId(number), Epoch(number)).await;
        let instance = match started {
            Ok(instance) => instance,
            Err(error) => {
                tracing::warn!(%error, "an instance of function memory cannot be started; objects are read from the object store");
                return None;
            }
        };
        let (watched, deaths) = (Arc::clone(&instance), self.deaths.clone());
        tokio::spawn(async move {
            watched.died().await;
            // The receiver ends with the service.
            let _ = deaths.send(place).await;
        });
        Some(instance)
    }

    /// Starts an instance in the place of a dead one. Whether it runs.
    pub(crate) async fn replace(&self, lost: Lost) -> bool {
        let Some(group) = self.get(lost.group) else {
            return false;
        };
        let Some(instance) = self.start_instance(lost).await else {
            return false;
        };
        *group.instances[lost.index].lock() = instance;
        true
    }

    /// The number of instances.
    pub(crate) fn count(&self) -> usize {
        self.all.lock().len() * self.options.size
    }

    /// Ends all instances.
    pub(crate) fn end(&self) {
        for group in self.all.lock().drain(..) {
            for instance in &group.instances {
                instance.lock().end();
            }
        }
    }
}
