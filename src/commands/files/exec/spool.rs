//! The output of a command, held in files until its transaction has committed.
//!
//! A thread reads two pipes, so that the command sees pipes as from a shell, and the bound is
//! exact. The files have no names, so they end with this process.

use std::{
    fs::File,
    io::{self, PipeReader, PipeWriter, Read as _, Seek as _, Write},
    os::fd::AsFd as _,
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, anyhow, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

const READ_BYTES: usize = 64 * 1024;

/// The held output of an ended command.
#[derive(Debug)]
pub(super) struct Held {
    stdout: File,
    stderr: File,
}

impl Held {
    /// Writes the command's stdout.
    pub(super) fn copy_stdout(&mut self, to: &mut impl Write) -> io::Result<()> {
        copy(&mut self.stdout, to)
    }

    /// Writes the command's stderr.
    pub(super) fn copy_stderr(&mut self, to: &mut impl Write) -> io::Result<()> {
        copy(&mut self.stderr, to)
    }
}

fn copy(from: &mut File, to: &mut impl Write) -> io::Result<()> {
    from.rewind()?;
    io::copy(from, to)?;
    to.flush()
}

/// Holds the output of one run of the command.
#[derive(Debug)]
pub(super) struct Spool {
    thread: JoinHandle<io::Result<Held>>,
    /// The thread ends when this is dropped and the pipes are empty.
    end: PipeWriter,
    /// Completes when the thread reads no more, because the bound is reached or a file cannot be
    /// written.
    pub(super) stopped: oneshot::Receiver<()>,
}

/// The ends of the pipes for the command.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) stdout: PipeWriter,
    pub(super) stderr: PipeWriter,
}

impl Spool {
    /// Begins to hold at most `bytes_max` of both streams together.
    pub(super) fn start(bytes_max: u64) -> anyhow::Result<(Self, Pipes)> {
        let (stdout, for_stdout) = io::pipe()?;
        let (stderr, for_stderr) = io::pipe()?;
        let (ended, end) = io::pipe()?;
        let (stop, stopped) = oneshot::channel();
        let mut streams = [Stream::new(stdout)?, Stream::new(stderr)?];
        let thread = thread::Builder::new().name("output".into());
        let thread = thread.spawn(move || {
            let read = read_all(&mut streams, &ended, bytes_max);
            if read.is_err() {
                // The receiver is gone if the command has ended.
                let _ = stop.send(());
            }
            // The pipes close from here on, so the command may end by SIGPIPE. Its reader has been
            // told of the reason before.
            let [stdout, stderr] = streams;
            read.map(|()| Held {
                stdout: stdout.file,
                stderr: stderr.file,
            })
        })?;
        let spool = Self {
            thread,
            end,
            stopped,
        };
        let pipes = Pipes {
            stdout: for_stdout,
            stderr: for_stderr,
        };
        Ok((spool, pipes))
    }

    /// All that was written. Call it when the writers have ended. Errors: the output was too large,
    /// or could not be held.
    pub(super) fn finish(self) -> anyhow::Result<Held> {
        drop(self.end);
        let held = self.thread.join();
        let held = held.map_err(|_| anyhow!("the thread that reads the output panicked"))?;
        held.context("the output of the command cannot be held")
    }
}

struct Stream {
    pipe: Option<PipeReader>,
    file: File,
}

impl Stream {
    fn new(pipe: PipeReader) -> anyhow::Result<Self> {
        let file = unnamed_file()?;
        Ok(Self {
            pipe: Some(pipe),
            file,
        })
    }

    /// Moves the available bytes. Returns their number.
    fn advance(&mut self, buffer: &mut [u8]) -> io::Result<u64> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(0);
        };
        let read = pipe.read(buffer)?;
        if read == 0 {
            self.pipe = None;
        }
        self.file.write_all(&buffer[..read])?;
        Ok(read as u64)
    }
}

fn unnamed_file() -> anyhow::Result<File> {
    tempfile::tempfile().with_context(|| {
        let folder = std::env::temp_dir();
        format!(
            "no temporary file can be made in {}; set TMPDIR",
            folder.display()
        )
    })
}

fn read_all(streams: &mut [Stream; 2], ended: &PipeReader, bytes_max: u64) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    let mut bytes = 0;
    let mut has_ended = false;
    loop {
        let wait = if has_ended {
            PollTimeout::ZERO
        } else {
            PollTimeout::NONE
        };
        let [stdout, stderr, end] = ready(streams, ended, wait)?;
        if has_ended && !stdout && !stderr {
            return Ok(());
        }
        has_ended |= end;
        for (stream, is_ready) in streams.iter_mut().zip([stdout, stderr]) {
            if is_ready {
                bytes += stream.advance(&mut buffer)?;
            }
        }
        if bytes > bytes_max {
            return Err(io::Error::other(format!(
                "it has more than {bytes_max} bytes (--output-bytes-max); write large results to \
                 files in the volume"
            )));
        }
    }
}

/// Which of the streams can be read, and whether the end was announced.
fn ready(streams: &[Stream; 2], ended: &PipeReader, wait: PollTimeout) -> io::Result<[bool; 3]> {
    let pipes = [
        streams[0].pipe.as_ref(),
        streams[1].pipe.as_ref(),
        Some(ended),
    ];
    let opened = pipes.iter().flatten();
    let mut polled: Vec<_> = opened
        .map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN))
        .collect();
    loop {
        match poll(&mut polled, wait) {
            Err(nix::errno::Errno::EINTR) => {}
            result => {
                result?;
                break;
            }
        }
    }
    let mut polled = polled.iter();
    Ok(pipes.map(|pipe| {
        pipe.is_some()
            && polled
                .next()
                .is_some_and(|polled| polled.any() == Some(true))
    }))
}

/// All of `source`, in a file without a name. Errors: it has more than `bytes_max`.
pub(super) fn spooled_input(source: impl io::Read, bytes_max: u64) -> anyhow::Result<File> {
    let mut file = unnamed_file()?;
    let read = io::copy(&mut source.take(bytes_max + 1), &mut file).context("--stdin")?;
    ensure!(
        read <= bytes_max,
        "--stdin: it has more than {bytes_max} bytes; put it into a file"
    );
    Ok(file)
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    fn text(held: &mut Held) -> (String, String) {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        held.copy_stdout(&mut stdout).expect("stdout");
        held.copy_stderr(&mut stderr).expect("stderr");
        (
            String::from_utf8(stdout).expect("text"),
            String::from_utf8(stderr).expect("text"),
        )
    }

    #[test]
    fn both_streams_are_complete_even_if_a_writer_never_closes_them() {
        let (spool, mut pipes) = Spool::start(1 << 20).expect("a spool");
        pipes.stdout.write_all(b"one ").expect("a write");
        pipes.stderr.write_all(b"two").expect("a write");
        pipes.stdout.write_all(b"three").expect("a write");
        let mut held = spool.finish().expect("all of it");
        assert_eq!(text(&mut held), ("one three".into(), "two".into()));
        assert_eq!(text(&mut held).0, "one three", "it can be written again");
    }

    #[test]
    fn the_bound_counts_both_streams_and_is_exact() {
        let (spool, mut pipes) = Spool::start(8).expect("a spool");
        pipes.stdout.write_all(b"1234").expect("a write");
        pipes.stderr.write_all(b"5678").expect("a write");
        drop(pipes);
        assert_eq!(
            text(&mut spool.finish().expect("the bound")),
            ("1234".into(), "5678".into())
        );

        let (mut spool, mut pipes) = Spool::start(8).expect("a spool");
        pipes.stdout.write_all(b"1234").expect("a write");
        pipes.stderr.write_all(b"56789").expect("a write");
        while spool.stopped.try_recv() == Err(TryRecvError::Empty) {
            thread::yield_now();
        }
        let error = format!("{:#}", spool.finish().expect_err("too much"));
        assert!(error.contains("more than 8 bytes"), "{error}");
    }

    #[test]
    fn input_is_bounded() {
        let mut file = spooled_input(&b"12345678"[..], 8).expect("the bound");
        file.rewind().expect("a file");
        assert_eq!(io::read_to_string(file).expect("text"), "12345678");
        assert!(spooled_input(&b"123456789"[..], 8).is_err());
    }
}
