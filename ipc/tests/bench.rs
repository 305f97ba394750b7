//! The bench runs and its figures are figures. Speed is not asserted here:
//! `tandem bench ipc` reports it.

use tandem_ipc::bench::{BenchConfig, run};

#[test]
fn a_short_bench_gives_finite_ordered_figures() {
    let config = BenchConfig { rounds: 3, round_trips: 50, burst: 200 };
    let bench = run(config).unwrap();
    for pair in [bench.round_trip_us, bench.burst_per_s] {
        for spread in [pair.ring, pair.socket, pair.ratio] {
            assert!(spread.min > 0.0 && spread.max.is_finite(), "{pair:?}");
            assert!(spread.min <= spread.median && spread.median <= spread.max);
        }
    }
}

#[test]
fn a_bench_of_nothing_is_refused() {
    let config = BenchConfig { rounds: 0, ..BenchConfig::default() };
    assert!(run(config).is_err());
}
