//! Forwarding decorators: one per port, which passes every call to the port that it wraps.
//!
//! Metering, faults, broken variants and test doubles wrap a port and change a few of its calls.
//! Such a type implements [`Decorator`] and its port's decorator trait, and overrides only the
//! calls that it changes. It is then an implementation of the port itself.
//!
//! A decorator's calls are plain `async fn`s, so an overridden call costs one allocation per
//! layer, like an implementation of the port by hand.

mod functions;
mod key_value;
mod objects;
mod queue;

use std::{fmt::Debug, future::Future};

use async_trait::async_trait;

pub use functions::FunctionsDecorator;
pub use key_value::KeyValueDecorator;
pub use objects::ObjectsDecorator;
pub use queue::{QueueAdminDecorator, QueueDecorator};

use crate::{DurabilityPoint, Externalize, Result};

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
