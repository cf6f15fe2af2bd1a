//! The speed of the erasure code, beside what the memory of this machine allows.
//!
//! One thread codes whole objects, stripe after stripe, as a PUT and a degraded GET do. The same run
//! reads and copies the same bytes: no code can be faster than the streaming read. Each figure is
//! the best of its repetitions, because other work on the machine only ever slows one down.

#![allow(clippy::disallowed_methods)] // a benchmark is about real time; no seed replays it

use std::{
    fs,
    hint::black_box,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use benches::{figures::Machine, table};
use clap::Parser;
use memory::erasure::Code;

/// Data and parity units of a stripe.
const SHAPE: (usize, usize) = (10, 2);
/// The longest unit; the units of an object's last stripe are shorter.
const UNIT_BYTES_MAX: usize = 128 << 10;
/// Sizes of objects, in MB.
const OBJECTS_MB: [usize; 3] = [1, 10, 100];
/// The data units that a degraded GET misses.
const LOST: [usize; 2] = [2, 7];
/// Fewest repetitions, however long each takes.
const REPETITIONS_MIN: usize = 5;

/// Measures encoding and decoding of 10 + 2 units, in GB of object data a second.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Time for each figure, in milliseconds.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    measure_ms: u64,
    /// Write the Markdown here as well.
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
}

/// One stripe of an object: its content, and room for units that are computed.
struct Stripe<'object> {
    data: Vec<&'object [u8]>,
    parity: Vec<Vec<u8>>,
    decoded: Vec<Vec<u8>>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let machine = Machine::here()?;
    let code = Code::new(SHAPE.0, SHAPE.1);
    let mut text = format!(
        "`bench-erasure`, {}\n\n{} x {}, Linux {}, load average {} before the run. One thread, {}. GB/s of object data.\n\n",
        machine.date,
        machine.processors,
        machine.processor,
        machine.kernel,
        machine.load_average,
        code.instructions(),
    );
    let mut cells = vec![table::strings([
        "object",
        "encode 10 + 2",
        "restore 2 lost",
        "streaming read",
        "memcpy",
    ])];
    for megabytes in OBJECTS_MB {
        cells.push(row(
            &code,
            megabytes,
            Duration::from_millis(arguments.measure_ms),
        )?);
    }
    table::grid(&mut text, &cells);
    println!("{text}");
    if let Some(path) = &arguments.markdown {
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn row(code: &Code, megabytes: usize, time: Duration) -> Result<Vec<String>> {
    let object = content(megabytes * 1_000_000);
    let mut stripes: Vec<Stripe<'_>> = object
        .chunks(SHAPE.0 * UNIT_BYTES_MAX)
        .map(Stripe::new)
        .collect();
    let best = |mut work: Box<dyn FnMut() + '_>| {
        let begun = Instant::now();
        let mut best = Duration::MAX;
        let mut repetitions = 0;
        while repetitions < REPETITIONS_MIN || begun.elapsed() < time {
            let started = Instant::now();
            work();
            best = best.min(started.elapsed());
            repetitions += 1;
        }
        format!("{:.1}", object.len() as f64 / best.as_secs_f64() / 1e9)
    };
    let encode = best(Box::new(|| {
        for stripe in &mut stripes {
            stripe.encode(code);
        }
    }));
    let decode = best(Box::new(|| {
        for stripe in &mut stripes {
            stripe.decode(code);
        }
    }));
    let are_equal = stripes.iter().all(Stripe::is_restored);
    ensure!(are_equal, "a decoded unit differs from the content");
    let read = best(Box::new(|| {
        black_box(streamed(black_box(&object)));
    }));
    let mut copy = vec![1; object.len()];
    let copied = best(Box::new(|| {
        copy.copy_from_slice(black_box(&object));
        black_box(&copy);
    }));
    Ok(vec![
        format!("{megabytes} MB"),
        encode,
        decode,
        read,
        copied,
    ])
}

impl<'object> Stripe<'object> {
    /// The object is cut where units are of equal length: a rest of fewer than ten bytes is left out.
    fn new(content: &'object [u8]) -> Self {
        let unit_bytes = content.len() / SHAPE.0;
        let units = |count| vec![vec![1; unit_bytes]; count];
        Self {
            data: content.chunks_exact(unit_bytes).take(SHAPE.0).collect(),
            parity: units(SHAPE.1),
            decoded: units(LOST.len()),
        }
    }

    fn encode(&mut self, code: &Code) {
        let mut parity: Vec<&mut [u8]> = self.parity.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&self.data, &mut parity);
    }

    fn decode(&mut self, code: &Code) {
        let units = self
            .data
            .iter()
            .copied()
            .chain(self.parity.iter().map(Vec::as_slice));
        let present: Vec<(usize, &[u8])> = units
            .enumerate()
            .filter(|(index, _)| !LOST.contains(index))
            .collect();
        let decoded = self.decoded.iter_mut().map(Vec::as_mut_slice);
        let mut wanted: Vec<(usize, &mut [u8])> = LOST.into_iter().zip(decoded).collect();
        code.reconstruct(&present, &mut wanted);
    }

    fn is_restored(&self) -> bool {
        LOST.iter()
            .zip(&self.decoded)
            .all(|(&lost, unit)| self.data[lost] == unit)
    }
}

fn content(bytes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut content = vec![0; bytes];
    rng.fill(&mut content);
    content
}

/// Reads every byte once. The sums are independent, so that the memory alone limits it.
fn streamed(bytes: &[u8]) -> [u64; 32] {
    let mut sums = [0; 32];
    for block in bytes.as_chunks::<256>().0 {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks().0) {
            *sum ^= u64::from_ne_bytes(*word);
        }
    }
    sums
}
