//! The report as a picture: a panel a policy, a bar a request.

use crate::simulate::{Outcome, Report};
use std::fmt::Write;

const LEFT: f64 = 60.0;
const TOP: f64 = 60.0;
const BAR: f64 = 12.0;
const GAP: f64 = 3.0;
const HEIGHT: f64 = 180.0;
const PANEL: f64 = HEIGHT + 50.0;

const RESTORED: &str = "#b8c4ce";
const AGAIN: &str = "#d9622b";
const NEW: &str = "#3f7fb5";
const SAVE: &str = "#111111";

/// Each request a bar: restored below, then what was shared but had to be
/// computed again, then what was new; saves are black marks.
pub fn svg(report: &Report, title: &str) -> String {
    let requests = report.policies.iter().map(|p| p.steps.len()).max().unwrap_or(0);
    let longest = report.policies.iter().flat_map(|p| &p.steps).map(|s| s.prompt).max().unwrap_or(1).max(1);
    let width = (LEFT + requests as f64 * (BAR + GAP) + 20.0).max(640.0);
    let height = TOP + report.policies.len() as f64 * PANEL;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    let mut x = LEFT;
    for (colour, label) in
        [(RESTORED, "restored"), (AGAIN, "shared, computed again"), (NEW, "new"), (SAVE, "saved state")]
    {
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"32\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"42\">{label}</text>",
            x + 17.0
        );
        x += 40.0 + 7.0 * label.len() as f64;
    }
    for (i, policy) in report.policies.iter().enumerate() {
        panel(&mut out, policy, report.kv_bound, TOP + i as f64 * PANEL, longest, width);
    }
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, policy: &Outcome, bound: f64, top: f64, longest: u32, width: f64) {
    let base = top + 24.0 + HEIGHT;
    let y = |tokens: u32| base - HEIGHT * f64::from(tokens) / f64::from(longest);
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{}\">{}: {:.1} new tokens a request ({:+.1} over the bound), {:.2} passes, {:.2} saves</text>",
        top + 14.0,
        escaped(&policy.name),
        policy.new,
        policy.new - bound,
        policy.passes,
        policy.saves
    );
    for tokens in [0, longest / 2, longest] {
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#dddddd\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{tokens}</text>",
            width - 20.0,
            LEFT - 6.0,
            y(tokens) + 4.0,
            y = y(tokens)
        );
    }
    for (i, step) in policy.steps.iter().enumerate() {
        let x = LEFT + 2.0 + i as f64 * (BAR + GAP);
        let shared = step.shared.max(step.restored);
        for (from, to, colour) in
            [(0, step.restored, RESTORED), (step.restored, shared, AGAIN), (shared, step.prompt, NEW)]
        {
            if to > from {
                let _ = writeln!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{BAR}\" height=\"{:.1}\" fill=\"{colour}\"/>",
                    y(to),
                    y(from) - y(to)
                );
            }
        }
        for &position in &step.saved {
            let _ = writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{}\" height=\"1.5\" fill=\"{SAVE}\"/>",
                x - 1.0,
                y(position) - 0.75,
                BAR + 2.0
            );
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
