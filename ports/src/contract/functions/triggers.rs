//! Functions started by queues: N3.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;

use super::{Notes, Running, Subject, text};
use crate::{
    Event,
    contract::{FOR_EVER, PATIENCE, eventually, pause},
    functions::{Failure, FunctionOptions, QueueTrigger},
    queue::{Delivery, Message, OnFailure, QueueOptions},
};

impl Subject {
    async fn queue(&self, queue: &str, attempts_max: u32, on_failure: OnFailure) {
        let options = QueueOptions {
            visibility_timeout_ms: 10_000,
            attempts_max,
            on_failure,
            ..QueueOptions::default()
        };
        self.queue
            .create(queue, options)
            .await
            .expect("create answers");
    }

    async fn arm(&self, queue: &str, function: &str, batch_messages_max: usize) {
        self.arm_groups(queue, function, batch_messages_max, 1)
            .await;
    }

    async fn arm_groups(
        &self,
        queue: &str,
        function: &str,
        batch_messages_max: usize,
        groups_max: usize,
    ) {
        let (queue, function) = (queue.to_owned(), function.to_owned());
        let trigger = QueueTrigger {
            queue,
            function,
            batch_messages_max,
            groups_max,
        };
        self.functions
            .arm_queue(trigger)
            .await
            .expect("arm_queue answers");
    }

    async fn send(&self, queue: &str, group: &str, bodies: &[&str]) {
        let messages = bodies.iter().map(|body| Message {
            group: Bytes::copy_from_slice(group.as_bytes()),
            deduplication: None,
            body: Bytes::copy_from_slice(body.as_bytes()),
        });
        self.queue
            .send(queue, messages.collect())
            .await
            .expect("send answers");
    }
}

fn deliveries(event: Event) -> Vec<Delivery> {
    match event {
        Event::Messages { deliveries, .. } => deliveries,
        other => panic!("messages are expected, not {other:?}"),
    }
}

fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    deliveries
        .iter()
        .map(|delivery| text(&delivery.body))
        .collect()
}

/// N3.
pub(super) async fn a_function_of_two_queues_is_told_which_of_them_messages_are_from(
    subject: Subject,
) {
    let notes = Notes::new();
    let noted = notes.clone();
    subject.define("of-two", FunctionOptions::default(), move |event| {
        let notes = noted.clone();
        async move {
            let Event::Messages { queue, deliveries } = event else {
                panic!("only messages come")
            };
            notes.add((queue, bodies(&deliveries)));
            Ok(Bytes::new())
        }
    });
    let told = async |count: usize| {
        eventually(&*subject.clock, "what was sent", async || {
            Some(notes.all()).filter(|noted| noted.len() >= count)
        })
        .await
    };
    for queue in ["of-two/first", "of-two/second"] {
        subject.queue(queue, 100, OnFailure::Block).await;
        subject.arm(queue, "of-two", 10).await;
    }
    subject.send("of-two/first", "g", &["to the first"]).await;
    told(1).await;
    subject.send("of-two/second", "g", &["to the second"]).await;
    let of = |queue: &str, body: &str| (queue.to_owned(), vec![body.to_owned()]);
    assert_eq!(
        told(2).await,
        [
            of("of-two/first", "to the first"),
            of("of-two/second", "to the second")
        ]
    );
}

const GROUPS: [&str; 3] = ["a", "b", "c"];

/// The batches of a consumer, each with its group, and the groups of which two ran at once.
type Consumed = (Notes<(String, Vec<String>)>, Notes<String>);

/// Defines a consumer of messages in [`GROUPS`] that is slow enough for invocations to overlap.
fn define_consumer(subject: &Subject) -> Consumed {
    let running: Arc<BTreeMap<&str, Arc<AtomicUsize>>> = Arc::new(
        GROUPS
            .iter()
            .map(|group| (*group, Arc::default()))
            .collect(),
    );
    let (notes, overlaps) = (Notes::new(), Notes::new());
    let (noted, noted_overlaps, clock) =
        (notes.clone(), overlaps.clone(), Arc::clone(&subject.clock));
    subject.define("consumer", FunctionOptions::default(), move |event| {
        let (running, clock) = (Arc::clone(&running), Arc::clone(&clock));
        let (notes, overlaps) = (noted.clone(), noted_overlaps.clone());
        async move {
            let deliveries = deliveries(event);
            let group = text(&deliveries[0].handle.group);
            assert!(
                deliveries
                    .iter()
                    .all(|delivery| text(&delivery.handle.group) == group)
            );
            let (_running, now) = Running::enter(&running[group.as_str()]);
            if now > 1 {
                overlaps.add(group.clone());
            }
            clock.sleep(Duration::from_millis(3)).await;
            pause().await;
            notes.add((group, bodies(&deliveries)));
            Ok(Bytes::new())
        }
    });
    (notes, overlaps)
}

/// N3.
pub(super) async fn a_trigger_runs_one_invocation_per_group_at_a_time_in_order(subject: Subject) {
    let (notes, overlaps) = define_consumer(&subject);
    subject.queue("triggering", 100, OnFailure::Block).await;
    subject.arm("triggering", "consumer", 3).await;
    let sent: Vec<String> = (0..12).map(|n| format!("{n:02}")).collect();
    for pair in sent.chunks(2) {
        for group in GROUPS {
            subject
                .send(
                    "triggering",
                    group,
                    &pair.iter().map(String::as_str).collect::<Vec<_>>(),
                )
                .await;
        }
    }
    let total = GROUPS.len() * sent.len();
    eventually(&*subject.clock, "all messages", async || {
        (notes
            .all()
            .iter()
            .map(|(_, bodies)| bodies.len())
            .sum::<usize>()
            >= total)
            .then_some(())
    })
    .await;
    subject.a_while().await;
    assert!(
        overlaps.all().is_empty(),
        "two invocations of one group at a time: {:?}",
        overlaps.all()
    );
    let mut by_group = BTreeMap::<String, Vec<String>>::new();
    for (group, bodies) in notes.all() {
        assert!(
            bodies.len() <= 3,
            "a batch is as large as the trigger says at most"
        );
        by_group.entry(group).or_default().extend(bodies);
    }
    for group in GROUPS {
        assert_eq!(by_group[group], sent, "group {group}");
    }
}

/// N3, Q2: each invocation waits until the other has started.
pub(super) async fn groups_run_beside_each_other(subject: Subject) {
    let (begun, met) = (Notes::new(), Notes::new());
    let (noted, noted_meeting, clock) = (begun.clone(), met.clone(), Arc::clone(&subject.clock));
    let options = FunctionOptions {
        timeout: FOR_EVER,
        ..Default::default()
    };
    subject.define("meeting", options, move |event| {
        let (begun, met, clock) = (noted.clone(), noted_meeting.clone(), Arc::clone(&clock));
        async move {
            begun.add(text(&deliveries(event)[0].handle.group));
            let started = clock.monotonic();
            while begun.all().len() < 2 {
                if clock.monotonic().since(started) > PATIENCE {
                    return Err(Failure::new("alone"));
                }
                clock.sleep(Duration::from_millis(2)).await;
            }
            met.add(());
            Ok(Bytes::new())
        }
    });
    subject.queue("meetings", 100, OnFailure::Block).await;
    subject.arm("meetings", "meeting", 1).await;
    subject.send("meetings", "a", &["1"]).await;
    subject.send("meetings", "b", &["1"]).await;
    subject.noted("two groups to meet", &met, 2).await;
    assert_eq!(
        begun.all().len(),
        2,
        "each group was started once: {:?}",
        begun.all()
    );
}

/// N3.
pub(super) async fn completed_messages_are_acknowledged_and_the_rest_comes_again(subject: Subject) {
    let notes = Notes::new();
    let noted = notes.clone();
    subject.define("partial", FunctionOptions::default(), move |event| {
        let deliveries = deliveries(event);
        let bodies = bodies(&deliveries);
        let attempt = deliveries[0].handle.attempt;
        noted.add((attempt, bodies.clone()));
        async move {
            match bodies.iter().position(|body| body == "bad") {
                Some(completed) if attempt < 3 || completed > 0 => {
                    Err(Failure::after(completed, "a bad one"))
                }
                _ => Ok(Bytes::new()),
            }
        }
    });
    subject.queue("partial", 100, OnFailure::Block).await;
    subject
        .send("partial", "group", &["1", "2", "bad", "4", "5"])
        .await;
    subject.arm("partial", "partial", 5).await;
    let done = async || {
        let noted = notes.all();
        let succeeded = noted
            .iter()
            .any(|(attempt, bodies)| *attempt >= 3 && bodies[0] == "bad");
        succeeded.then_some(noted)
    };
    let noted = eventually(&*subject.clock, "the bad one to succeed", done).await;
    assert_eq!(
        noted[0],
        (1, ["1", "2", "bad", "4", "5"].map(String::from).to_vec())
    );
    for (_, bodies) in &noted[1..] {
        assert_eq!(
            bodies[0], "bad",
            "what was completed does not come again: {noted:?}"
        );
    }
    assert!(
        noted.is_sorted_by(|left, right| right.0 == left.0 + 1),
        "attempts are counted: {noted:?}"
    );
    eventually(&*subject.clock, "the last one", async || {
        notes
            .all()
            .iter()
            .any(|(_, bodies)| bodies.iter().any(|body| body == "5"))
            .then_some(())
    })
    .await;
}

/// N3, Q5.
pub(super) async fn a_message_that_fails_for_good_is_a_dead_letter_with_the_failures_reason(
    subject: Subject,
) {
    let notes = Notes::new();
    let noted = notes.clone();
    subject.define("picky", FunctionOptions::default(), move |event| {
        let body = bodies(&deliveries(event)).remove(0);
        noted.add(body.clone());
        async move {
            if body == "poison" {
                Err(Failure::new("I will not eat that"))
            } else {
                Ok(Bytes::new())
            }
        }
    });
    subject.queue("poisoned", 2, OnFailure::DeadLetter).await;
    subject.arm("poisoned", "picky", 1).await;
    subject.send("poisoned", "group", &["poison", "next"]).await;
    let eaten = subject.noted("the next message", &notes, 3).await;
    assert_eq!(eaten, ["poison", "poison", "next"]);
    let letters = subject
        .admin
        .dead_letters("poisoned", None, 10)
        .await
        .expect("dead_letters answers");
    assert_eq!((letters.len(), letters[0].attempts), (1, 2));
    assert!(
        letters[0].reason.contains("I will not eat that"),
        "{:?}",
        letters[0].reason
    );
}

/// N3, Q11: also in a queue that blocks groups.
pub(super) async fn a_message_declared_hopeless_is_a_dead_letter_at_once(subject: Subject) {
    let notes = Notes::new();
    let noted = notes.clone();
    subject.define("certain", FunctionOptions::default(), move |event| {
        let bodies = bodies(&deliveries(event));
        let hopeless = bodies.iter().position(|body| body == "hopeless");
        noted.add(bodies);
        async move {
            hopeless.map_or(Ok(Bytes::new()), |place| {
                Err(Failure::hopeless(place, "it cannot be helped"))
            })
        }
    });
    subject.queue("certain", 100, OnFailure::Block).await;
    subject
        .send("certain", "group", &["1", "hopeless", "3"])
        .await;
    subject.arm("certain", "certain", 3).await;
    let noted = subject.noted("the last one", &notes, 2).await;
    assert_eq!(noted, [vec!["1", "hopeless", "3"], vec!["3"]]);
    let letters = subject
        .admin
        .dead_letters("certain", None, 10)
        .await
        .expect("dead_letters answers");
    let given_up: Vec<_> = letters
        .iter()
        .map(|letter| (&letter.body[..], letter.attempts, letter.reason.as_str()))
        .collect();
    assert_eq!(given_up, [(&b"hopeless"[..], 1, "it cannot be helped")]);
}

/// N3, N5.
pub(super) async fn an_invocation_past_its_timeout_gives_its_messages_back(subject: Subject) {
    let notes = Notes::new();
    let (noted, clock) = (notes.clone(), Arc::clone(&subject.clock));
    let options = FunctionOptions {
        timeout: Duration::from_secs(1),
        ..Default::default()
    };
    subject.define("hanging once", options, move |event| {
        let deliveries = deliveries(event);
        let attempt = deliveries[0].handle.attempt;
        noted.add((attempt, bodies(&deliveries)));
        let clock = Arc::clone(&clock);
        async move {
            if attempt == 1 {
                clock.sleep(FOR_EVER).await;
            }
            Ok(Bytes::new())
        }
    });
    subject.queue("hanging", 100, OnFailure::Block).await;
    subject.arm("hanging", "hanging once", 10).await;
    subject.send("hanging", "group", &["1", "2"]).await;
    let noted = subject.noted("the second attempt", &notes, 2).await;
    let both = ["1", "2"].map(String::from).to_vec();
    assert_eq!(noted[..2], [(1, both.clone()), (2, both)]);
}

/// N3: an invocation that takes half of its time is the only one.
pub(super) async fn no_other_invocation_receives_messages_of_a_running_one(subject: Subject) {
    const TIMEOUT: Duration = Duration::from_secs(10);
    let (begun, ended) = (Notes::new(), Notes::new());
    let (noted, noted_end, clock) = (begun.clone(), ended.clone(), Arc::clone(&subject.clock));
    let options = FunctionOptions {
        timeout: TIMEOUT,
        ..Default::default()
    };
    subject.define("long", options, move |event| {
        noted.add(bodies(&deliveries(event)));
        let (ended, clock) = (noted_end.clone(), Arc::clone(&clock));
        async move {
            clock.sleep(TIMEOUT / 2).await;
            ended.add(());
            Ok(Bytes::new())
        }
    });
    subject.queue("long", 100, OnFailure::Block).await;
    subject.arm("long", "long", 1).await;
    subject.send("long", "group", &["1"]).await;
    subject.noted("the invocation to end", &ended, 1).await;
    subject.a_while().await;
    assert_eq!(begun.all(), [["1"]], "it was begun once");
}

/// N3.
pub(super) async fn a_trigger_works_from_arming_to_disarming(subject: Subject) {
    let (notes, failures) = (Notes::new(), Arc::new(AtomicUsize::new(0)));
    let (noted, counted) = (notes.clone(), Arc::clone(&failures));
    subject.define("listening", FunctionOptions::default(), move |event| {
        for body in bodies(&deliveries(event)) {
            noted.add(body);
        }
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(Bytes::new()) }
    });
    subject.queue("listened", 100, OnFailure::Block).await;
    subject.send("listened", "group", &["before"]).await;
    subject.a_while().await;
    assert!(notes.all().is_empty(), "no trigger is armed yet");
    subject.arm("listened", "listening", 10).await;
    subject.arm("listened", "listening", 10).await;
    subject.noted("what was sent before", &notes, 1).await;
    subject.send("listened", "group", &["armed"]).await;
    subject.noted("what was sent while armed", &notes, 2).await;
    subject.a_while().await;
    subject
        .functions
        .disarm_queue("listened")
        .await
        .expect("disarm_queue answers");
    subject.send("listened", "group", &["disarmed"]).await;
    subject.a_while().await;
    assert_eq!(notes.all(), ["before", "armed"]);
    assert_eq!(
        failures.load(Ordering::SeqCst),
        2,
        "arming twice changes nothing"
    );
    subject.arm("listened", "listening", 10).await;
    assert_eq!(
        subject.noted("what waited", &notes, 3).await,
        ["before", "armed", "disarmed"]
    );
    subject
        .functions
        .disarm_queue("listened")
        .await
        .expect("disarm_queue answers");
    subject
        .functions
        .disarm_queue("listened")
        .await
        .expect("disarming twice changes nothing");
}

/// N3: completed messages do not come again.
pub(super) async fn an_invocation_finishes_although_its_trigger_is_disarmed(subject: Subject) {
    let (begun, ended, may_end) = (Notes::new(), Notes::new(), Arc::new(AtomicBool::new(false)));
    let (noted, noted_end, clock) = (begun.clone(), ended.clone(), Arc::clone(&subject.clock));
    let told = Arc::clone(&may_end);
    subject.define("running", FunctionOptions::default(), move |event| {
        let bodies = bodies(&deliveries(event));
        noted.add(bodies.clone());
        let (ended, may_end, clock) = (noted_end.clone(), Arc::clone(&told), Arc::clone(&clock));
        async move {
            while !may_end.load(Ordering::SeqCst) {
                clock.sleep(Duration::from_millis(2)).await;
            }
            ended.add(bodies);
            Ok(Bytes::new())
        }
    });
    subject.queue("stopped", 100, OnFailure::Block).await;
    subject.arm("stopped", "running", 1).await;
    subject.send("stopped", "group", &["1", "2"]).await;
    subject.noted("an invocation", &begun, 1).await;
    subject
        .functions
        .disarm_queue("stopped")
        .await
        .expect("disarm_queue answers");
    subject.a_while().await;
    may_end.store(true, Ordering::SeqCst);
    subject.noted("what was running to finish", &ended, 1).await;
    subject.arm("stopped", "running", 1).await;
    assert_eq!(
        subject.noted("the next message", &ended, 2).await,
        [["1"], ["2"]]
    );
    assert_eq!(begun.all(), [["1"], ["2"]], "each was begun once");
}

/// Defines a function that notes the messages of each invocation as `group:body`, after the
/// invocation called `judge` with them, and arms it with up to three groups.
async fn arm_for_groups(
    subject: &Subject,
    queue: &str,
    judge: impl Fn(&[String]) -> Result<(), Failure> + Send + Sync + 'static,
) -> Notes<Vec<String>> {
    let notes = Notes::new();
    let noted = notes.clone();
    // Only a release brings messages back.
    let options = FunctionOptions {
        timeout: FOR_EVER,
        ..FunctionOptions::default()
    };
    subject.define("of-groups", options, move |event| {
        let named = |delivery: &Delivery| {
            let group = text(&delivery.handle.group);
            format!("{group}:{}", text(&delivery.body))
        };
        let messages: Vec<String> = deliveries(event).iter().map(named).collect();
        let judged = judge(&messages);
        noted.add(messages);
        async { judged.map(|()| Bytes::new()) }
    });
    subject.queue(queue, 100, OnFailure::Block).await;
    for group in ["a", "b", "c", "d"] {
        subject.send(queue, group, &["1", "2"]).await;
    }
    subject.arm_groups(queue, "of-groups", 10, 3).await;
    notes
}

fn group_of(message: &str) -> &str {
    &message[..1]
}

/// N3.
pub(super) async fn an_invocation_receives_messages_of_several_groups(subject: Subject) {
    let notes = arm_for_groups(&subject, "together", |_| Ok(())).await;
    let all = eventually(&*subject.clock, "every message", async || {
        Some(notes.all()).filter(|noted| noted.concat().len() >= 8)
    })
    .await;
    let is_group = |messages: &&[String]| {
        let group = group_of(&messages[0]);
        **messages == [format!("{group}:1"), format!("{group}:2")]
    };
    let mut groups_max = 0;
    for messages in &all {
        let groups = messages.chunk_by(|one, other| group_of(one) == group_of(other));
        assert!(groups.clone().all(|group| is_group(&group)), "{all:?}");
        groups_max = groups_max.max(groups.count());
    }
    assert!((2..=3).contains(&groups_max), "{all:?}");
    assert_eq!(all.concat().len(), 8, "each comes once: {all:?}");
}

/// N3.
pub(super) async fn all_groups_after_a_failed_message_come_again(subject: Subject) {
    let is_first = AtomicBool::new(true);
    let notes = arm_for_groups(&subject, "halved", move |_| {
        if is_first.swap(false, Ordering::SeqCst) {
            return Err(Failure::after(1, "only the first message is done"));
        }
        Ok(())
    })
    .await;
    let all = eventually(&*subject.clock, "every message", async || {
        let noted = notes.all();
        let first = noted.first().map_or(0, Vec::len);
        Some(noted).filter(|noted| noted.concat().len() >= first + 7)
    })
    .await;
    let (first, rest) = all.split_first().expect("some came");
    assert!(first.len() > 2, "of one group: {all:?}");
    let mut rest = rest.concat();
    rest.sort_unstable();
    let mut due: Vec<String> = ["a", "b", "c", "d"]
        .iter()
        .flat_map(|group| [format!("{group}:1"), format!("{group}:2")])
        .filter(|message| *message != first[0])
        .collect();
    due.sort_unstable();
    assert_eq!(rest, due, "after {first:?}");
}

/// N3: after its first failure it is alone.
pub(super) async fn a_group_that_always_fails_delays_no_other(subject: Subject) {
    let notes = arm_for_groups(&subject, "poisoned", |messages| {
        let place = messages.iter().position(|message| group_of(message) == "a");
        place.map_or(Ok(()), |place| {
            Err(Failure::after(place, "it always fails"))
        })
    })
    .await;
    let is_of_a = |message: &String| group_of(message) == "a";
    let all = eventually(
        &*subject.clock,
        "the others, and several failures",
        async || {
            let noted = notes.all();
            let done = noted
                .iter()
                .filter(|messages| !messages.iter().any(is_of_a));
            let done: usize = done.map(Vec::len).sum();
            let failures = noted.iter().filter(|messages| messages.iter().any(is_of_a));
            (done >= 6 && failures.count() >= 4).then_some(noted)
        },
    )
    .await;
    let mut failures = all.iter().filter(|messages| messages.iter().any(is_of_a));
    failures.next();
    assert!(
        failures.all(|messages| messages.iter().all(is_of_a)),
        "{all:?}"
    );
}
