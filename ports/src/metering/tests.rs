use super::*;

#[test]
fn each_operation_has_its_own_name() {
    let mut names = Operation::ALL.map(Operation::name);
    names.sort_unstable();
    assert!(
        names.is_sorted_by(|left, right| left < right),
        "each name is one operation's"
    );
}

#[test]
fn nothing_used_is_nothing_counted() {
    let usage = Meter::default().usage();
    assert_eq!((usage.calls(), usage.operations().count()), (0, 0));
}
