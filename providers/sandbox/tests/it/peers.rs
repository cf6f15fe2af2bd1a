//! The peers of an instance's listener: the instance alone, even if the listener is on the
//! machine's loopback (U2).

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::Command,
    time::Duration,
};

use nix::unistd::geteuid;
use ports::{Runtime as _, runtime::Function};
use sandbox::process::Enforcement;

use crate::{
    processes::{block_on, can_isolate, one_at_a_time, world},
    world::{PYTHON, World},
};

/// Answers its server's address, and the response from there.
const ASKS: &str = "
import os
import urllib.error
import urllib.request

def handler(event, context):
    try:
        urllib.request.urlopen(os.environ['LANDFAST_URL'] + '/v1/state/one')
    except urllib.error.HTTPError as error:
        return '%s %d' % (os.environ['AWS_LAMBDA_RUNTIME_API'], error.code)
";
/// Run by another user: requests the invocation of the function at its first argument, and prints
/// the response.
const STEALS: &str = "
import socket, sys
host, port = sys.argv[1].split(':')
with socket.create_connection((host, int(port)), timeout=120) as connection:
    connection.sendall(b'GET /2018-06-01/runtime/invocation/next HTTP/1.1\\r\\n\\r\\n')
    try:
        print(connection.recv(1000))
    except ConnectionError:
        print(b'')
";

/// The responses at `address` to the user of this test, and to another user if this one is root.
fn heard_by_others(address: &str) -> Vec<Vec<u8>> {
    let mut connection = TcpStream::connect(address).expect("the loopback is everybody's");
    connection
        .set_read_timeout(Some(Duration::from_mins(2)))
        .expect("set");
    // A closed connection may be reported as either of these.
    let _ = connection.write_all(b"GET /v1/state/one HTTP/1.1\r\n\r\n");
    let mut said = Vec::new();
    match connection.read_to_end(&mut said) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("it is kept waiting")
        }
        _ => {}
    }
    let mut steals = Command::new("setpriv");
    steals.args([
        "--reuid=65534",
        "--clear-groups",
        PYTHON,
        "-c",
        STEALS,
        address,
    ]);
    let stolen = steals.output().expect("it runs");
    assert!(
        stolen.status.success(),
        "{}",
        String::from_utf8_lossy(&stolen.stderr)
    );
    vec![said, stolen.stdout]
}

async fn is_reached_by_itself_alone(world: &World, change: impl FnOnce(&mut Function)) {
    let function = world.function("asks", ASKS, change).await;
    let said = world.said(&function, "{}").await;
    let (address, status) = said
        .trim_matches('"')
        .split_once(' ')
        .expect("it is answered");
    assert_eq!(status, "404", "what is served here knows no such path");
    assert_eq!(heard_by_others(address), [b"".as_slice(), b"b''\n"]);
    assert_eq!(
        world.said(&function, "{}").await,
        said,
        "the same instance goes on"
    );
}

/// U2: every user reaches the machine's loopback, but not an instance's invocations and its state.
#[test]
fn a_function_with_the_machines_network_is_served_to_itself_alone() {
    if !geteuid().is_root() {
        eprintln!("not root: all functions are the server's user");
        return;
    }
    let _turn = one_at_a_time();
    block_on(async {
        let world = world(Enforcement::probe);
        is_reached_by_itself_alone(&world, |function| function.network = true).await;
        if can_isolate() {
            world.spare().await;
            world.sandbox.retire("asks");
            is_reached_by_itself_alone(&world, |function| function.network = true).await;
            assert_eq!(world.sandbox.figures().adopted, 1, "that was a spare");
        }
        world.close().await;
    });
}

#[test]
fn a_function_without_namespaces_is_served_to_itself_alone() {
    if !geteuid().is_root() {
        eprintln!("not root: all functions are the server's user");
        return;
    }
    block_on(async {
        let world = world(|_: &Path| Enforcement::nothing());
        is_reached_by_itself_alone(&world, |_| {}).await;
        world.close().await;
    });
}
