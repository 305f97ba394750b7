//! Fits the cost model to a device from measured work.

use serde::{Deserialize, Serialize};
use tandem_policy::Cost;

/// One measurement: so many tokens in so many passes with so many saves took so long.
/// A step of `tandem replay --json` is one.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Measurement {
    /// Tokens processed.
    pub new: f64,
    /// Passes run.
    pub passes: f64,
    /// States saved.
    pub saves: f64,
    /// Milliseconds it took.
    pub prefill_ms: f64,
}

/// A fitted cost model, as a file.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq)]
pub struct CostFile {
    /// Nanoseconds a token.
    pub per_token_ns: u64,
    /// Nanoseconds a pass.
    pub per_pass_ns: u64,
    /// Nanoseconds a save.
    pub per_save_ns: u64,
}

impl From<CostFile> for Cost {
    fn from(file: CostFile) -> Self {
        Cost { per_token: file.per_token_ns, per_pass: file.per_pass_ns, per_save: file.per_save_ns }
    }
}

/// A fit and how good it is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Fit {
    /// The model.
    #[serde(flatten)]
    pub cost: CostFile,
    /// Share of the measurements' variation that the model explains, at most 1.
    pub explained: f64,
    /// Root mean square error, in milliseconds.
    pub error_ms: f64,
    /// Measurements used.
    pub measurements: usize,
}

/// Why no cost model was fitted.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum CalibrateError {
    /// There are fewer measurements than the fit needs.
    #[error("{found} measurements are too few for a fit, give at least {MIN_MEASUREMENTS}")]
    TooFew {
        /// How many there are.
        found: usize,
    },
    /// A measurement cannot be one.
    #[error(
        "measurement {index}: {name} is {value}; it must be a finite number, not negative, and time and tokens above 0"
    )]
    Nonsense {
        /// Which, from 1.
        index: usize,
        /// The field.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// Tokens do not vary, so their price cannot be told from a pass's.
    #[error(
        "all measurements have nearly the same number of tokens a pass ({tokens:.0}); measure short and long prompts"
    )]
    NoSpread {
        /// Tokens a pass.
        tokens: f64,
    },
    /// A line is not a measurement.
    #[error(
        "line {line}: {reason}; a measurement is {{\"new\":512,\"passes\":1,\"saves\":0,\"prefill_ms\":640.0}}"
    )]
    Line {
        /// Which, from 1.
        line: usize,
        /// Why.
        reason: String,
    },
    /// The best model is not a cost model.
    #[error(
        "the best fit explains {explained:.2} of the variation (at least {MIN_EXPLAINED} is wanted): time does not follow tokens, passes and saves; measure on a quiet machine"
    )]
    Poor {
        /// Share explained.
        explained: f64,
    },
}

/// Fewest measurements of a fit.
pub const MIN_MEASUREMENTS: usize = 6;
/// Least share of the variation that a fit must explain.
pub const MIN_EXPLAINED: f64 = 0.5;

/// Reads measurements: the JSON of `tandem replay --json`, a list of
/// measurements, or one measurement a line.
pub fn read(text: &str) -> Result<Vec<Measurement>, CalibrateError> {
    #[derive(Deserialize)]
    struct Replay {
        steps: Vec<Measurement>,
    }
    if let Ok(replay) = serde_json::from_str::<Replay>(text) {
        return Ok(replay.steps);
    }
    if let Ok(list) = serde_json::from_str(text) {
        return Ok(list);
    }
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(i, line)| {
            serde_json::from_str(line)
                .map_err(|e| CalibrateError::Line { line: i + 1, reason: e.to_string() })
        })
        .collect()
}

/// Least squares over the three prices, none negative.
pub fn fit(measurements: &[Measurement]) -> Result<Fit, CalibrateError> {
    check(measurements)?;
    let mut best: Option<([f64; 3], f64)> = None;
    // Every set of prices that are not zero: the best without a negative one is the answer.
    for set in 1usize..8 {
        let Some(prices) = solve(measurements, set) else { continue };
        if prices[0] <= 0.0 || prices.iter().any(|p| *p < 0.0 || !p.is_finite()) {
            continue;
        }
        let error = square_error(measurements, &prices);
        if best.is_none_or(|(_, least)| error < least * (1.0 - 1e-9)) {
            best = Some((prices, error));
        }
    }
    let times = || measurements.iter().map(|m| m.prefill_ms);
    let mean = times().sum::<f64>() / measurements.len() as f64;
    let variation: f64 = times().map(|t| (t - mean) * (t - mean)).sum();
    let (prices, error) = best.ok_or(CalibrateError::Poor { explained: 0.0 })?;
    let explained = if variation > 0.0 { 1.0 - error / variation } else { 0.0 };
    if explained < MIN_EXPLAINED {
        return Err(CalibrateError::Poor { explained });
    }
    let nanoseconds = |ms: f64| (ms * 1e6).round() as u64;
    Ok(Fit {
        cost: CostFile {
            per_token_ns: nanoseconds(prices[0]).max(1),
            per_pass_ns: nanoseconds(prices[1]),
            per_save_ns: nanoseconds(prices[2]),
        },
        explained,
        error_ms: (error / measurements.len() as f64).sqrt(),
        measurements: measurements.len(),
    })
}

fn check(measurements: &[Measurement]) -> Result<(), CalibrateError> {
    if measurements.len() < MIN_MEASUREMENTS {
        return Err(CalibrateError::TooFew { found: measurements.len() });
    }
    for (i, m) in measurements.iter().enumerate() {
        for (name, value, least) in [
            ("new", m.new, f64::MIN_POSITIVE),
            ("passes", m.passes, f64::MIN_POSITIVE),
            ("saves", m.saves, 0.0),
            ("prefill_ms", m.prefill_ms, f64::MIN_POSITIVE),
        ] {
            if !value.is_finite() || value < least || value > 1e12 {
                return Err(CalibrateError::Nonsense { index: i + 1, name, value });
            }
        }
    }
    let per_pass = || measurements.iter().map(|m| m.new / m.passes);
    let least = per_pass().fold(f64::INFINITY, f64::min);
    let most = per_pass().fold(0.0, f64::max);
    if most < least * 1.2 {
        return Err(CalibrateError::NoSpread { tokens: most });
    }
    Ok(())
}

fn inputs(m: &Measurement) -> [f64; 3] {
    [m.new, m.passes, m.saves]
}

fn square_error(measurements: &[Measurement], prices: &[f64; 3]) -> f64 {
    measurements
        .iter()
        .map(|m| {
            let predicted: f64 = inputs(m).iter().zip(prices).map(|(x, p)| x * p).sum();
            (predicted - m.prefill_ms) * (predicted - m.prefill_ms)
        })
        .sum()
}

/// Least squares with the prices outside `set` (bits) held at zero; `None` where they cannot be told apart.
fn solve(measurements: &[Measurement], set: usize) -> Option<[f64; 3]> {
    let used: Vec<usize> = (0..3).filter(|i| set >> i & 1 == 1).collect();
    let n = used.len();
    // Normal equations, the right side last.
    let mut rows = vec![vec![0.0; n + 1]; n];
    for m in measurements {
        let x = inputs(m);
        for (row, &i) in rows.iter_mut().zip(&used) {
            for (cell, &j) in row.iter_mut().zip(&used) {
                *cell += x[i] * x[j];
            }
            row[n] += x[i] * m.prefill_ms;
        }
    }
    let scale: Vec<f64> = (0..n).map(|i| rows[i][i]).collect();
    for column in 0..n {
        let pivot = (column..n).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()))?;
        rows.swap(column, pivot);
        if rows[column][column].abs() <= 1e-9 * scale[column] || scale[column] == 0.0 {
            return None;
        }
        for below in column + 1..n {
            let factor = rows[below][column] / rows[column][column];
            for k in column..=n {
                rows[below][k] -= factor * rows[column][k];
            }
        }
    }
    let mut prices = [0.0; 3];
    for row in (0..n).rev() {
        let known: f64 = (row + 1..n).map(|k| rows[row][k] * prices[used[k]]).sum();
        prices[used[row]] = (rows[row][n] - known) / rows[row][row];
    }
    Some(prices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phone(new: f64, passes: f64, saves: f64, noise: f64) -> Measurement {
        Measurement { new, passes, saves, prefill_ms: 1.3 * new + 86.0 * passes + 2.0 * saves + noise }
    }

    fn measured() -> Vec<Measurement> {
        (0..20)
            .map(|i| {
                let i = f64::from(i);
                phone(
                    64.0 + 31.0 * i,
                    1.0 + (i / 8.0).floor(),
                    i % 5.0,
                    if i % 2.0 == 0.0 { 0.4 } else { -0.4 },
                )
            })
            .collect()
    }

    #[test]
    fn the_phones_prices_are_found_again() {
        let fit = fit(&measured()).expect("a fit");
        assert!((fit.cost.per_token_ns as f64 - 1.3e6).abs() < 2e4, "{fit:?}");
        assert!((fit.cost.per_pass_ns as f64 - 86e6).abs() < 2e6, "{fit:?}");
        assert!((fit.cost.per_save_ns as f64 - 2e6).abs() < 1e6, "{fit:?}");
        assert!(fit.explained > 0.99);
    }

    #[test]
    fn a_price_is_never_negative() {
        let saves_help = |m: &Measurement| Measurement { prefill_ms: m.prefill_ms - 6.0 * m.saves, ..*m };
        let fit = fit(&measured().iter().map(saves_help).collect::<Vec<_>>()).expect("a fit");
        assert_eq!(fit.cost.per_save_ns, 0);
    }

    #[test]
    fn without_saves_their_price_is_zero() {
        let none = |m: &Measurement| phone(m.new, m.passes, 0.0, 0.0);
        let fit = fit(&measured().iter().map(none).collect::<Vec<_>>()).expect("a fit");
        assert_eq!(fit.cost.per_save_ns, 0);
        assert!((fit.cost.per_pass_ns as f64 - 86e6).abs() < 1e3, "{fit:?}");
    }

    #[test]
    fn nonsense_is_refused_with_its_place_and_value() {
        let mut bad = measured();
        bad[3].prefill_ms = f64::NAN;
        assert!(matches!(fit(&bad), Err(CalibrateError::Nonsense { index: 4, name: "prefill_ms", .. })));
        bad[3] = phone(-5.0, 1.0, 0.0, 0.0);
        assert!(matches!(fit(&bad), Err(CalibrateError::Nonsense { index: 4, name: "new", .. })));
        assert_eq!(fit(&bad[..2]).expect_err("too few"), CalibrateError::TooFew { found: 2 });
        let same = vec![phone(500.0, 1.0, 0.0, 0.0); 10];
        assert!(matches!(fit(&same), Err(CalibrateError::NoSpread { .. })));
        let random: Vec<_> = (0..20)
            .map(|i| Measurement {
                prefill_ms: f64::from(i * 7919 % 97) + 1.0,
                ..phone(f64::from(10 + i * 10), 1.0, 0.0, 0.0)
            })
            .collect();
        assert!(matches!(fit(&random), Err(CalibrateError::Poor { .. })));
    }

    #[test]
    fn replay_output_lists_and_lines_are_read_and_a_broken_line_is_named() {
        let one = r#"{"new":5,"passes":1,"saves":0,"prefill_ms":6.5,"text":"x"}"#;
        assert_eq!(read(&format!(r#"{{"steps":[{one}],"mean":{{}}}}"#)).expect("replay").len(), 1);
        assert_eq!(read(&format!("[{one},{one}]")).expect("list").len(), 2);
        assert_eq!(read(&format!("{one}\n\n{one}\n")).expect("lines").len(), 2);
        assert!(matches!(read(&format!("{one}\n{{")), Err(CalibrateError::Line { line: 2, .. })));
    }
}
