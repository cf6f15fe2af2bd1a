//! The server processes under test, and the kernel's figures about them.
//!
//! Both are started the way a user starts them, with an empty directory on the same disk, and are
//! measured from outside through `/proc` alone. A process is stopped with SIGTERM, and killed if it
//! does not react.

use std::{
    fs::{self, File},
    io::{self, Write},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::figures::{Footprint, Machine};

/// Linux reports CPU time in hundredths of a second to user space, independently of the kernel's own tick.
const CLOCK_TICKS_PER_SECOND: u64 = 100;
const READY_WAIT: Duration = Duration::from_mins(1);
const READY_POLL: Duration = Duration::from_millis(1);
/// How long a starting server may take to answer one request.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
const STOP_WAIT: Duration = Duration::from_secs(10);
/// How long a started server is left alone before its idle memory is read.
const SETTLE: Duration = Duration::from_secs(2);

/// A server.
#[derive(Debug)]
pub struct Process {
    /// The listening address: for Landfast, the one for ZooKeeper clients.
    pub address: SocketAddr,
    name: String,
    child: Child,
    ready: Duration,
    idle_rss_bytes: u64,
}

impl Process {
    /// Starts `landfast serve` with an empty data directory under `directory`.
    pub async fn landfast(program: &Path, directory: &Path) -> Result<Self> {
        let data = fresh(&directory.join("landfast"))?;
        let provider = ["--data-dir".to_owned(), data.display().to_string()];
        let served = Self::landfast_with(program, directory, &provider, None);
        Ok(served.await?.0)
    }

    /// Starts `landfast serve` with S3 and an empty data directory under `directory`. `keys` are the
    /// access key and the secret key. Also returns the address of S3.
    pub async fn landfast_s3(
        program: &Path,
        directory: &Path,
        keys: (&str, &str),
    ) -> Result<(Self, SocketAddr)> {
        let data = fresh(&directory.join("landfast"))?;
        let provider = ["--data-dir".to_owned(), data.display().to_string()];
        let served = Self::landfast_with(program, directory, &provider, Some(keys));
        let (process, ready_line) = served.await?;
        Ok((process, address_of("s3", &ready_line)?))
    }

    /// Starts `landfast serve` with the store at `provider`, which is emptied first if it is a data
    /// directory. Also returns the HTTP address.
    pub async fn landfast_on(
        program: &Path,
        directory: &Path,
        provider: &[String],
    ) -> Result<(Self, SocketAddr)> {
        if let [flag, data] = provider
            && flag == "--data-dir"
        {
            fresh(Path::new(data))?;
        }
        let served = Self::landfast_with(program, directory, provider, None);
        let (process, ready_line) = served.await?;
        Ok((process, address_of("http", &ready_line)?))
    }

    async fn landfast_with(
        program: &Path,
        directory: &Path,
        provider: &[String],
        s3: Option<(&str, &str)>,
    ) -> Result<(Self, String)> {
        let output = directory.join("landfast.out");
        let name = version(program)?;
        let started = Instant::now();
        let child = Command::new(program)
            .arg("serve")
            .args(provider)
            .args(["--zookeeper", "127.0.0.1:0", "--http", "127.0.0.1:0"])
            .args(["--s3", s3.map_or("off", |_| "127.0.0.1:0")])
            .args(["--routes", "off"])
            .envs(s3.map(|(access, _)| ("LANDFAST_S3_ACCESS_KEY", access)))
            .envs(s3.map(|(_, secret)| ("LANDFAST_S3_SECRET_KEY", secret)))
            .stdin(Stdio::null())
            .stdout(File::create(&output)?)
            .stderr(File::create(directory.join("landfast.log"))?)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let address = "0.0.0.0:0".parse()?;
        let mut process = Self {
            address,
            name,
            child,
            ready: Duration::ZERO,
            idle_rss_bytes: 0,
        };
        let ready_line = loop {
            let text = fs::read_to_string(&output)?;
            if let Some(line) = text.lines().find(|line| line.starts_with("ready ")) {
                break line.to_owned();
            }
            process.still_starting(started)?;
            tokio::time::sleep(READY_POLL).await;
        };
        process.address = address_of("zookeeper", &ready_line)?;
        Ok((process.settle(started.elapsed()).await?, ready_line))
    }

    /// Starts redis-server with an empty directory under `directory`; `fsync` is `always`, or `none` for no file.
    pub async fn redis(directory: &Path, fsync: &str) -> Result<Self> {
        Self::redis_with(directory, fsync, &[]).await
    }

    /// Starts redis-server as a part of a cluster that is yet to be assembled. Also returns the
    /// port of its cluster bus.
    pub async fn redis_in_cluster(directory: &Path, fsync: &str) -> Result<(Self, u16)> {
        let bus_port = free_address()?.port();
        let cluster = [
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &bus_port.to_string(),
        ];
        Ok((
            Self::redis_with(directory, fsync, &cluster).await?,
            bus_port,
        ))
    }

    async fn redis_with(directory: &Path, fsync: &str, further: &[&str]) -> Result<Self> {
        let data = fresh(&directory.join("redis"))?;
        let address = free_address()?;
        let keeping: &[&str] = match fsync {
            "none" => &["--appendonly", "no"],
            fsync => &["--appendonly", "yes", "--appendfsync", fsync],
        };
        let mut command = Command::new("redis-server");
        command
            .args([
                "--port",
                &address.port().to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--dir",
            ])
            .arg(&data)
            .args(keeping)
            .args(further)
            // The server whose turn fills the file up to a rewrite would shift the rewrite's cost
            // to the turn of another.
            .args(["--auto-aof-rewrite-percentage", "0"]);
        Self::peer("Redis", command, address, &directory.join("redis.log")).await
    }

    /// Starts a standalone ZooKeeper from the jars in `peer/lib`, with fsync on and a heap of 2 GB.
    pub async fn zookeeper(peer: &Path, directory: &Path) -> Result<Self> {
        let data = fresh(&directory.join("zookeeper"))?;
        let address = free_address()?;
        let config = data.join("zoo.cfg");
        write!(
            File::create(&config)?,
            "tickTime=2000\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
             admin.enableServer=false\n4lw.commands.whitelist=*\n",
            data.display(),
            address.port()
        )?;
        let started = Instant::now();
        let child = Command::new("java")
            .args(["-Xms2g", "-Xmx2g", "-cp"])
            .arg(format!("{0}/conf:{0}/lib/*", peer.display()))
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(File::create(directory.join("zookeeper.log"))?)
            .stderr(Stdio::null())
            .spawn()
            .context("starting java")?;
        let name = "ZooKeeper 3.9.5".to_owned();
        let mut process = Self {
            address,
            name,
            child,
            ready: Duration::ZERO,
            idle_rss_bytes: 0,
        };
        while !serves(address).await {
            process.still_starting(started)?;
            tokio::time::sleep(READY_POLL).await;
        }
        process.settle(started.elapsed()).await
    }

    /// Starts `command`, a peer that is ready once `address` accepts connections.
    pub async fn peer(
        name: &str,
        mut command: Command,
        address: SocketAddr,
        log: &Path,
    ) -> Result<Self> {
        let started = Instant::now();
        command
            .stdin(Stdio::null())
            .stdout(File::create(log)?)
            .stderr(Stdio::null());
        let child = command
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let name = name.to_owned();
        let mut process = Self {
            address,
            name,
            child,
            ready: Duration::ZERO,
            idle_rss_bytes: 0,
        };
        while TcpStream::connect(address).await.is_err() {
            process.still_starting(started)?;
            tokio::time::sleep(READY_POLL).await;
        }
        process.settle(started.elapsed()).await
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory now, in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.status_bytes("VmRSS:")
    }

    /// CPU time so far, user and system, all threads.
    pub fn cpu(&self) -> Result<Duration> {
        cpu_of(&self.proc("stat"))
    }

    /// Its resource use outside its loads, up to now.
    pub fn footprint(&self) -> Result<Footprint> {
        Ok(Footprint {
            name: self.name.clone(),
            ready_ms: self.ready.as_secs_f64() * 1e3,
            idle_rss_bytes: self.idle_rss_bytes,
            peak_rss_bytes: self.status_bytes("VmHWM:")?,
        })
    }

    /// Halts it, so that its deferred work does not fall into another server's measurement.
    pub fn pause(&self) -> Result<()> {
        self.signal("-STOP")
    }

    /// Resumes it.
    pub fn resume(&self) -> Result<()> {
        self.signal("-CONT")
    }

    fn signal(&self, signal: &str) -> Result<()> {
        let pid = self.child.id().to_string();
        ensure!(
            Command::new("kill")
                .args([signal, &pid])
                .status()?
                .success(),
            "kill {signal} {pid} failed"
        );
        Ok(())
    }

    /// Asks it to stop, and waits until it has exited.
    pub async fn stop(mut self) -> Result<()> {
        self.signal("-TERM")?;
        let asked = Instant::now();
        while self.child.try_wait()?.is_none() {
            ensure!(
                asked.elapsed() < STOP_WAIT,
                "{} did not stop within 10 s of SIGTERM",
                self.name
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    fn still_starting(&mut self, started: Instant) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!(
                "{} ended before it was ready: {status}; its log lies beside its data",
                self.name
            );
        }
        ensure!(
            started.elapsed() < READY_WAIT,
            "{} was not ready within 60 s",
            self.name
        );
        Ok(())
    }

    async fn settle(mut self, ready: Duration) -> Result<Self> {
        self.ready = ready;
        tokio::time::sleep(SETTLE).await;
        self.idle_rss_bytes = self.status_bytes("VmRSS:")?;
        Ok(self)
    }

    fn status_bytes(&self, field: &str) -> Result<u64> {
        let status = fs::read_to_string(self.proc("status"))?;
        kibibytes(&status, field).with_context(|| format!("no {field} in /proc/PID/status"))
    }

    fn proc(&self, file: &str) -> PathBuf {
        format!("/proc/{}/{file}", self.child.id()).into()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A run that failed half-way must not leave servers behind; an error means that the process
        // is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Machine {
    /// The machine that this process runs on, as it is now.
    pub fn here() -> Result<Self> {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = cpu
            .lines()
            .find_map(|line| line.strip_prefix("model name"))
            .map_or("unknown processor", |rest| {
                rest.trim_start_matches([' ', '\t', ':'])
            });
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let date = Command::new("date")
            .args(["-u", "+%Y-%m-%d %H:%M UTC"])
            .output()?
            .stdout;
        Ok(Self {
            processor: processor.to_owned(),
            processors: std::thread::available_parallelism()?.get(),
            memory_bytes: kibibytes(&memory, "MemTotal:").unwrap_or(0),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            load_average: load.split(' ').next().unwrap_or_default().to_owned(),
            date: String::from_utf8_lossy(&date).trim().to_owned(),
        })
    }
}

/// CPU time that this process has taken so far.
pub fn own_cpu() -> Result<Duration> {
    cpu_of(Path::new("/proc/self/stat"))
}

fn cpu_of(stat: &Path) -> Result<Duration> {
    let stat = fs::read_to_string(stat).context("the server is gone")?;
    let ticks = cpu_ticks(&stat).context("an unreadable /proc/PID/stat")?;
    Ok(Duration::from_millis(ticks * 1000 / CLOCK_TICKS_PER_SECOND))
}

/// An empty directory at `path`; earlier content is deleted.
pub(crate) fn fresh(path: &Path) -> Result<PathBuf> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    fs::create_dir_all(path)?;
    Ok(path.canonicalize()?)
}

/// A loopback address that no other server uses now.
pub fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

fn version(program: &Path) -> Result<String> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .with_context(|| program.display().to_string())?;
    Ok(String::from_utf8_lossy(&output.stdout)
        .trim()
        .replacen("landfast", "Landfast", 1))
}

fn address_of(front_end: &str, ready_line: &str) -> Result<SocketAddr> {
    let named = |word: &'_ str| Some(word.strip_prefix(front_end)?.strip_prefix('=')?.to_owned());
    let address = ready_line.split_whitespace().find_map(named);
    Ok(address
        .with_context(|| format!("no {front_end}= in {ready_line:?}"))?
        .parse()?)
}

/// Whether it accepts sessions; it answers `ruok` some time before that.
async fn serves(address: SocketAddr) -> bool {
    let ask = async {
        let mut socket = TcpStream::connect(address).await?;
        socket.write_all(b"srvr").await?;
        let mut answer = Vec::new();
        socket.take(4096).read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    // ZooKeeper never answers a request that arrives at an unlucky moment of its start.
    let answered = tokio::time::timeout(ANSWER_WAIT, ask).await;
    answered.is_ok_and(|answer| {
        answer.is_ok_and(|answer| answer.windows(6).any(|bytes| bytes == b"Mode: "))
    })
}

/// User and system time of a `/proc/PID/stat` line; the program's name in it may hold anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn kibibytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kibibytes| kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_past_a_hostile_program_name() {
        let stat = "42 (a) b 1) S 1 42 42 0 -1 4194560 100 0 0 0 7 5 0 0 20 0 9 0 100 1000 10";
        assert_eq!(cpu_ticks(stat), Some(12));
    }

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(
            kibibytes("Name:\tx\nVmRSS:\t     52 kB\n", "VmRSS:"),
            Some(52 * 1024)
        );
    }

    #[test]
    fn the_ready_line_names_the_address() {
        let address = address_of(
            "zookeeper",
            "ready zookeeper=127.0.0.1:2181 http=127.0.0.1:7600 routes=127.0.0.1:7602",
        )
        .expect("an address");
        assert_eq!(address.port(), 2181);
    }
}
