//! The report as text.

use crate::simulate::Report;
use std::fmt::Write;

/// One row a policy, the bound first.
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<24} {:>8} {:>8} {:>7} {:>6} {:>9} {:>12}",
        "policy", "new", "+bound", "passes", "saves", "MiB kept", "predicted ms"
    );
    let _ = writeln!(out, "{:<24} {:>8.1} {:>8}", "(KV bound)", report.kv_bound, "");
    for p in &report.policies {
        let _ = writeln!(
            out,
            "{:<24} {:>8.1} {:>+8.1} {:>7.2} {:>6.2} {:>9.0} {:>12.1}",
            p.name,
            p.new,
            p.new - report.kv_bound,
            p.passes,
            p.saves,
            p.bytes / f64::from(1 << 20),
            p.predicted_ms
        );
    }
    out.push_str("Means over the requests after each client's first; new: prompt tokens processed.\n");
    out
}
