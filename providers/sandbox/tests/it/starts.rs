//! The longest start of an instance, and its environment.

use std::{pin::pin, time::Duration};

use futures_util::poll;
use ports::{logs::Page, runtime::Function};
use sandbox::process::Enforcement;

use crate::processes::world;

/// A function that never starts.
const HANGS: &str = "
import time
print('it begins', flush=True)
time.sleep(1000)
";

/// The failure, which must not come before `waited`.
async fn start(function_is: impl FnOnce(&mut Function), waited: Duration) -> String {
    let world = world(|_| Enforcement::nothing());
    let function = world.function("hangs", HANGS, function_is).await;
    let page = Page {
        from: 0,
        lines_max: 100,
        bytes_max: 10_000,
    };
    let started = tokio::time::Instant::now();
    let said = {
        let mut said = pin!(world.said(&function, "{}"));
        let begins = async {
            while !world
                .sandbox
                .logs()
                .lines("hangs", page)
                .await
                .expect("read")
                .iter()
                .any(|it| it.text == "it begins")
            {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            said = &mut said => panic!("it has ended: {said}"),
            () = begins => {}
        }
        // The rest of the time passes at once.
        tokio::time::pause();
        tokio::time::advance(waited.saturating_sub(started.elapsed())).await;
        assert!(poll!(&mut said).is_pending(), "it goes on after {waited:?}");
        said.await
    };
    tokio::time::resume();
    world.close().await;
    said
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(work)
}

#[test]
fn a_start_may_take_as_long_as_an_invocation_may() {
    let said = block_on(start(
        |function| function.timeout = Duration::from_mins(1),
        Duration::from_secs(50),
    ));
    assert!(
        said.contains("Sandbox.Timedout") && said.contains("within 60.00 seconds"),
        "{said}"
    );
}

#[test]
fn a_start_may_take_ten_seconds_however_short_an_invocation_is() {
    let said = block_on(start(
        |function| function.timeout = Duration::from_secs(1),
        Duration::from_secs(8),
    ));
    assert!(
        said.contains("Sandbox.Timedout") && said.contains("within 10.00 seconds"),
        "{said}"
    );
}

/// Reports that it cannot start, then never ends.
const SAYS_AND_HANGS: &str = "
import http.client
import os
import time
connection = http.client.HTTPConnection(os.environ['AWS_LAMBDA_RUNTIME_API'])
connection.request('POST', '/2018-06-01/runtime/init/error', '{\"errorType\": \"Own.NoStart\", \"errorMessage\": \"no\"}')
connection.getresponse()
time.sleep(1000)
";

/// It held its caller and its place for the whole bound on a start.
#[test]
fn an_instance_that_reports_a_failed_start_and_hangs_fails_at_once() {
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let long = |function: &mut Function| function.timeout = Duration::from_mins(15);
        let function = world.function("says", SAYS_AND_HANGS, long).await;
        let said = tokio::time::timeout(Duration::from_mins(1), world.said(&function, "{}")).await;
        let said = said.expect("long before its start has to be over");
        assert!(said.contains("Own.NoStart"), "{said}");
        world.close().await;
    });
}

#[test]
fn a_function_has_its_own_variables_and_the_servers_address() {
    const TELLS: &str = "
import os

def handler(event, context):
    return [os.environ[name] for name in ('OWN', 'AWS_LAMBDA_RUNTIME_API', 'LANDFAST_URL')]
";
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let own = "https://host/{api}/v1";
        let environment = [("OWN".to_owned(), own.to_owned())].into();
        let function = world
            .function("tells", TELLS, |function| {
                function.environment = environment;
            })
            .await;
        let said = world.said(&function, "{}").await;
        let [found, api, url] = serde_json::from_str::<[String; 3]>(&said).expect(&said);
        assert_eq!((found.as_str(), url), (own, format!("http://{api}")));
        assert!(api.starts_with("127.0.0.1:"), "{api}");
        world.close().await;
    });
}
