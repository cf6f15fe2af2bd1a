//! The commands for whole volumes.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use anyhow::bail;
use clap::{Args, Subcommand};
use nix::unistd::{getgid, getuid};
use serde::Deserialize;
use serde_json::json;

use super::size::{Bound, Size, shown};
use crate::commands::{
    instant, listing, print, print_aside,
    request::{Request, Target, parsed, segment},
};

const A_VOLUME: &str = "a volume";
const SNAPSHOTS: &str = "a list of snapshots";

/// A volume of a server.
#[derive(Debug, Args)]
pub(super) struct Volume {
    #[command(flatten)]
    pub(super) target: Target,
    /// The volume
    pub(super) volume: String,
}

impl Volume {
    /// The path of `rest` below the volume.
    pub(super) fn path(&self, rest: &str) -> String {
        format!("/v1/volumes/{}{rest}", segment(&self.volume))
    }

    fn change(&self, method: &str, path: &str, body: &str) -> anyhow::Result<ExitCode> {
        let request = Request {
            method,
            body: body.as_bytes(),
            ..Request::get(path)
        };
        self.target.send(&request)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The volume to create.
#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(flatten)]
    volume: Volume,
    /// The size of its blocks, a power of two from 4KiB to 256KiB; it never changes
    #[arg(long, value_name = "SIZE", default_value = "16KiB")]
    block: Size,
    /// The most space that it may take, such as 10GiB, or `none`
    #[arg(long, value_name = "SIZE", default_value = "none")]
    quota: Bound,
}

/// How to show the list.
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    target: Target,
    /// Print one JSON object per volume
    #[arg(long)]
    json: bool,
}

/// The volume to show.
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    volume: Volume,
    /// Print the server's JSON as it is
    #[arg(long)]
    json: bool,
}

/// The quota to set.
#[derive(Debug, Args)]
pub(crate) struct Quota {
    #[command(flatten)]
    volume: Volume,
    /// The most space that it may take, such as 10GiB, or `none`; what it has already stays
    quota: Bound,
}

/// The commands for snapshots.
#[derive(Debug, Subcommand)]
pub(crate) enum Snapshot {
    /// Keep the volume as it is now under a name; a snapshot of this name moves
    Take(OneSnapshot),
    /// List the snapshots of a volume
    List(Show),
    /// Delete a snapshot; one that does not exist is no error
    Delete(OneSnapshot),
}

/// A snapshot of a volume.
#[derive(Debug, Args)]
pub(crate) struct OneSnapshot {
    #[command(flatten)]
    volume: Volume,
    /// The snapshot
    snapshot: String,
}

/// The volume to create from another one.
#[derive(Debug, Args)]
pub(crate) struct Clone {
    #[command(flatten)]
    volume: Volume,
    /// The name of the new volume
    to: String,
    /// The snapshot whose content it has; without it, the content of now
    #[arg(long)]
    snapshot: Option<String>,
}

/// The volume to delete.
#[derive(Debug, Args)]
pub(crate) struct Delete {
    #[command(flatten)]
    volume: Volume,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Deserialize)]
struct Listed {
    name: String,
    block_bytes: u64,
    created_ms: u64,
    bytes: u64,
    quota_bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Snapshots {
    snapshots: Vec<Named>,
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
}

impl Create {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let body = json!({
            "block_bytes": self.block.0,
            "quota_bytes": self.quota.0,
            "root": { "uid": getuid().as_raw(), "gid": getgid().as_raw() },
        });
        let path = self.volume.path("");
        self.volume.change("PUT", &path, &body.to_string())
    }
}

impl List {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let path = |_: Option<&str>| "/v1/volumes".to_owned();
        let line = |listed: Listed| {
            let (name, bytes) = (&listed.name, shown(listed.bytes));
            format!("{name:<32} {bytes:>12} of {}", bound(&listed))
        };
        listing::print_all(&self.target, "a list of volumes", self.json, path, line)
    }
}

/// The quota in words.
fn bound(listed: &Listed) -> String {
    listed.quota_bytes.map_or("no quota".to_owned(), shown)
}

impl Show {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let body = self.volume.target.get(&self.volume.path(""))?;
        if self.json {
            return print(&format!("{body}\n"));
        }
        let listed: Listed = parsed(body.as_bytes(), A_VOLUME)?;
        let names = self.names()?;
        let text = format!(
            "volume     {}\ncreated    {}\nblocks     {}\nspace      {}\nquota      {}\nsnapshots  {}\n",
            listed.name,
            instant::shown(listed.created_ms),
            shown(listed.block_bytes),
            shown(listed.bytes),
            listed.quota_bytes.map_or("none".to_owned(), shown),
            if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            },
        );
        print(&text)
    }

    fn names(&self) -> anyhow::Result<Vec<String>> {
        let body = self.volume.target.get(&self.volume.path("/snapshots"))?;
        let Snapshots { snapshots } = parsed(body.as_bytes(), SNAPSHOTS)?;
        Ok(snapshots.into_iter().map(|Named { name }| name).collect())
    }

    fn list_snapshots(&self) -> anyhow::Result<ExitCode> {
        let path = |_: Option<&str>| self.volume.path("/snapshots");
        let line = |Named { name }| name;
        listing::print_all(&self.volume.target, SNAPSHOTS, self.json, path, line)
    }
}

impl Quota {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let body = json!({ "quota_bytes": self.quota.0 }).to_string();
        self.volume.change("PATCH", &self.volume.path(""), &body)
    }
}

impl Snapshot {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Take(one) => one.change("PUT"),
            Self::List(show) => show.list_snapshots(),
            Self::Delete(one) => one.change("DELETE"),
        }
    }
}

impl OneSnapshot {
    fn change(&self, method: &str) -> anyhow::Result<ExitCode> {
        let rest = format!("/snapshots/{}", segment(&self.snapshot));
        self.volume.change(method, &self.volume.path(&rest), "")
    }
}

impl Clone {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let mut body = json!({ "to": self.to });
        if let Some(snapshot) = &self.snapshot {
            body["snapshot"] = snapshot.as_str().into();
        }
        let path = self.volume.path("/clones");
        self.volume.change("POST", &path, &body.to_string())
    }
}

impl Delete {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        if !self.yes && !self.is_meant()? {
            print_aside("nothing was deleted\n");
            return Ok(ExitCode::FAILURE);
        }
        self.volume.change("DELETE", &self.volume.path(""), "")
    }

    fn is_meant(&self) -> anyhow::Result<bool> {
        let volume = &self.volume.volume;
        if !io::stdin().is_terminal() {
            bail!("give --yes to delete volume {volume} with all its files and snapshots");
        }
        print_aside(&format!(
            "Delete volume {volume} with all its files and snapshots? [y/N] "
        ));
        io::stderr().flush()?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }
}
