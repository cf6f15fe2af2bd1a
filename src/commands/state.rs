//! `landfast state`: reads and writes plain state of a running server.

use std::{process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::{
    listing,
    request::{Request, Target, segment},
};

/// The longest value of a server, and the room for its answer.
const VALUE_BYTES_MAX: usize = 64 << 20;
/// The time for a value of that length.
const VALUE_WAIT_MAX: Duration = Duration::from_mins(2);
/// The keys in one page.
const PAGE_KEYS: usize = 1000;

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print the value of a key, byte for byte; exits 1 if it has none
    Get(Key),
    /// Set a key
    Put(Put),
    /// Delete a key; one without a value is no error
    Delete(Key),
    /// List the keys with the lengths of their values
    List(List),
}

/// The key.
#[derive(Debug, Args)]
pub(crate) struct Key {
    #[command(flatten)]
    target: Target,
    /// The key; a slash is part of it
    key: String,
}

/// The key and its value.
#[derive(Debug, Args)]
pub(crate) struct Put {
    #[command(flatten)]
    key: Key,
    /// The value: as text, `@FILE` or `file://FILE` for the content of a file, `-` for stdin
    #[arg(allow_hyphen_values = true)]
    value: String,
    /// The value is text as it is, also if it begins with `@` or `file://`, or is `-`
    #[arg(long)]
    raw: bool,
}

/// The keys to list.
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    target: Target,
    /// Only keys that begin with this
    #[arg(default_value = "")]
    prefix: String,
    /// Print one JSON object per key, with the key percent-encoded
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
struct Listed {
    key: String,
    bytes: u64,
}

pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Get(key) => key.get(),
        Command::Put(put) => put.run(),
        Command::Delete(key) => key.delete(),
        Command::List(list) => list.run(),
    }
}

impl Key {
    fn path(&self) -> String {
        format!("/v1/state/{}", segment(&self.key))
    }

    fn get(&self) -> anyhow::Result<ExitCode> {
        let path = self.path();
        let request = Request {
            wait_max: VALUE_WAIT_MAX,
            answer_bytes_max: VALUE_BYTES_MAX,
            ..Request::get(&path)
        };
        super::print_bytes(&self.target.send(&request)?.body)
    }

    fn delete(&self) -> anyhow::Result<ExitCode> {
        let path = self.path();
        let request = Request {
            method: "DELETE",
            ..Request::get(&path)
        };
        self.target.send(&request)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Put {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let path = self.key.path();
        let value = if self.raw {
            self.value.clone().into_bytes()
        } else {
            super::input(&self.value)?
        };
        let request = Request {
            method: "PUT",
            body: &value,
            wait_max: VALUE_WAIT_MAX,
            ..Request::get(&path)
        };
        self.key.target.send(&request)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl List {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let prefix = segment(&self.prefix);
        let path = |after: Option<&str>| {
            // It is percent-encoded already.
            let after = after.map(|key| format!("&after={key}"));
            let after = after.unwrap_or_default();
            format!("/v1/state?prefix={prefix}&limit={PAGE_KEYS}{after}")
        };
        let line = |Listed { key, bytes }| format!("{bytes:>10}  {}", readable(&key));
        listing::print_all(&self.target, "a page of keys", self.json, path, line)
    }
}

/// A percent-encoded key as text, if it is text of one line. Otherwise it stays encoded.
fn readable(key: &str) -> String {
    let decoded = percent_decode_str(key).decode_utf8();
    let text = decoded
        .ok()
        .filter(|text| !text.chars().any(char::is_control));
    text.map_or_else(|| key.to_owned(), std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::readable;

    #[test]
    fn a_key_is_shown_as_text_if_it_is_one_line_of_text() {
        assert_eq!(readable("orders%2F17%20%C3%A4"), "orders/17 \u{e4}");
        assert_eq!(readable("a%0Ab"), "a%0Ab");
        assert_eq!(readable("%FF"), "%FF");
    }
}
