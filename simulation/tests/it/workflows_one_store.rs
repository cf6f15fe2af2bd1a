//! A far store that is the near one under another name: it is refused, without side effects.

use ports::key_value::Scan;
use simulation::{
    transactions::crashable::Life,
    workflows::{
        cluster::{Cluster, Process},
        definitions::COUNTS,
    },
};
use workflows::{Error, Options};

/// The address of the far store.
const PLACE: &str = "redis://far:6379";

async fn boot(cluster: &mut Cluster) -> Process {
    cluster
        .boot(&Life::default())
        .await
        .expect("nothing ends it")
}

/// The rows that say which workflows lie in far stores.
async fn noted(cluster: &Cluster) -> usize {
    let page = cluster
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
        let mut cluster = Cluster::far_is_near(1, Options::default()).await;
        let process = boot(&mut cluster).await;
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
        let rows = cluster
            .near
            .key_value()
            .scan(&range)
            .await
            .expect("read")
            .value
            .items;
        assert!(rows.is_empty() && noted(&cluster).await == 0, "{rows:?}");
        process.end().await;
    });
}
