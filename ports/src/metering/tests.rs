use super::*;

#[test]
fn operations_are_counted_where_their_name_says() {
    for (index, operation) in Operation::ALL.into_iter().enumerate() {
        assert_eq!(operation as usize, index, "{operation:?}");
    }
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
