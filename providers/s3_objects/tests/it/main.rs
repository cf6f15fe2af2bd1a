//! The contract against a real server: `landfast serve`, which speaks S3.
//!
//! LANDFAST_BIN names the program, by default the one beside these tests in the target directory.
//! LANDFAST_TEST_S3 names another server instead, as `http://HOST:PORT`, with its keys in
//! `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`.

#![allow(
    clippy::disallowed_methods,
    reason = "these tests run on real threads, in real time"
)]

mod server;

use std::future::Future;

use ports::contract::{self, Case};
use s3_objects::{Config, Keys, LIMITS};

use crate::server::Server;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime starts").block_on(future)
}

fn objects(case: Case<contract::objects::Subject>) {
    let server = Server::start();
    block_on(async {
        server.create_bucket("photos").await;
        let url = format!(
            "s3://photos/{}/deep?endpoint={}",
            server::prefix(),
            server.url
        );
        let config = Config::from_url(&url).expect("it is right");
        let store = s3_objects::open(&config, &server.keys()).expect("a client");
        let subject = contract::objects::Subject::new(store, LIMITS);
        case.run(subject).await;
    });
}

mod contracts {
    ports::objects_contract!(super::objects);
}

/// What an operator sees in the log.
#[test]
fn a_failure_names_the_object_and_shows_no_key() {
    let server = Server::start();
    block_on(async {
        let url = format!("s3://missing?endpoint={}", server.url);
        let config = Config::from_url(&url).expect("it is right");
        let secret = |name: &str| name.starts_with("AWS_").then(|| "hidden".to_owned());
        let keys = Keys::from_environment(secret).expect("keys");
        let store = s3_objects::open(&config, &keys).expect("a client");
        let path = "a/b".into();
        let put = ports::objects::ObjectStoreExt::put(&*store, &path, "c".into());
        let text = format!("{:?}", put.await.expect_err("there is no bucket"));
        assert!(text.contains("a/b") && !text.contains("hidden"), "{text}");
    });
}
