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
