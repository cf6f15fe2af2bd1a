//! The real binary in a directory of its own, and its output.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    thread::{self, JoinHandle},
    time::Duration,
};

/// No wait takes longer, unless something is broken.
pub(crate) const WAIT_MAX: Duration = Duration::from_mins(2);
/// Lines of stdout that may wait to be read.
const LINES_MAX: usize = 4096;

/// `landfast` in `directory`, isolated from the test runner's environment.
pub(crate) fn landfast(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_landfast"));
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("LANDFAST_") || name == "RUST_LOG")
    {
        command.env_remove(name);
    }
    command
        .current_dir(directory)
        // Tests run side by side, and a start takes the default port.
        .env("LANDFAST_ROUTES", "127.0.0.1:0")
        .env("LANDFAST_S3", "127.0.0.1:0")
        .args(arguments)
        .stdin(Stdio::null());
    command
}

/// Runs a command that ends by itself. One that does not is killed, and fails the test.
pub(crate) fn run(command: &mut Command) -> Output {
    let ended = Server::spawn(command).ended();
    let stdout = ended
        .stdout
        .iter()
        .flat_map(|line| [line.as_bytes(), b"\n"].concat())
        .collect();
    Output {
        status: ended.status,
        stdout,
        stderr: ended.stderr.into_bytes(),
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `serve` on free ports, in `directory`.
pub(crate) fn serve(directory: &Path, more: &[&str]) -> Command {
    let mut command = landfast(directory, &["serve"]);
    command
        .env("LANDFAST_ZOOKEEPER", "127.0.0.1:0")
        .env("LANDFAST_HTTP", "127.0.0.1:0")
        .args(more);
    command
}

/// A running server; killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    stdout: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
    pub(crate) ready_line: String,
}

/// How a server ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<String>,
    pub(crate) stderr: String,
}

impl Server {
    /// Starts it and waits for the `ready` line.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut server = Self::spawn(command);
        match server.stdout.recv_timeout(WAIT_MAX) {
            Ok(line) => server.ready_line = line,
            Err(error) => panic!("no ready line ({error}): {:?}", server.killed()),
        }
        server
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let (lines, stdout) = sync_channel(LINES_MAX);
        let reader = BufReader::new(child.stdout.take().expect("piped"));
        thread::spawn(move || {
            reader
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| lines.send(line))
        });
        let mut errors = child.stderr.take().expect("piped");
        let stderr = thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = errors.read_to_end(&mut bytes);
            text(&bytes)
        });
        Self {
            child,
            stdout,
            stderr: Some(stderr),
            ready_line: String::new(),
        }
    }

    /// Where a front end accepts, from the `ready` line.
    pub(crate) fn address(&self, front_end: &str) -> SocketAddr {
        let found = self
            .ready_line
            .split(' ')
            .find_map(|word| word.strip_prefix(front_end)?.strip_prefix('='));
        found
            .unwrap_or_else(|| panic!("no {front_end} in {:?}", self.ready_line))
            .parse()
            .expect("HOST:PORT")
    }

    /// The body at `path`, if the answer is 200; the whole answer otherwise.
    pub(crate) fn get(&self, path: &str) -> Result<String, String> {
        let mut stream = TcpStream::connect(self.address("http")).expect("the server accepts");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")
            .expect("the request is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.split(' ').nth(1) == Some("200") => Ok(body.to_owned()),
            _ => Err(answer),
        }
    }

    /// Sends a signal by its name, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let script = format!("kill -{name} {}", self.child.id());
        let status = Command::new("sh")
            .args(["-c", &script])
            .status()
            .expect("sh starts");
        assert!(status.success(), "{script}");
    }

    /// Waits until the process has ended by itself.
    pub(crate) fn ended(mut self) -> Ended {
        let mut stdout = Vec::new();
        let deadline = std::time::Instant::now() + WAIT_MAX;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            match self.stdout.recv_timeout(left) {
                Ok(line) => stdout.push(line),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
                Err(error) => panic!(
                    "still running after {WAIT_MAX:?} ({error}): {:?}",
                    self.killed()
                ),
            }
        }
        let status = self.child.wait().expect("a child");
        Ended {
            status,
            stdout,
            stderr: self.stderr(),
        }
    }

    fn killed(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.stderr()
    }

    fn stderr(&mut self) -> String {
        self.stderr
            .take()
            .map(|reader| reader.join().expect("it only reads"))
            .unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
