use super::*;
use crate::serializable::contract::{key, put};

const ONE: SessionId = SessionId(1);
const TWO: SessionId = SessionId(2);

fn at(ms: u64) -> Monotonic {
    Monotonic(Duration::from_millis(ms))
}

fn table() -> LeaseTable {
    LeaseTable::new(Epoch(3), Mutant::NONE)
}

/// Has the session acknowledge all that it is told.
fn polls(table: &mut LeaseTable, session: SessionId, now: Monotonic) -> Told {
    let told = table.told(session);
    assert!(table.renew(session, told.number, now));
    told
}

/// A table with these sessions.
fn table_of(sessions: &[SessionId]) -> LeaseTable {
    let mut table = table();
    for session in sessions {
        assert!(table.register(*session, at(0)));
        assert!(polls(&mut table, *session, at(0)).has_lapsed);
    }
    table
}

fn grants(table: &mut LeaseTable, session: SessionId, group: &'static str, ms: u64) -> bool {
    let granted = table.grant(session, [key(group, "a")].iter(), at(ms));
    let held = table.still_held(session, granted);
    assert!(held.is_empty() || held == [group]);
    !held.is_empty()
}

fn begins(
    table: &mut LeaseTable,
    group: &'static str,
    own: Option<SessionId>,
    ms: u64,
) -> (Noted, Vec<Held>) {
    let writes = [put(&key(group, "b"), "1")];
    let (noted, held) = table.begin(&writes, own, at(ms));
    (noted, held.into_iter().collect())
}

/// V7: a proposal waits until each holder has acknowledged, and no lease is granted meanwhile.
#[test]
fn a_recall_ends_when_it_is_acknowledged() {
    let mut table = table_of(&[ONE, TWO]);
    assert!(grants(&mut table, ONE, "d", 10));
    assert!(grants(&mut table, ONE, "i", 10));
    assert!(grants(&mut table, TWO, "d", 20));
    let (noted, held) = begins(&mut table, "d", None, 30);
    assert_eq!(held.len(), 2);
    assert!(!table.is_over(&held[0], at(30)));
    let told = table.told(ONE);
    assert_eq!(
        (&told.groups[..], told.has_lapsed),
        (&["d".into()][..], false)
    );
    assert!(table.renew(ONE, told.number - 1, at(40)));
    assert!(!table.is_over(&held[0], at(40)), "an older number");
    assert_eq!(table.told(ONE), told, "an answer may have been lost");
    assert!(table.renew(ONE, told.number, at(50)));
    assert!(table.is_over(&held[0], at(50)) && !table.is_over(&held[1], at(50)));
    assert!(table.told(ONE).groups.is_empty());
    assert!(!grants(&mut table, ONE, "d", 60), "it is to be written");
    assert!(grants(&mut table, ONE, "i", 60));
    table.end(&noted);
    assert!(!grants(&mut table, ONE, "d", 1_029), "it rests");
    assert!(grants(&mut table, ONE, "d", 1_030));
}

/// V7: without an acknowledgement, a recall ends with the lease. Later calls do not move that.
#[test]
fn a_recall_ends_with_the_lease() {
    let mut table = table_of(&[ONE]);
    assert!(grants(&mut table, ONE, "d", 10));
    let (_, held) = begins(&mut table, "d", None, 30);
    assert_eq!(held[0].until, at(2_010));
    assert!(!grants(&mut table, ONE, "i", 40), "it has to acknowledge");
    assert!(table.renew(ONE, 0, at(50)));
    assert!(!table.is_over(&held[0], at(2_009)));
    assert!(table.is_over(&held[0], at(2_010)));
    assert_eq!(table.told(ONE).groups, ["d"], "still told");
    let (_, again) = begins(&mut table, "d", None, 100);
    assert_eq!(again, held, "a second proposal waits as well");
    let (_, later) = begins(&mut table, "d", None, 2_060);
    assert!(later.is_empty(), "the session is over");
    assert!(!table.renew(ONE, u64::MAX, at(2_060)));
    assert!(table.told(ONE).has_lapsed);
}

/// A session that was away, or known to another table, is granted nothing before it knows that.
#[test]
fn a_session_that_lapsed_is_told_before_it_is_granted() {
    let mut table = table();
    assert!(!grants(&mut table, ONE, "d", 0), "unknown");
    assert!(!table.renew(ONE, 9, at(0)) && table.register(ONE, at(0)));
    assert!(!grants(&mut table, ONE, "d", 0));
    assert!(table.renew(ONE, 9, at(1)), "a number of an earlier epoch");
    assert!(table.told(ONE).has_lapsed && !grants(&mut table, ONE, "d", 1));
    polls(&mut table, ONE, at(1));
    assert!(!table.told(ONE).has_lapsed && grants(&mut table, ONE, "d", 1));
    assert!(!grants(&mut table, ONE, "d", 2_001), "over");
    assert!(!table.renew(ONE, table.number, at(2_001)));
    assert!(table.register(ONE, at(2_001)) && table.told(ONE).has_lapsed);
    let mut later = LeaseTable::new(Epoch(4), Mutant::NONE);
    assert!(later.register(ONE, at(0)) && later.renew(ONE, table.number, at(0)));
    assert!(
        later.told(ONE).has_lapsed,
        "numbers of a later epoch are higher"
    );
}

/// The writer keeps its leases, but what it reads meanwhile may be older than its commit.
#[test]
fn a_session_does_not_recall_its_own_leases() {
    let mut table = table_of(&[ONE, TWO]);
    assert!(grants(&mut table, ONE, "d", 10) && grants(&mut table, TWO, "d", 10));
    let granted = table.grant(ONE, [key("d", "a")].iter(), at(10));
    let (noted, held) = begins(&mut table, "d", Some(ONE), 20);
    assert_eq!(
        held.iter().map(|held| held.session).collect::<Vec<_>>(),
        [TWO]
    );
    assert!(!grants(&mut table, ONE, "d", 20), "to be written");
    table.end(&noted);
    assert!(table.still_held(ONE, granted).is_empty(), "read before");
    assert!(
        grants(&mut table, ONE, "d", 30),
        "it was never recalled from it"
    );
    table.end_session(TWO);
    assert!(table.is_over(&held[0], at(30)));
}

/// A proposal that began before the first session holds all grants up, and one of any write the
/// groups that it touches.
#[test]
fn proposals_under_way_hold_grants_up() {
    let mut table = table();
    let (noted, _) = begins(&mut table, "d", None, 0);
    assert!(table.register(ONE, at(0)));
    polls(&mut table, ONE, at(0));
    assert!(!grants(&mut table, ONE, "i", 0));
    table.end(&noted);
    assert!(grants(&mut table, ONE, "i", 0));
    let append = Write::Append {
        length: key("i", "s"),
        blocks: key("b", ""),
        block_bytes: 4_096,
        data: "1".into(),
    };
    let (noted, held) = table.begin(&[append], None, at(0));
    assert_eq!(held.len(), 1);
    polls(&mut table, ONE, at(0));
    assert!(!grants(&mut table, ONE, "b", 0) && grants(&mut table, ONE, "d", 0));
    table.end(&noted);
    assert!(grants(&mut table, ONE, "b", 0));
}

#[test]
fn leases_and_sessions_are_bounded() {
    let mut table = table();
    for number in 0..SESSIONS_MAX as u64 {
        assert!(table.register(SessionId(number), at(0)));
    }
    assert!(!table.register(SessionId(u64::MAX), at(1_999)));
    assert!(
        table.register(SessionId(u64::MAX), at(2_000)),
        "the others are over"
    );
    let mut table = table_of(&[ONE]);
    let keys = (0..LEASES_MAX as u64 + 10).map(|number| {
        let group = number.to_be_bytes().to_vec();
        Key::new(group, "").expect("short")
    });
    let keys: Vec<Key> = keys.collect();
    assert_eq!(table.grant(ONE, keys.iter(), at(0)).len(), LEASES_MAX);
    assert!(!grants(&mut table, ONE, "d", 10));
    table.end_session(ONE);
    assert!(table.leases == 0 && table.holders.is_empty());
    assert!(table.stripes.iter().all(|stripe| stripe.leases == 0));
}
