//! C-1, C-2, C-6: one transaction that decides requests of several sessions.

use super::*;

/// A process that wrote the rows of these sessions last, each with a set of `/a`.
async fn process(fixture: &Fixture, sessions: &[SessionId]) -> Process {
    let process = Process::with_a(fixture).await;
    for session in sessions {
        process.write(fixture, *session, vec![set("/a", "0")]).await;
    }
    process
}

/// Such a process with three sessions.
async fn process_of_three(fixture: &Fixture) -> (Process, [SessionId; 3]) {
    let sessions = [
        fixture.open(1).await,
        fixture.open(2).await,
        fixture.open(3).await,
    ];
    (process(fixture, &sessions).await, sessions)
}

/// The deliveries of one invocation, session by session.
async fn asked(fixture: &Fixture, of: Vec<(SessionId, Vec<Operation>)>) -> Vec<Delivery> {
    let mut asked = Vec::new();
    for (session, operations) in of {
        asked.extend(fixture.asked(session, operations).await);
    }
    asked
}

/// The sessions of each slot, in order, after the `earlier` first slots.
async fn slots(fixture: &Fixture, earlier: usize) -> Vec<Vec<SessionId>> {
    let log = FencedLog::new(fixture.world.key_value(), LOG_PARTITION);
    let read = log.read(Cursor::START, 100).await;
    let slots = read.expect("no fault is injected").slots.into_iter();
    let sessions = |slot: primitives::Slot| {
        let slot: Slot = decode(&slot.payload, "a slot").expect("it was encoded");
        let sessions = slot.entries.iter().map(|entry| entry.id.session);
        sessions.collect()
    };
    slots.skip(earlier).map(sessions).collect()
}

/// C-3: each is planned on the states that those before it leave, also a refusal.
#[test]
fn requests_of_several_sessions_are_one_slot() {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let (process, [one, two, three]) = process_of_three(&fixture).await;
        let made = |path| create(path, Lifetime::Persistent);
        let of = vec![
            (one, vec![made("/a/1"), set("/a", "1")]),
            (two, vec![made("/a/2"), made("/a/1"), set("/a", "2")]),
            (three, vec![delete("/a/1"), made("/a/3")]),
        ];
        let asked = asked(&fixture, of).await;
        let written = process.writer.handle_messages(&asked).await;
        written.expect("no fault is injected");
        let together = vec![one, one, two, two, two, three, three];
        assert_eq!(slots(&fixture, 4).await, [together]);
        let answers = logged_of(&fixture, two).await;
        let answer = |place: usize| &answers[place].answer;
        assert!(matches!(answer(1), Ok(UpdateAnswer::Created { .. })));
        assert_eq!(*answer(2), Err(Error::NodeExists));
        let a = shown(&fixture, "/a").await.expect("it exists").stat;
        assert_eq!((a.version, a.num_children, a.cversion), (5, 2, 4));
        assert_eq!(version(&fixture, "/a").await, 5);
        for (session, sequence) in [(one, 3), (two, 4), (three, 3)] {
            let row = fixture.row(session).await;
            assert_eq!(
                (row.sequence, row.applied, row.request),
                (sequence, sequence, sequence)
            );
            assert_eq!(row.fence, 1, "the first invocation's fence holds");
        }
    });
}

/// A session keeps its order: what follows a request that needs locks is decided after it.
#[test]
fn a_request_that_needs_locks_is_decided_after_the_shared_ones() {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let [one, two] = [fixture.open(1).await, fixture.open(2).await];
        let process = process(&fixture, &[one, two]).await;
        let of = vec![
            (
                one,
                vec![
                    set("/a", "1"),
                    create("/c", Lifetime::TimeToLive { ms: 1_000 }),
                    set("/c", "1"),
                ],
            ),
            (two, vec![set("/a", "2")]),
        ];
        let asked = asked(&fixture, of).await;
        let written = process.writer.handle_messages(&asked).await;
        written.expect("no fault is injected");
        process.distribute(&fixture, one).await;
        assert_eq!(slots(&fixture, 3).await[0], [one, two]);
        let own = logged_of(&fixture, one).await;
        let numbers: Vec<u64> = own.iter().map(|entry| entry.id.sequence).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
        assert!(own.iter().all(|entry| entry.answer.is_ok()), "{own:?}");
    });
}

/// Whether the request of a connection stays undecided if another one attached right before the
/// shared transaction. The other session's request is decided in any case.
fn respects_attaches(broken: Option<Broken>) -> bool {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, broken, ITEMS_MAX).await;
        let [one, two] = [fixture.open(1).await, fixture.open(2).await];
        let process = process(&fixture, &[one, two]).await;
        let of = vec![(one, vec![set("/a", "1")]), (two, vec![set("/a", "2")])];
        let asked = asked(&fixture, of).await;
        let mut sessions = fixture.system();
        let is_transaction = |call: &Call<'_>| matches!(call, Call::Transact);
        process
            .store
            .once(Side::Before, is_transaction, async move {
                let attached = session::attach(&mut sessions, two, PASSWORD, TIMEOUT).await?;
                assert!(matches!(attached, Transition::Done(_)));
                Ok(())
            });
        let written = process.writer.handle_messages(&asked).await;
        written.expect("no fault is injected");
        assert_eq!(fixture.row(one).await.applied, 2);
        fixture.row(two).await.sequence == 1
    })
}

/// C-6.
#[test]
fn a_shared_decision_checks_the_row_of_every_session() {
    assert!(respects_attaches(None));
    assert!(
        !respects_attaches(Some(Broken::ChecksOneRow)),
        "the rule is needed"
    );
}

/// The writer of several sessions dies at a call, and their messages come again, in one invocation
/// or in several. Returns false if there is no such call.
fn survives_death_at(at: (Side, usize), is_restarted: bool, is_together: bool) -> bool {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let sessions = [fixture.open(1).await, fixture.open(2).await];
        let first = process(&fixture, &sessions).await;
        let [one, two] = sessions;
        let of = vec![
            (
                one,
                vec![set("/a", "1"), create("/a/b", Lifetime::Ephemeral)],
            ),
            (two, vec![set("/a", "2"), delete("/a/b")]),
        ];
        let all = asked(&fixture, of).await;
        let (side, number) = at;
        if !dies_at(&first.writer, &first.store, (side, is_call(number)), &all).await {
            return false;
        }
        let second = if is_restarted {
            Process::start(&fixture)
        } else {
            first
        };
        let all = again(all);
        for part in all.chunks(if is_together { 4 } else { 2 }) {
            let finished = second.writer.handle_messages(part).await;
            finished.expect("no fault is injected");
        }
        for session in sessions {
            let row = fixture.row(session).await;
            assert_eq!((row.sequence, row.applied), (3, 3), "once, {at:?}");
            assert_eq!(logged_of(&fixture, session).await.len(), 3, "{at:?}");
            let told = |sequence| fixture.announcements_of(UpdateId { session, sequence }) > 0;
            assert!(told(2) && told(3), "{at:?}");
        }
        let a = shown(&fixture, "/a").await.expect("it exists").stat;
        assert_eq!((a.version, a.num_children), (4, 0), "{at:?}");
        true
    })
}

/// C-1, C-2, C-4.
#[test]
fn redelivery_finishes_the_shared_decision_of_a_dead_writer() {
    for (side, is_restarted, is_together) in [
        (Side::Before, false, true),
        (Side::Before, true, false),
        (Side::After, false, false),
        (Side::After, true, true),
    ] {
        let calls = (0..)
            .take_while(|number| survives_death_at((side, *number), is_restarted, is_together));
        assert!(calls.count() >= 2, "it indexes the ephemeral and decides");
    }
}

/// A request that fails delays no request of a session before it, and is delivered again.
#[test]
fn the_sessions_before_a_failure_are_done() {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let (process, [one, two, three]) = process_of_three(&fixture).await;
        let of = vec![
            (one, vec![set("/a", "1")]),
            (two, vec![set("/a", "2"), set("/unread", "2")]),
            (three, vec![set("/a", "3")]),
        ];
        let asked = asked(&fixture, of).await;
        for _ in 0..2 {
            let is_read = |call: &Call<'_>| matches!(call, Call::Get(_));
            process.store.once(Side::Before, is_read, async {
                Err(ports::Error::unavailable("read a znode"))
            });
        }
        let written = process.writer.handle_messages(&asked).await;
        let failure = written.expect_err("the store fails twice");
        assert_eq!(failure.completed, 2, "{failure}");
        assert_eq!(slots(&fixture, 4).await, [[one, two, three]]);
        let written = process.writer.handle_messages(&again(asked)[2..]).await;
        written.expect("no fault is injected");
        let answers = logged_of(&fixture, two).await;
        assert_eq!(answers[2].answer, Err(Error::NoNode));
        assert_eq!(version(&fixture, "/a").await, 6);
    });
}

/// No other invocation plans on states that a shared decision is about to replace.
#[test]
fn a_shared_decision_has_a_bounded_number_of_requests() {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let mut sessions = Vec::new();
        for number in 1..=4 {
            sessions.push(fixture.open(number).await);
        }
        let process = process(&fixture, &sessions).await;
        let many = |session: &SessionId| (*session, vec![set("/a", "1"); 20]);
        let asked = asked(&fixture, sessions.iter().map(many).collect()).await;
        let written = process.writer.handle_messages(&asked).await;
        written.expect("no fault is injected");
        let pair = |of: &[SessionId]| [[of[0]; 20], [of[1]; 20]].concat();
        let pairs: Vec<_> = sessions.chunks(2).map(pair).collect();
        assert_eq!(slots(&fixture, 5).await, pairs);
    });
}

/// C6: the parts of a long end take a while, so the session's other requests do not wait for it.
#[test]
fn a_long_end_is_delivered_again_alone() {
    simulated::run(async {
        let mut options = Options::default();
        options.key_value.item_bytes_max = ITEM_BYTES_MAX;
        let config = Config {
            applies_directly: true,
            ..Config::default()
        };
        let fixture = Fixture::new(options, config).await;
        let [one, two] = [fixture.open(1).await, fixture.open(2).await];
        let process = process(&fixture, &[one, two]).await;
        for number in 0..4 {
            let path = format!(
                "/{number}{}",
                "e".repeat(ITEM_BYTES_MAX / CLOSE_PATHS_PART / 3)
            );
            let made = vec![create(&path, Lifetime::Ephemeral)];
            process.write(&fixture, one, made).await;
        }
        let of = vec![(one, vec![Operation::Close]), (two, vec![set("/a", "2")])];
        let asked = asked(&fixture, of).await;
        let written = process.writer.handle_messages(&asked).await;
        let failure = written.expect_err("it takes two parts");
        assert_eq!(failure.completed, 0);
        assert_eq!(
            fixture.row(one).await.sequence,
            5,
            "nothing of it is decided"
        );
        assert_eq!(fixture.row(two).await.applied, 2);
        let written = process.writer.handle_messages(&again(asked)[..1]).await;
        written.expect("it is alone");
        assert_eq!(fixture.row(one).await.state, State::Closed);
    });
}

/// If a shared decision does not fit into a transaction, each session decides by itself.
#[test]
fn sessions_that_fit_into_no_transaction_together_are_decided_alone() {
    simulated::run(async {
        let fixture = fixture_of(Mode::Applies, None, ITEMS_MAX).await;
        let (process, sessions) = process_of_three(&fixture).await;
        let [one, two, three] = sessions;
        // The shared transaction has too many items.
        let many =
            (0..ITEMS_MAX / 3).map(|number| create(&format!("/b{number}"), Lifetime::Persistent));
        let of = vec![
            (one, vec![set("/a", "1")]),
            (two, vec![Operation::Multi(many.collect())]),
            (three, vec![set("/a", "3")]),
        ];
        let asked = asked(&fixture, of).await;
        let written = process.writer.handle_messages(&asked).await;
        written.expect("no fault is injected");
        for session in sessions {
            process.distribute(&fixture, session).await;
            let row = fixture.row(session).await;
            assert_eq!((row.sequence, row.applied), (2, 2));
        }
        assert_eq!(version(&fixture, "/a").await, 5);
    });
}
