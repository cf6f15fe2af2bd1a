//! The minimal cost of any call on this machine: two threads pass a few bytes to and fro over
//! loopback, and do nothing else.
//!
//! Most of that time goes not into the bytes but into waking a halted core, which on a virtual
//! machine is the hypervisor's job. [`Awake`] keeps the cores from halting, so that the two costs
//! can be told apart.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;

use super::runs::{Pressure, Quantiles};

/// About the size of the Runtime API's messages of an empty function.
const BYTES: usize = 200;

/// Exchanges between two threads, for the time in `pressure`.
pub fn bare(pressure: Pressure) -> Result<Quantiles> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let echo = thread::spawn(move || {
        let mut bytes = [0; BYTES];
        while far.read_exact(&mut bytes).is_ok() && far.write_all(&bytes).is_ok() {}
    });
    let counts_from = Instant::now() + pressure.warm_up;
    let until = counts_from + pressure.measure;
    let mut times = Histogram::<u64>::new(3)?;
    let mut bytes = [0; BYTES];
    while Instant::now() < until {
        let began = Instant::now();
        near.write_all(&bytes)?;
        near.read_exact(&mut bytes)?;
        if began >= counts_from {
            times.record(began.elapsed().as_micros() as u64)?;
        }
    }
    drop(near);
    echo.join()
        .ok()
        .context("the other end of a bare exchange failed")?;
    Ok(Quantiles::of(&times))
}

/// No core halts while this is held: each runs an idle-priority process, which yields to every
/// other process.
#[derive(Debug)]
pub struct Awake {
    loops: Vec<Child>,
}

impl Awake {
    /// Errors: `chrt` and `taskset` (util-linux) are missing.
    pub fn keep() -> Result<Self> {
        let mut awake = Self { loops: Vec::new() };
        for core in 0..thread::available_parallelism()?.get() {
            let mut command = Command::new("chrt");
            command.args(["--idle", "0", "taskset", "--cpu-list", &core.to_string()]);
            command
                .args(["sh", "-c", "while :; do :; done"])
                .stdin(Stdio::null());
            awake
                .loops
                .push(command.spawn().context("start chrt (util-linux)")?);
        }
        Ok(awake)
    }

    /// Ends it. Errors: a core was not kept awake, because `taskset` is missing or the core is not
    /// available to us.
    pub fn end(mut self) -> Result<()> {
        for child in &mut self.loops {
            ensure!(
                child.try_wait()?.is_none(),
                "a loop that was to keep a core from halting has ended"
            );
        }
        Ok(())
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for child in &mut self.loops {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
