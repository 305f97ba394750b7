//! The golden models: logits, greedy continuations, recurrent states and MTP logits of
//! `transformers`, on the reference device and the CPU device.

mod golden_models;

use golden_models::{Golden, devices, model_files};
use tandem_engine::switches::{KvType, Switches};

fn switches() -> Switches {
    Switches { kv_type: KvType::F32, ..Switches::default() }
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

fn argmax(row: &[f32]) -> usize {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0)
}

#[test]
fn logits_of_float_models_are_within_a_thousandth() {
    for file in model_files(false) {
        for device in devices() {
            let mut g = Golden::open(&file, device, switches());
            for p in 0..g.prompts() {
                let got = g.logits_at_positions(p);
                let d = largest_difference(&got, &g.floats(&format!("p{p}.logits")));
                assert!(d <= 1e-3, "{} p{p} on {}: logits differ by {d}", file.display(), g.device());
            }
        }
    }
}

#[test]
fn greedy_continuations_of_float_models_are_equal() {
    for file in model_files(false) {
        for device in devices() {
            let mut g = Golden::open(&file, device, switches());
            for p in 0..g.prompts() {
                let want = g.ids(&format!("p{p}.greedy"));
                assert_eq!(g.greedy(p, want.len()), want, "{} p{p} on {}", file.display(), g.device());
            }
        }
    }
}

#[test]
fn states_of_float_models_are_within_a_ten_thousandth() {
    for file in model_files(false) {
        for device in devices() {
            let mut g = Golden::open(&file, device, switches());
            for p in 0..g.prompts() {
                let (conv, state) = g.states(p);
                let d = largest_difference(&conv, &g.floats(&format!("p{p}.gdn_conv_state")));
                assert!(d <= 1e-4, "{} p{p}: conv state differs by {d}", file.display());
                let d = largest_difference(&state, &g.floats(&format!("p{p}.gdn_S")));
                assert!(d <= 1e-4, "{} p{p}: recurrent state differs by {d}", file.display());
            }
        }
    }
}

#[test]
fn mtp_logits_of_float_models_are_within_a_thousandth() {
    for file in model_files(false) {
        for device in devices() {
            let mut g = Golden::open(&file, device, switches());
            for p in 0..g.prompts() {
                let got = g.mtp_logits(p);
                let d = largest_difference(&got, &g.floats(&format!("p{p}.mtp_logits")));
                assert!(d <= 1e-3, "{} p{p} on {}: MTP logits differ by {d}", file.display(), g.device());
            }
        }
    }
}

#[test]
fn logits_of_quantized_models_follow_rounded_activations() {
    for file in model_files(true) {
        for device in devices() {
            let mut g = Golden::open(&file, device, switches());
            for p in 0..g.prompts() {
                let got = g.logits_at_positions(p);
                let want = g.floats(&format!("p{p}.logits_q8act"));
                let rows = g.ids(&format!("p{p}.positions")).len();
                let width = want.len() / rows;
                let rms = (got.iter().zip(&want).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
                    / want.len() as f64)
                    .sqrt();
                let largest = largest_difference(&got, &want);
                println!("{} p{p} on {}: rms {rms:.4}, largest {largest:.4}", file.display(), g.device());
                assert!(rms <= 0.15, "{} p{p}: rms {rms}", file.display());
                assert!(largest <= 0.5, "{} p{p}: largest {largest}", file.display());
                for (got, want) in got.chunks_exact(width).zip(want.chunks_exact(width)) {
                    let top = argmax(want);
                    let second = want
                        .iter()
                        .enumerate()
                        .filter(|(i, _)| *i != top)
                        .map(|(_, v)| *v)
                        .fold(f32::MIN, f32::max);
                    if want[top] - second > 1.0 {
                        assert_eq!(argmax(got), top, "{} p{p}", file.display());
                    }
                }
            }
        }
    }
}
