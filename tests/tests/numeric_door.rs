//! `tandem generate --tokens FILE --logits OUT`: numbers from the whole stack, against the
//! golden set.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use tandem_tests::{golden, tandem};

/// Largest difference of a logit on F32 weights.
const TOLERANCE: f32 = 1e-3;

/// The golden values of one prompt.
struct Golden {
    ids: Vec<i64>,
    positions: Vec<i64>,
    /// A row a position.
    logits: Vec<Vec<f32>>,
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn integers(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()
}

fn golden_prompts(model: &str) -> Vec<Golden> {
    let file = golden(model).with_extension("golden.safetensors");
    let bytes = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    (0..3)
        .map(|prompt| {
            let tensor = |name: &str| tensors.tensor(&format!("p{prompt}.{name}")).unwrap();
            let logits = tensor("logits");
            let width = logits.shape()[1];
            Golden {
                ids: integers(tensor("input_ids").data()),
                positions: integers(tensor("positions").data()),
                logits: floats(logits.data()).chunks(width).map(<[f32]>::to_vec).collect(),
            }
        })
        .collect()
}

/// Runs the door on prompts; gives shape and values of each tensor.
fn door(model: &Path, prompts: &[Golden], folder: &Path, extra: &[&str]) -> Vec<(Vec<usize>, Vec<f32>)> {
    let (tokens, logits) = (folder.join("ids.json"), folder.join("out.safetensors"));
    let ids: Vec<&Vec<i64>> = prompts.iter().map(|prompt| &prompt.ids).collect();
    std::fs::write(&tokens, serde_json::to_string(&ids).unwrap()).unwrap();
    let mut arguments: Vec<PathBuf> =
        ["generate", "--set", "kv_type=f32", "--model"].map(PathBuf::from).into();
    arguments.extend([model.to_owned(), "--tokens".into(), tokens, "--logits".into(), logits.clone()]);
    arguments.extend(extra.iter().map(PathBuf::from));
    let run = tandem(arguments);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let bytes = std::fs::read(logits).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.len(), prompts.len());
    let tensor = |index| {
        let tensor = tensors.tensor(&format!("logits.{index}")).unwrap();
        assert_eq!(tensor.dtype(), safetensors::Dtype::F32);
        (tensor.shape().to_vec(), floats(tensor.data()))
    };
    (0..prompts.len()).map(tensor).collect()
}

#[track_caller]
fn close(what: &str, found: &[f32], golden: &[f32]) {
    assert_eq!(found.len(), golden.len(), "{what}");
    let worst = found.iter().zip(golden).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= TOLERANCE, "{what}: off by {worst}");
}

fn all_positions_equal_the_goldens(device: &str) {
    let folder = tempfile::tempdir().unwrap();
    for model in ["qwen35-a", "qwen35-b"] {
        let prompts = golden_prompts(model);
        let extra = ["--all-positions", "--device", device];
        for (index, (shape, values)) in
            door(&golden(model), &prompts, folder.path(), &extra).into_iter().enumerate()
        {
            let prompt = &prompts[index];
            let width = prompt.logits[0].len();
            assert_eq!(shape, [prompt.ids.len(), width]);
            for (row, position) in prompt.logits.iter().zip(&prompt.positions) {
                let start = usize::try_from(*position).unwrap() * width;
                let what = format!("{model} on {device}, prompt {index}, position {position}");
                close(&what, &values[start..start + width], row);
            }
        }
    }
}

#[test]
fn logits_at_all_positions_equal_the_goldens_on_the_cpu() {
    all_positions_equal_the_goldens("cpu");
}

#[test]
fn logits_at_all_positions_equal_the_goldens_on_the_reference_device() {
    all_positions_equal_the_goldens("reference");
}

#[test]
fn without_all_positions_a_tensor_is_the_last_row() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = golden_prompts("qwen35-a");
    for (index, (shape, values)) in
        door(&golden("qwen35-a"), &prompts, folder.path(), &[]).into_iter().enumerate()
    {
        // The last recorded position is the prompt's last.
        let last = prompts[index].logits.last().unwrap();
        assert_eq!(shape, [last.len()]);
        close(&format!("prompt {index}"), &values, last);
    }
}
