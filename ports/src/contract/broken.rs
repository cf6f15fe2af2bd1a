//! Decorators that break exactly one promise each, to show that the suites would notice.
//!
//! A suite that passes on a broken port says nothing about a sound one. Each [`Broken`] names the
//! promise that it breaks and wraps a subject. This crate's tests run that promise's cases on it
//! and expect one to fail.

pub mod clock;
pub mod code_store;
pub mod durability;
pub mod functions;
pub mod instances;
pub mod key_value;
pub mod logs;
pub mod objects;
pub mod queue;
pub mod runtime;

use std::fmt;

/// A way to break one promise.
pub struct Broken<S> {
    /// The promise it breaks: `K2`.
    pub promise: &'static str,
    /// Its fault: `ForgetsConditions`.
    pub name: &'static str,
    wrap: fn(S) -> S,
}

impl<S> Broken<S> {
    /// A decorator, as the lists make them.
    const fn new(promise: &'static str, name: &'static str, wrap: fn(S) -> S) -> Self {
        Self {
            promise,
            name,
            wrap,
        }
    }

    /// Breaks `subject`.
    pub fn wrap(&self, subject: S) -> S {
        (self.wrap)(subject)
    }
}

impl<S> Clone for Broken<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Broken<S> {}

impl<S> fmt::Debug for Broken<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.promise)
    }
}
