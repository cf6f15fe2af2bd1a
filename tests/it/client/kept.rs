//! The result that a transaction keeps with its commit (T19).

use landfast_client::{Client, ErrorKind, Result};

use super::House;

const RESULT_BYTES_MAX: usize = 64 << 10;

async fn kept(client: &Client, id: &str, result: &str) -> Result<Option<String>> {
    let begin = client.transaction().id(id);
    let body = |_| {
        let result = result.to_owned();
        async move { Ok(result) }
    };
    begin.transact_keeping(body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_under_a_committed_id_returns_the_first_result() {
    let mut house = House::open().await;
    let pay = |amount: u64| {
        let begin = house.client.transaction().id("pay/17");
        begin.transact_keeping(move |t| async move {
            t.put("paid", amount.to_string()).await?;
            Result::Ok((amount, vec!["a \"b\"".to_owned()]))
        })
    };
    let first = Some((30, vec!["a \"b\"".to_owned()]));
    assert_eq!(pay(30).await.expect("it commits"), first);
    assert_eq!(pay(40).await.expect("it has committed"), first);
    house.server = None;
    house.server = Some(super::start(house.directory.path()));
    let address = house.server.as_ref().map(|server| server.address("http"));
    house.relay.connect(address.expect("it runs"));
    assert_eq!(
        kept(&house.client, "pay/18", "x")
            .await
            .expect("it commits"),
        Some("x".to_owned())
    );
    let other = house.client.transaction().id("pay/18");
    let other = other
        .transact_keeping(|_| async { Result::Ok(7_u64) })
        .await;
    assert_eq!(
        other.expect_err("it is a text").kind(),
        ErrorKind::UnexpectedAnswer
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_kept_up_to_its_bound() {
    let house = House::open().await;
    // The quotes count.
    let longest = "x".repeat(RESULT_BYTES_MAX - 2);
    let longer = format!("{longest}x");
    for (result, is_kept) in [(longest, true), (longer, false)] {
        let id = format!("of {} bytes", result.len());
        let first = kept(&house.client, &id, &result).await.expect("it commits");
        assert_eq!(first.as_ref(), Some(&result));
        let again = kept(&house.client, &id, "another").await;
        assert_eq!(again.expect("it has committed"), is_kept.then_some(result));
    }
    let plain = house.client.transaction().id("plain");
    plain
        .transact(|_| async { Result::Ok(1) })
        .await
        .expect("it commits");
    assert_eq!(
        kept(&house.client, "plain", "x")
            .await
            .expect("it has committed"),
        None
    );
}
