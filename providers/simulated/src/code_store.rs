//! The code store port in memory. An archive holds one file: the first line is its path, and its
//! content follows.

use std::{collections::BTreeMap, sync::Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{CodeStore, Error, Result};

use crate::run::lock;

/// Archives in memory.
#[derive(Debug, Default)]
pub struct SimulatedCodeStore(Mutex<BTreeMap<String, File>>);

/// The one file of an archive.
#[derive(Debug)]
struct File {
    path: String,
    content: Bytes,
}

impl SimulatedCodeStore {
    /// An archive with one file.
    pub fn archive(path: &str, content: &[u8]) -> Bytes {
        [path.as_bytes(), b"\n", content].concat().into()
    }
}

impl File {
    fn parse(archive: &Bytes) -> Option<Self> {
        let end = archive.iter().position(|byte| *byte == b'\n')?;
        let path = String::from_utf8(archive[..end].to_vec()).ok()?;
        let content = archive.slice(end + 1..);
        Some(Self { path, content })
    }
}

#[async_trait]
impl CodeStore for SimulatedCodeStore {
    async fn install(&self, name: &str, content: Bytes) -> Result<()> {
        let file = File::parse(&content);
        let file = file.ok_or_else(|| Error::invalid("install what is no archive"))?;
        lock(&self.0).entry(name.to_owned()).or_insert(file);
        Ok(())
    }

    async fn file(&self, archive: &str, path: &str, bytes_max: usize) -> Result<Option<Bytes>> {
        let archives = lock(&self.0);
        let file = archives.get(archive).filter(|file| file.path == path);
        match file {
            Some(file) if file.content.len() > bytes_max => {
                Err(Error::invalid("read a file that is too long"))
            }
            file => Ok(file.map(|file| file.content.clone())),
        }
    }

    async fn keep_archives(&self, kept: &[String]) -> Result<()> {
        lock(&self.0).retain(|name, _| kept.contains(name));
        Ok(())
    }
}
