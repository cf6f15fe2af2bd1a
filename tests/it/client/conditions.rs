//! Plain writes under a condition (T20).

use std::fmt::Debug;

use landfast_client::{Condition, ErrorKind, Result};

use super::{House, relay::Loss};

fn kind(result: Result<impl Debug>) -> ErrorKind {
    result.expect_err("refused").kind()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_under_a_condition_takes_effect_only_if_it_holds() {
    let house = House::open().await;
    let state = house.client.state();
    assert_eq!(state.get_with_etag("a").await.expect("a read"), None);
    let other = || Condition::Match("\"1\"".to_owned());
    for condition in [Condition::Present, other()] {
        let refused = state.put_if("a", "0", condition.clone()).await;
        assert_eq!(kind(refused), ErrorKind::ConditionNotMet);
        let refused = state.delete_if("a", condition).await;
        assert_eq!(kind(refused), ErrorKind::ConditionNotMet);
    }
    let written = state.put_if("a", "1", Condition::Absent).await;
    let first = written.expect("it is absent");
    let read = state.get_with_etag("a").await.expect("a read");
    assert_eq!(read, Some(("1".into(), first.clone())));
    let refused = state.put_if("a", "2", Condition::Absent).await;
    assert_eq!(kind(refused), ErrorKind::ConditionNotMet);
    let written = state
        .put_if("a", "2", Condition::Match(first.clone()))
        .await;
    let second = written.expect("it has this value");
    assert_ne!(first, second);
    let refused = state.put_if("a", "3", Condition::Match(first)).await;
    assert_eq!(kind(refused), ErrorKind::ConditionNotMet);
    assert_eq!(
        state.get("a").await.expect("a read").as_deref(),
        Some(&b"2"[..])
    );
    let deleted = state.delete_if("a", Condition::Match(second)).await;
    deleted.expect("it has this value");
    assert_eq!(state.get("a").await.expect("a read"), None);
}

/// The repeat would meet the effect of the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_under_a_condition_is_not_sent_again_after_a_lost_answer() {
    let house = House::open().await;
    let state = house.client.state();
    house.relay.lose("PUT /v1/state/", Loss::Once);
    let lost = state.put_if("a", "1", Condition::Absent).await;
    assert_eq!(kind(lost), ErrorKind::OutcomeUnknown);
    assert_eq!(house.relay.requests("PUT /v1/state/").len(), 1);
    let read = state.get_with_etag("a").await.expect("a read");
    let (value, etag) = read.expect("it took effect");
    assert_eq!(value, "1");
    house.relay.lose("DELETE /v1/state/", Loss::Once);
    let lost = state.delete_if("a", Condition::Match(etag)).await;
    assert_eq!(kind(lost), ErrorKind::OutcomeUnknown);
    assert_eq!(house.relay.requests("DELETE /v1/state/").len(), 1);
    assert_eq!(state.get("a").await.expect("a read"), None);
}
