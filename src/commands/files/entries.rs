//! The commands for names in a volume: its directories and their entries.

use std::{fmt::Write as _, process::ExitCode};

use clap::Args;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::volumes::Volume;
use crate::commands::{
    instant, print,
    request::{Request, parsed, segment},
};

/// A path in a volume.
#[derive(Debug, Args)]
pub(super) struct Place {
    #[command(flatten)]
    pub(super) volume: Volume,
    /// The path in the volume
    path: String,
}

impl Place {
    /// The path of the request.
    pub(super) fn url(&self) -> String {
        url(&self.volume, &self.path)
    }

    /// The path of another name in the same directory.
    pub(super) fn beside(&self, name: impl FnOnce(&str) -> String) -> Beside {
        let path = self.path.trim_end_matches('/');
        let (directory, last) = path.rsplit_once('/').unwrap_or(("", path));
        let path = format!("{directory}/{}", name(last));
        Beside {
            url: url(&self.volume, &path),
        }
    }

    /// The path as the value of a parameter.
    pub(super) fn parameter(&self) -> String {
        segment(&self.path)
    }

    pub(super) fn change(&self, method: &str, path: &str) -> anyhow::Result<ExitCode> {
        let request = Request {
            method,
            ..Request::get(path)
        };
        self.volume.target.send(&request)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Another name in the directory of a place.
pub(super) struct Beside {
    pub(super) url: String,
}

fn url(volume: &Volume, path: &str) -> String {
    let names = path.split('/').filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(segment).collect();
    volume.path(&format!("/files/{}", names.join("/")))
}

/// The directory to list.
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    volume: Volume,
    /// The directory in the volume
    #[arg(default_value = "/")]
    path: String,
    /// As it was when this snapshot was taken
    #[arg(long)]
    snapshot: Option<String>,
    /// Print one JSON object per entry, with the name percent-encoded
    #[arg(long)]
    json: bool,
}

/// The directory to make.
#[derive(Debug, Args)]
pub(crate) struct MakeDirectory {
    #[command(flatten)]
    place: Place,
}

/// The file to remove.
#[derive(Debug, Args)]
pub(crate) struct Remove {
    #[command(flatten)]
    place: Place,
}

/// The file to rename.
#[derive(Debug, Args)]
pub(crate) struct Rename {
    #[command(flatten)]
    place: Place,
    /// Its new path in the volume
    to: String,
}

#[derive(Debug, Deserialize)]
struct Page {
    entries: Vec<Box<RawValue>>,
    next: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    name: String,
    r#type: String,
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    mtime_ns: i64,
}

impl List {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let mut query = "?list".to_owned();
        if let Some(snapshot) = &self.snapshot {
            write!(query, "&snapshot={}", segment(snapshot))?;
        }
        let first = format!("{}{query}", url(&self.volume, &self.path));
        let mut path = first.clone();
        loop {
            let body = self.volume.target.get(&path)?;
            let Page { entries, next } = parsed(body.as_bytes(), "a page of entries")?;
            let mut text = String::new();
            for entry in &entries {
                if self.json {
                    writeln!(text, "{entry}")?;
                    continue;
                }
                let entry: Entry = parsed(entry.get().as_bytes(), "a page of entries")?;
                writeln!(text, "{}", line(&entry))?;
            }
            print(&text)?;
            match next {
                Some(next) => path = format!("{first}&page={next}"),
                None => return Ok(ExitCode::SUCCESS),
            }
        }
    }
}

/// An entry as `ls -l` shows it, with the time in UTC.
fn line(entry: &Entry) -> String {
    let kind = match entry.r#type.as_str() {
        "directory" => 'd',
        "symlink" => 'l',
        "fifo" => 'p',
        "socket" => 's',
        "character-device" => 'c',
        "block-device" => 'b',
        _ => '-',
    };
    let bits = "rwxrwxrwx".chars().enumerate();
    let bits = bits.map(|(index, letter)| {
        let is_set = entry.mode >> (8 - index) & 1 == 1;
        if is_set { letter } else { '-' }
    });
    let mode: String = std::iter::once(kind).chain(bits).collect();
    let modified = instant::shown(u64::try_from(entry.mtime_ns / 1_000_000).unwrap_or_default());
    let name = percent_decode_str(&entry.name).decode_utf8();
    let name = name.map_or_else(|_| entry.name.clone(), std::borrow::Cow::into_owned);
    let (uid, gid, size) = (entry.uid, entry.gid, entry.size);
    format!("{mode} {uid:>5} {gid:>5} {size:>12} {modified} {name}")
}

impl MakeDirectory {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let path = format!("{}?mkdir&parents", self.place.url());
        self.place.change("POST", &path)
    }
}

impl Remove {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        self.place.change("DELETE", &self.place.url())
    }
}

impl Rename {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let path = format!("{}?rename-to={}", self.place.url(), segment(&self.to));
        self.place.change("POST", &path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_shown_as_ls_does() {
        let entry = Entry {
            name: "a%20b".into(),
            r#type: "directory".into(),
            size: 0,
            mode: 0o751,
            uid: 0,
            gid: 100,
            mtime_ns: 1_000_000,
        };
        assert_eq!(
            line(&entry),
            "drwxr-x--x     0   100            0 1970-01-01T00:00:00.001Z a b"
        );
    }
}
