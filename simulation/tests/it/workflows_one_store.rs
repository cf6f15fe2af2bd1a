//! A far store that is the near one, by another name: it is refused, and spoils nothing.

use bytes::Bytes;
use ports::{
    Key, Update,
    key_value::{Scan, Value},
};
use simulation::{
    transactions::mortal::Life,
    workflows::{
        checks::ADDRESS,
        code::COUNTS,
        house::{House, Process},
    },
};
use workflows::{Error, Options};

/// What the far store is called by.
const PLACE: &str = "redis://far:6379";

async fn boot(house: &mut House) -> Process {
    house.boot(&Life::default()).await.expect("nothing ends it")
}

/// The rows that say which workflows lie in far stores.
async fn noted(house: &House) -> usize {
    let page = house
        .near
        .key_value()
        .scan(&Scan::partition("h", 10))
        .await
        .expect("read");
    page.value.items.len()
}

#[test]
fn a_far_store_that_is_the_near_one_is_refused_and_nothing_is_written() {
    simulated::run(async {
        let mut house = House::far_is_near(1, Options::default()).await;
        let process = boot(&mut house).await;
        let refused = process.begin(COUNTS, "run").await;
        assert!(
            matches!(&refused, Err(Error::FarIsNear(place)) if place == PLACE),
            "{refused:?}"
        );
        let (runs, next) = process
            .service
            .runs(COUNTS, None, None)
            .await
            .expect("listed");
        assert!(runs.is_empty() && next.is_none(), "{runs:?}");
        let shown = process.service.run(COUNTS, "run").await;
        assert!(matches!(shown, Err(Error::NoSuchRun(_))), "{shown:?}");
        let trouble = process.service.far_stores()[PLACE]
            .trouble
            .clone()
            .expect("there is one");
        assert!(
            trouble.contains("`--store`") && trouble.contains("leave `far` out"),
            "{trouble}"
        );
        let range = Scan::partition(["landfast/", PLACE].concat(), 10);
        let rows = house
            .near
            .key_value()
            .scan(&range)
            .await
            .expect("read")
            .value
            .items;
        assert!(rows.is_empty() && noted(&house).await == 0, "{rows:?}");
        process.end().await;
    });
}

/// As an earlier build has noted it.
#[test]
fn a_noted_place_that_is_the_near_store_is_let_go_of() {
    simulated::run(async {
        let mut house = House::far_is_near(1, Options::default()).await;
        let row = Key::new("h", ["earlier\0", PLACE].concat());
        let address = Value::Bytes(Bytes::from_static(ADDRESS.as_bytes()));
        let put = Update::put(row, vec![("address".into(), address)]);
        house.near.key_value().update(put).await.expect("put");
        let process = boot(&mut house).await;
        for _ in 0..100 {
            house
                .near
                .clock()
                .sleep(std::time::Duration::from_millis(10))
                .await;
        }
        assert_eq!(noted(&house).await, 0);
        let listed = process.service.runs("earlier", None, None).await;
        assert!(
            matches!(listed, Err(Error::NoSuchWorkflow(_))),
            "{listed:?}"
        );
        process.end().await;
    });
}
