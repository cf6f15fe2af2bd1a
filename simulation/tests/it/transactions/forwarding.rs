//! T10, T15: calls that are forwarded to the node of their transaction, which is slow, refuses, or
//! is silent.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use simulated::World;
use simulation::transactions::{
    cluster::{Among, Cluster, Connection, Failure},
    crashable::Life,
    ensemble::Ensemble,
    network::{Network, Trouble},
    scenario::Scenario,
    workload::key,
};
use transactions::{
    Config, Error,
    broken::Broken,
    model::{Begin, Begun, Call, Outcome, TransactionId},
    peers::NoAnswer,
};

/// The kind of the liveness probe.
const ASK: u8 = 1;

/// A transaction of one node, and the other node.
struct Elsewhere {
    network: Network,
    owner: Connection,
    other: Connection,
    call: Call,
    _cluster: Cluster,
}

impl Elsewhere {
    async fn begin() -> Self {
        Self::begin_at(None).await
    }

    async fn begin_at(broken: Option<Broken>) -> Self {
        let config = Config {
            mutant: broken.into(),
            ..Scenario::default().config
        };
        let network = Network::new(Rng::with_seed(1), Trouble::default());
        let among = Among {
            network: network.clone(),
            ensemble: Ensemble::new(Rng::with_seed(2)),
            places: 2,
        };
        let cluster = Cluster::among(&World::new(1), config, among);
        for place in 0..2 {
            assert!(cluster.boot_at(place, Life::default(), 0).await);
        }
        // Until all nodes know each other.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let [owner, other] = [0, 1].map(|place| cluster.serving_at(place).expect("no node dies"));
        let begun = owner
            .shown(owner.engine.begin(Begin::default()))
            .await
            .expect("a calm world");
        let Begun::Open { id, attempt } = begun else {
            panic!("nothing is committed")
        };
        Self {
            network,
            owner,
            other,
            call: Call {
                id,
                attempt: Some(attempt),
            },
            _cluster: cluster,
        }
    }

    /// A write at the other node.
    async fn put(&self, value: Bytes) -> Result<(), Failure> {
        self.put_at(0, value).await
    }

    async fn put_at(&self, place: usize, value: Bytes) -> Result<(), Failure> {
        self.other
            .call(self.other.engine.put(&self.call, key(place), value))
            .await
    }

    async fn commit(&self) -> Result<(), Failure> {
        self.other
            .call(self.other.engine.commit(&self.call))
            .await
            .map(drop)
    }

    /// The value at the owner.
    async fn committed(&self) -> Option<Bytes> {
        self.owner
            .shown(self.owner.engine.get_now(&key(0)))
            .await
            .expect("a calm world")
    }
}

/// T10: a large value may take longer to its node than a silent node is waited for.
#[test]
fn a_large_write_that_is_passed_on_has_the_time_that_it_takes() {
    simulated::run(async {
        let value = Bytes::from(vec![7; 8 << 20]);
        let elsewhere = Elsewhere::begin().await;
        elsewhere.network.narrow(2_000);
        let began = tokio::time::Instant::now();
        elsewhere.put(value.clone()).await.expect("its node lives");
        assert!(
            began.elapsed() > Duration::from_secs(4),
            "{:?}",
            began.elapsed()
        );
        elsewhere.commit().await.expect("it goes on");
        assert_eq!(elsewhere.committed().await, Some(value));
    });
}

/// T10, T15: a transient refusal by the node of a transaction keeps its kind and does not end the
/// transaction.
#[test]
fn a_transient_refusal_of_its_node_ends_no_transaction() {
    simulated::run(async {
        let elsewhere = Elsewhere::begin().await;
        let value = Bytes::from_static(b"value");
        for why in [
            NoAnswer::TooMuchBuffered,
            NoAnswer::Unavailable("busy".into()),
        ] {
            elsewhere.network.refuse(&Among::address(0), 0, why.clone());
            let (put, commit) = (elsewhere.put(value.clone()).await, elsewhere.commit().await);
            if why == NoAnswer::TooMuchBuffered {
                assert_eq!(put, Err(Failure::Refused(Error::TooMuchBuffered)));
                assert_eq!(commit, Err(Failure::Refused(Error::TooMuchBuffered)));
            } else {
                assert!(
                    matches!(put, Err(Failure::Refused(Error::Unavailable(_)))),
                    "{put:?}"
                );
                assert_eq!(commit, Err(Failure::Refused(Error::OutcomeUnknown)));
            }
            elsewhere.network.mend();
        }
        elsewhere.put(value.clone()).await.expect("it is open");
        elsewhere.commit().await.expect("it is open");
        assert_eq!(elsewhere.committed().await, Some(value));
    });
}

/// T10: a node that is too busy to answer a probe is alive, and so are its transactions.
#[test]
fn a_node_too_busy_for_a_probe_is_alive() {
    simulated::run(async {
        let value = Bytes::from(vec![7; 8 << 20]);
        for why in [
            NoAnswer::TooMuchBuffered,
            NoAnswer::Unavailable("busy".into()),
        ] {
            let elsewhere = Elsewhere::begin().await;
            elsewhere.network.narrow(2_000);
            elsewhere.network.refuse(&Among::address(0), 0, why);
            let before_it_arrives = async {
                tokio::time::sleep(Duration::from_millis(3_500)).await;
                elsewhere.network.mend();
            };
            let (put, ()) = tokio::join!(elsewhere.put(value.clone()), before_it_arrives);
            put.expect("its node lives");
            elsewhere.commit().await.expect("it goes on");
        }
    });
}

/// T10: a silent node is given up, however much was sent to it.
#[test]
fn a_transaction_ends_with_a_node_that_says_nothing_within_five_seconds() {
    simulated::run(async {
        let elsewhere = Elsewhere::begin().await;
        elsewhere
            .network
            .cut(&Among::address(0), &Among::address(1));
        let began = tokio::time::Instant::now();
        let put = elsewhere.put(vec![7; 8 << 20].into()).await;
        let aborted = Error::TransactionFinished(Outcome::Aborted);
        assert_eq!(put, Err(Failure::Refused(aborted)));
        assert!(
            began.elapsed() <= Duration::from_millis(5_500),
            "{:?}",
            began.elapsed()
        );
    });
}

/// T10: concurrent callers that wait for a busy node share one probe.
#[test]
fn one_probe_serves_all_callers_that_wait_for_a_node() {
    simulated::run(async {
        let elsewhere = Elsewhere::begin().await;
        elsewhere.network.narrow(2_000);
        let before = elsewhere.network.sent(&Among::address(0), ASK);
        let value = Bytes::from(vec![7; 8 << 20]);
        let [one, another, third, fourth] =
            [0, 1, 2, 3].map(|place| elsewhere.put_at(place, value.clone()));
        let began = tokio::time::Instant::now();
        let (one, another, third, fourth) = tokio::join!(one, another, third, fourth);
        for put in [one, another, third, fourth] {
            put.expect("its node lives");
        }
        let looks = elsewhere.network.sent(&Among::address(0), ASK) - before;
        let most = began.elapsed().as_secs() as usize;
        assert!(
            (1..=most).contains(&looks),
            "{looks} questions in {most} seconds"
        );
    });
}

/// T10: an unreachable node is not probed twice at one moment.
#[test]
fn a_silent_node_is_not_probed_again_at_once() {
    simulated::run(async {
        let elsewhere = Elsewhere::begin().await;
        elsewhere.network.narrow(2_000);
        elsewhere
            .network
            .refuse(&Among::address(0), 0, NoAnswer::Silence("a hiccup".into()));
        let soon_over = async {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            elsewhere.network.mend();
        };
        let (put, ()) = tokio::join!(elsewhere.put(vec![7; 8 << 20].into()), soon_over);
        put.expect("its node lives");
        elsewhere.commit().await.expect("it goes on");
    });
}

/// Two nodes; the first learns of the second only when the test allows it.
async fn one_and_one_that_joins(broken: Option<Broken>) -> (Cluster, Connection, Connection) {
    let config = Config {
        mutant: broken.into(),
        ..Scenario::default().config
    };
    let network = Network::new(Rng::with_seed(1), Trouble::default());
    let among = Among {
        network,
        ensemble: Ensemble::new(Rng::with_seed(2)),
        places: 2,
    };
    let cluster = Cluster::among(&World::new(1), config, among);
    assert!(cluster.boot_at(0, Life::default(), 0).await);
    cluster.seat_at(0).expect("it has one").cut_off();
    assert!(cluster.boot_at(1, Life::default(), 0).await);
    let [first, joined] = [0, 1].map(|place| cluster.serving_at(place).expect("no node dies"));
    (cluster, first, joined)
}

async fn begin(at: &Connection, id: Option<TransactionId>) -> Call {
    let begun = at
        .shown(at.engine.begin(Begin {
            id,
            ..Begin::default()
        }))
        .await;
    let Begun::Open { id, attempt } = begun.expect("a calm world") else {
        panic!("nothing is committed")
    };
    Call {
        id,
        attempt: Some(attempt),
    }
}

/// The answer to a commit at a node that does not know yet that its owner has joined, and the
/// answer to a later one at its owner.
async fn committed_where_its_node_is_not_heard_of(
    broken: Option<Broken>,
) -> [Result<(), Failure>; 2] {
    let (cluster, first, joined) = one_and_one_that_joins(broken).await;
    let call = begin(&joined, None).await;
    joined
        .call(
            joined
                .engine
                .put(&call, key(0), Bytes::from_static(b"value")),
        )
        .await
        .expect("it is open");
    let there = first.call(first.engine.commit(&call)).await.map(drop);
    cluster.seat_at(0).expect("it has one").reconnect();
    [
        there,
        joined.call(joined.engine.commit(&call)).await.map(drop),
    ]
}

/// T10: a node that has just joined does not count as gone.
#[test]
fn a_transaction_of_a_node_that_has_just_joined_continues() {
    assert_eq!(
        simulated::run(committed_where_its_node_is_not_heard_of(None)),
        [Ok(()), Ok(())]
    );
}

/// T10, broken.
#[test]
fn taking_the_new_for_gone_is_caught() {
    let broken = Some(Broken::TakesTheNewForGone);
    let aborted = Err(Failure::Refused(Error::TransactionFinished(
        Outcome::Aborted,
    )));
    let answers = simulated::run(committed_where_its_node_is_not_heard_of(broken));
    assert_eq!(
        answers,
        [aborted.clone(), aborted],
        "an open transaction of a living node is ended"
    );
}

/// T8: also if the node of the earlier attempt has just joined.
#[test]
fn a_node_that_has_just_joined_learns_that_its_attempt_was_begun_again() {
    simulated::run(async {
        let (cluster, first, joined) = one_and_one_that_joins(None).await;
        let id = Some(TransactionId::new("order").expect("a name"));
        let earlier = begin(&joined, id.clone()).await;
        begin(&first, id).await;
        let read = joined
            .call(joined.engine.get(&earlier, &key(0)))
            .await
            .map(drop);
        assert_eq!(
            read,
            Err(Failure::Refused(Error::TransactionFinished(
                Outcome::BegunAnew
            )))
        );
        cluster.seat_at(0).expect("it has one").reconnect();
    });
}

/// T8: an attempt that was begun again at another node stays refused, also once the later one has
/// left no record.
#[test]
fn a_superseded_attempt_stays_refused_after_the_later_attempt() {
    simulated::run(async {
        let Elsewhere {
            owner,
            other,
            _cluster,
            ..
        } = Elsewhere::begin().await;
        let id = Some(TransactionId::new("order").expect("a name"));
        let earlier = begin(&owner, id.clone()).await;
        let later = begin(&other, id).await;
        other
            .call(other.engine.abort(&later))
            .await
            .expect("it is open");
        tokio::time::sleep(Duration::from_secs(1)).await;
        for connection in [&owner, &other] {
            let commit = connection
                .call(connection.engine.commit(&earlier))
                .await
                .map(drop);
            assert_eq!(
                commit,
                Err(Failure::Refused(Error::TransactionFinished(
                    Outcome::BegunAnew
                )))
            );
        }
    });
}

/// T10: the outcome of an id without a record is known where it was begun, and a call with its
/// attempt gets there.
#[test]
fn a_call_with_an_attempt_finds_the_outcome_of_an_id_without_a_record() {
    simulated::run(async {
        let Elsewhere {
            owner,
            other,
            _cluster,
            ..
        } = Elsewhere::begin().await;
        let call = begin(&owner, Some(TransactionId::new("order").expect("a name"))).await;
        owner
            .call(owner.engine.abort(&call))
            .await
            .expect("it is open");
        tokio::time::sleep(Duration::from_secs(1)).await;
        for connection in [&owner, &other] {
            assert_eq!(
                connection.shown(connection.engine.status_of(&call)).await,
                Ok(Outcome::Aborted)
            );
            assert_eq!(
                connection.call(connection.engine.abort(&call)).await,
                Ok(())
            );
        }
        let bare = other.shown(other.engine.status(&call.id)).await;
        assert_eq!(bare, Err(Failure::Refused(Error::NoSuchTransaction)));
    });
}

/// A write that is in transit for longer than the caller waits. Then its client writes the same key
/// at the node of the transaction, and commits. Returns the final value; none: the transaction has
/// ended.
async fn written_before_a_late_copy(broken: Option<Broken>) -> Option<Bytes> {
    let elsewhere = Elsewhere::begin_at(broken).await;
    elsewhere.network.narrow(1_000);
    let began = tokio::time::Instant::now();
    let late = elsewhere
        .put(vec![7; 8 << 20].into())
        .await
        .expect_err("it takes too long");
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
    let Elsewhere { owner, call, .. } = &elsewhere;
    if late == Failure::Refused(Error::TransactionFinished(Outcome::Aborted)) {
        // The result does not matter.
        let _ = owner
            .call(owner.engine.put(call, key(0), Bytes::from_static(b"newer")))
            .await;
        let committed = owner.call(owner.engine.commit(call)).await;
        assert!(
            committed.is_err(),
            "what was said to have ended is committed"
        );
        return elsewhere.committed().await;
    }
    owner
        .call(owner.engine.put(call, key(0), Bytes::from_static(b"newer")))
        .await
        .expect("it is open");
    tokio::time::sleep_until(began + Duration::from_secs(10)).await;
    owner
        .call(owner.engine.commit(call))
        .await
        .expect("it is open");
    elsewhere.committed().await
}

/// T10: a write that its client was told is over never replaces a later write.
#[test]
fn a_write_that_may_still_arrive_ends_its_transaction() {
    assert_eq!(simulated::run(written_before_a_late_copy(None)), None);
}

/// T10, broken.
#[test]
fn outliving_late_writes_is_caught() {
    let shown = simulated::run(written_before_a_late_copy(Some(Broken::OutlivesLateWrites)));
    assert_eq!(
        shown.map(|value| value.len()),
        Some(8 << 20),
        "the late copy has overwritten what is newer"
    );
}
