//! How long the disk takes to make a small append durable.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;

const BLOCK_BYTES: usize = 4096;
const SYNCS: usize = 500;

/// The median time of fdatasync after a write of 4 KiB into a file that has its blocks, as a journal
/// has.
pub fn fdatasync_p50(directory: &Path) -> Result<Duration> {
    let path = directory.join("fdatasync");
    let file = File::create(&path)?;
    file.write_all_at(&vec![0; BLOCK_BYTES * SYNCS], 0)?;
    file.sync_all()?;
    let block = [7; BLOCK_BYTES];
    let mut times = Vec::with_capacity(SYNCS);
    for index in 0..SYNCS {
        file.write_all_at(&block, (index * BLOCK_BYTES) as u64)?;
        let begun = Instant::now();
        file.sync_data()?;
        times.push(begun.elapsed());
    }
    std::fs::remove_file(path)?;
    times.sort_unstable();
    Ok(times[SYNCS / 2])
}
