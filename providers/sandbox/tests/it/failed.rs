//! An instance after a failed invocation, and the report of the failure (U2).

use std::time::Duration;

use ports::{Runtime as _, runtime::Function};
use sandbox::process::Enforcement;

use crate::processes::{block_on, world};

/// Requests its next invocation while it has one, and takes it for its own.
const SKIPS: &str = "
import http.client
import os

def handler(event, context):
    if event['skips']:
        connection = http.client.HTTPConnection(os.environ['AWS_LAMBDA_RUNTIME_API'])
        connection.request('GET', '/2018-06-01/runtime/invocation/next')
        connection.getresponse()
    return event['skips']
";

#[test]
fn an_instance_that_gave_no_answer_gets_no_further_invocation() {
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let function = world.function("skips", SKIPS, |_| {}).await;
        let said = world.said(&function, r#"{"skips": true}"#).await;
        assert!(said.contains("Runtime.NoAnswer"), "{said}");
        assert_eq!(
            world.said(&function, r#"{"skips": false}"#).await,
            "false",
            "another one runs it"
        );
        assert_eq!(world.sandbox.figures().cold_starts, 2);
        world.close().await;
    });
}

/// Reports that it cannot start, and requests its first invocation nevertheless.
const GIVES_UP: &str = "
import http.client
import os

connection = http.client.HTTPConnection(os.environ['AWS_LAMBDA_RUNTIME_API'])
connection.request('POST', '/2018-06-01/runtime/init/error', '{\"errorType\": \"Own.NoStart\", \"errorMessage\": \"no\"}')
connection.getresponse()

def handler(event, context):
    return 'served'
";

#[test]
fn an_instance_that_reports_a_failed_start_has_failed() {
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let function = world.function("gives-up", GIVES_UP, |_| {}).await;
        for started in 1..=2 {
            let said = world.said(&function, "{}").await;
            assert!(said.contains("Own.NoStart"), "{said}");
            let figures = world.sandbox.figures();
            assert_eq!(
                (figures.cold_starts, figures.failed.not_started),
                (started, started)
            );
        }
        world.close().await;
    });
}

#[test]
fn the_report_gives_the_reason_of_an_unanswered_invocation() {
    const ENDS: &str = "import os\ndef handler(event, context): os._exit(3)";
    const ENDS_AT_ONCE: &str = "import os\nos._exit(3)";
    const RAISES: &str = "def handler(event, context): raise ValueError";
    const WAITS: &str = "import threading\ndef handler(event, context): threading.Event().wait()";
    const EXITED: &str = "\tStatus: error\tError Type: Runtime.ExitError";
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        for (name, code, status) in [
            ("ends", ENDS, Some(EXITED)),
            ("ends-at-once", ENDS_AT_ONCE, Some(EXITED)),
            (
                "skips",
                SKIPS,
                Some("\tStatus: error\tError Type: Runtime.NoAnswer"),
            ),
            ("waits", WAITS, Some("\tStatus: timeout")),
            ("raises", RAISES, None),
        ] {
            let short = |function: &mut Function| {
                if name == "waits" {
                    function.timeout = Duration::from_millis(100);
                }
            };
            let function = world.function(name, code, short).await;
            let ran = world.call(&function, r#"{"skips": true}"#).await;
            assert!(ran.result.is_err(), "{name}");
            let log = String::from_utf8_lossy(&ran.log_tail).into_owned();
            let report = log
                .lines()
                .find(|line| line.starts_with("REPORT "))
                .expect("it ends with one");
            let said = report.find("\tStatus: ").map(|at| &report[at..]);
            assert_eq!(said, status, "{name}");
        }
        let failed = world.sandbox.figures().failed;
        assert_eq!((failed.exited, failed.not_started), (1, 1));
        world.close().await;
    });
}
