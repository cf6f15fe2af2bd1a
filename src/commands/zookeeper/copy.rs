//! `landfast zookeeper copy`: passes over a tree until both sides are equal.

use std::{
    cell::RefCell,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use http_client::Trust;
use indicatif::ProgressBar;
use tokio::runtime;

use super::{
    connection::{Client, Credentials, End, Hosts, Side},
    kinds::{self, Kinds},
    protocol::{NO_NODE, OK, Request},
    report::Report,
    walk::{QUOTAS, RESERVED, Walk},
};
use crate::{
    commands::{print, progress, request, signals::Stop},
    settings::{self, Listen},
};

/// The most passes. After them the source still changes, and the command says so.
const PASSES_MAX: u32 = 10;
/// The progress of a pass.
const BAR: &str = "{prefix} {wide_bar} {pos} of {len} znodes, {rate}, {eta} left";

/// The two sides and what is copied.
#[derive(Debug, Args)]
pub(crate) struct Copy {
    /// The server to copy from, or servers of one ensemble; with tls:// their secure ports
    #[arg(long, value_name = "[tls://]HOST:PORT[,HOST:PORT]")]
    from: Hosts,
    /// The server to copy to [default: the server of this machine's configuration]
    #[arg(long, value_name = "[tls://]HOST:PORT[,HOST:PORT]")]
    to: Option<Hosts>,
    /// The authorities of servers' certificates, PEM [env: LANDFAST_TLS_CA=] [default: those of the system]
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// A certificate for the source, PEM, if it asks for one [env: LANDFAST_TLS_CLIENT_CERT=]
    #[arg(long, value_name = "FILE")]
    from_cert: Option<PathBuf>,
    /// Its key [env: LANDFAST_TLS_CLIENT_KEY=] [default: in the same file]
    #[arg(long, value_name = "FILE")]
    from_key: Option<PathBuf>,
    /// A certificate for the target, PEM, if it asks for one [env: LANDFAST_TLS_CLIENT_CERT=]
    #[arg(long, value_name = "FILE")]
    to_cert: Option<PathBuf>,
    /// Its key [env: LANDFAST_TLS_CLIENT_KEY=] [default: in the same file]
    #[arg(long, value_name = "FILE")]
    to_key: Option<PathBuf>,
    /// The configuration file that says where the server of this machine listens [default: landfast.toml, if it is there]
    #[arg(long, env = "LANDFAST_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The znode to copy, with everything below it
    #[arg(long, default_value = "/")]
    path: ZnodePath,
    /// Credentials for the source, as digest:USER:PASSWORD
    #[arg(long, env = "LANDFAST_FROM_AUTH", value_name = "SCHEME:CREDENTIALS")]
    #[arg(hide_env_values = true)]
    from_auth: Option<Credentials>,
    /// Credentials for the target, as digest:USER:PASSWORD
    #[arg(long, env = "LANDFAST_TO_AUTH", value_name = "SCHEME:CREDENTIALS")]
    #[arg(hide_env_values = true)]
    to_auth: Option<Credentials>,
    #[command(flatten)]
    kinds: kinds::Options,
    /// Delete what only the target has below the path; ephemeral znodes of its clients stay
    #[arg(long)]
    delete: bool,
    /// Raise the counters of sequential children to those of the source
    #[arg(long)]
    sequences: bool,
    /// Copy the quotas of the path, too
    #[arg(long)]
    quotas: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// The absolute path of a znode.
#[derive(Debug, Clone)]
struct ZnodePath(String);

impl std::str::FromStr for ZnodePath {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let names = text.strip_prefix('/');
        let is_whole =
            text == "/" || names.is_some_and(|names| names.split('/').all(|name| !name.is_empty()));
        ensure!(
            is_whole,
            "give a path from the root without a slash at the end, as in /shop"
        );
        let is_reserved = names.is_some_and(|names| names.split('/').next() == Some(RESERVED));
        ensure!(
            !is_reserved,
            "a server fills /{RESERVED} itself; copy quotas by --quotas"
        );
        Ok(Self(text.to_owned()))
    }
}

impl Copy {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let kinds = self.kinds.kinds()?;
        let to = self.target()?;
        ensure!(to != self.from, "--from and --to are the same server: {to}");
        ensure!(
            self.tls_ca.is_none() || self.from.is_tls || to.is_tls,
            "--tls-ca: no side has TLS; write tls:// before its servers, or leave the option out"
        );
        let from = Side {
            end: End::Source,
            hosts: self.from.clone(),
            trust: self.trust(
                "from",
                &self.from,
                self.from_cert.as_deref(),
                self.from_key.as_deref(),
            )?,
            credentials: self.from_auth.clone(),
        };
        let to = Side {
            end: End::Target,
            trust: self.trust("to", &to, self.to_cert.as_deref(), self.to_key.as_deref())?,
            hosts: to,
            credentials: self.to_auth.clone(),
        };
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("the runtime could not be started")?;
        let report = runtime.block_on(async {
            let mut stop = Stop::listen()?;
            tokio::select! {
                biased;
                () = stop.asked() => bail!("the copy was interrupted: run the same command again to continue"),
                report = self.copied(from, to, kinds) => report,
            }
        })?;
        print(&if self.json {
            report.json()?
        } else {
            report.text()?
        })?;
        Ok(if report.is_verified() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    async fn copied(&self, from: Side, to: Side, kinds: Kinds) -> anyhow::Result<Report> {
        let from = Client::connect(from).await.context("--from")?;
        let to = Client::connect(to).await.context("--to")?;
        let report = Report::between(&from.side().hosts, &to.side().hosts);
        let walk = Walk {
            from,
            to,
            kinds,
            deletes: self.delete,
            raises_counters: self.sequences,
            report: RefCell::new(report),
        };
        let copied = async {
            refuse_one_server(&walk.from, &walk.to).await?;
            self.passes(&walk).await
        };
        let copied = copied.await;
        walk.from.close().await;
        walk.to.close().await;
        copied.map(|()| walk.report.into_inner())
    }

    /// What proves the identities of the two ends. `side` begins the names of the options.
    fn trust(
        &self,
        side: &str,
        hosts: &Hosts,
        certificate: Option<&Path>,
        key: Option<&Path>,
    ) -> anyhow::Result<Trust> {
        let named = format!("--{side}-cert");
        ensure!(
            certificate.is_some() || key.is_none(),
            "--{side}-key: give its certificate too, by {named}"
        );
        ensure!(
            certificate.is_none() || hosts.is_tls,
            "{named}: {hosts} has no TLS; write tls://{hosts}, or leave the option out"
        );
        if !hosts.is_tls {
            return Ok(Trust::default());
        }
        request::trust(&request::Given {
            ca: self.tls_ca.as_deref().map(|ca| (ca, "--tls-ca")),
            identity: certificate.map(|certificate| (certificate, key, &*named)),
        })
    }

    fn target(&self) -> anyhow::Result<Hosts> {
        if let Some(to) = &self.to {
            return Ok(to.clone());
        }
        match settings::zookeeper(self.config.clone())? {
            Listen::At(address) if address.port() > 0 => address.to_string().parse(),
            _ => bail!(
                "the configuration gives ZooKeeper clients no fixed address; name the target by --to HOST:PORT"
            ),
        }
    }

    /// Copies until a pass has found nothing to do.
    async fn passes(&self, walk: &Walk) -> anyhow::Result<()> {
        let path = &self.path.0;
        let total = self.total(walk).await?;
        let mut tops = vec![path.clone()];
        let quotas = format!("{QUOTAS}{}", path.trim_end_matches('/'));
        if self.quotas && walk.from.call(Request::exists(&quotas)).await?.code == OK {
            tops.push(quotas);
        }
        for top in &tops {
            for (end, _) in top.match_indices('/').filter(|(end, _)| *end > 0) {
                walk.create_ancestor(&top[..end]).await?;
            }
        }
        for pass in 1..=PASSES_MAX {
            walk.report.borrow_mut().begin(pass);
            // A pass sees all that was there when it began.
            for side in [&walk.from, &walk.to] {
                side.call(Request::sync(path)).await?;
            }
            let bar = ProgressBar::new(total).with_prefix(format!("pass {pass}"));
            let bar = progress::styled(bar, BAR);
            let copied = async {
                for top in &tops {
                    walk.pass(top, &bar).await?;
                }
                anyhow::Ok(())
            };
            progress::told(&bar, "znode", copied).await?;
            bar.finish_and_clear();
            if walk.report.borrow().last.changed == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The number of the source's znodes, or zero if it is too old to tell.
    async fn total(&self, walk: &Walk) -> anyhow::Result<u64> {
        let path = &self.path.0;
        let from = walk.from.side();
        match walk.from.call(Request::exists(path)).await?.code {
            OK => {}
            NO_NODE => bail!("--path {path}: {from} has no such znode"),
            code => bail!("--path {path}: {}", from.refusal(code)),
        }
        let reply = walk.from.call(Request::count_descendants(path)).await?;
        Ok(if reply.code == OK {
            reply.count().with_context(|| from.to_string())?.max(0) as u64 + 1
        } else {
            0
        })
    }
}

/// The names of both sides may differ and mean one server. A copy onto itself would be verified.
async fn refuse_one_server(from: &Client, to: &Client) -> anyhow::Result<()> {
    let (here, there) = (from.addresses().await, to.addresses().await);
    if let Some((ip, port)) = here.intersection(&there).next() {
        bail!(
            "--from and --to are the same server: {} and {} both have the address {}; name another target by --to",
            from.side().hosts,
            to.side().hosts,
            SocketAddr::new(*ip, *port)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::str::FromStr as _;

    use super::ZnodePath;

    #[test]
    fn a_path_is_absolute_and_not_of_zookeeper_itself() {
        for right in ["/", "/a", "/a/b", "/zookeepers", "/a/zookeeper"] {
            ZnodePath::from_str(right).expect(right);
        }
        for wrong in ["", "a", "/a/", "//a", "/zookeeper", "/zookeeper/quota"] {
            ZnodePath::from_str(wrong).expect_err(wrong);
        }
        let refused = ZnodePath::from_str("/a/").expect_err("it ends with a slash");
        assert!(refused.to_string().contains("without a slash at the end"));
    }
}
