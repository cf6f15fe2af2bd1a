//! T10, T15: calls that are passed on to the node of their transaction, which is slow, refuses, or says nothing.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use simulated::World;
use simulation::transactions::{
    ensemble::Ensemble,
    house::{Among, Connection, Failure, House},
    mortal::Life,
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

/// The kind of the question how a node stands.
const ASK: u8 = 1;

/// A transaction of one node, and the other node.
struct Elsewhere {
    network: Network,
    owner: Connection,
    other: Connection,
    call: Call,
    _house: House,
}

impl Elsewhere {
    async fn begin() -> Self {
        Self::begin_at(None).await
    }

    async fn begin_at(broken: Option<Broken>) -> Self {
        let config = Config {
            broken,
            ..Scenario::default().config
        };
        let network = Network::new(Rng::with_seed(1), Trouble::default());
        let among = Among {
            network: network.clone(),
            ensemble: Ensemble::new(Rng::with_seed(2)),
            places: 2,
        };
        let house = House::among(&World::new(1), config, among);
        for place in 0..2 {
            assert!(house.boot_at(place, Life::default(), 0).await);
        }
        // Until all know of each other.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let [owner, other] = [0, 1].map(|place| house.serving_at(place).expect("nobody dies"));
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
            _house: house,
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

    /// What the owner shows.
    async fn committed(&self) -> Option<Bytes> {
        self.owner
            .shown(self.owner.engine.get_now(&key(0)))
            .await
            .expect("a calm world")
    }
}

/// T10: a large value may be on its way to its node for longer than a silent node is waited for.
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

/// T10, T15: what the node of a transaction refuses for now is refused under the same name, and ends nothing.
#[test]
fn what_its_node_refuses_for_now_ends_no_transaction() {
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

/// T10: a node that has no room to say how it stands lives, and so do its transactions.
#[test]
fn who_refuses_to_say_how_it_stands_lives() {
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

/// T10: nobody waits for a node that says nothing, however much it was sent.
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

/// T10: a node that is busy is not asked how it stands by everybody who waits for it.
#[test]
fn one_asks_for_all_who_wait_for_a_node_whether_it_lives() {
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

/// T10: a moment in which a node is not reached is none in which it is asked twice.
#[test]
fn who_does_not_answer_is_not_asked_again_at_once() {
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

/// Two nodes, of which the first has heard that there is a second no sooner than the test says so.
async fn one_and_one_that_joins(broken: Option<Broken>) -> (House, Connection, Connection) {
    let config = Config {
        broken,
        ..Scenario::default().config
    };
    let network = Network::new(Rng::with_seed(1), Trouble::default());
    let among = Among {
        network,
        ensemble: Ensemble::new(Rng::with_seed(2)),
        places: 2,
    };
    let house = House::among(&World::new(1), config, among);
    assert!(house.boot_at(0, Life::default(), 0).await);
    house.seat_at(0).expect("it has one").cut_off();
    assert!(house.boot_at(1, Life::default(), 0).await);
    let [first, joined] = [0, 1].map(|place| house.serving_at(place).expect("nobody dies"));
    (house, first, joined)
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

/// What is answered to a commit at a node that has not heard of its owner's joining, and what to one at its owner then.
async fn committed_where_its_node_is_not_heard_of(
    broken: Option<Broken>,
) -> [Result<(), Failure>; 2] {
    let (house, first, joined) = one_and_one_that_joins(broken).await;
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
    house.seat_at(0).expect("it has one").reconnect();
    [
        there,
        joined.call(joined.engine.commit(&call)).await.map(drop),
    ]
}

/// T10: a node that has just joined is none that is gone.
#[test]
fn a_transaction_of_a_node_that_has_just_joined_goes_on() {
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

/// T8: also where the node of the earlier attempt has just joined.
#[test]
fn a_node_that_has_just_joined_is_told_that_its_attempt_was_begun_anew() {
    simulated::run(async {
        let (house, first, joined) = one_and_one_that_joins(None).await;
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
        house.seat_at(0).expect("it has one").reconnect();
    });
}

/// T8: an attempt that was begun anew at another node hears that for good, also once the later one has left nothing.
#[test]
fn who_was_begun_anew_elsewhere_hears_that_also_after_the_later_attempt() {
    simulated::run(async {
        let Elsewhere {
            owner,
            other,
            _house,
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

/// T10: what has become of a name that left nothing is known where it was begun, and a call that says its attempt gets there.
#[test]
fn who_says_the_attempt_hears_of_a_name_that_has_left_nothing() {
    simulated::run(async {
        let Elsewhere {
            owner,
            other,
            _house,
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

/// A write that is on its way for longer than it is waited for; then its client writes the same key at the node of the transaction,
/// and commits. What is there afterwards; none: the transaction has ended.
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
        // Whatever its node still takes.
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

/// T10: what its client has been told is over comes over nothing that it writes later.
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
