//! The output of one instance, line by line, under the invocation at the time.
//!
//! Two readers share the pipes under one lock. A task reads for as long as the instance lives. The
//! end of an invocation reads the rest, so that the log has everything the function printed before
//! its answer is returned (promise U5).
//!
//! Invariants
//! - The task reads a little at a time, passes all lines on at once, and yields. It does not read
//!   while its function's share of the lines on their way to the disk is full ([`Log::room`]). A
//!   function that prints faster waits in its write.

use std::{io, mem, sync::Arc};

use nix::unistd;
use parking_lot::Mutex;
use tokio::net::unix::pipe::Receiver;

use crate::logs::{Log, Logs};

/// The longest end of an invocation's output that its caller gets.
const TAIL_BYTES_MAX: usize = 4 * 1024;
/// The longest line; a longer one is split.
const LINE_BYTES_MAX: usize = 64 * 1024;
const READ_BYTES: usize = 16 * 1024;
/// The most reads at the end of an invocation: four times the capacity of a pipe, unless the
/// function changed that.
const READS_AT_END_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Output {
    streams: [Receiver; 2],
    state: Mutex<State>,
    logs: Arc<Logs>,
    log: Arc<Log>,
}

#[derive(Debug)]
struct State {
    id: Arc<str>,
    tail: Vec<u8>,
    /// The unfinished line of each stream.
    begun: [Vec<u8>; 2],
}

impl Output {
    pub(crate) fn new(streams: [Receiver; 2], logs: Arc<Logs>, log: Arc<Log>) -> Self {
        let state = State {
            id: "".into(),
            tail: Vec::new(),
            begun: Default::default(),
        };
        Self {
            streams,
            state: Mutex::new(state),
            logs,
            log,
        }
    }

    pub(crate) async fn read(&self) {
        let (first, second) = (self.read_stream(0), self.read_stream(1));
        futures_util::join!(first, second);
    }

    async fn read_stream(&self, stream: usize) {
        loop {
            self.log.room().await;
            if self.streams[stream].readable().await.is_err() {
                return;
            }
            let read = |buffer: &mut [u8]| self.streams[stream].try_read(buffer);
            if !self.drain(&mut self.state.lock(), stream, 1, read) {
                return;
            }
            // A function that prints without end must not starve other tasks.
            tokio::task::yield_now().await;
        }
    }

    /// Reads what the pipe holds now with `read`, at most `reads_max` times. Whether more may come.
    fn drain(
        &self,
        state: &mut State,
        stream: usize,
        reads_max: usize,
        read: impl Fn(&mut [u8]) -> io::Result<usize>,
    ) -> bool {
        let mut buffer = [0; READ_BYTES];
        for _ in 0..reads_max {
            match read(&mut buffer) {
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
        let ended = bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        let (ended, begun) = bytes.split_at(ended);
        state.begun[stream].extend_from_slice(ended);
        if !ended.is_empty() {
            self.keep_begun(state, stream);
        }
        state.begun[stream].extend_from_slice(begun);
        if state.begun[stream].len() >= LINE_BYTES_MAX {
            self.keep_begun(state, stream);
        }
    }

    /// Keeps the text read from a stream, even if its last line is unfinished.
    fn keep_begun(&self, state: &mut State, stream: usize) {
        let mut lines = mem::take(&mut state.begun[stream]);
        if lines.ends_with(b"\n") {
            lines.pop();
        }
        self.keep_lines(state, &lines);
    }

    /// Keeps lines; the last one has no line end.
    fn keep_lines(&self, state: &mut State, lines: &[u8]) {
        let text = String::from_utf8_lossy(lines).into_owned();
        self.logs.keep(&self.log, &state.id, text);
        state.add(lines);
        state.add(b"\n");
    }

    /// Files the output under the invocation `id` from here on.
    pub(crate) fn begin(&self, id: &str) {
        let mut state = self.state.lock();
        self.flush(&mut state);
        state.id = id.into();
        state.tail.clear();
        self.keep_lines(
            &mut state,
            format!("START RequestId: {id} Version: $LATEST").as_bytes(),
        );
    }

    /// Ends the invocation. Returns the end of its output, followed by the `hint` for that, if any,
    /// and `report`.
    pub(crate) fn end(
        &self,
        hint: impl FnOnce(&[u8]) -> Option<&'static str>,
        report: &str,
    ) -> Vec<u8> {
        let mut state = self.state.lock();
        self.flush(&mut state);
        if let Some(hint) = hint(&state.tail) {
            self.keep_lines(&mut state, hint.as_bytes());
        }
        let end = format!("END RequestId: {}", state.id);
        self.keep_lines(&mut state, end.as_bytes());
        self.keep_lines(&mut state, report.as_bytes());
        state.id = "".into();
        let mut tail = mem::take(&mut state.tail);
        tail.drain(..tail.len().saturating_sub(TAIL_BYTES_MAX));
        tail
    }

    fn flush(&self, state: &mut State) {
        for stream in 0..self.streams.len() {
            // Asks the pipe itself: the runtime may not have heard yet that it can be read.
            let read = |buffer: &mut [u8]| Ok(unistd::read(&self.streams[stream], buffer)?);
            self.drain(state, stream, READS_AT_END_MAX, read);
            if !state.begun[stream].is_empty() {
                self.keep_begun(state, stream);
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

#[cfg(test)]
mod tests {
    use std::sync::{atomic::Ordering, mpsc};

    use tokio::{
        io::AsyncWriteExt as _,
        net::unix::pipe::{Sender, pipe},
        task::yield_now,
    };

    use super::*;
    use crate::logs::{MESSAGE_BYTES, Message, SHARE_BYTES};

    /// The output of an instance of `function`, and the end of its pipe.
    fn output(logs: &Arc<Logs>, function: &str) -> (Arc<Output>, Sender) {
        let ((stdout, read), (_, nothing)) = (pipe().expect("a pipe"), pipe().expect("a pipe"));
        let output = Output::new([read, nothing], Arc::clone(logs), logs.log(function));
        (Arc::new(output), stdout)
    }

    fn lines(messages: &mpsc::Receiver<Message>) -> impl Iterator<Item = crate::logs::Lines> {
        messages.try_iter().filter_map(|message| match message {
            Message::Lines(lines) => Some(lines),
            Message::Flush(_) => None,
        })
    }

    /// U5: the log takes output as fast as the disk does, a little at each turn.
    #[tokio::test]
    async fn a_function_that_prints_faster_than_the_disk_takes_it_waits_and_loses_nothing() {
        const PRINTED: usize = 1 << 20;
        let (logs, messages) = Logs::stalled();
        let (output, mut stdout) = output(&Arc::new(logs), "one");
        tokio::spawn(async move { output.read().await });
        tokio::spawn(async move {
            let block = b"y\n".repeat(PRINTED / 2);
            stdout.write_all(&block).await.expect("it is read");
        });
        let (mut waiting, mut kept) = (Vec::new(), 0);
        let (mut idle, mut turns) = (0, 0);
        while kept < PRINTED {
            yield_now().await;
            let more: Vec<_> = lines(&messages).collect();
            let bytes: usize = more.iter().map(|lines| lines.text.len()).sum();
            assert!(bytes <= READ_BYTES, "{bytes} bytes in one turn");
            (idle, turns) = (if more.is_empty() { idle + 1 } else { 0 }, turns + 1);
            waiting.extend(more);
            let held: usize = waiting
                .iter()
                .map(|lines| MESSAGE_BYTES + lines.text.len())
                .sum();
            assert!(
                held < SHARE_BYTES + MESSAGE_BYTES + READ_BYTES,
                "{held} bytes are on their way"
            );
            // The disk takes something only once nothing more is read.
            if idle > 1000 {
                let taken = waiting.drain(..1);
                kept += taken.map(|lines| lines.text.len() + 1).sum::<usize>();
                idle = 900;
            }
            assert!(turns < 1_000_000, "{kept} of {PRINTED} bytes were kept");
        }
        assert_eq!(kept, PRINTED);
    }

    /// U5: this runtime has one thread, so it has not heard of the line when the invocation ends.
    #[tokio::test]
    async fn the_end_of_an_invocation_finds_a_line_that_was_just_printed() {
        let (logs, messages) = Logs::stalled();
        let (output, stdout) = output(&Arc::new(logs), "one");
        output.begin("it");
        unistd::write(&stdout, b"a line\n").expect("there is room");
        let tail = output.end("REPORT");
        assert!(tail.windows(6).any(|part| part == b"a line"));
        let text: Vec<_> = lines(&messages)
            .flat_map(|lines| [lines.id.to_string(), lines.text.clone()])
            .collect();
        let expected = [
            "START RequestId: it Version: $LATEST",
            "a line",
            "END RequestId: it",
            "REPORT",
        ];
        assert_eq!(text, expected.map(|text| ["it", text]).concat());
    }

    /// U5: lost lines are counted for their function, and other functions lose none.
    #[tokio::test]
    async fn lost_lines_are_counted_and_no_other_function_loses_any() {
        let (logs, messages) = Logs::stalled();
        let logs = Arc::new(logs);
        let ((loud, _stdout), (quiet, _other)) = (output(&logs, "loud"), output(&logs, "quiet"));
        loud.begin("much");
        // The end of an invocation does not wait.
        for _ in 0..1000 {
            loud.keep(&mut loud.state.lock(), 0, &b"yes\n".repeat(1000));
        }
        quiet.begin("little");
        quiet.keep(&mut quiet.state.lock(), 0, b"a line\n");
        quiet.end(|_| None, "REPORT");
        let all: Vec<_> = lines(&messages).collect();
        let of = |id: &'static str| {
            all.iter()
                .filter(move |lines| *lines.id == *id)
                .map(|lines| lines.text.as_str())
        };
        let said = [
            "START RequestId: little Version: $LATEST",
            "a line",
            "END RequestId: little",
            "REPORT",
        ];
        assert_eq!(of("little").collect::<Vec<_>>(), said);
        let kept = of("much")
            .flat_map(str::lines)
            .filter(|line| *line == "yes")
            .count();
        assert!(kept < 1_000_000, "there is a bound");
        let lost = |output: &Output| output.log.lost.load(Ordering::Relaxed);
        assert_eq!((lost(&loud), lost(&quiet)), (1_000_000 - kept, 0));
    }
}
