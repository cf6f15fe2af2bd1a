//! The preflight check: whether a server can guarantee what the configuration asks for.
//!
//! The durability of a write depends on the server's settings. A server that syncs once a second
//! cannot promise that a write is synced, unless it knows `WAITAOF`. So `open` reads the settings
//! before it writes anything, and refuses a server that falls short. The error names the setting to
//! change.

use std::{collections::BTreeMap, time::Duration};

use redis::{Value, cmd};

use crate::{
    config::{Acknowledged, Config},
    error::{Failure, OpenError},
    servers::{durability_wait::DurabilityWait, node::Node, reply},
};

/// The first release that does not copy loaded scripts to replicas or files (see
/// [`crate::servers::scripts`]).
const MAJOR_MIN: u32 = 7;

/// How often a server that is loading its files is asked again.
const RELOAD_POLL: Duration = Duration::from_millis(50);

/// How the server guarantees durability, and warnings for the operator.
#[derive(Debug, Clone)]
pub(crate) struct Preflight {
    pub(crate) durability_wait: DurabilityWait,
    pub(crate) warnings: Vec<String>,
}

/// Checks how `node` guarantees what `config` asks for.
pub(crate) async fn check(node: &Node, config: &Config) -> Result<Preflight, OpenError> {
    let unreachable =
        || OpenError::unreachable(format!("run INFO on the server at {}", node.address()));
    let info = info_once_loaded(node).await.map_err(unreachable())?;
    let refused = |reason: String| OpenError::Unfit {
        server: node.address().to_owned(),
        reason,
    };
    info.refusal()
        .map_or(Ok(()), |reason| Err(refused(reason)))?;
    let durability_wait = match config.acknowledged {
        Acknowledged::InMemory => Ok(DurabilityWait::Never),
        Acknowledged::Replicas(0) => Err(refused(
            "0 replicas cannot hold a write; ask for at least 1".to_owned(),
        )),
        Acknowledged::Replicas(count) if info.number("connected_slaves") >= u64::from(count) => {
            Ok(DurabilityWait::Replicas(count))
        }
        Acknowledged::Replicas(count) => {
            let connected = info.number("connected_slaves");
            Err(refused(format!(
                "each write needs {count} replicas, and it has {connected} connected replicas"
            )))
        }
        Acknowledged::AppendOnlyFile if info.number("aof_enabled") == 0 => Err(refused(
            "it has no append-only file; set `appendonly yes` and `appendfsync always`".to_owned(),
        )),
        Acknowledged::AppendOnlyFile if info.has_waitaof() => Ok(DurabilityWait::AppendOnlyFile),
        Acknowledged::AppendOnlyFile => {
            let policy = setting(node, "appendfsync").await.map_err(unreachable())?;
            let pauses = setting(node, "no-appendfsync-on-rewrite")
                .await
                .map_err(unreachable())?;
            match (policy.as_str(), pauses.as_str()) {
                ("always", "yes") => Err(refused(
                    "it stops syncing while it rewrites its append-only file; set `no-appendfsync-on-rewrite no`"
                        .to_owned(),
                )),
                ("always", _) => Ok(DurabilityWait::Synced),
                _ => Err(refused(format!(
                "its `appendfsync` is `{policy}`, so an answered write may not be on disk, and release {} cannot \
                 wait until it is (Redis 7.2 can); set `appendfsync always`",
                info.text("redis_version")
                ))),
            }
        }
    };
    let policy = setting(node, "appendfsync").await.unwrap_or_default();
    durability_wait.map(|durability_wait| Preflight {
        durability_wait,
        warnings: info.warnings(node.address(), config.acknowledged, &policy),
    })
}

/// The server's `INFO` once it has loaded its files. Until then it reports that it has no
/// append-only file.
async fn info_once_loaded(node: &Node) -> Result<Info, Failure> {
    loop {
        let info = Info::parse(&reply::text(
            node.command(cmd("INFO").arg("everything")).await?,
        )?);
        if info.number("loading") == 0 {
            return Ok(info);
        }
        tracing::info!(server = node.address(), "the server is loading its files");
        tokio::time::sleep(RELOAD_POLL).await;
    }
}

async fn setting(node: &Node, name: &str) -> Result<String, Failure> {
    let pair = reply::array(flatten_map(
        node.command(cmd("CONFIG").arg("GET").arg(name)).await?,
    ))?;
    pair.into_iter()
        .nth(1)
        .map_or_else(|| Ok("unknown".to_owned()), reply::text)
}

/// Converts a map of RESP3 to RESP2's list of keys and values.
fn flatten_map(value: Value) -> Value {
    match value {
        Value::Map(pairs) => Value::Array(
            pairs
                .into_iter()
                .flat_map(|(key, value)| [key, value])
                .collect(),
        ),
        other => other,
    }
}

/// The parsed reply of `INFO`.
struct Info(BTreeMap<String, String>);

impl Info {
    fn parse(text: &str) -> Self {
        let line = |line: &str| {
            line.trim_end()
                .split_once(':')
                .map(|(key, value)| (key.into(), value.into()))
        };
        Self(text.lines().filter_map(line).collect())
    }

    fn text(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    fn number(&self, key: &str) -> u64 {
        self.text(key).parse().unwrap_or(0)
    }

    fn release(&self) -> (u32, u32) {
        let mut numbers = self
            .text("redis_version")
            .split('.')
            .map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    /// Valkey reports Redis 7.2.4 here, and supports it too.
    fn has_waitaof(&self) -> bool {
        self.release() >= (7, 2)
    }

    /// Warnings for an operator who asked for `acknowledged`.
    fn warnings(
        &self,
        server: &str,
        acknowledged: Acknowledged,
        append_policy: &str,
    ) -> Vec<String> {
        let (has_file, replicas) = (
            self.number("aof_enabled") == 1,
            self.number("connected_slaves"),
        );
        let mut warnings = Vec::new();
        match acknowledged {
            Acknowledged::InMemory => warnings.push(
                "acknowledged writes are in its memory alone, and a crash loses them; for caches and \
                 trials"
                    .to_owned(),
            ),
            Acknowledged::AppendOnlyFile => {
                if replicas > 0 {
                    warnings.push(format!(
                        "{replicas} replicas follow it, but writes do not wait for them: a failover may lose \
                         acknowledged writes; acknowledged=replicas-1 waits for one"
                    ));
                }
                // The policy is empty if the server does not reveal its settings; then there is no
                // warning.
                if !matches!(append_policy, "always" | "") {
                    warnings.push(format!(
                        "it has `appendfsync {append_policy}`, so each acknowledgement waits up to a second for \
                         the sync; `appendfsync always` is faster"
                    ));
                }
            }
            Acknowledged::Replicas(_) if !has_file => warnings.push(
                "no server stores the writes on any disk: if the server and its replicas crash, acknowledged \
                 writes are lost; set `appendonly yes`"
                    .to_owned(),
            ),
            Acknowledged::Replicas(_) => {}
        }
        warnings
            .into_iter()
            .map(|warning| format!("the redis server at {server}: {warning}"))
            .collect()
    }

    /// Why the server is unusable in every configuration.
    fn refusal(&self) -> Option<String> {
        if self.release().0 < MAJOR_MIN {
            let release = self.text("redis_version");
            return Some(format!(
                "its release is {release}; at least {MAJOR_MIN}.0 is required"
            ));
        }
        if self.text("role") != "master" {
            return Some("it is a replica".to_owned());
        }
        let policy = self.text("maxmemory_policy");
        // The policy counts even without a `maxmemory`, which may be set while the server runs.
        (!policy.is_empty() && policy != "noeviction").then(|| {
            format!("it evicts keys when its memory is full (`maxmemory-policy {policy}`); set `noeviction`")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(changes: &[(&str, &str)]) -> Info {
        let mut info =
            Info::parse("# Server\r\nredis_version:7.0.15\r\nrole:master\r\nmaxmemory:0\r\n");
        for (key, value) in changes {
            info.0.insert((*key).to_owned(), (*value).to_owned());
        }
        info
    }

    #[test]
    fn a_server_that_is_old_or_a_replica_or_evicts_is_refused() {
        assert_eq!(info(&[]).refusal(), None);
        for change in [
            &[("redis_version", "6.2.14")][..],
            &[("role", "slave")],
            &[
                ("maxmemory", "1000000"),
                ("maxmemory_policy", "allkeys-lru"),
            ],
            &[("maxmemory_policy", "allkeys-lru")],
        ] {
            assert!(info(change).refusal().is_some(), "{change:?}");
        }
        assert_eq!(
            info(&[("maxmemory", "1000000"), ("maxmemory_policy", "noeviction")]).refusal(),
            None
        );
    }

    #[test]
    fn warnings_name_the_possible_losses() {
        let told = |acknowledged, changes: &[_], policy| {
            info(changes)
                .warnings("h:1", acknowledged, policy)
                .join("\n")
        };
        let (file, replicas) = (Acknowledged::AppendOnlyFile, Acknowledged::Replicas(1));
        assert_eq!(told(file, &[("aof_enabled", "1")], "always"), "");
        assert_eq!(
            told(
                replicas,
                &[("aof_enabled", "1"), ("connected_slaves", "1")],
                "always"
            ),
            ""
        );
        assert!(told(file, &[("connected_slaves", "2")], "always").contains("a failover may lose"));
        assert!(told(file, &[], "everysec").contains("up to a second"));
        assert!(told(replicas, &[], "always").contains("on any disk"));
        assert!(told(Acknowledged::InMemory, &[], "always").contains("memory alone"));
    }

    #[test]
    fn waitaof_exists_since_7_2() {
        assert!(!info(&[]).has_waitaof());
        assert!(info(&[("redis_version", "7.2.4")]).has_waitaof());
        assert!(info(&[("redis_version", "8.0.0")]).has_waitaof());
    }
}
