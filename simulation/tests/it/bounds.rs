//! The memory in bytes that one client can make its process hold: requests, unread answers, and
//! events.

use std::sync::Arc;

use bytes::Bytes;
use coordination::{
    Client, Config, access,
    broken::Broken,
    model::{Lifetime, Naming, Output, Request, Watched, Watching, Zxid},
};
use ports::faults::Calm;
use simulated::World;

use crate::single_service::{connect, following, result, without};

const DATA_BYTES: usize = 100_000;
/// About ten mebibytes in total.
const READS: i32 = 100;
/// The most that one call of `pump` may add: the bound, and one answer that exceeds it.
const PUMPED_BYTES_MAX: usize = (1 << 20) + DATA_BYTES;

fn create_large(path: &str) -> Request {
    let data = Some(Bytes::from(vec![7; DATA_BYTES]));
    Request::Create {
        path: path.into(),
        data,
        acl: access::open(),
        lifetime: Lifetime::Persistent,
        naming: Naming::Given,
    }
}

/// All outputs up to the reply with this tag, and the most bytes that one pump added.
async fn replies_up_to(client: &mut Client, last: i32) -> (Vec<Output>, usize) {
    let (mut all, mut most) = (Vec::new(), 0);
    loop {
        let mut outputs = Vec::new();
        client.pump(&mut outputs).await.expect("a calm world");
        most = most.max(outputs.iter().map(Output::bytes_len).sum());
        all.append(&mut outputs);
        if matches!(all.last(), Some(Output::Reply { tag, .. }) if *tag == last) {
            return (all, most);
        }
        client.wait().await;
    }
}

/// Reads ten mebibytes in one pipeline; returns the most bytes that one pump added.
fn most_pumped(broken: Option<Broken>) -> usize {
    simulated::run(async move {
        let world = World::new(1);
        let service = following(&world, Arc::new(Calm), without(broken)).await;
        let mut client = connect(&service.gateway()).await.expect("a session");
        result(&mut client, create_large("/large"))
            .await
            .expect("it is made");
        for tag in 1..=READS {
            client.submit(
                tag,
                Request::GetData {
                    path: "/large".into(),
                    watching: Watching::No,
                },
            );
        }
        let (outputs, most) = replies_up_to(&mut client, READS).await;
        let tags = outputs.iter().map(|output| match output {
            Output::Reply {
                tag, result: Ok(_), ..
            } => *tag,
            other => panic!("{other:?} is no answer to a read"),
        });
        assert!(tags.eq(1..=READS), "each read is answered, in order");
        most
    })
}

/// C3: pipelined reads run ahead of their peer by no more than the bound, and all of them are
/// answered.
#[test]
fn reads_wait_for_capacity_for_their_answers() {
    let most = most_pumped(None);
    assert!(most <= PUMPED_BYTES_MAX, "{most} bytes were held at once");
}

/// C3, broken.
#[test]
fn holding_answers_without_a_bound_is_caught() {
    assert!(most_pumped(Some(Broken::QueuesOutputsWithoutBound)) > PUMPED_BYTES_MAX);
}

/// C4: a request that sets many watches again may produce as many events, which wait for capacity
/// as well.
#[test]
fn events_of_watches_set_again_wait_for_capacity() {
    const WATCHES: usize = 40_000;
    simulated::run(async {
        let world = World::new(1);
        let service = following(&world, Arc::new(Calm), Config::default()).await;
        let mut client = connect(&service.gateway()).await.expect("a session");
        let missing = (0..WATCHES)
            .map(|number| (Watched::Data, format!("/missing/{number:060}")))
            .collect();
        client.submit(
            1,
            Request::SetWatches {
                relative: Zxid(0),
                watches: missing,
            },
        );
        let (outputs, most) = replies_up_to(&mut client, 1).await;
        assert_eq!(
            outputs.len(),
            WATCHES + 1,
            "each watch fires for its missed change"
        );
        assert!(most <= PUMPED_BYTES_MAX, "{most} bytes were held at once");
    });
}

/// C3: a client accepts requests up to its bound, and more once those are answered.
#[test]
fn large_requests_are_taken_up_to_a_bound() {
    const TAKEN_BYTES_MAX: usize = 4 << 20;
    simulated::run(async {
        let world = World::new(1);
        let service = following(&world, Arc::new(Calm), Config::default()).await;
        let mut client = connect(&service.gateway()).await.expect("a session");
        let mut taken = 0;
        while client.has_room() {
            taken += 1;
            client.submit(taken, create_large(&format!("/large-{taken}")));
        }
        let bytes = taken as usize * DATA_BYTES;
        assert!(
            bytes <= TAKEN_BYTES_MAX + DATA_BYTES,
            "{bytes} bytes were taken"
        );
        replies_up_to(&mut client, taken).await;
        assert!(client.has_room());
    });
}
