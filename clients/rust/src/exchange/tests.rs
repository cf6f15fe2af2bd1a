use super::*;
use crate::call::Condition;

const CALL_MAX: Duration = Duration::from_secs(30);
const JITTER: Duration = Duration::from_millis(7);
const SOON: Duration = Duration::from_millis(1);

/// T4, T15. One client of several nodes, and its decision after each event.
struct Client<'a> {
    course: Course<'a>,
    elapsed: Duration,
    /// The arguments of the jitter.
    failures: Vec<u32>,
}

impl<'a> Client<'a> {
    fn sending(call: &'a Call, nodes: usize) -> Self {
        let course = Course::new(call, nodes, Limits::of_calls(CALL_MAX));
        Self {
            course,
            elapsed: Duration::ZERO,
            failures: Vec::new(),
        }
    }

    fn hears(&mut self, event: Event) -> Next {
        let failures = &mut self.failures;
        let mut jitter = |count| {
            failures.push(count);
            JITTER
        };
        self.course.judge(event, "node", self.elapsed, &mut jitter)
    }
}

/// T20. The repeat would meet the effect of the first.
#[test]
fn a_write_under_a_condition_is_repeated_only_while_no_copy_can_have_arrived() {
    let call = Call::delete_state(b"a").under(Condition::Present);
    let mut client = Client::sending(&call, 2);
    assert_eq!(again(client.hears(unheard())), (Duration::ZERO, true));
    let given_up = client.hears(lost()).end().expect_err("no answer");
    assert_eq!(given_up.kind(), ErrorKind::OutcomeUnknown);
    let refused = refused(412, "condition-not-met");
    let refused = Client::sending(&call, 2).hears(refused).end();
    assert_eq!(
        refused.expect_err("refused").kind(),
        ErrorKind::ConditionNotMet
    );
}

#[test]
fn a_pause_comes_only_after_every_node_has_been_tried() {
    let call = Call::get_state(b"a");
    let mut client = Client::sending(&call, 3);
    for _ in 0..2 {
        assert_eq!(again(client.hears(lost())), (Duration::ZERO, true));
        assert_eq!(
            again(client.hears(refused(503, "unavailable"))),
            (Duration::ZERO, true)
        );
        assert_eq!(again(client.hears(unheard())), (JITTER, true));
    }
    assert_eq!(client.failures, [1, 2]);
    let answer = client.hears(answered(200)).end().expect("an answer");
    assert!(answer.is_doubled);
}

#[test]
fn a_node_that_is_busy_is_given_the_time_it_asks_for() {
    let call = Call::get_state(b"a");
    let mut client = Client::sending(&call, 3);
    for name in ["too-many-transactions", "too-much-buffered"] {
        assert_eq!(
            again(client.hears(refused(429, name))),
            (Duration::from_secs(1), false)
        );
    }
    let answer = client.hears(answered(200)).end().expect("an answer");
    assert!(!answer.is_doubled, "a refusal had no effect");
}

#[test]
fn a_commit_whose_answer_is_lost_is_never_denied() {
    let call = Call::commit(&attempt(), None);
    let ways: [fn() -> Event; 4] = [
        lost,
        || refused(503, "outcome-unknown"),
        || refused(503, "unavailable"),
        || refused(500, "else"),
    ];
    for way in ways {
        let mut client = Client::sending(&call, 2);
        again(client.hears(way()));
        client.elapsed = CALL_MAX.saturating_sub(2 * JITTER);
        again(client.hears(unheard()));
        client.elapsed = CALL_MAX;
        let error = client.hears(unheard()).end().expect_err("its time is over");
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
        assert!(error.may_have_happened() && !error.body_may_run_again());
        assert_eq!(error.transaction(), Some("x"));
    }
    // Nor by a refusal of its repeat that concerns the repeat alone.
    let mut client = Client::sending(&call, 1);
    again(client.hears(lost()));
    let error = client
        .hears(refused(507, "no-room"))
        .end()
        .expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    // A refusal that concerns the attempt does.
    let mut client = Client::sending(&call, 1);
    again(client.hears(lost()));
    let error = client
        .hears(refused(409, "conflict"))
        .end()
        .expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::Conflict);
}

/// T4, T10. The server that reports it may be the one that cannot reach the commit sequencer.
#[test]
fn a_commit_that_is_answered_unknown_is_asked_at_the_next_node() {
    let call = Call::commit(&attempt(), None);
    let mut client = Client::sending(&call, 3);
    for _ in 0..2 {
        assert_eq!(
            again(client.hears(refused(503, "outcome-unknown"))),
            (Duration::ZERO, true)
        );
    }
    let answer = client.hears(answered(200)).end().expect("an answer");
    assert!(answer.is_doubled);
}

#[test]
fn what_certainly_had_no_effect_is_not_unknown() {
    let call = Call::commit(&attempt(), None);
    let mut client = Client::sending(&call, 2);
    again(client.hears(unheard()));
    client.elapsed = CALL_MAX;
    let error = client
        .hears(refused(503, "not-ready"))
        .end()
        .expect_err("its time is over");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!error.may_have_happened() && error.body_may_run_again());
}

#[test]
fn what_cannot_be_repeated_is_not() {
    for (status, name) in [
        (400, "invalid-request"),
        (409, "no-valid-version"),
        (413, "too-large"),
        (404, "else"),
    ] {
        let call = Call::put(&attempt(), b"a", "1".into()).expect("small");
        let error = Client::sending(&call, 3)
            .hears(refused(status, name))
            .end()
            .expect_err("it is refused");
        assert_eq!(error.problem(), Some(name));
    }
}

#[test]
fn a_call_ends_before_its_time_does() {
    let call = Call::get_state(b"a");
    let mut client = Client::sending(&call, 1);
    assert_eq!(
        client.course.reply_max(Duration::ZERO),
        Duration::from_secs(10)
    );
    assert_eq!(client.course.reply_max(CALL_MAX.saturating_sub(SOON)), SOON);
    client.elapsed = CALL_MAX.saturating_sub(Duration::from_millis(500));
    let error = client
        .hears(refused(429, "too-much-buffered"))
        .end()
        .expect_err("the pause is too long");
    assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
}

#[test]
fn a_repeat_that_is_cut_short_does_not_hide_what_the_server_said() {
    let read = Call::get_state(b"a");
    let mut client = Client::sending(&read, 1);
    again(client.hears(refused(429, "too-much-buffered")));
    client.elapsed = CALL_MAX;
    let error = client.hears(lost()).end().expect_err("its time is over");
    assert_eq!(error.kind(), ErrorKind::TooMuchBuffered);
    // A change with an unknown effect stays unknown, even after a refusal that says that it had
    // none.
    let change = Call::commit(&attempt(), None);
    for (status, name, problem) in [
        (429, "too-much-buffered", None),
        (503, "outcome-unknown", Some("outcome-unknown")),
    ] {
        let mut client = Client::sending(&change, 1);
        again(client.hears(refused(status, name)));
        client.elapsed = CALL_MAX;
        let error = client.hears(lost()).end().expect_err("its time is over");
        assert_eq!(
            (error.kind(), error.problem()),
            (ErrorKind::OutcomeUnknown, problem)
        );
    }
}

#[test]
fn a_large_body_is_given_the_time_that_it_needs() {
    let call = Call::put_state(b"a", vec![0; 8 * 1024 * 1024].into()).expect("within bounds");
    let client = Client::sending(&call, 1);
    assert_eq!(
        client.course.reply_max(Duration::ZERO),
        Duration::from_millis(10_000 + 8 * 1024)
    );
    assert_eq!(
        client.course.limits.call,
        CALL_MAX + Duration::from_millis(8 * 1024)
    );
}

#[test]
fn pauses_stay_below_a_ceiling_that_doubles() {
    for (failures, ceiling) in [(0, 20), (1, 40), (5, 640), (6, 1000), (u32::MAX, 1000)] {
        for _ in 0..100 {
            assert!(
                full_jitter(failures) <= Duration::from_millis(ceiling),
                "{failures}"
            );
        }
    }
    let drawn: std::collections::BTreeSet<_> = (0..100).map(|_| full_jitter(6)).collect();
    assert!(drawn.len() > 90, "everybody would come back at once");
}

impl Next {
    fn end(self) -> Result<Answer> {
        match self {
            Self::End(result) => result,
            again @ Self::Again { .. } => panic!("it goes on: {again:?}"),
        }
    }
}

fn again(next: Next) -> (Duration, bool) {
    match next {
        Next::Again { pause, leaves_node } => (pause, leaves_node),
        end @ Next::End(_) => panic!("it ends: {end:?}"),
    }
}

fn lost() -> Event {
    Event::Lost {
        reason: "reset".to_owned(),
        was_sent: true,
    }
}

fn unheard() -> Event {
    Event::Lost {
        reason: "refused".to_owned(),
        was_sent: false,
    }
}

fn answered(status: u16) -> Event {
    Event::Response(Response {
        status,
        ..Response::default()
    })
}

fn refused(status: u16, name: &str) -> Event {
    let body = format!(r#"{{"type":"{name}"}}"#).into();
    let retry_after = (status == 429).then(|| "1".to_owned());
    Event::Response(Response {
        status,
        retry_after,
        body,
        ..Response::default()
    })
}

fn attempt() -> crate::call::AttemptName {
    crate::call::AttemptName {
        id: "x".to_owned(),
        token: "1-1".to_owned(),
    }
}
