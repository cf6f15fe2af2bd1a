//! One long file, written once with fsync at the end, and read after the caches were dropped.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    time::Instant,
};

use anyhow::{Result, ensure};

use super::{
    content::FileId,
    report::{Figures, Part},
    targets::{Target, drop_caches},
};

const BLOCK_BYTES: usize = 1 << 20;
/// Of each block that is read, this much is verified.
const VERIFIED_BYTES: usize = 4096;

/// Writes and reads a file of `bytes`.
pub fn measure(target: &Target, bytes: u64) -> Result<Figures> {
    let mut figures = Figures::new(Part::Sequential, target.kind);
    let directories = target.directory("sequential")?;
    let path = directories[0].join("long");
    let id = FileId {
        number: 1,
        generation: 1,
    };
    let mut block = vec![0; BLOCK_BYTES];
    id.fill(&mut block, 0);
    let blocks = bytes / BLOCK_BYTES as u64;
    let rate = |begun: Instant| bytes as f64 / 1e6 / begun.elapsed().as_secs_f64();

    let begun = Instant::now();
    let mut file = File::create_new(&path)?;
    for number in 0..blocks {
        block[8..16].copy_from_slice(&number.to_le_bytes());
        file.write_all(&block)?;
    }
    file.sync_all()?;
    figures.push("write and fsync", "MB/s", rate(begun));
    drop(file);

    drop_caches();
    let begun = Instant::now();
    let mut file = File::open(&path)?;
    for number in 0..blocks {
        file.read_exact(&mut block)?;
        ensure!(
            block[8..16] == number.to_le_bytes() && id.is_in(&block[16..VERIFIED_BYTES], 16),
            "block {number} has other content"
        );
    }
    ensure!(file.read(&mut block)? == 0, "the file is too long");
    figures.push("read, caches dropped", "MB/s", rate(begun));
    target.remove("sequential")?;
    Ok(figures)
}
