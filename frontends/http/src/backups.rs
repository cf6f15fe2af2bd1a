//! Backups of the store, which the program takes.

use std::{fmt, io};

use bytes::Bytes;
use futures_util::stream::BoxStream;

/// Takes backups of the store.
pub trait Backups: fmt::Debug + Send + Sync {
    /// Begins a backup. It ends when the stream is dropped. Errors: why this store has none.
    fn begin(&self) -> Result<BoxStream<'static, io::Result<Bytes>>, String>;
}
