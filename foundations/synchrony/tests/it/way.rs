//! A store path on which a test decides the outcome of each call.

use std::{
    fmt,
    future::{Future, pending},
    sync::Arc,
    time::Duration,
};

use ports::{
    Clock, DurabilityPoint, Error, ErrorKind, Item, Key, KeyValue, Result, Update,
    decorate::{Decorator, KeyValueDecorator},
    key_value::{Page, Read, Scan, SharedKeyValue, Transacted, Updated},
};

/// A call under way.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call<'call> {
    Externalize,
    Get,
    Scan,
    Update,
    Transact(&'call [Update]),
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    /// It arrives this much later.
    Delay(Duration),
    /// It is made, and its response is this much late.
    DelayAnswer(Duration),
    /// It is not made.
    Refuse(ErrorKind),
    /// It is not made, and the error is this much late.
    RefuseLate(Duration, ErrorKind),
    /// It is made, and its response is lost.
    LoseAnswer,
    /// It is not made, and there is no response.
    Hang,
    /// A transaction arrives now, and a second time this much later, even after a death.
    Twice(Duration),
}

type Decide = Box<dyn Fn(Call<'_>) -> Fate + Send + Sync>;

pub(crate) struct Way {
    inner: SharedKeyValue,
    clock: Arc<dyn Clock>,
    decide: Decide,
}

impl Way {
    pub(crate) fn to(
        inner: SharedKeyValue,
        clock: Arc<dyn Clock>,
        decide: impl Fn(Call<'_>) -> Fate + Send + Sync + 'static,
    ) -> SharedKeyValue {
        Arc::new(Self {
            inner,
            clock,
            decide: Box::new(decide),
        })
    }

    async fn travel<T>(&self, call: Call<'_>, made: impl Future<Output = Result<T>>) -> Result<T> {
        match (self.decide)(call) {
            Fate::Pass | Fate::Twice(_) => made.await,
            Fate::Delay(delay) => {
                self.clock.sleep(delay).await;
                made.await
            }
            Fate::DelayAnswer(delay) => {
                let answer = made.await;
                self.clock.sleep(delay).await;
                answer
            }
            Fate::Refuse(kind) => Err(Error::new(kind, "go this way")),
            Fate::RefuseLate(delay, kind) => {
                self.clock.sleep(delay).await;
                Err(Error::new(kind, "go this way"))
            }
            Fate::LoseAnswer => {
                drop(made.await);
                Err(Error::new(ErrorKind::OutcomeUnknown, "come back this way"))
            }
            Fate::Hang => pending().await,
        }
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Way")
    }
}

impl Decorator for Way {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.travel(Call::Externalize, self.inner.externalize(point))
            .await
    }
}

impl KeyValueDecorator for Way {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.travel(Call::Get, self.inner.get(key)).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.travel(Call::Scan, self.inner.scan(scan)).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        self.travel(Call::Update, self.inner.update(update)).await
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        let fate = (self.decide)(Call::Transact(&updates));
        if let Fate::Twice(delay) = fate {
            let (inner, clock, again) = (
                Arc::clone(&self.inner),
                Arc::clone(&self.clock),
                updates.clone(),
            );
            tokio::spawn(async move {
                clock.sleep(delay).await;
                // The response of the repeat is lost.
                drop(inner.transact(again).await);
            });
        }
        let decided = Self {
            inner: Arc::clone(&self.inner),
            clock: Arc::clone(&self.clock),
            decide: Box::new(move |_| fate),
        };
        decided
            .travel(Call::Transact(&[]), self.inner.transact(updates))
            .await
    }
}
