//! Whether a server can keep what is asked of it, looked at before anything is written.
//!
//! What an acknowledged write is depends on the server's settings, not on ours: a server that syncs once a second
//! cannot be asked to have synced, unless it knows `WAITAOF`. So the settings are read, and a server that falls
//! short is refused with the line to change, instead of a promise that nobody keeps.

use std::{collections::BTreeMap, time::Duration};

use redis::{Value, cmd};

use crate::{
    answer,
    config::{Acknowledged, Config},
    error::{Failure, OpenError},
    node::Node,
};

/// The first release whose scripts stay with the server they were loaded into (see [`crate::scripts`]).
const MAJOR_MIN: u32 = 7;

/// How often a server that is still reading its files is asked again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What it takes until a write that was answered is as safe as configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Nothing: it need not be.
    Never,
    /// Nothing: the server syncs before it answers (`appendfsync always`).
    Synced,
    /// `WAITAOF`, known since Redis 7.2.
    AppendOnlyFile,
    /// `WAIT` for so many replicas.
    Replicas(u32),
}

/// How a server keeps what is asked for, and what an operator should know about that.
#[derive(Debug, Clone)]
pub(crate) struct Fit {
    pub(crate) waits: Waits,
    pub(crate) warnings: Vec<String>,
}

/// How `node` keeps what `config` asks for.
pub(crate) async fn judge(node: &Node, config: &Config) -> Result<Fit, OpenError> {
    let unreachable =
        || OpenError::unreachable(format!("ask the server at {} about itself", node.address()));
    let info = loaded(node).await.map_err(unreachable())?;
    let unfit = |reason: String| OpenError::Unfit {
        server: node.address().to_owned(),
        reason,
    };
    info.refusal().map_or(Ok(()), |reason| Err(unfit(reason)))?;
    let waits = match config.acknowledged {
        Acknowledged::InMemory => Ok(Waits::Never),
        Acknowledged::Replicas(0) => Err(unfit(
            "a write held by 0 replicas is not replicated".to_owned(),
        )),
        Acknowledged::Replicas(count) if info.number("connected_slaves") >= u64::from(count) => {
            Ok(Waits::Replicas(count))
        }
        Acknowledged::Replicas(count) => {
            let connected = info.number("connected_slaves");
            Err(unfit(format!(
                "{count} replicas are to hold each write, and it has {connected}"
            )))
        }
        Acknowledged::AppendOnlyFile if info.number("aof_enabled") == 0 => Err(unfit(
            "it has no append-only file; set `appendonly yes` and `appendfsync always`".to_owned(),
        )),
        Acknowledged::AppendOnlyFile if info.has_waitaof() => Ok(Waits::AppendOnlyFile),
        Acknowledged::AppendOnlyFile => {
            let policy = setting(node, "appendfsync").await.map_err(unreachable())?;
            let pauses = setting(node, "no-appendfsync-on-rewrite")
                .await
                .map_err(unreachable())?;
            match (policy.as_str(), pauses.as_str()) {
                ("always", "yes") => Err(unfit(
                    "it syncs nothing while it rewrites its append-only file; set `no-appendfsync-on-rewrite no`"
                        .to_owned(),
                )),
                ("always", _) => Ok(Waits::Synced),
                _ => Err(unfit(format!(
                "its `appendfsync` is `{policy}`, so a write that was answered may not be on disk, and release {} \
                 cannot wait for one (Redis 7.2 can); set `appendfsync always`",
                info.text("redis_version")
                ))),
            }
        }
    };
    let policy = setting(node, "appendfsync").await.unwrap_or_default();
    waits.map(|waits| Fit {
        waits,
        warnings: info.warnings(node.address(), config.acknowledged, &policy),
    })
}

/// What the server says about itself once it has read its files: until then it says that it keeps none.
async fn loaded(node: &Node) -> Result<Info, Failure> {
    loop {
        let info = Info::parse(&answer::text(
            node.command(cmd("INFO").arg("everything")).await?,
        )?);
        if info.number("loading") == 0 {
            return Ok(info);
        }
        tracing::info!(server = node.address(), "the server is reading its files");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn setting(node: &Node, name: &str) -> Result<String, Failure> {
    let pair = answer::array(resp2(
        node.command(cmd("CONFIG").arg("GET").arg(name)).await?,
    ))?;
    pair.into_iter()
        .nth(1)
        .map_or_else(|| Ok("unknown".to_owned()), answer::text)
}

/// A map as the list of its keys and values, as the older protocol sends it.
fn resp2(value: Value) -> Value {
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

/// What a server says about itself.
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

    /// Valkey calls itself Redis 7.2.4 here, and knows it too.
    fn has_waitaof(&self) -> bool {
        self.release() >= (7, 2)
    }

    /// What an operator should know who asked for `acknowledged`.
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
                "an acknowledged write is in its memory alone: what a crash of it takes, clients have been told is \
                 kept; for caches and trials"
                    .to_owned(),
            ),
            Acknowledged::AppendOnlyFile => {
                if replicas > 0 {
                    warnings.push(format!(
                        "{replicas} replicas follow it, and none is waited for: a failover may lose acknowledged \
                         writes; acknowledged=replicas-1 waits for one"
                    ));
                }
                // A server that keeps its settings to itself is taken at its word.
                if !matches!(append_policy, "always" | "") {
                    warnings.push(format!(
                        "it syncs by `appendfsync {append_policy}`, so each acknowledgement waits for that, up to a \
                         second; `appendfsync always` is faster"
                    ));
                }
            }
            Acknowledged::Replicas(_) if !has_file => warnings.push(
                "neither it nor a write that replicas hold is on any disk: if all of them crash, acknowledged \
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

    /// Why no store of ours may live there, whatever is asked of it.
    fn refusal(&self) -> Option<String> {
        if self.release().0 < MAJOR_MIN {
            let release = self.text("redis_version");
            return Some(format!(
                "it is release {release}; {MAJOR_MIN}.0 is the oldest that will do"
            ));
        }
        if self.text("role") != "master" {
            return Some("it is a replica".to_owned());
        }
        let policy = self.text("maxmemory_policy");
        // Whatever the limit is now: it may be set while the server runs.
        (!policy.is_empty() && policy != "noeviction").then(|| {
            format!("it evicts keys when memory is short (`maxmemory-policy {policy}`); set `noeviction`")
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
    fn what_may_be_lost_is_told_before_it_is() {
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
    fn waiting_for_the_file_is_known_since_7_2() {
        assert!(!info(&[]).has_waitaof());
        assert!(info(&[("redis_version", "7.2.4")]).has_waitaof());
        assert!(info(&[("redis_version", "8.0.0")]).has_waitaof());
    }
}
