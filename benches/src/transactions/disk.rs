//! The disk alone: the same bytes, written and synced one after the other by a program that does
//! nothing else.

use std::{
    fs::{self, File},
    io::{Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::Serialize;

/// Bytes between two syncs: the values of one transaction, the values of ten, and a size that
/// saturates the disk.
const WRITES_BYTES: [usize; 3] = [8 << 10, 80 << 10, 4 << 20];
/// How long each size is measured in one turn.
const MEASURED: Duration = Duration::from_millis(300);
/// The file is overwritten from its start at this length, so that the measurement contains no block
/// allocation.
const FILE_BYTES: u64 = 64 << 20;

/// Writes of one size.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct DiskRate {
    /// Length of a write; each is synced.
    pub write_bytes: usize,
    /// Durable bytes per second.
    pub bytes_per_second: f64,
    /// Syncs per second.
    pub syncs_per_second: f64,
}

/// A file on the disk, which takes its turns beside the stores.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    file: File,
    /// Syncs of writes of each size, and how long they took.
    measured: [(u32, Duration); WRITES_BYTES.len()],
}

impl Disk {
    /// The disk under `directory`.
    pub fn under(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let path = directory.join("disk");
        let mut file =
            File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        file.write_all(&vec![1; FILE_BYTES as usize])?;
        file.sync_all()?;
        Ok(Self {
            path,
            file,
            measured: Default::default(),
        })
    }

    /// Runs one turn.
    pub fn turn(&mut self) -> Result<()> {
        for (write_bytes, (syncs, elapsed)) in WRITES_BYTES.iter().zip(&mut self.measured) {
            let (more, took) = writes(&mut self.file, *write_bytes)?;
            *syncs += more;
            *elapsed += took;
        }
        Ok(())
    }

    /// The results of all turns.
    pub fn rates(self) -> Result<Vec<DiskRate>> {
        fs::remove_file(&self.path)?;
        let rate = |(write_bytes, (syncs, elapsed)): (usize, (u32, Duration))| {
            let syncs_per_second = f64::from(syncs) / elapsed.as_secs_f64();
            let bytes_per_second = syncs_per_second * write_bytes as f64;
            DiskRate {
                write_bytes,
                bytes_per_second,
                syncs_per_second,
            }
        };
        Ok(WRITES_BYTES
            .into_iter()
            .zip(self.measured)
            .map(rate)
            .collect())
    }
}

fn writes(file: &mut File, write_bytes: usize) -> Result<(u32, Duration)> {
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
    Ok((syncs, started.elapsed()))
}
