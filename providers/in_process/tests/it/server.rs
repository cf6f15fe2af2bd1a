//! A real redis-server on loopback, shared by concurrent tests.

use std::{
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// How long a server may take to accept connections.
const PATIENCE: Duration = Duration::from_mins(2);

/// A running server; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    port: u16,
    _directory: TempDir,
}

impl Server {
    fn start() -> Self {
        for _ in 0..20 {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = listener
                .local_addr()
                .expect("a listener has an address")
                .port();
            drop(listener);
            let directory = tempfile::tempdir().expect("a temporary directory");
            let mut child = Command::new("redis-server")
                .args([
                    "--port",
                    &port.to_string(),
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--logfile",
                    "log",
                ])
                .args(["--appendonly", "yes", "--appendfsync", "always", "--dir"])
                .arg(directory.path())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .expect("redis-server is installed");
            if accepts(port, &mut child) {
                return Self {
                    child,
                    port,
                    _directory: directory,
                };
            }
        }
        panic!("no redis-server starts");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Waits until the server accepts connections. Returns false if another process took the port and
/// the server ended.
fn accepts(port: u16, child: &mut Child) -> bool {
    let started = Instant::now();
    while child
        .try_wait()
        .expect("a child can be waited for")
        .is_none()
    {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return true;
        }
        assert!(started.elapsed() < PATIENCE, "a server that never accepts");
        thread::yield_now();
    }
    false
}

/// A server that tests share while any of them uses it.
pub(crate) fn shared() -> Arc<Server> {
    static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(Server::start());
        *shared = Arc::downgrade(&server);
        server
    })
}
