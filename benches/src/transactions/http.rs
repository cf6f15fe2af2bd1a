//! Transactions over HTTP.

use std::net::SocketAddr;

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use serde::Deserialize;
use simulation::transactions::history::{Shown, Writer};
use transactions::model::{After, Key, TransactionId, Version};

use crate::http::Connection;

/// One client of a server.
#[derive(Debug)]
pub struct Http {
    connection: Connection,
    id: String,
    attempt: String,
}

#[derive(Deserialize)]
struct Begun {
    id: String,
    attempt: String,
}

#[derive(Deserialize)]
struct Committed {
    after: String,
}

impl Http {
    /// A client of the server at `address`, with one connection.
    pub fn to(address: SocketAddr) -> Self {
        Self {
            connection: Connection::to(address),
            id: String::new(),
            attempt: String::new(),
        }
    }

    pub(super) async fn begin(&mut self) -> Result<Writer> {
        self.attempt.clear();
        let (status, body) = self.ask("POST", "/v1/transactions", b"{}").await?;
        ensure!(status == 201, "begin: {status} {}", body.escape_ascii());
        let begun: Begun = serde_json::from_slice(&body)?;
        (self.id, self.attempt) = (begun.id, begun.attempt);
        Ok(Writer {
            id: TransactionId::new(self.id.clone())?,
            attempt: self.attempt.parse()?,
        })
    }

    pub(super) async fn get(&mut self, key: &Key) -> Result<Shown> {
        let path = self.key_path(key);
        let (status, body) = self.ask("GET", &path, b"").await?;
        match status {
            200 => Ok(Shown::Value(body)),
            404 => Ok(Shown::Absent),
            409 if body.windows(16).any(|part| part == b"no-valid-version") => {
                Ok(Shown::NoValidVersion)
            }
            _ => bail!("get: {status} {}", body.escape_ascii()),
        }
    }

    pub(super) async fn put(&mut self, key: &Key, value: Bytes) -> Result<()> {
        let path = self.key_path(key);
        let (status, body) = self.ask("PUT", &path, &value).await?;
        ensure!(status == 204, "put: {status} {}", body.escape_ascii());
        Ok(())
    }

    pub(super) async fn commit(&mut self) -> Result<Version> {
        let path = format!("/v1/transactions/{}/commit", self.id);
        let (status, body) = self.ask("POST", &path, b"").await?;
        ensure!(status == 200, "commit: {status} {}", body.escape_ascii());
        let committed: Committed = serde_json::from_slice(&body)?;
        Ok(committed.after.parse::<After>()?.version)
    }

    pub(super) async fn abort(&mut self) -> Result<()> {
        let path = format!("/v1/transactions/{}", self.id);
        let (status, body) = self.ask("DELETE", &path, b"").await?;
        ensure!(status == 204, "abort: {status} {}", body.escape_ascii());
        Ok(())
    }

    /// The workload's keys need no escaping.
    fn key_path(&self, key: &Key) -> String {
        format!(
            "/v1/transactions/{}/keys/{}",
            self.id,
            key.name().escape_ascii()
        )
    }

    async fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Result<(u16, Bytes)> {
        let attempt = [("Landfast-Attempt", self.attempt.as_str())];
        let headers = if self.attempt.is_empty() {
            &[][..]
        } else {
            &attempt
        };
        self.connection.ask(method, path, headers, body).await
    }
}
