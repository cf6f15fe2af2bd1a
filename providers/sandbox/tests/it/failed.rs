//! What becomes of an instance that failed its invocation, and what is written of it (U2).

use ports::Runtime as _;
use sandbox::process::Enforcement;

use crate::processes::{block_on, world};

/// Asks for its next invocation while it has one, and takes that for its own.
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
fn an_instance_that_gave_no_answer_is_given_nothing_more() {
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let function = world.function("skips", SKIPS, |_| {}).await;
        let said = world.said(&function, r#"{"skips": true}"#).await;
        assert!(said.contains("Runtime.NoAnswer"), "{said}");
        assert_eq!(world.said(&function, r#"{"skips": false}"#).await, "false", "another one runs it");
        assert_eq!(world.sandbox.figures().cold_starts, 2);
        world.close().await;
    });
}
