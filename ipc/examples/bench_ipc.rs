//! Prints the figures of `tandem bench ipc` without the command.

fn main() -> Result<(), tandem_ipc::bench::BenchError> {
    let bench = tandem_ipc::bench::run(Default::default())?;
    for (name, pair) in [("round trip, us", bench.round_trip_us), ("burst, events/s", bench.burst_per_s)] {
        println!(
            "{name}: ring {:.2}, socket {:.2}, ring better {:.2} times ({:.2} to {:.2})",
            pair.ring.median, pair.socket.median, pair.ratio.median, pair.ratio.min, pair.ratio.max
        );
    }
    Ok(())
}
