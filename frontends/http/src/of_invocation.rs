//! The transaction of a function's invocation, for requests of the function that belong to it.
//!
//! The in-process router sets it. A request over the network belongs to no invocation.

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;
use files::Transaction;
use tokio::sync::Mutex;

/// The volume of a function's instance. Each of its invocations is a transaction on it.
#[async_trait]
pub trait OfInvocation: Debug + Send + Sync {
    /// The name of the volume.
    fn volume(&self) -> &str;

    /// Whether the function may only read.
    fn is_read_only(&self) -> bool;

    /// The transaction of the present invocation; nothing between two.
    fn transaction(&self) -> Option<&Mutex<Option<Transaction>>>;

    /// Shows the function the changes that a request has made to files. Errors: why it cannot.
    async fn show_changes(&self) -> Result<(), String>;
}

/// The invocation that a request comes from.
#[derive(Debug, Clone)]
pub(crate) struct Invocation(pub(crate) Arc<dyn OfInvocation>);
