//! Lost replies: the outcome is unknown, and a repeat is recognised (K3, K8, Q4).

use bytes::Bytes;
use ports::{
    ErrorKind, Key, Update,
    key_value::{Action, OperationId, Outcome, Transacted, Version},
    queue::{Message, QueueOptions},
};
use redis_provider::Config;

use crate::{
    fixture::{block_on, count, key, namespace, open},
    proxy::{Fault, Proxy},
    server::shared,
};

const FAULTS: [Fault; 2] = [Fault::LosesReply, Fault::LosesCommand];

/// K3, K8.
#[test]
fn an_update_whose_reply_is_lost_is_unknown_and_its_repeat_applies_once() {
    let server = shared();
    block_on(async {
        let proxy = Proxy::to(server.port()).await;
        let config = Config {
            namespace: namespace(),
            ..Config::single(proxy.url())
        };
        let store = open(&config).await.key_value();
        for (id, fault) in (1..).zip(FAULTS) {
            let before = count(&store, "n").await;
            let known = store
                .get(&key("n"))
                .await
                .expect("get answers")
                .value
                .map_or(Version(0), |item| item.version);
            let add = Update::modify(key("n"), vec![Action::Add("n".into(), 1)]);
            let add = add.as_operation(OperationId(id), known);
            proxy.set_fault(fault);
            let lost = store
                .update(add.clone())
                .await
                .expect_err("its reply is lost");
            assert_eq!(lost.kind(), ErrorKind::OutcomeUnknown, "{lost}");
            assert!(proxy.has_struck());
            for _ in 0..2 {
                let repeat = store
                    .update(add.clone())
                    .await
                    .expect("the repeat answers")
                    .outcome;
                assert!(matches!(repeat, Outcome::Done(Some(_))), "{repeat:?}");
                assert_eq!(count(&store, "n").await, before + 1, "{fault:?}");
            }
        }
    });
}

/// K5, K8.
#[test]
fn a_transaction_whose_reply_is_lost_is_unknown_and_its_repeat_applies_once() {
    let server = shared();
    block_on(async {
        let proxy = Proxy::to(server.port()).await;
        let config = Config {
            namespace: namespace(),
            ..Config::single(proxy.url())
        };
        let store = open(&config).await.key_value();
        let updates: Vec<Update> = ["a", "b"]
            .map(|name| Update::modify(key(name), vec![Action::Add("n".into(), 1)]))
            .map(|update| update.as_operation(OperationId(1), Version(0)))
            .into();
        proxy.set_fault(Fault::LosesReply);
        let lost = store
            .transact(updates.clone())
            .await
            .expect_err("its reply is lost");
        assert_eq!(lost.kind(), ErrorKind::OutcomeUnknown, "{lost}");
        let repeat = store.transact(updates).await.expect("the repeat answers");
        assert!(matches!(repeat, Transacted::Done { .. }), "{repeat:?}");
        assert_eq!((count(&store, "a").await, count(&store, "b").await), (1, 1));
    });
}

/// Q4.
#[test]
fn a_message_whose_reply_is_lost_is_recognised_when_repeated() {
    let server = shared();
    block_on(async {
        let proxy = Proxy::to(server.port()).await;
        let config = Config {
            namespace: namespace(),
            ..Config::single(proxy.url())
        };
        let redis = open(&config).await;
        let queue = redis.queue();
        queue
            .create("queue", QueueOptions::default())
            .await
            .expect("create answers");
        let id = Some(Bytes::from_static(b"id"));
        let message = Message {
            group: Bytes::from_static(b"g"),
            deduplication: id,
            body: Bytes::new(),
        };
        proxy.set_fault(Fault::LosesReply);
        let lost = queue
            .send("queue", vec![message.clone()])
            .await
            .expect_err("its reply is lost");
        assert_eq!(lost.kind(), ErrorKind::OutcomeUnknown, "{lost}");
        queue
            .send("queue", vec![message])
            .await
            .expect("the repeat answers");
        assert_eq!(
            queue
                .receive("queue", 10)
                .await
                .expect("receive answers")
                .len(),
            1
        );
    });
}

/// K3: a read has no unknown outcome.
#[test]
fn a_read_whose_reply_is_lost_is_repeated() {
    let server = shared();
    block_on(async {
        let proxy = Proxy::to(server.port()).await;
        let config = Config {
            namespace: namespace(),
            ..Config::single(proxy.url())
        };
        let store = open(&config).await.key_value();
        store
            .update(Update::put(Key::new("p", "s"), vec![]))
            .await
            .expect("update answers");
        for fault in FAULTS {
            proxy.set_fault(fault);
            let page = store
                .scan(&ports::key_value::Scan::partition("p", 10))
                .await
                .expect("scan answers");
            assert!(proxy.has_struck());
            assert_eq!(page.value.items.len(), 1);
        }
    });
}
