use bytes::Bytes;

use super::*;

/// K1: the checkpoint store holds the item until a checkpoint has applied its deletion.
#[test]
fn an_item_deleted_during_a_failed_checkpoint_stays_deleted() {
    let key = || RecordKey::new(Table::Item, Bytes::from_static(b"item"));
    let record = || Some(Record::Incarnations(Arc::default()));
    let mut overlay = Overlay::default();
    overlay.set(key(), None, true);
    overlay.take_group();
    drop(overlay.freeze());
    overlay.set(key(), record(), false);
    overlay.take_group();
    overlay.merge_frozen_back();
    overlay.set(key(), None, true);
    assert_eq!(overlay.take_group().len(), 1, "the journal hears of it");
    assert!(
        matches!(overlay.get(&key()), Known::Deleted),
        "what lies below is hidden"
    );
}

#[test]
fn only_records_with_a_journaled_change_count_as_journaled() {
    let key = |name: &'static str| RecordKey::new(Table::Item, Bytes::from_static(name.as_bytes()));
    let record = || Record::Incarnations(Arc::default());
    let mut overlay = Overlay::default();
    overlay.set(key("kept"), Some(record()), false);
    overlay.set(key("removed"), Some(record()), false);
    assert!(overlay.set_unjournaled(&key("kept"), &record(), false));
    assert!(overlay.set_unjournaled(&key("renewed"), &record(), true));
    assert_eq!((overlay.journaled_len(), overlay.len()), (2, 3));
    overlay.set(key("removed"), None, false);
    assert_eq!((overlay.journaled_len(), overlay.len()), (1, 2));
    overlay.take_group();
    drop(overlay.freeze());
    assert!(overlay.set_unjournaled(&key("kept"), &record(), true));
    assert_eq!(overlay.journaled_len(), 0);
    overlay.merge_frozen_back();
    assert_eq!((overlay.journaled_len(), overlay.len()), (1, 2));
    overlay.set(key("kept"), None, true);
    overlay.set(key("renewed"), None, true);
    assert_eq!((overlay.journaled_len(), overlay.len()), (2, 2));
}
