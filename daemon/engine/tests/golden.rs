//! The golden models: logits, greedy continuations, recurrent states and MTP logits of
//! `transformers`, on the reference device and the CPU device.

mod golden_models;

use golden_models::{Golden, devices, model_files};
use tandem_engine::switches::{KvType, PrefillProducts, Switches};

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

/// Prompts multiplied in half-precision tiles: the same bits on both devices, and nearer to logits
/// of unrounded activations than bytes come.
#[test]
fn logits_of_quantized_models_in_tiles_are_near_those_of_exact_activations() {
    let tiles = Switches { prefill_products: PrefillProducts::F16Tile, ..switches() };
    let own = |file: &&std::path::PathBuf| file.starts_with(golden_models::root().join("tests/golden"));
    for file in model_files(true).iter().filter(own) {
        let [mut reference, mut cpu] = <[_; 2]>::try_from(devices())
            .ok()
            .expect("two devices")
            .map(|d| Golden::open(file, d, tiles.clone()));
        let mut bytes = Golden::open(file, devices().remove(1), switches());
        for p in 0..cpu.prompts() {
            let got = cpu.logits_at_positions(p);
            let same = reference.logits_at_positions(p);
            assert!(
                got.iter().zip(&same).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{} p{p}",
                file.display()
            );
            let want = cpu.floats(&format!("p{p}.logits"));
            let rms = |got: &[f32]| {
                let squares = got.iter().zip(&want).map(|(a, b)| f64::from(a - b).powi(2));
                (squares.sum::<f64>() / want.len() as f64).sqrt()
            };
            let (largest, in_bytes) = (largest_difference(&got, &want), bytes.logits_at_positions(p));
            let (rms, other) = (rms(&got), rms(&in_bytes));
            println!("{} p{p}: rms {rms:.4}, largest {largest:.4}; in bytes rms {other:.4}", file.display());
            assert!(
                rms <= 0.05 && largest <= 0.25 && rms < other / 2.0,
                "{} p{p}: rms {rms}, largest {largest}",
                file.display()
            );
            assert!(got != in_bytes, "{} p{p}: tiles change nothing", file.display());
        }
    }
}
