//! The transaction of one attempt: a snapshot, its mount, one proposal.

use std::path::PathBuf;

use async_trait::async_trait;
use clap::Args;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::{
    Exec,
    attempts::{Decision, Volume},
    namespace,
};

/// How to reach the server.
#[derive(Debug, Args)]
pub(super) struct Server {}

pub(super) struct StandIn {
    point: PathBuf,
    read_only: bool,
}

pub(super) async fn open(exec: &Exec, point: PathBuf) -> anyhow::Result<StandIn> {
    Ok(StandIn {
        point,
        read_only: exec.read_only,
    })
}

#[async_trait]
impl Volume for StandIn {
    async fn begin(&mut self) -> anyhow::Result<()> {
        mount(
            Some("x"),
            &self.point,
            Some("tmpfs"),
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
            None::<&str>,
        )?;
        if self.read_only {
            namespace::make_read_only(&self.point)?;
        }
        Ok(())
    }

    async fn commit(&mut self) -> anyhow::Result<Decision> {
        umount2(&self.point, MntFlags::empty())?;
        Ok(Decision::Committed)
    }

    async fn abort(&mut self) -> anyhow::Result<()> {
        umount2(&self.point, MntFlags::empty())?;
        Ok(())
    }
}
