//! A store handle that interrupts its caller between two calls, while other work runs.
//!
//! A test names the exact call, and the side of it, at which the other work runs. It does not need
//! many seeds to meet the race, and it waits for nothing, so it always takes the same course.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
};

use ports::{
    DurabilityPoint, Item, Key, KeyValue, Result, Update,
    decorate::{Decorator, KeyValueDecorator},
    key_value::{Page, Read, Scan, Transacted, Updated},
};

/// A call of the store.
pub(crate) enum Call<'call> {
    Get(&'call Key),
    Scan,
    Update(&'call Update),
    Transact,
    Externalize,
}

/// The side of a call at which an interruption happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Before,
    After,
}

/// Whether a call matches.
type IsMeant = Box<dyn Fn(&Call<'_>) -> bool + Send>;

struct Interruption {
    side: Side,
    is_meant: IsMeant,
    work: Pin<Box<dyn Future<Output = Result<()>> + Send>>,
}

/// The store as one caller sees it.
pub(crate) struct Interrupted {
    store: Arc<dyn KeyValue>,
    due: Mutex<Vec<Interruption>>,
}

impl Interrupted {
    pub(crate) fn new(store: Arc<dyn KeyValue>) -> Arc<Self> {
        Arc::new(Self {
            store,
            due: Mutex::default(),
        })
    }

    /// Runs `work` once, at the next matching call. The caller receives the error of `work`, as if
    /// the call had not been made or its answer had been lost. Each call is interrupted at most
    /// once on either side, in the order of registration.
    pub(crate) fn once(
        &self,
        side: Side,
        is_meant: impl Fn(&Call<'_>) -> bool + Send + 'static,
        work: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        let interruption = Interruption {
            side,
            is_meant: Box::new(is_meant),
            work: Box::pin(work),
        };
        self.due
            .lock()
            .expect("no panic while it is locked")
            .push(interruption);
    }

    /// Whether all interruptions have happened.
    pub(crate) fn is_through(&self) -> bool {
        self.due
            .lock()
            .expect("no panic while it is locked")
            .is_empty()
    }

    async fn at(&self, side: Side, call: &Call<'_>) -> Result<()> {
        let interruption = {
            let mut due = self.due.lock().expect("no panic while it is locked");
            let is_due = |due: &Interruption| due.side == side && (due.is_meant)(call);
            let place = due.iter().position(is_due);
            place.map(|place| due.remove(place))
        };
        match interruption {
            Some(interruption) => interruption.work.await,
            None => Ok(()),
        }
    }

    async fn around<T>(
        &self,
        call: Call<'_>,
        answer: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.at(Side::Before, &call).await?;
        let answer = answer.await?;
        self.at(Side::After, &call).await?;
        Ok(answer)
    }
}

impl fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupted")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl Decorator for Interrupted {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.store
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.around(Call::Externalize, self.store.externalize(point))
            .await
    }
}

impl KeyValueDecorator for Interrupted {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.around(Call::Get(key), self.store.get(key)).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.around(Call::Scan, self.store.scan(scan)).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        self.around(Call::Update(&update), self.store.update(update.clone()))
            .await
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        self.around(Call::Transact, self.store.transact(updates))
            .await
    }
}
