use super::*;
use crate::statistics::Statistics;

fn assert_near(name: &str, found: f64, published: f64, tolerance: f64) {
    assert!(
        (found - published).abs() <= tolerance,
        "{name}: {found}, published {published}, tolerance {tolerance}"
    );
}

/// The registry of `infinistore.txt`, sections 2 and 6.1.1.
#[test]
fn a_registry_trace_has_each_published_statistic() {
    let statistics = Statistics::of(&IBM.generate(50, 1));
    eprintln!("{statistics:?}");
    assert_near("GETs", statistics.gets as f64, 182_700.0, 1_827.0);
    assert_near("bytes", statistics.distinct_bytes as f64, 888e9, 9e9);
    assert_near("large objects", statistics.large_share, 0.31, 0.02);
    assert_near("in 10 min", statistics.reused_in_10_min_share, 0.80, 0.02);
    assert_near("in 100 min", statistics.reused_in_100_min_share, 0.94, 0.01);
    assert_near("rarely read", statistics.rarely_reused_share, 0.16, 0.02);
    assert_near("bursty", statistics.bursty_share, 0.80, 0.05);
    assert_near("a minute", statistics.minute_ratio, 209.0, 10.0);
    let hour = statistics.hour_bytes_max as f64;
    assert!((30e9..=40e9).contains(&hour), "an hour: {hour}");
}

/// The blobs of `infinistore.txt`, sections 2 and 6.1.2.
#[test]
fn a_blob_trace_has_each_published_statistic() {
    let statistics = Statistics::of(&AZURE.generate(5, 1));
    eprintln!("{statistics:?}");
    assert_near("large objects", statistics.large_share, 0.45, 0.02);
    assert_near("in 1 min", statistics.reused_in_1_min_share, 0.98, 0.01);
    assert_near("rarely read", statistics.rarely_reused_share, 0.02, 0.01);
    assert_near("bursty", statistics.bursty_share, 0.80, 0.05);
    assert_near("a minute", statistics.minute_ratio, 173.0, 9.0);
}

#[test]
fn a_seed_gives_the_same_trace_again_and_another_seed_gives_another() {
    let trace = IBM.generate(2, 7);
    assert_eq!(trace, IBM.generate(2, 7));
    assert_ne!(trace, IBM.generate(2, 8));
    let read = Trace::parse(&trace.text()).expect("a trace");
    assert_eq!(read.text(), trace.text());
}
