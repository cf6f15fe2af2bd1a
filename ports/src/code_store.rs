//! The code store: the archives of deployed applications, unpacked where instances find them.
//!
//! An archive is a tar file compressed by gzip. Its name identifies its content, so callers install
//! the same content whenever they install a name again. A [runtime](crate::runtime) starts
//! instances on the installed archives.
//!
//! Promises
//! - **B1** An archive for which [`CodeStore::install`] returned `Ok` is there, whole, until
//!   [`CodeStore::keep_archives`] removes it. Installing the same name again changes nothing.
//! - **B2** Content that is not an archive is refused as `Invalid`, and nothing of it is installed.
//! - **B3** [`CodeStore::file`] returns a file whole or not at all: a file longer than the caller's
//!   bound is refused as `Invalid`.
//! - **B4** [`CodeStore::keep_archives`] keeps the archives it names, and removes all others. An
//!   archive that an instance uses goes when that instance has ended.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;

/// Stores the code of deployed applications (B1 to B4).
#[async_trait]
pub trait CodeStore: Debug + Send + Sync {
    /// Unpacks `content` as the archive `name`, which is a file name. A provider may leave an
    /// archive that is there already, or unpack the same content again (B1).
    ///
    /// Errors: `Invalid` if it does not unpack, names paths outside of itself, or is too large
    /// (B2); `NoRoom`; `Unavailable`.
    async fn install(&self, name: &str, content: Bytes) -> crate::Result<()>;

    /// The file at `path` in an installed archive; none: there is no such file.
    ///
    /// Errors: `Invalid` if it is longer than `bytes_max` (B3).
    async fn file(
        &self,
        archive: &str,
        path: &str,
        bytes_max: usize,
    ) -> crate::Result<Option<Bytes>>;

    /// Removes all archives but `kept` (B4).
    async fn keep_archives(&self, kept: &[String]) -> crate::Result<()>;
}
