//! Commits of atomic runs.

use serde_json::json;
use simulated::World;
use transactions::model::TransactionId;

use super::*;
use crate::{Options, steps::Attempt};

/// An atomic run in a near store.
fn atomic_run(near: &World) -> (Arc<Env>, Arc<Run>) {
    let (key_value, clock, entropy) = (near.key_value(), near.clock(), near.entropy());
    let parts = transactions::Parts {
        key_value: Arc::clone(&key_value),
        clock: Arc::clone(&clock),
        entropy: Arc::clone(&entropy),
    };
    let engine = transactions::Service::builder(parts)
        .build(transactions::Config::default())
        .engine();
    let options = Options::default();
    let store = Store::of_transactions(key_value, engine, &options);
    let workflow = json!({ "steps": ["f"], "atomic": true });
    let given = Given {
        input: Bytes::new(),
        workflow: serde_json::from_value(workflow).expect("it is one"),
    };
    let env = Arc::new(Env {
        clock,
        entropy,
        options,
        stop: functions::stop::Stop::default(),
    });
    let run = Run::new(
        &env,
        ("w".to_owned(), "run".to_owned()),
        (RunRow::begun(1, None), given),
        (StoreLocation::Near, store),
        (BTreeMap::new(), DurabilityPoint::DURABLE),
    );
    (env, run)
}

/// W5: an attempt of a lost transaction changes nothing of the next one, however late its code ends.
#[test]
fn an_attempt_of_a_lost_transaction_commits_in_no_later_one() {
    simulated::run(async {
        let (env, run) = atomic_run(&World::new(1));
        let call = Call {
            id: TransactionId::new("t").expect("short"),
            attempt: None,
        };
        run.start_over(&call);
        let (late, around): (Attempt, Attempt) = ["0", "1"]
            .map(|path| Attempt::new(&run, path.to_owned(), 1))
            .into();
        let overlay = run.start_over(&call);
        let output = Bytes::from_static(b"1");
        late.overlay
            .put("k".into(), Some(output.clone()), &env.options)
            .expect("room");
        let committed = late.commit("f", output.clone()).await;
        assert_eq!(committed, Err(Failure::Stopped));
        let failed = StepRow {
            function: "f".to_owned(),
            result: Err(Bytes::from_static(b"{}")),
            attempt: None,
            tries: 1,
            began_ms: 1,
            ended_ms: 1,
        };
        let told = run.commit_failure(&around.overlay, ("1/0", &failed)).await;
        assert!(matches!(told, Err(Error::AttemptEnded)), "{told:?}");
        assert_eq!((run.committed("0"), run.committed("1/0")), (None, None));
        assert!(overlay.peek().expect("open").is_empty());
        let attempt = Attempt::new(&run, "0".to_owned(), 1);
        assert_eq!(attempt.commit("f", output.clone()).await, Ok(output));
        assert!(run.committed("0").is_some());
    });
}
