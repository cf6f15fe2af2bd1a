//! Opening a store: refusals name the setting to change, and passwords stay hidden.

use ports::{
    ErrorKind, Update,
    key_value::{Action, Outcome},
};
use redis_provider::{Acknowledged, Config, OpenError, Redis};

use crate::{
    fixture::{block_on, count, key, namespace, open},
    server::{Persistence, Server, shared},
};

async fn refusal(config: &Config) -> String {
    match Redis::open(config).await {
        Err(OpenError::Unfit { reason, .. }) => reason,
        other => panic!("it is not refused as unfit: {other:?}"),
    }
}

/// D1: the store makes no promise that the server would not keep.
#[test]
fn an_unsuitable_server_is_refused_with_the_setting_to_change() {
    let (memory, every_second) = (
        Server::start(Persistence::Memory),
        Server::start(Persistence::EverySecond),
    );
    block_on(async {
        assert!(
            refusal(&Config::single(memory.url()))
                .await
                .contains("appendonly yes")
        );
        let release: String = every_second.tell(&["INFO", "server"]);
        if release.contains("redis_version:7.0.") {
            assert!(
                refusal(&Config::single(every_second.url()))
                    .await
                    .contains("appendfsync always")
            );
        }
        for count in [0, 1] {
            let acknowledged = Acknowledged::Replicas(count);
            let config = Config {
                acknowledged,
                ..Config::single(memory.url())
            };
            assert!(refusal(&config).await.contains("replica"));
        }
        let in_memory = Config {
            acknowledged: Acknowledged::InMemory,
            ..Config::single(memory.url())
        };
        open(&in_memory).await;
        memory.tell::<()>(&["CONFIG", "SET", "maxmemory", "100mb"]);
        memory.tell::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
        assert!(refusal(&in_memory).await.contains("noeviction"));
        every_second.tell::<()>(&["REPLICAOF", "127.0.0.1", &memory.port().to_string()]);
        let replica = Config {
            acknowledged: Acknowledged::InMemory,
            ..Config::single(every_second.url())
        };
        assert!(refusal(&replica).await.contains("replica"));
    });
}

#[test]
fn a_newer_format_is_refused() {
    let server = Server::start(Persistence::Always);
    block_on(async {
        open(&Config::single(server.url())).await;
        server.tell::<()>(&["SET", "landfast{clock}f", "2"]);
        let refused = Redis::open(&Config::single(server.url())).await;
        assert!(
            matches!(
                refused,
                Err(OpenError::NewerFormat {
                    found: 2,
                    supported: 1
                })
            ),
            "{refused:?}"
        );
    });
}

#[test]
fn a_password_opens_and_is_never_shown() {
    const PASSWORD: &str = "hunter2-correct-horse";
    let server = Server::start(Persistence::Always);
    server.tell::<()>(&["CONFIG", "SET", "requirepass", PASSWORD]);
    block_on(async {
        let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port());
        let store = open(&Config::single(url(PASSWORD))).await;
        store
            .key_value()
            .update(Update::put(key("n"), vec![]))
            .await
            .expect("update answers");
        assert!(!format!("{store:?}").contains(PASSWORD));
        for (wrong, reason) in [
            (url("hunter2-wrong"), "refuses the user or the password"),
            (server.url(), "asks for a password"),
        ] {
            let wrong = Config::single(wrong);
            let refused = Redis::open(&wrong).await.expect_err("it is not let in");
            let is_final = matches!(&refused, OpenError::NotAdmitted { reason: why, .. } if why.contains(reason));
            assert!(is_final, "{refused:?}");
            let shown = format!("{refused} {refused:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    });
}

#[test]
fn a_contradictory_configuration_is_refused_before_a_command_is_sent() {
    block_on(async {
        let nowhere = "redis://127.0.0.1:1";
        for config in [
            Config::single("http://127.0.0.1:1"),
            Config {
                urls: vec![],
                ..Config::single(nowhere)
            },
            Config {
                urls: vec![nowhere.into(), nowhere.into()],
                ..Config::single(nowhere)
            },
            Config {
                namespace: "a{b}".into(),
                ..Config::single(nowhere)
            },
            Config::cluster(["nonsense"]),
        ] {
            let refused = Redis::open(&config).await;
            assert!(
                matches!(refused, Err(OpenError::Configuration(_))),
                "{config:?}: {refused:?}"
            );
        }
        let refused = Redis::open(&Config::single(nowhere)).await;
        assert!(
            matches!(refused, Err(OpenError::Unreachable { .. })),
            "{refused:?}"
        );
    });
}

/// P3: if the server's clock is set back, the next incarnation is still higher.
#[test]
fn an_incarnation_is_higher_than_the_previous_one_even_if_the_servers_clock_goes_back() {
    let server = shared();
    block_on(async {
        let config = Config {
            namespace: namespace(),
            ..Config::single(server.url())
        };
        let first = open(&config).await.key_value().point();
        let ahead = (first.incarnation.0 + 1_000_000_000_000).to_string();
        let clock = format!("{}{{clock}}c", config.namespace);
        server.tell::<()>(&["HSET", &clock, "incarnation", &ahead]);
        let second = open(&config).await.key_value().point();
        assert_eq!(
            second.incarnation.0.to_string(),
            (ahead.parse::<u64>().expect("a number") + 1).to_string()
        );
    });
}

/// K3: a full server refuses writes, serves reads, and takes writes again once it has free memory.
#[test]
fn a_full_server_changes_nothing_and_continues_once_it_has_memory() {
    let server = Server::start(Persistence::Always);
    block_on(async {
        let store = open(&Config::single(server.url())).await.key_value();
        let add = || Update::modify(key("n"), vec![Action::Add("n".into(), 1)]);
        store.update(add()).await.expect("update answers");
        let spare = Update::modify(key("spare"), vec![Action::set("bytes", vec![0; 1000])]);
        store.update(spare).await.expect("update answers");
        server.tell::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        let refused = store.update(add()).await.expect_err("there is no room");
        assert_eq!(refused.kind(), ErrorKind::NoRoom, "{refused}");
        let refused = store
            .transact(vec![add()])
            .await
            .expect_err("there is no room");
        assert_eq!(refused.kind(), ErrorKind::NoRoom, "{refused}");
        assert_eq!(count(&store, "n").await, 1);
        let deleted = store
            .update(Update::delete(key("spare")))
            .await
            .expect("a deletion makes room");
        assert_eq!(deleted.outcome, Outcome::Done(None));
        assert_eq!(
            store.get(&key("spare")).await.expect("get answers").value,
            None
        );
        server.tell::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        store.update(add()).await.expect("there is room again");
        assert_eq!(count(&store, "n").await, 2);
    });
}
