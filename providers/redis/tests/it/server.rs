//! Real servers on loopback, each with a free port and its own directory, stopped when the test
//! ends.

use std::{
    fmt,
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use redis::{FromRedisValue, cmd};
use tempfile::TempDir;

/// The longest wait for a server.
pub(crate) const WAIT_MAX: Duration = Duration::from_mins(2);

/// Between two polls. Servers need the cores: those of a cluster take seconds to serve again.
const POLL_PAUSE: Duration = Duration::from_millis(2);

/// How a server persists its writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// In memory only.
    Memory,
    /// In the append-only file, synced before it replies.
    Always,
    /// In the append-only file, synced once a second.
    EverySecond,
}

/// A running server.
pub(crate) struct Server {
    child: Mutex<Child>,
    port: u16,
    directory: TempDir,
    arguments: Vec<String>,
    bus_port: u16,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener
        .local_addr()
        .expect("a listener has an address")
        .port()
}

impl Server {
    /// Starts a server.
    pub(crate) fn start(persistence: Persistence) -> Self {
        Self::start_with(persistence, &[])
    }

    /// Starts a server with further arguments.
    pub(crate) fn start_with(persistence: Persistence, further: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let keeping: &[&str] = match persistence {
            Persistence::Memory => &["--appendonly", "no"],
            Persistence::Always => &["--appendonly", "yes", "--appendfsync", "always"],
            Persistence::EverySecond => &["--appendonly", "yes", "--appendfsync", "everysec"],
        };
        let fixed = [
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--daemonize",
            "no",
            "--logfile",
            "log",
        ];
        let arguments: Vec<String> = fixed
            .iter()
            .chain(keeping)
            .chain(further)
            .map(|argument| (*argument).to_owned())
            .collect();
        for _ in 0..20 {
            let (port, bus_port) = (free_port(), free_port());
            let mut arguments = arguments.clone();
            arguments.extend(["--cluster-port".to_owned(), bus_port.to_string()]);
            let mut child = spawn(port, &directory, &arguments);
            if answers(port, &mut child) {
                return Self {
                    child: Mutex::new(child),
                    port,
                    directory,
                    arguments,
                    bus_port,
                };
            }
            // Another process took the port in between.
            drop(child.wait());
        }
        panic!("no server starts; is redis-server installed?");
    }

    /// The port for clients.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The port for the other servers of its cluster.
    pub(crate) fn bus_port(&self) -> u16 {
        self.bus_port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Runs a command on it.
    pub(crate) fn ask<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let client = redis::Client::open(self.url()).expect("a URL of ours");
        let mut connection = client.get_connection_with_timeout(WAIT_MAX)?;
        let mut command = cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        command.query(&mut connection)
    }

    /// Runs a command on it that must succeed.
    pub(crate) fn tell<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.ask(words)
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Kills it immediately, like a crash.
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.kill().expect("it was running");
        child.wait().expect("it has ended");
    }

    /// Restarts it on its port and in its directory.
    pub(crate) fn restart(&self) {
        let started = Instant::now();
        loop {
            let mut child = spawn(self.port, &self.directory, &self.arguments);
            if answers(self.port, &mut child) {
                *self.child.lock().unwrap_or_else(PoisonError::into_inner) = child;
                return;
            }
            drop(child.wait());
            assert!(
                started.elapsed() < WAIT_MAX,
                "the server does not start again"
            );
        }
    }

    /// The directory of its files.
    pub(crate) fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(child.kill());
        drop(child.wait());
    }
}

fn spawn(port: u16, directory: &TempDir, arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--dir"])
        .arg(directory.path())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed")
}

/// Waits until the server replies on `port`. Returns false if it has ended.
fn answers(port: u16, child: &mut Child) -> bool {
    let started = Instant::now();
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("a URL of ours");
    while started.elapsed() < WAIT_MAX {
        if child
            .try_wait()
            .expect("a child can be waited for")
            .is_some()
        {
            return false;
        }
        let connected = client.get_connection_with_timeout(Duration::from_secs(1));
        if let Ok(mut connection) = connected {
            let reply: redis::RedisResult<String> = cmd("INFO").query(&mut connection);
            let own = format!("process_id:{}\r", child.id());
            match reply {
                // While it loads its file it replies to nothing else.
                Ok(reply) if reply.contains(&own) => {
                    if reply.contains("\nloading:0\r") {
                        return true;
                    }
                }
                Ok(_) => {
                    drop(child.kill());
                    return false;
                }
                Err(_) => {}
            }
        }
        thread::sleep(POLL_PAUSE);
    }
    drop(child.kill());
    false
}

/// Waits until `holds` returns true, which a server brings about.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < WAIT_MAX, "timed out waiting: {what}");
        thread::sleep(POLL_PAUSE);
    }
}

/// A server that tests share while any of them uses it; each test has its own namespace.
pub(crate) fn shared() -> Arc<Server> {
    static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(Server::start(Persistence::Always));
        *shared = Arc::downgrade(&server);
        server
    })
}
