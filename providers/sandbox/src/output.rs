//! What one instance prints, line by line, under the invocation that it has at the time.
//!
//! Two read the pipes: a task for as long as the instance lives, and whoever ends an invocation, so that all that the
//! function printed before it answered is there when its answer is returned (promise U5). Both read under one lock.

use std::{io, sync::Arc};

use parking_lot::Mutex;
use tokio::net::unix::pipe::Receiver;

use crate::logs::Logs;

/// What of an invocation's output its caller may be shown.
const TAIL_BYTES_MAX: usize = 4 * 1024;
/// The longest line that is kept in one piece.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Read at a time.
const READ_BYTES: usize = 16 * 1024;

/// The output of one instance.
#[derive(Debug)]
pub(crate) struct Output {
    streams: [Receiver; 2],
    state: Mutex<State>,
    logs: Arc<Logs>,
    function: String,
}

#[derive(Debug, Default)]
struct State {
    id: String,
    tail: Vec<u8>,
    /// A line that has not ended yet, of each stream.
    begun: [Vec<u8>; 2],
}

impl Output {
    pub(crate) fn new(streams: [Receiver; 2], logs: Arc<Logs>, function: String) -> Self {
        Self { streams, state: Mutex::default(), logs, function }
    }

    /// Reads until both streams have ended.
    pub(crate) async fn read(&self) {
        let (first, second) = (self.read_stream(0), self.read_stream(1));
        futures_util::join!(first, second);
    }

    async fn read_stream(&self, stream: usize) {
        while self.streams[stream].readable().await.is_ok() {
            if !self.drain(&mut self.state.lock(), stream) {
                return;
            }
            // Who prints without end leaves others their turn.
            tokio::task::yield_now().await;
        }
    }

    /// Reads what is there now, up to a bound. Whether more may come.
    fn drain(&self, state: &mut State, stream: usize) -> bool {
        let mut buffer = [0; READ_BYTES];
        for _ in 0..16 {
            match self.streams[stream].try_read(&mut buffer) {
                Ok(0) => return false,
                Ok(length) => self.keep(state, stream, &buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    fn keep(&self, state: &mut State, stream: usize, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            state.begun[stream].extend_from_slice(piece);
            if piece.ends_with(b"\n") || state.begun[stream].len() >= LINE_BYTES_MAX {
                self.end_line(state, stream);
            }
        }
    }

    fn end_line(&self, state: &mut State, stream: usize) {
        let line = std::mem::take(&mut state.begun[stream]);
        let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line));
        self.logs.keep(&self.function, &state.id, &text);
        state.add(&line);
        if !line.ends_with(b"\n") {
            state.add(b"\n");
        }
    }

    /// From here on it is the output of the invocation `id`.
    pub(crate) fn begin(&self, id: &str) {
        let mut state = self.state.lock();
        self.flush(&mut state);
        id.clone_into(&mut state.id);
        state.tail.clear();
        self.frame(&mut state, &format!("START RequestId: {id} Version: $LATEST"));
    }

    /// The invocation has ended; returns the end of what it printed, with `report` behind it.
    pub(crate) fn end(&self, report: &str) -> Vec<u8> {
        let mut state = self.state.lock();
        self.flush(&mut state);
        let end = format!("END RequestId: {}", state.id);
        self.frame(&mut state, &end);
        self.frame(&mut state, report);
        state.id.clear();
        let mut tail = std::mem::take(&mut state.tail);
        tail.drain(..tail.len().saturating_sub(TAIL_BYTES_MAX));
        tail
    }

    fn frame(&self, state: &mut State, line: &str) {
        self.logs.keep(&self.function, &state.id, line);
        state.add(line.as_bytes());
        state.add(b"\n");
    }

    fn flush(&self, state: &mut State) {
        for stream in 0..self.streams.len() {
            self.drain(state, stream);
            if !state.begun[stream].is_empty() {
                self.end_line(state, stream);
            }
        }
    }
}

impl State {
    fn add(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        if self.tail.len() > 2 * TAIL_BYTES_MAX {
            self.tail.drain(..self.tail.len() - TAIL_BYTES_MAX);
        }
    }
}
