//! C-1, C-2: messages that come again: after their writer died, was shut out by a clock that is wrong, or had done with them.

use std::{
    future::pending,
    sync::atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

use super::*;
use crate::queue_names;

/// The same messages as they come again.
fn again(mut asked: Vec<Delivery>) -> Vec<Delivery> {
    for delivery in &mut asked {
        delivery.handle.attempt += 1;
    }
    asked
}

/// How many updates of a session were decided, and are not refusals.
async fn successes(stage: &Stage, session: SessionId) -> usize {
    let decided = stage
        .row(session)
        .await
        .outbox_decoded()
        .expect("it decodes");
    decided
        .iter()
        .filter(|decided| decided.outcome.is_ok())
        .count()
}

async fn is_there(stage: &Stage, path: &str) -> bool {
    let nodes = stage.nodes(stage.world.key_value());
    nodes
        .is_there(path, &mut Basis::default())
        .await
        .expect("calm")
}

/// How often a request is decided that comes again after all was done.
fn decided_of_one_that_came_twice(broken: Option<Broken>) -> u64 {
    simulated::run(async {
        let stage = stage_without(broken).await;
        let session = stage.open(1).await;
        let asked = stage.asked(session, vec![set("/", "once")]).await;
        stage
            .writer(&stage.store())
            .handle_messages(&asked)
            .await
            .expect("calm");
        stage
            .writer(&stage.store())
            .handle_messages(&again(asked))
            .await
            .expect("calm");
        stage.row(session).await.sequence
    })
}

/// C-2.
#[test]
fn a_request_that_comes_twice_is_decided_once() {
    assert_eq!(decided_of_one_that_came_twice(None), 1);
    assert_eq!(
        decided_of_one_that_came_twice(Some(Broken::ForgetsRequestNumbers)),
        2,
        "the rule is needed"
    );
}

/// What a writer left that died.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    /// Nothing that others would notice.
    Nothing,
    /// A lock, and nothing decided.
    Lock,
    /// A decision that is not installed, or of which nobody was told.
    Decision,
}

/// A writer dies at its call with this number, and its message comes to another, which does all that is left. What that
/// was; none: it has no such call.
fn left_by_one_that_dies_at(side: Side, number: usize) -> Option<Left> {
    simulated::run(async {
        let stage = stage().await;
        let (session, store, queue) = (stage.open(1).await, stage.store(), stage.world.queue());
        let asked = stage
            .asked(session, vec![create("/a", Lifetime::Persistent)])
            .await;
        let (calls, death) = (AtomicUsize::new(0), Arc::new(Notify::new()));
        let dies = death.clone();
        store.once(
            side,
            move |_| calls.fetch_add(1, Ordering::SeqCst) == number,
            async move {
                dies.notify_one();
                pending().await
            },
        );
        let writer = stage.writer(&store);
        tokio::select! {
            biased;
            () = death.notified() => {}
            done = writer.handle_messages(&asked) => {
                done.expect("calm");
                return None;
            }
        }
        let is_locked = !is_free(&stage, "/").await;
        let left = match (stage.row(session).await.sequence, is_locked) {
            (1, _) => Left::Decision,
            (_, true) => Left::Lock,
            (_, false) => Left::Nothing,
        };
        stage
            .writer(&stage.store())
            .handle_messages(&again(asked))
            .await
            .expect("calm");
        assert_eq!(
            (
                stage.row(session).await.sequence,
                successes(&stage, session).await
            ),
            (1, 1)
        );
        assert!(is_there(&stage, "/a").await, "it is installed");
        assert!(is_free(&stage, "/a").await, "nobody has to wait for a lock");
        let pushed = queue
            .receive(queue_names::DISTRIBUTOR_QUEUE, 10)
            .await
            .expect("calm");
        assert!(!pushed.is_empty(), "nobody would apply it");
        Some(left)
    })
}

/// C-1, C-2: of every death, the second delivery is all that finishes the work.
#[test]
fn what_a_writer_leaves_that_dies_is_done_when_its_message_comes_again() {
    for side in [Side::Before, Side::After] {
        let left: BTreeSet<Left> = (0..)
            .map_while(|number| left_by_one_that_dies_at(side, number))
            .collect();
        assert!(
            left.contains(&Left::Lock) && left.contains(&Left::Decision),
            "{side:?}: {left:?}"
        );
    }
}

/// How often a znode is made by two, of whom one breaks the other's lock right before that one decides, since its clock
/// is far ahead.
fn made_by_a_clock_that_is_ahead(broken: Option<Broken>) -> usize {
    const AHEAD_MS: i64 = 60 * 60 * 1000;
    simulated::run(async {
        let stage = stage_without(broken).await;
        let (slow, hasty, store) = (stage.open(1).await, stage.open(2).await, stage.store());
        let made = || vec![create("/a", Lifetime::Persistent)];
        let (asked, asked_hastily) = (
            stage.asked(slow, made()).await,
            stage.asked(hasty, made()).await,
        );
        let (writer, clock) = (
            stage.writer_by(&stage.store(), stage.world.clock_off_by(AHEAD_MS)),
            stage.world.clock(),
        );
        store.once(Side::Before, is_decision, async move {
            let began = clock.monotonic();
            writer.handle_messages(&asked_hastily).await.expect("calm");
            let waited = clock.monotonic().since(began);
            assert!(
                waited < Duration::from_secs(1),
                "its clock says that the lock has expired: {waited:?}"
            );
            Ok(())
        });
        if stage.writer(&store).handle_messages(&asked).await.is_err() {
            stage
                .writer(&stage.store())
                .handle_messages(&again(asked))
                .await
                .expect("calm");
        }
        assert!(store.is_through());
        successes(&stage, slow).await + successes(&stage, hasty).await
    })
}

/// C-1: what is decided does not rest on clocks.
#[test]
fn whoever_breaks_a_lock_too_early_shuts_its_holder_out() {
    assert_eq!(made_by_a_clock_that_is_ahead(None), 1);
    assert_eq!(
        made_by_a_clock_that_is_ahead(Some(Broken::BreaksLocksUnasked)),
        2,
        "the rule is needed"
    );
}

/// C6: a note of an ephemeral that comes late, of a create that another writer has decided since, does not stand for the
/// next one at its path: else whoever applies the deletion of the first has the second forgotten.
#[test]
fn a_note_that_comes_late_has_no_ephemeral_forgotten() {
    simulated::run(async {
        let stage = stage().await;
        let (owner, other, late) = (stage.open(1).await, stage.open(2).await, stage.store());
        let made = || vec![create("/e", Lifetime::Ephemeral)];
        let asked = stage.asked(owner, made()).await;
        let (on_stage, asked_again) = (stage.clone(), again(asked.clone()));
        late.once(Side::Before, is_of_index, async move {
            on_stage
                .writer(&on_stage.store())
                .handle_messages(&asked_again)
                .await
                .expect("calm");
            on_stage.decided(other, vec![delete("/e")]).await;
            on_stage.decided(owner, made()).await;
            Ok(())
        });
        stage
            .writer(&late)
            .handle_messages(&asked)
            .await
            .expect_err("another writes for it");
        assert!(late.is_through());
        assert_eq!(successes(&stage, owner).await, 2);
        assert!(is_there(&stage, "/e").await, "it was made again");
        stage
            .distributor(&stage.store())
            .handle(Stage::messages(stage.outbox(owner).await))
            .await
            .expect("calm");
        stage.decided(owner, vec![Operation::Close]).await;
        assert!(!is_there(&stage, "/e").await, "it has outlived its session");
    });
}
