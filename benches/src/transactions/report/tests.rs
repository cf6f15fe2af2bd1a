use super::{
    super::{
        collection::Collecting,
        overwrites::{Overwrites, Run},
    },
    *,
};

fn figures(per_second: f64) -> Figures {
    Figures {
        transactions: 100,
        no_valid_version: 0,
        per_second,
        p50_ms: 1.0,
        p99_ms: 2.0,
        seconds: 1.0,
    }
}

fn side(collecting: Collecting, turns: &[f64], halves_per_second: [f64; 2]) -> Side {
    let collected_versions = if collecting == Collecting::On { 70 } else { 0 };
    let turns_per_second = turns.to_vec();
    Side {
        collecting,
        turns_per_second,
        figures: figures(90.0),
        halves_per_second,
        cpu_us: 50.0,
        collected_versions,
    }
}

fn shown(collection: &Collection) -> String {
    let mut text = String::new();
    cost_of_collection(&mut text, collection);
    text
}

fn collection(off_halves: [f64; 2]) -> Collection {
    let compared = Compared {
        off: side(Collecting::Off, &[100.0, 300.0, 200.0], off_halves),
        on: side(Collecting::On, &[180.0, 100.0, 190.0], [95.0, 100.0]),
    };
    Collection {
        turn_seconds: 1.0,
        saturated: compared.clone(),
        offered_per_second: 126.0,
        steady: compared,
    }
}

#[test]
fn collection_is_compared_by_the_medians_of_its_turns() {
    let collection = collection([100.0, 100.0]);
    let rows = compared(&collection.saturated);
    assert_eq!(rows[2][..4], ["on", "180 100 190", "180", "0.90x"]);
    let text = shown(&collection);
    assert!(
        text.contains("the stores are about as large: 0.95x with collection"),
        "{text}"
    );
    assert!(text.contains("at 126 per second, 70 %"), "{text}");
}

#[test]
fn a_store_that_slows_down_without_collection_is_said_to() {
    let slows = "Without collection the store gets slower while it grows";
    assert!(!shown(&collection([100.0, 100.0])).contains(slows));
    let text = shown(&collection([100.0, 60.0]));
    assert!(
        text.contains("0.60x that of the first without collection, and 1.05x with it"),
        "{text}"
    );
    assert!(text.contains(slows), "{text}");
}

#[test]
fn who_does_not_keep_up_is_named() {
    let run = |collecting, per_second| Run {
        collecting,
        figures: figures(per_second),
        cpu_us: 50.0,
        stored: vec![(0.0, 0), (30.0, 64 << 20)],
        collected_versions: 0,
    };
    let overwrites = Overwrites {
        offered_per_second: 100.0,
        seconds: 30.0,
        window_seconds: 10.0,
        runs: vec![run(Collecting::Off, 40.0), run(Collecting::On, 99.0)],
    };
    let mut text = String::new();
    steady_overwrites(&mut text, &overwrites, Some("docs/bench/overwrites.svg"));
    assert!(
        text.contains("With collection off the store did not keep up: it reached 40 %"),
        "{text}"
    );
    assert!(!text.contains("With collection on the store"), "{text}");
    assert!(text.contains("](docs/bench/overwrites.svg)"), "{text}");
}

#[test]
fn values_stand_beside_what_the_disk_does_by_itself() {
    let cell = Cell {
        store: "in process",
        zipf: 1.0,
        clients: 40,
        value_bytes: 4_096,
        figures: figures(6_400.0),
        anomalies: None,
        cpu_us: Vec::new(),
    };
    let rate = |write_bytes, mebibytes: u32| DiskRate {
        write_bytes,
        bytes_per_second: f64::from(mebibytes << 20),
        syncs_per_second: 1.0,
    };
    let rows = embedded(&[cell], &[rate(8 << 10, 10), rate(4 << 20, 200)]);
    assert_eq!(rows[1][4..6], ["50", "25 %"]);
}
