//! Messages and invocations that a transaction of the Rust client sends when it commits.

use landfast_client::{Client, ErrorKind};

use super::{
    House,
    relay::{Loss, Relay},
    start,
};
use crate::effects::{make_queue, receive_all, stop_when_sent};

/// T13. A message whose response is lost is sent again, and is one message.
#[tokio::test(flavor = "multi_thread")]
async fn messages_leave_with_their_commit_in_order_and_once() {
    let directory = tempfile::tempdir().expect("a directory");
    make_queue(directory.path(), "shipping").await;
    let server = start(directory.path());
    let relay = Relay::to(Some(server.address("http"))).await;
    let client = Client::connect([relay.url()]).expect("an address");

    let t = client.transaction().id("order/17").await.expect("begun");
    let refused = t
        .send("nowhere", "", "0")
        .await
        .expect_err("nobody has made it");
    assert_eq!(refused.kind(), ErrorKind::NoSuchQueue);
    t.send("shipping", "ann", "1").await.expect("taken");
    relay.lose("/messages/shipping", Loss::Once);
    let sending = tokio::spawn({
        let t = t.clone();
        async move { t.send("shipping", "ann", "2").await }
    });
    relay.has_lost_one().await;
    relay.connect(server.address("http"));
    sending
        .await
        .expect("no panic")
        .expect("taken at the second attempt");
    t.commit().await.expect("committed");
    assert_eq!(
        relay.requests("/messages/shipping").len(),
        3,
        "one was sent twice"
    );

    let aborted = client.transaction().id("order/18").await.expect("begun");
    aborted.send("shipping", "ann", "3").await.expect("taken");
    aborted.abort().await.expect("aborted");

    tokio::task::spawn_blocking(move || stop_when_sent(server))
        .await
        .expect("it stopped");
    let received = receive_all(directory.path(), "shipping").await;
    let expected = [("order/17/0", "1"), ("order/17/1", "2")];
    assert_eq!(
        received,
        expected.map(|(id, body)| (id.to_owned(), body.to_owned()))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invocation_of_nothing_is_refused_at_the_call() {
    let house = House::open().await;
    let t = house.client.transaction().await.expect("begun");
    let refused = t
        .invoke("confirm", "17")
        .await
        .expect_err("it is not registered");
    assert_eq!(refused.kind(), ErrorKind::NoSuchFunction);
    t.put("a", "1").await.expect("the attempt goes on");
    t.commit()
        .await
        .expect("a refused effect is as if it had not been");
}
