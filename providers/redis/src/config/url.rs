//! Store URLs: the form in which operators write a [`Config`].
//!
//! ```text
//! redis://[USER:PASSWORD@]HOST:PORT[/DATABASE][?acknowledged=...&namespace=...]
//! redis+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...][?...]
//! ```
//!
//! `acknowledged` is `append-only-file` (the default), `replicas-N` or `memory`. Error messages
//! leave out the address, which may hold a password.

use redis::IntoConnectionInfo;

use crate::{
    config::{Acknowledged, Config, Topology},
    error::OpenError,
    redis_keys::RedisKeys,
};

const SINGLE: &str = "redis://";
const CLUSTER: &str = "redis+cluster://";
/// The schemes of other clients for TLS begin so.
const WITH_TLS: &str = "rediss";
const NO_TLS: &str = "TLS to Redis is not in this build: give redis:// and the address of a TLS tunnel or proxy on this machine";
const HELP: &str = "expected redis://HOST:PORT or redis+cluster://HOST:PORT,HOST:PORT";

impl Config {
    /// Parses `text`; settings that it leaves out have their defaults.
    pub fn from_url(text: &str) -> Result<Self, OpenError> {
        let (topology, rest) = match (text.strip_prefix(SINGLE), text.strip_prefix(CLUSTER)) {
            (Some(rest), _) => (Topology::Single, rest),
            (_, Some(rest)) => (Topology::Cluster, rest),
            (None, None) => {
                let help = if text.starts_with(WITH_TLS) {
                    NO_TLS
                } else {
                    HELP
                };
                return Err(OpenError::Configuration(help.to_owned()));
            }
        };
        // A password may contain an unencoded `?`. The error must not show the text after it
        // either.
        if rest
            .rsplit_once('@')
            .is_some_and(|(who, _)| who.contains('?'))
        {
            return Err(OpenError::Configuration(format!(
                "{HELP}; in a password `?` is %3F, `#` is %23 and `/` is %2F"
            )));
        }
        let (address, settings) = rest.split_once('?').unwrap_or((rest, ""));
        let mut config = Self {
            urls: urls(topology, address)?,
            topology,
            ..Self::default()
        };
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            config.set(name, value)?;
        }
        Ok(config)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), OpenError> {
        let refused = |expected: &str| {
            Err(OpenError::Configuration(format!(
                "`{name}={value}` in the URL: expected {expected}"
            )))
        };
        match name {
            "acknowledged" => {
                let Some(acknowledged) = Acknowledged::from_name(value) else {
                    return refused("append-only-file, replicas-N or memory");
                };
                self.acknowledged = acknowledged;
            }
            "namespace" if RedisKeys::new(value).is_some() => value.clone_into(&mut self.namespace),
            "namespace" => return refused("1 to 64 letters, digits, `-`, `_` or `.`"),
            _ => return refused("acknowledged or namespace before the `=`"),
        }
        Ok(())
    }
}

impl Acknowledged {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "append-only-file" => Some(Self::AppendOnlyFile),
            "memory" => Some(Self::InMemory),
            _ => name
                .strip_prefix("replicas-")?
                .parse()
                .ok()
                .map(Self::Replicas),
        }
    }

    /// The form in a URL.
    pub fn name(self) -> String {
        match self {
            Self::AppendOnlyFile => "append-only-file".to_owned(),
            Self::InMemory => "memory".to_owned(),
            Self::Replicas(count) => format!("replicas-{count}"),
        }
    }
}

/// One checked URL for each server.
fn urls(topology: Topology, address: &str) -> Result<Vec<String>, OpenError> {
    let (who, hosts) = address
        .rsplit_once('@')
        .map_or(("", address), |(who, hosts)| (who, hosts));
    let who = if who.is_empty() {
        String::new()
    } else {
        format!("{who}@")
    };
    let hosts: Vec<&str> = match topology {
        Topology::Single => vec![hosts],
        Topology::Cluster => hosts.split(',').collect(),
    };
    let one = |host: &&str| {
        let url = format!("{SINGLE}{who}{host}");
        if host.is_empty() || url.as_str().into_connection_info().is_err() {
            return Err(OpenError::Configuration(HELP.to_owned()));
        }
        Ok(url)
    };
    hosts.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Config {
        Config::from_url(text).expect(text)
    }

    #[test]
    fn a_url_gives_servers_and_settings() {
        let single = read("redis://me:secret@db:6380/3?acknowledged=replicas-2&namespace=shop");
        assert_eq!(single.urls, ["redis://me:secret@db:6380/3"]);
        assert_eq!(
            (single.topology, single.acknowledged),
            (Topology::Single, Acknowledged::Replicas(2))
        );
        assert_eq!(single.namespace, "shop");
        let cluster = read("redis+cluster://:p@a:1,b:2?acknowledged=memory");
        assert_eq!(cluster.urls, ["redis://:p@a:1", "redis://:p@b:2"]);
        assert_eq!(
            (cluster.topology, cluster.acknowledged),
            (Topology::Cluster, Acknowledged::InMemory)
        );
        assert_eq!(read("redis://h").acknowledged, Acknowledged::AppendOnlyFile);
    }

    #[test]
    fn parse_errors_do_not_show_the_password() {
        for (text, complaint) in [
            ("http://hunter2@h", "expected redis://"),
            ("rediss://:hunter2@h", "TLS to Redis is not in this build"),
            (
                "rediss+cluster://:hunter2@h",
                "TLS to Redis is not in this build",
            ),
            ("redis://", "expected redis://"),
            ("redis+cluster://:hunter2@a:1,,b:2", "expected redis://"),
            ("redis://:hunter2@h:x", "expected redis://"),
            (
                "redis://:hunter2@h?acknowledged=always",
                "append-only-file, replicas-N or memory",
            ),
            ("redis://:hunter2@h?acknowledged=replicas-x", "replicas-N"),
            ("redis://:hunter2@h?namespace=a{b}", "1 to 64 letters"),
            (
                "redis://:hunter2@h?durable=yes",
                "acknowledged or namespace",
            ),
            ("redis://:a?acknowledgedx=hunter2@h", "`?` is %3F"),
            (
                "redis://:a@b?c/#hunter2%x@h?acknowledged=memory",
                "`?` is %3F",
            ),
            ("redis+cluster://:a?hunter2@h,i", "`?` is %3F"),
        ] {
            let refused = Config::from_url(text).expect_err(text).to_string();
            assert!(
                refused.contains(complaint) && !refused.contains("hunter2"),
                "{text}: {refused}"
            );
        }
    }

    #[test]
    fn the_name_of_an_acknowledgement_parses_to_itself() {
        for kind in [
            Acknowledged::AppendOnlyFile,
            Acknowledged::InMemory,
            Acknowledged::Replicas(3),
        ] {
            assert_eq!(Acknowledged::from_name(&kind.name()), Some(kind));
        }
    }
}
