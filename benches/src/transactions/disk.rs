//! What the disk does by itself: the same bytes, written and synced one after the other by a program that does nothing else.

use std::{
    fs::{self, File},
    io::{Seek as _, SeekFrom, Write as _},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::Serialize;

/// What is written between two syncs: the values of one transaction, of ten, and as much as the disk likes.
const WRITES_BYTES: [usize; 3] = [8 << 10, 80 << 10, 4 << 20];
/// How long each is measured.
const MEASURED: Duration = Duration::from_secs(1);
/// The file is overwritten from its start when it is this long, so that blocks are not what is measured.
const FILE_BYTES: u64 = 64 << 20;

/// Writes of one size.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct DiskRate {
    /// Length of a write; each is synced.
    pub write_bytes: usize,
    /// Bytes per second that were durable.
    pub bytes_per_second: f64,
    /// Syncs per second.
    pub syncs_per_second: f64,
}

/// Measures the disk under `directory`.
pub fn rates(directory: &Path) -> Result<Vec<DiskRate>> {
    fs::create_dir_all(directory)?;
    let path = directory.join("disk");
    let mut file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    file.write_all(&vec![1; FILE_BYTES as usize])?;
    file.sync_all()?;
    let rates = WRITES_BYTES.iter().map(|bytes| rate(&mut file, *bytes)).collect();
    fs::remove_file(&path)?;
    rates
}

fn rate(file: &mut File, write_bytes: usize) -> Result<DiskRate> {
    let bytes = vec![2; write_bytes];
    let mut syncs = 0;
    let started = Instant::now();
    while started.elapsed() < MEASURED {
        if file.stream_position()? + write_bytes as u64 > FILE_BYTES {
            file.seek(SeekFrom::Start(0))?;
        }
        file.write_all(&bytes)?;
        file.sync_data()?;
        syncs += 1;
    }
    let syncs_per_second = f64::from(syncs) / started.elapsed().as_secs_f64();
    Ok(DiskRate { write_bytes, bytes_per_second: syncs_per_second * write_bytes as f64, syncs_per_second })
}
