//! One file per command.

pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod cost;
pub(crate) mod doctor;
pub(crate) mod files;
pub(crate) mod functions;
mod instant;
mod listing;
pub(crate) mod memory_function;
mod progress;
pub(crate) mod queues;
pub(crate) mod request;
pub(crate) mod serve;
mod signals;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod transactions;
pub(crate) mod workflows;
pub(crate) mod zookeeper;

use std::{
    borrow::Cow,
    fmt::Write as _,
    fs,
    io::{self, IsTerminal as _, Read as _, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use tokio::runtime::{self, Runtime};

/// A runtime for one command.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    let runtime = runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("the runtime could not be started")
}

/// Writes `text` to stdout at once, escaped for a terminal. A reader that has gone away (`landfast
/// status | head`) is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<ExitCode> {
    let text = shown(text, io::stdout().is_terminal());
    print_bytes(text.as_bytes())
}

/// Writes `bytes` to stdout as they are.
pub(crate) fn print_bytes(bytes: &[u8]) -> anyhow::Result<ExitCode> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(bytes);
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("stdout cannot be written; send it somewhere else")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// The same to stderr, for text that must not be on stdout.
pub(crate) fn print_aside(text: &str) {
    let text = shown(text, io::stderr().is_terminal());
    // If stderr is closed, the result on stdout has to do.
    let _ = io::stderr().write_all(text.as_bytes());
}

fn shown(text: &str, on_terminal: bool) -> Cow<'_, str> {
    if on_terminal {
        printable(text).into()
    } else {
        text.into()
    }
}

/// The bytes that an argument stands for: a file's for `@FILE` and `file://FILE`, all of stdin for
/// `-`, otherwise its own.
///
/// `fileb://` is the same, because scripts for the `aws` command have it. A command whose argument
/// may be any text has `--raw` beside it.
pub(crate) fn input(argument: &str) -> anyhow::Result<Vec<u8>> {
    if argument == "-" {
        let mut text = Vec::new();
        io::stdin()
            .read_to_end(&mut text)
            .context("stdin cannot be read")?;
        return Ok(text);
    }
    let file = ["@", "file://", "fileb://"]
        .iter()
        .find_map(|prefix| argument.strip_prefix(prefix));
    match file {
        Some(file) => fs::read(file).with_context(|| format!("{file} cannot be read")),
        None => Ok(argument.into()),
    }
}

/// Text with control characters as escapes. Much of the output comes from functions, which may pass
/// on what strangers sent them. Control characters that JSON strings may contain are escaped as in
/// JSON, so that it stays valid.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\t' | '\n' => shown.push(letter),
            '\0'..' ' => write!(shown, "\\x{:02x}", u32::from(letter)).expect("a string takes all"),
            letter if letter.is_control() => {
                write!(shown, "\\u{:04x}", u32::from(letter)).expect("a string takes all");
            }
            letter => shown.push(letter),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn what_would_drive_a_terminal_is_shown_as_escapes() {
        assert_eq!(printable("a\tb \u{e4}\\\n"), "a\tb \u{e4}\\\n");
        assert_eq!(printable("\u{1b}[2J\rroot\u{7}"), "\\x1b[2J\\x0droot\\x07");
    }

    #[test]
    fn json_is_the_same_json_on_a_terminal() {
        let text = "a\u{7f}b\u{9b}1m\u{85}\u{1b}";
        let json = serde_json::to_string(text).expect("JSON");
        assert_eq!(printable(&json), r#""a\u007fb\u009b1m\u0085\u001b""#);
        assert_eq!(
            serde_json::from_str::<String>(&printable(&json)).expect("JSON"),
            text
        );
    }
}
