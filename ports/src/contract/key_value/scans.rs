//! Pages of a partition: K6.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::{
    Subject, key,
    transactions::{Order, START, accounts, transfer},
};
use crate::{
    Key, Update,
    contract::pause,
    key_value::{Name, Scan, Value},
};

/// Sort keys that a careless encoding or comparison would put in the wrong order.
const SORTS: [&[u8]; 12] = [
    b"b",
    b"a",
    b"\xff\xff",
    b"a\x00",
    b"aa",
    b"\x00",
    b"a\xff",
    b"B",
    b"\xff",
    b"10",
    b"9",
    b"a\x00\x00",
];

async fn fill(subject: &Subject, partition: &[u8]) {
    for sort in SORTS {
        let name = vec![(Name::from("sort"), Value::Bytes(Bytes::from_static(sort)))];
        subject
            .done(Update::put(Key::new(partition, sort), name))
            .await;
    }
}

fn in_order() -> Vec<Bytes> {
    let mut sorts: Vec<Bytes> = SORTS.iter().map(|sort| Bytes::from_static(sort)).collect();
    sorts.sort_unstable();
    sorts
}

/// K6.
pub(super) async fn a_partition_is_scanned_in_order_each_item_once(subject: Subject) {
    for partition in [&b"scan"[..], b"sca", b"scan\x00", b"scanned", b"\xff"] {
        fill(&subject, partition).await;
    }
    for items_max in [1, 2, 5, 12, 13, 1000] {
        let pages = subject
            .pages(Scan::partition(&b"scan"[..], items_max))
            .await;
        assert!(
            pages.iter().all(|page| page.len() <= items_max),
            "{items_max} to a page at most"
        );
        let items = pages.concat();
        let sorts: Vec<Bytes> = items.iter().map(|(sort, _)| sort.clone()).collect();
        assert_eq!(sorts, in_order(), "{items_max} to a page");
        assert!(
            items
                .iter()
                .all(|(sort, item)| item.bytes("sort") == Some(sort))
        );
    }
    let nothing = subject
        .pages(Scan::partition(&b"scan nothing"[..], 10))
        .await;
    assert!(nothing.concat().is_empty());
}

/// K6.
pub(super) async fn a_scan_keeps_within_its_bounds(subject: Subject) {
    fill(&subject, b"bounds").await;
    let bounds: [(&[u8], Option<&[u8]>); 8] = [
        (b"a", None),
        (b"a", Some(b"b")),
        (b"a\x00", Some(b"aa")),
        (b"a", Some(b"a")),
        (b"b", Some(b"a")),
        (b"", Some(b"a")),
        (b"between", Some(b"\xff")),
        (b"\xff\xff\xff", None),
    ];
    for (from, until) in bounds {
        for items_max in [2, 100] {
            let scan = Scan {
                partition: Bytes::from_static(b"bounds"),
                from: Bytes::copy_from_slice(from),
                until: until.map(Bytes::copy_from_slice),
                items_max,
            };
            let found: Vec<Bytes> = subject
                .pages(scan.clone())
                .await
                .concat()
                .into_iter()
                .map(|(sort, _)| sort)
                .collect();
            let expected: Vec<Bytes> = in_order()
                .into_iter()
                .filter(|sort| sort[..] >= *from && until.is_none_or(|until| sort[..] < *until))
                .collect();
            assert_eq!(found, expected, "{scan:?}");
        }
    }
}

/// K6.
pub(super) async fn a_page_holds_no_more_than_the_limit(subject: Subject) {
    const TOO_MANY_TO_WRITE: usize = 20_000;
    let limits = *subject.store.limits();
    if limits.page_items_max >= TOO_MANY_TO_WRITE {
        return;
    }
    let total = limits.page_items_max + 1;
    let places: Vec<Key> = (0..total)
        .map(|n| key("page", &format!("{n:06}")))
        .collect();
    for places in places.chunks(limits.transact_items_max) {
        let put = |place: &Key| Update::put(place.clone(), vec![]);
        let transacted = subject.store.transact(places.iter().map(put).collect());
        transacted.await.expect("transact answers");
    }
    let pages = subject.pages(Scan::partition("page", usize::MAX)).await;
    assert!(pages.iter().all(|page| page.len() <= limits.page_items_max));
    let found: Vec<Bytes> = pages.concat().into_iter().map(|(sort, _)| sort).collect();
    assert_eq!(found, places.iter().map(Key::sort).collect::<Vec<_>>());
}

/// K6.
pub(super) async fn deleted_items_leave_the_scan(subject: Subject) {
    fill(&subject, b"deleted").await;
    let sorts = in_order();
    for sort in sorts.iter().step_by(2) {
        subject
            .done(Update::delete(Key::new("deleted", sort)))
            .await;
    }
    for items_max in [1, 4, 100] {
        let found: Vec<Bytes> = subject
            .pages(Scan::partition("deleted", items_max))
            .await
            .concat()
            .into_iter()
            .map(|(sort, _)| sort)
            .collect();
        let left: Vec<Bytes> = sorts.iter().skip(1).step_by(2).cloned().collect();
        assert_eq!(found, left, "{items_max} to a page");
    }
}

/// K6, if the limits promise it.
pub(super) async fn a_page_never_shows_half_a_transaction(subject: Subject) {
    const ACCOUNTS: usize = 6;
    if !subject.store.limits().page_is_snapshot {
        return;
    }
    let places = accounts(&subject, "snapshot", ACCOUNTS).await;
    let has_ended = Arc::new(AtomicBool::new(false));
    let mut tasks: Vec<BoxFuture<'static, ()>> = Vec::new();
    for _ in 0..4 {
        let (subject, has_ended) = (subject.clone(), Arc::clone(&has_ended));
        tasks.push(Box::pin(async move {
            while !has_ended.load(Ordering::SeqCst) {
                let page = subject
                    .store
                    .scan(&Scan::partition("snapshot", ACCOUNTS))
                    .await;
                let items = page.expect("scan answers").value.items;
                let total: i64 = items
                    .iter()
                    .filter_map(|(_, item)| item.integer("balance"))
                    .sum();
                assert_eq!(total, START * ACCOUNTS as i64, "a torn page: {items:?}");
                pause().await;
            }
        }));
    }
    tasks.push(Box::pin({
        let subject = subject.clone();
        async move {
            for round in 0..300 {
                let from = &places[round % ACCOUNTS];
                let to = &places[(round + 1 + round % 4) % ACCOUNTS];
                subject
                    .transact(transfer(from, to, 7, Order::of(round as u64)))
                    .await;
                pause().await;
            }
            has_ended.store(true, Ordering::SeqCst);
        }
    }));
    subject.together(tasks).await;
}
