//! An instance that ends right after it has sent its answer: the answer counts (U1).

use std::pin::pin;

use futures_util::poll;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use ports::logs::Page;
use sandbox::process::Enforcement;

use crate::processes::{block_on, lives, until, world};

/// Writes the answer to the connection of its client, and ends at once.
const ENDS: &str = "
import os
import signal
import socket

def connection():
    for descriptor in range(3, 100):
        try:
            found = socket.socket(fileno=os.dup(descriptor))
            if '%s:%d' % found.getpeername() == os.environ['AWS_LAMBDA_RUNTIME_API']:
                return found
        except (OSError, TypeError):
            pass

def handler(event, context):
    found = connection()
    if event['waits']:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        print(os.getpid(), flush=True)
        signal.sigwait([signal.SIGUSR1])
    body = b'x' * event['bytes']
    path = '/2018-06-01/runtime/invocation/%s/response' % context.aws_request_id
    head = 'POST %s HTTP/1.1\\r\\nContent-Length: %d\\r\\n\\r\\n' % (path, len(body))
    found.sendall(head.encode() + body)
    os._exit(3)
";

/// The server's only thread stands still until the process has ended. The answer and the end are
/// then there together.
#[test]
fn an_answer_counts_if_its_instance_has_ended_before_the_server_reads_it() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let world = world(|_| Enforcement::nothing());
        let function = world.function("ends", ENDS, |_| {}).await;
        let mut said = pin!(world.said(&function, r#"{"waits": true, "bytes": 3}"#));
        let page = Page {
            from: 0,
            lines_max: 100,
            bytes_max: 10_000,
        };
        let process = loop {
            assert!(poll!(&mut said).is_pending(), "it waits");
            let lines = world
                .sandbox
                .logs()
                .lines("ends", page)
                .await
                .expect("read");
            if let Some(process) = lines.iter().find_map(|line| line.text.parse::<u32>().ok()) {
                break process;
            }
            tokio::task::yield_now().await;
        };
        kill(Pid::from_raw(process as i32), Signal::SIGUSR1).expect("it lives");
        until("the end of the process", || !lives(process));
        assert_eq!(said.await, "xxx");
        world.close().await;
    });
}

/// The rest of a long answer is in the socket's buffers when the process ends.
#[test]
fn a_long_answer_counts_if_its_instance_ends_after_it() {
    const BYTES: usize = 5 << 20;
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let function = world.function("ends", ENDS, |_| {}).await;
        for _ in 0..10 {
            let payload = format!(r#"{{"waits": false, "bytes": {BYTES}}}"#);
            let said = world.said(&function, &payload).await;
            let begins = &said[..said.len().min(200)];
            assert!(said.len() == BYTES, "{begins}");
        }
        world.close().await;
    });
}
