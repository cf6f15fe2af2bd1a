//! T4, T5, T10: commits that the sequencer did not answer in time, so that their outcome is unknown.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use simulation::transactions::{
    cluster::{Connection, Failure},
    workload::key,
};
use transactions::{
    Error,
    broken::Broken,
    model::{Begin, Begun, Call, Outcome, TransactionId},
};

use super::sequenced::cut_off_from_the_sequencer;

fn unknown<T>() -> Result<T, Failure> {
    Err(Failure::Refused(Error::OutcomeUnknown))
}

/// The final values of a key. It was written at a node partitioned from the sequencer, which
/// answered *unknown*, then twice at the sequencer, acknowledged. The link is restored `later`.
async fn written_over_an_unknown(later: Duration, broken: Option<Broken>) -> [Option<Bytes>; 2] {
    let (cluster, [sequencer, cut_off]) = cut_off_from_the_sequencer(broken).await;
    let write = async |node: &Connection, value: &'static [u8]| {
        node.call(node.engine.put_now(key(0), Some(Bytes::from_static(value))))
            .await
            .map(drop)
    };
    let asked = tokio::time::Instant::now();
    assert_eq!(write(&cut_off, b"one").await, unknown());
    assert!(
        asked.elapsed() <= Duration::from_millis(5_500),
        "{:?}",
        asked.elapsed()
    );
    write(&sequencer, b"one")
        .await
        .expect("it orders commits itself");
    write(&sequencer, b"two")
        .await
        .expect("it orders commits itself");
    tokio::time::sleep(later).await;
    cluster
        .surroundings()
        .expect("several places")
        .network
        .mend();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let mut shown = [None, None];
    for (shown, node) in shown.iter_mut().zip([&sequencer, &cut_off]) {
        *shown = node
            .shown(node.engine.get_now(&key(0)))
            .await
            .expect("a calm world");
    }
    shown
}

/// T4, T5: a write with unknown outcome never replaces a value that was acknowledged since.
#[test]
fn a_write_with_unknown_outcome_replaces_nothing_newer() {
    for later in [3, 20, 65].map(Duration::from_secs) {
        let shown = simulated::run(written_over_an_unknown(later, None));
        assert_eq!(
            shown,
            [(); 2].map(|()| Some(Bytes::from_static(b"two"))),
            "{later:?} later"
        );
    }
}

/// T4, T5, broken.
#[test]
fn committing_after_unknown_is_caught() {
    let broken = Some(Broken::CommitsAfterUnknown);
    let shown = simulated::run(written_over_an_unknown(Duration::from_secs(20), broken));
    assert_eq!(
        shown,
        [(); 2].map(|()| Some(Bytes::from_static(b"one"))),
        "the unknown write took effect"
    );
}

/// T4: a commit with unknown outcome under a server-generated id is aborted once the sequencer is
/// reached; one under a client id continues.
#[test]
fn a_commit_with_unknown_outcome_ends() {
    for (name, expected) in [(None, Err(Outcome::Aborted)), (Some("order"), Ok(()))] {
        simulated::run(async {
            let (cluster, [_, cut_off]) = cut_off_from_the_sequencer(None).await;
            let id = name.map(|name| TransactionId::new(name).expect("a name"));
            let begun = cut_off
                .shown(cut_off.engine.begin(Begin {
                    id,
                    ..Begin::default()
                }))
                .await;
            let Ok(Begun::Open { id, attempt }) = begun else {
                panic!("it reaches the store: {begun:?}")
            };
            let call = Call {
                id,
                attempt: Some(attempt),
            };
            let put = cut_off.engine.put(&call, key(0), Bytes::from_static(b"v"));
            cut_off.call(put).await.expect("it is open");
            let commit = async || cut_off.call(cut_off.engine.commit(&call)).await.map(drop);
            assert_eq!(commit().await, unknown());
            cluster
                .surroundings()
                .expect("several places")
                .network
                .mend();
            let ended = commit().await;
            let refused = |outcome| Failure::Refused(Error::TransactionFinished(outcome));
            assert_eq!(ended, expected.map_err(refused), "{name:?}");
        });
    }
}

/// T4, T10: at the sequencer, such a commit gets its final answer, and never replaces later writes
/// of its client.
#[test]
fn a_commit_with_unknown_outcome_is_resolved_at_another_node() {
    simulated::run(async {
        let (cluster, [sequencer, cut_off]) = cut_off_from_the_sequencer(None).await;
        let open = async |node: &Connection, value: &'static [u8]| {
            let id = Some(TransactionId::new("order").expect("a name"));
            let begun = node
                .shown(node.engine.begin(Begin {
                    id,
                    ..Begin::default()
                }))
                .await;
            let Ok(Begun::Open { id, attempt }) = begun else {
                panic!("it reaches the store: {begun:?}")
            };
            let call = Call {
                id,
                attempt: Some(attempt),
            };
            let put = node.engine.put(&call, key(0), Bytes::from_static(value));
            node.call(put).await.expect("it is open");
            call
        };
        let commit = async |node: &Connection, call: &Call| {
            node.call(node.engine.commit(call)).await.map(drop)
        };
        let first = open(&cut_off, b"first").await;
        assert_eq!(commit(&cut_off, &first).await, unknown());
        let aborted = Error::TransactionFinished(Outcome::Aborted);
        assert_eq!(
            commit(&sequencer, &first).await,
            Err(Failure::Refused(aborted))
        );
        let second = open(&sequencer, b"second").await;
        commit(&sequencer, &second)
            .await
            .expect("it orders commits itself");
        cluster
            .surroundings()
            .expect("several places")
            .network
            .mend();
        tokio::time::sleep(Duration::from_secs(10)).await;
        for node in [&sequencer, &cut_off] {
            let shown = node
                .shown(node.engine.get_now(&key(0)))
                .await
                .expect("a calm world");
            assert_eq!(shown, Some(Bytes::from_static(b"second")));
            commit(node, &second).await.expect("it has committed");
        }
    });
}
