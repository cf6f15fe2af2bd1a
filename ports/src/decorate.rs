//! Forwarding decorators: one per port, which passes every call to the port that it wraps.
//!
//! Metering, faults, broken variants and test doubles wrap a port and change a few of its calls.
//! Such a type implements [`Decorator`] and its port's decorator trait, and overrides only the
//! calls that it changes. It is then an implementation of the port itself.
//!
//! A decorator's calls are plain `async fn`s, so an overridden call costs one allocation per
//! layer, like an implementation of the port by hand.

use std::{
    fmt::{self, Debug},
    future::Future,
    ops::Range,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    PutMultipartOptions, PutResult,
};

use crate::{
    DurabilityPoint, Externalize, Functions, Item, Key, KeyValue, Queue, QueueAdmin, Receipt,
    Result, Update,
    functions::{FunctionLimits, QueueTrigger},
    key_value::{KeyValueLimits, Page, Read, Scan, Transacted, Updated},
    objects::{self, ObjectPath, ObjectStore, PutOptions, PutPayload},
    queue::{Backlog, DeadLetter, Delivery, Handle, LetterId, Message, QueueLimits, QueueOptions},
};

/// Declares a port's decorator trait, whose calls go to the port it wraps, and implements the port
/// for its decorators. The calls are those of the port: first the asynchronous ones.
macro_rules! decorator {
    (
        $(#[$doc:meta])*
        trait $decorator:ident: [$($bounds:tt)*] { $($own:item)* }
        impl $port:ident for $decorated:ty, $this:ident => $inner:expr;
        $(async fn $call:ident(&self $(, $argument:ident: $kind:ty)*) -> $answer:ty;)*
        $(fn $plain:ident(&self $(, $given:ident: $given_kind:ty)*) -> $value:ty;)*
    ) => {
        $(#[$doc])*
        #[expect(missing_docs, reason = "the port documents its calls")]
        pub trait $decorator: $($bounds)* {
            $($own)*

            $(fn $call(&self $(, $argument: $kind)*) -> impl Future<Output = $answer> + Send {
                async move { self.inner().$call($($argument),*).await }
            })*

            $(fn $plain(&self $(, $given: $given_kind)*) -> $value {
                self.inner().$plain($($given),*)
            })*
        }

        #[async_trait]
        impl<D: $decorator> $port for $decorated {
            $(async fn $call(&self $(, $argument: $kind)*) -> $answer {
                let $this = self;
                $decorator::$call($inner $(, $argument)*).await
            })*

            $(fn $plain(&self $(, $given: $given_kind)*) -> $value {
                let $this = self;
                $decorator::$plain($inner $(, $given)*)
            })*
        }
    };
}

/// Wraps a port whose changes have durability points. [`decorates!`](crate::decorates) implements
/// it for a decorator that overrides none of these calls.
pub trait Decorator: Debug + Send + Sync {
    /// The port: `dyn KeyValue`, for example.
    type Port: Externalize + ?Sized;

    /// The implementation that calls are forwarded to.
    fn inner(&self) -> &Self::Port;

    /// See [`Externalize::externalize`].
    fn externalize(&self, point: DurabilityPoint) -> impl Future<Output = Result<()>> + Send {
        async move { self.inner().externalize(point).await }
    }

    /// See [`Externalize::point`].
    fn point(&self) -> DurabilityPoint {
        self.inner().point()
    }

    /// See [`Externalize::is_durable`].
    fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.inner().is_durable(point)
    }
}

#[async_trait]
impl<D: Decorator> Externalize for D {
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        Decorator::externalize(self, point).await
    }

    fn point(&self) -> DurabilityPoint {
        Decorator::point(self)
    }

    fn is_durable(&self, point: DurabilityPoint) -> bool {
        Decorator::is_durable(self, point)
    }
}

/// Implements [`Decorator`](crate::decorate::Decorator) for a type that keeps the port in a field:
/// `decorates!(Metered, dyn KeyValue, inner)`.
#[macro_export]
macro_rules! decorates {
    ($decorator:ty, $port:ty, $field:tt) => {
        impl $crate::decorate::Decorator for $decorator {
            type Port = $port;

            fn inner(&self) -> &Self::Port {
                &*self.$field
            }
        }
    };
}

decorator! {
    /// A key-value store around another one. Each call does what [`KeyValue`] says of it.
    trait KeyValueDecorator: [Decorator<Port: KeyValue>] {}
    impl KeyValue for D, this => this;
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>>;
    async fn scan(&self, scan: &Scan) -> Result<Read<Page>>;
    async fn update(&self, update: Update) -> Result<Updated>;
    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted>;
    fn limits(&self) -> &KeyValueLimits;
    fn has_room(&self) -> bool;
}

decorator! {
    /// Queues around other ones. Each call does what [`Queue`] says of it.
    trait QueueDecorator: [Decorator<Port: Queue>] {}
    impl Queue for D, this => this;
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt>;
    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt>;
    async fn receive_hidden(
        &self, queue: &str, messages_max: usize, hidden_ms: Option<u64>
    ) -> Result<Vec<Delivery>>;
    async fn ready(&self, queue: &str) -> Result<()>;
    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt>;
    async fn release(
        &self, queue: &str, handle: &Handle, delay_ms: u64, reason: &str
    ) -> Result<Receipt>;
    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt>;
    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()>;
    fn limits(&self) -> &QueueLimits;
}

decorator! {
    /// Administration around another one. Each call does what [`QueueAdmin`] says of it.
    trait QueueAdminDecorator: [Decorator<Port: QueueAdmin>] {}
    impl QueueAdmin for D, this => this;
    async fn dead_letters(
        &self, queue: &str, after: Option<LetterId>, letters_max: usize
    ) -> Result<Vec<DeadLetter>>;
    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt>;
    async fn purge(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt>;
    async fn blocked(&self, queue: &str) -> Result<Vec<DeadLetter>>;
    async fn waiting(&self, queue: &str, messages_max: usize) -> Result<Vec<DeadLetter>>;
    async fn backlog(&self, queue: &str) -> Result<Backlog>;
}

decorator! {
    /// Functions around other ones. Each call does what [`Functions`] says of it.
    trait FunctionsDecorator: [Debug + Send + Sync] {
        /// The implementation that calls are forwarded to.
        fn inner(&self) -> &dyn Functions;
    }
    impl Functions for D, this => this;
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Bytes>;
    async fn send(&self, function: &str, id: Option<Bytes>, payload: Bytes) -> Result<Receipt>;
    async fn knows(&self, function: &str) -> Result<bool>;
    async fn arm_queue(&self, trigger: QueueTrigger) -> Result<()>;
    async fn disarm_queue(&self, queue: &str) -> Result<()>;
    async fn arm_timer(&self, function: &str, period: Duration) -> Result<()>;
    async fn disarm_timer(&self, function: &str) -> Result<()>;
    fn limits(&self) -> &FunctionLimits;
}

decorator! {
    /// An object store around another one. Each call does what [`ObjectStore`] says of it.
    trait ObjectsDecorator: [Debug + Send + Sync + Sized + 'static] {
        /// The implementation that calls are forwarded to.
        fn inner(&self) -> &dyn ObjectStore;

        /// This decorator as an object store. No crate but `object_store` may implement its trait
        /// for every decorator, so a wrapper does.
        fn into_objects(self) -> Arc<dyn ObjectStore> {
            Arc::new(Decorated(self))
        }
    }
    impl ObjectStore for Decorated<D>, this => &this.0;
    async fn put_opts(
        &self, path: &ObjectPath, payload: PutPayload, options: PutOptions
    ) -> objects::Result<PutResult>;
    async fn put_multipart_opts(
        &self, path: &ObjectPath, options: PutMultipartOptions
    ) -> objects::Result<Box<dyn MultipartUpload>>;
    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> objects::Result<GetResult>;
    async fn get_ranges(
        &self, path: &ObjectPath, ranges: &[Range<u64>]
    ) -> objects::Result<Vec<Bytes>>;
    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> objects::Result<ListResult>;
    async fn copy_opts(
        &self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions
    ) -> objects::Result<()>;
    fn delete_stream(
        &self, paths: BoxStream<'static, objects::Result<ObjectPath>>
    ) -> BoxStream<'static, objects::Result<ObjectPath>>;
    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, objects::Result<ObjectMeta>>;
}

#[derive(Debug)]
struct Decorated<D>(D);

impl<D: ObjectsDecorator> fmt::Display for Decorated<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "decorated {}", self.0.inner())
    }
}
