//! Functions started by timers: N4.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;

use super::{Notes, Subject};
use crate::{
    Event, Monotonic,
    contract::eventually,
    functions::{Failure, FunctionOptions},
};

/// The period of most cases.
const PERIOD: Duration = Duration::from_millis(50);

impl Subject {
    /// A function that notes when its timer fired.
    fn ticking(&self, name: &'static str) -> Notes<Monotonic> {
        let notes = Notes::new();
        let (noted, clock) = (notes.clone(), Arc::clone(&self.clock));
        self.define(name, FunctionOptions::default(), move |event| {
            assert!(matches!(event, Event::Timer), "{event:?}");
            noted.add(clock.monotonic());
            async { Ok(Bytes::new()) }
        });
        notes
    }

    async fn arm_timer(&self, function: &str, period: Duration) {
        self.functions
            .arm_timer(function, period)
            .await
            .expect("arm_timer answers");
    }

    async fn disarm_timer(&self, function: &str) {
        self.functions
            .disarm_timer(function)
            .await
            .expect("disarm_timer answers");
    }

    /// Asserts that no more than one tick per period, and two for the edges, came since `started`.
    fn assert_no_faster(&self, ticks: usize, started: Monotonic, period: Duration) {
        let passed = self.clock.monotonic().since(started);
        let most = passed.as_millis() / period.as_millis() + 2;
        assert!(
            ticks as u128 <= most,
            "{ticks} ticks within {passed:?}, one per {period:?}"
        );
    }
}

/// N4.
pub(super) async fn an_armed_timer_fires_about_once_per_period(subject: Subject) {
    let ticks = subject.ticking("ticking");
    subject.a_while().await;
    assert!(ticks.all().is_empty(), "it is not armed yet");
    let started = subject.clock.monotonic();
    subject.arm_timer("ticking", PERIOD).await;
    let noted = subject.noted("ten ticks", &ticks, 10).await;
    subject.assert_no_faster(noted.len(), started, PERIOD);
    subject.disarm_timer("ticking").await;
}

/// N4.
pub(super) async fn a_disarmed_timer_fires_no_more(subject: Subject) {
    let ticks = subject.ticking("stopping");
    for round in 1..=2 {
        subject.arm_timer("stopping", PERIOD).await;
        let before = ticks.all().len();
        subject.noted("a few ticks", &ticks, before + 2).await;
        subject.disarm_timer("stopping").await;
        let ended = ticks.all().len();
        subject.clock.sleep(6 * PERIOD).await;
        assert_eq!(ticks.all().len(), ended, "round {round}");
    }
    subject.disarm_timer("stopping").await;
}

/// N4: the timer is disarmed again and again at the moment at which it fires.
pub(super) async fn nothing_starts_once_disarming_has_returned(subject: Subject) {
    const ROUNDS: u32 = 100;
    const SHORT: Duration = Duration::from_millis(2);
    let (is_disarmed, late) = (Arc::new(AtomicBool::new(true)), Notes::new());
    let (seen, noted) = (Arc::clone(&is_disarmed), late.clone());
    subject.define("edge", FunctionOptions::default(), move |_| {
        if seen.load(Ordering::SeqCst) {
            noted.add(());
        }
        async { Ok(Bytes::new()) }
    });
    for _ in 0..ROUNDS {
        is_disarmed.store(false, Ordering::SeqCst);
        subject.arm_timer("edge", SHORT).await;
        subject.clock.sleep(SHORT).await;
        subject.disarm_timer("edge").await;
        is_disarmed.store(true, Ordering::SeqCst);
        // An invocation that was about to start has started by now.
        subject.clock.sleep(SHORT).await;
    }
    assert_eq!(
        late.all().len(),
        0,
        "of {ROUNDS} timers so many ran once they were disarmed"
    );
}

/// N4.
pub(super) async fn arming_an_armed_timer_changes_its_period_alone(subject: Subject) {
    let ticks = subject.ticking("twice");
    let started = subject.clock.monotonic();
    subject.arm_timer("twice", PERIOD).await;
    subject.arm_timer("twice", PERIOD).await;
    let noted = subject.noted("ten ticks", &ticks, 10).await;
    subject.assert_no_faster(noted.len(), started, PERIOD);

    // One invocation may be about to start.
    subject.arm_timer("twice", Duration::from_hours(1)).await;
    let slow = ticks.all().len();
    subject.clock.sleep(6 * PERIOD).await;
    assert!(ticks.all().len() <= slow + 1, "the old period is gone");
    subject.arm_timer("twice", PERIOD).await;
    subject
        .noted("ticks at the new period", &ticks, slow + 4)
        .await;
    subject.disarm_timer("twice").await;
}

/// N4: arming a timer more often than it fires does not keep it from firing, also with other
/// periods.
pub(super) async fn a_timer_that_is_armed_again_and_again_fires_all_the_same(subject: Subject) {
    const LONG: Duration = Duration::from_millis(200);
    let ticks = subject.ticking("rearmed");
    let mut periods = [LONG, LONG, LONG + PERIOD / 5].into_iter().cycle();
    let started = subject.clock.monotonic();
    let noted = eventually(
        &*subject.clock,
        "ticks of a timer that is armed all the time",
        async || {
            subject
                .arm_timer("rearmed", periods.next().expect("it is a cycle"))
                .await;
            let noted = ticks.all();
            (noted.len() >= 3).then_some(noted)
        },
    );
    subject.assert_no_faster(noted.await.len(), started, LONG);
    subject.disarm_timer("rearmed").await;
}

/// N4.
pub(super) async fn a_timer_goes_on_after_a_failure(subject: Subject) {
    let notes = Notes::new();
    let noted = notes.clone();
    subject.define("failing", FunctionOptions::default(), move |_| {
        noted.add(());
        async { Err(Failure::new("every time")) }
    });
    subject.arm_timer("failing", PERIOD).await;
    subject.noted("four failing ticks", &notes, 4).await;
    subject.disarm_timer("failing").await;
}
