//! Code stores that break B1 to B4.

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;

use super::Broken;
use crate::{CodeStore, Result, contract::code_store::Subject};

/// Every broken code store, at least one per promise.
pub const BROKEN: &[Broken<Subject>] = &[
    Broken::new("B1", "KeepsTheLastArchive", |subject| {
        twisted(subject, KeepsTheLastArchive)
    }),
    Broken::new("B1", "LosesArchives", |subject| {
        twisted(subject, LosesArchives)
    }),
    Broken::new("B2", "TakesAnything", |subject| {
        twisted(subject, TakesAnything)
    }),
    Broken::new("B3", "CutsFiles", |subject| twisted(subject, CutsFiles)),
    Broken::new("B3", "InventsFiles", |subject| {
        twisted(subject, InventsFiles)
    }),
    Broken::new("B4", "KeepsAll", |subject| twisted(subject, KeepsAll)),
    Broken::new("B4", "KeepsNone", |subject| twisted(subject, KeepsNone)),
];

/// Code stores that differ from honest ones in what they override.
#[async_trait]
trait Twist: Debug + Send + Sync + 'static {
    fn honest(&self) -> &Arc<dyn CodeStore>;

    async fn install(&self, name: &str, content: Bytes) -> Result<()> {
        self.honest().install(name, content).await
    }
    async fn file(&self, archive: &str, path: &str, bytes_max: usize) -> Result<Option<Bytes>> {
        self.honest().file(archive, path, bytes_max).await
    }
    async fn keep_archives(&self, kept: &[String]) -> Result<()> {
        self.honest().keep_archives(kept).await
    }
}

/// Makes a [`Twist`] a port.
#[derive(Debug)]
struct Twisted<T>(T);

#[async_trait]
impl<T: Twist> CodeStore for Twisted<T> {
    async fn install(&self, name: &str, content: Bytes) -> Result<()> {
        self.0.install(name, content).await
    }
    async fn file(&self, archive: &str, path: &str, bytes_max: usize) -> Result<Option<Bytes>> {
        self.0.file(archive, path, bytes_max).await
    }
    async fn keep_archives(&self, kept: &[String]) -> Result<()> {
        self.0.keep_archives(kept).await
    }
}

fn twisted<T: Twist>(subject: Subject, around: fn(Arc<dyn CodeStore>) -> T) -> Subject {
    Subject {
        store: Arc::new(Twisted(around(subject.store))),
        ..subject
    }
}

/// A twist of one method.
macro_rules! twist {
    ($(#[$doc:meta])* $name:ident, $($method:tt)*) => {
        $(#[$doc])*
        #[derive(Debug)]
        struct $name(Arc<dyn CodeStore>);

        #[async_trait]
        impl Twist for $name {
            fn honest(&self) -> &Arc<dyn CodeStore> {
                &self.0
            }
            $($method)*
        }
    };
}

twist! {
    /// Removes all other archives when it installs one (B1).
    KeepsTheLastArchive,
    async fn install(&self, name: &str, content: Bytes) -> Result<()> {
        self.0.keep_archives(&[]).await?;
        self.0.install(name, content).await
    }
}

twist! {
    /// Acknowledges archives and drops them (B1).
    LosesArchives,
    async fn install(&self, _: &str, _: Bytes) -> Result<()> {
        Ok(())
    }
}

twist! {
    /// Accepts content that is no archive (B2).
    TakesAnything,
    async fn install(&self, name: &str, content: Bytes) -> Result<()> {
        let _ = self.0.install(name, content).await;
        Ok(())
    }
}

twist! {
    /// Returns as much of a file as fits (B3).
    CutsFiles,
    async fn file(&self, archive: &str, path: &str, bytes_max: usize) -> Result<Option<Bytes>> {
        let file = self.0.file(archive, path, usize::MAX).await?;
        Ok(file.map(|file| file.slice(..file.len().min(bytes_max))))
    }
}

twist! {
    /// Returns an empty file where there is none (B3).
    InventsFiles,
    async fn file(&self, archive: &str, path: &str, bytes_max: usize) -> Result<Option<Bytes>> {
        Ok(Some(self.0.file(archive, path, bytes_max).await?.unwrap_or_default()))
    }
}

twist! {
    /// Removes nothing (B4).
    KeepsAll,
    async fn keep_archives(&self, _: &[String]) -> Result<()> {
        Ok(())
    }
}

twist! {
    /// Removes the named archives too (B4).
    KeepsNone,
    async fn keep_archives(&self, _: &[String]) -> Result<()> {
        self.0.keep_archives(&[]).await
    }
}
