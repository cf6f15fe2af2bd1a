//! Transactions of more and more functions (`aft.txt`, section 6.4): each reads twice and writes once.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use simulation::transactions::workload::Mix;
use transactions::Config;

use super::{
    engine::{embedded, start},
    run::{Amount, Clients, Figures, Watching},
    target::Target,
};

/// Concurrent clients.
pub const CLIENTS: usize = 10;

/// The result of one length.
#[derive(Debug, Clone, Serialize)]
pub struct Length {
    /// Functions in a transaction.
    pub functions: usize,
    /// The figures.
    pub figures: Figures,
}

/// Runs `mix` in process on a fresh embedded store at `data`.
pub async fn measure(data: &Path, mix: Mix, seed: u64) -> Result<Length> {
    let store = embedded(data).await?;
    let (engine, background) = start(store.key_value(), Config::default()).await?;
    let targets = (0..mix.clients).map(|_| Target::engine(&engine)).collect();
    let mut clients = Clients::prepare(targets, mix, Watching::Times, seed).await?;
    let figures = clients
        .run(Amount::Transactions(mix.transactions))
        .await?
        .figures();
    drop((clients, engine, background));
    store.close().await;
    eprintln!("{} functions: p50 {:.2} ms", mix.functions, figures.p50_ms);
    Ok(Length {
        functions: mix.functions,
        figures,
    })
}
