//! What this machine allows: a copy of memory, bytes over loopback, and synced writes.

use std::{
    fs::{self, File},
    hint::black_box,
    io::Write as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde::Serialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::client::BUFFER_BYTES;

const COPY_BYTES: usize = 100_000_000;
/// One thread sends to one, as many times as a server of two processors is asked at once.
const CONNECTIONS: [usize; 2] = [1, 4];
/// The content of an object of 10 MB with its parity, in one file.
const SYNCED_BYTES: usize = 12_000_000;
/// Files that are written at once.
const WRITERS: usize = 4;

/// Rates in bytes per second.
#[derive(Debug, Clone, Serialize)]
pub struct Limits {
    /// A copy from memory to memory, by one thread.
    pub copy: f64,
    /// Bytes from a sender to a reader that keeps nothing, by the number of connections.
    pub loopback: Vec<(usize, f64)>,
    /// New files of 12 MB, each synced, one after the other.
    pub synced: f64,
    /// The same, four at a time.
    pub synced_at_once: f64,
}

/// Measures each for `time`, with files under `directory`.
pub async fn measure(directory: &Path, time: Duration) -> Result<Limits> {
    let copy = tokio::task::spawn_blocking(move || copy(time)).await?;
    let mut rates = Vec::new();
    for connections in CONNECTIONS {
        rates.push((connections, loopback(connections, time).await?));
    }
    Ok(Limits {
        copy,
        loopback: rates,
        synced: synced(directory, 1, time).await?,
        synced_at_once: synced(directory, WRITERS, time).await?,
    })
}

/// The best of the copies: other work on the machine only ever slows one down.
fn copy(time: Duration) -> f64 {
    let from = vec![1_u8; COPY_BYTES];
    let mut to = vec![2_u8; COPY_BYTES];
    let (begun, mut best) = (Instant::now(), Duration::MAX);
    while begun.elapsed() < time {
        let started = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&to);
        best = best.min(started.elapsed());
    }
    COPY_BYTES as f64 / best.as_secs_f64()
}

async fn loopback(connections: usize, time: Duration) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut senders = JoinSet::new();
    let mut readers = JoinSet::new();
    let until = Instant::now() + time;
    let begun = Instant::now();
    for _ in 0..connections {
        let mut reading = TcpStream::connect(address).await?;
        let (mut sending, _) = listener.accept().await?;
        senders.spawn(async move {
            let block = vec![1; 4 * BUFFER_BYTES];
            while Instant::now() < until {
                sending.write_all(&block).await?;
            }
            anyhow::Ok(())
        });
        readers.spawn(async move {
            let (mut buffer, mut bytes) = (vec![0; BUFFER_BYTES], 0);
            loop {
                match reading.read(&mut buffer).await? {
                    0 => return anyhow::Ok(bytes),
                    more => bytes += more,
                }
            }
        });
    }
    while let Some(ended) = senders.join_next().await {
        ended??;
    }
    let mut bytes = 0;
    while let Some(ended) = readers.join_next().await {
        bytes += ended??;
    }
    Ok(bytes as f64 / begun.elapsed().as_secs_f64())
}

async fn synced(directory: &Path, writers: usize, time: Duration) -> Result<f64> {
    let content = Arc::new(vec![3; SYNCED_BYTES]);
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        let content = Arc::clone(&content);
        let path = directory.join(format!("synced-{writer}"));
        tasks.spawn_blocking(move || {
            let mut files = 0;
            while begun.elapsed() < time {
                let mut file = File::create(&path)?;
                file.write_all(&content)?;
                file.sync_all()?;
                drop(file);
                fs::remove_file(&path)?;
                files += 1;
            }
            anyhow::Ok(files)
        });
    }
    let mut files = 0;
    while let Some(ended) = tasks.join_next().await {
        files += ended??;
    }
    Ok((files * SYNCED_BYTES) as f64 / begun.elapsed().as_secs_f64())
}
