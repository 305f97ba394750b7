//! Golden files: where they are, and a sequence that runs one.
#![allow(dead_code, missing_docs, unreachable_pub)] // Each test binary uses its part.

use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tandem_cpu::{Cpu, CpuConfig};
use tandem_engine::executor::Executor;
use tandem_engine::gguf::Gguf;
use tandem_engine::pass::{Kind, Pass, Segment};
use tandem_engine::state::{KvCache, State};
use tandem_engine::switches::Switches;
use tandem_program::Device;
use tandem_program::reference::Reference;

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The golden qwen35 models: the project's own set, and the larger fixtures where they lie
/// beside the checkout (`TANDEM_SHARED` names another place).
pub fn model_files(quantized: bool) -> Vec<PathBuf> {
    let shared = std::env::var_os("TANDEM_SHARED").map_or_else(|| root().join("../shared"), PathBuf::from);
    let mut folders = vec![root().join("tests/golden")];
    let larger = shared.join("fixtures/golden");
    if larger.is_dir() {
        folders.push(larger);
    } else {
        println!(
            "the larger fixtures are absent ({}); the project's own set alone is tested",
            larger.display()
        );
    }
    let mut files: Vec<PathBuf> = folders
        .iter()
        .flat_map(|f| std::fs::read_dir(f).into_iter().flatten().flatten())
        .map(|e| e.path())
        .filter(|p| {
            let name = p.file_stem().and_then(|s| s.to_str()).unwrap_or("");
            p.extension().is_some_and(|e| e == "gguf")
                && name.starts_with("qwen35")
                && name.contains("-q") == quantized
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no golden models in {folders:?}");
    files
}

/// Every device that must agree with the goldens.
pub fn devices() -> Vec<Box<dyn Device>> {
    let cpu = Cpu::new(CpuConfig::default()).expect("the CPU device");
    vec![Box::new(Reference::new()), Box::new(cpu)]
}

/// A golden model with one sequence.
pub struct Golden {
    pub executor: Executor,
    tensors: Vec<u8>,
    facts: serde_json::Value,
    kv: KvCache,
}

impl Golden {
    pub fn open(file: &Path, device: Box<dyn Device>, switches: Switches) -> Self {
        let gguf = Gguf::open(file).expect("golden model opens");
        let mut executor = Executor::new(&gguf, device, switches).expect("golden model loads");
        let tensors = std::fs::read(file.with_extension("golden.safetensors")).expect("golden tensors");
        let facts = std::fs::read(file.with_extension("golden.json")).expect("golden facts");
        let kv = executor.new_kv(512).expect("cache");
        Golden { executor, tensors, facts: serde_json::from_slice(&facts).expect("json"), kv }
    }

    pub fn kv(&self) -> KvCache {
        self.kv
    }

    /// Goes on with another cache.
    pub fn set_kv(&mut self, kv: KvCache) {
        self.kv = kv;
    }

    pub fn device(&self) -> String {
        self.executor.device().name.clone()
    }

    fn tensor<T>(&self, name: &str, read: impl Fn(&[u8]) -> Vec<T>) -> Vec<T> {
        let all = SafeTensors::deserialize(&self.tensors).expect("safetensors");
        let tensor = all.tensor(name).unwrap_or_else(|_| panic!("golden tensor {name}"));
        read(tensor.data())
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.tensor(name, |b| b.as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v)).collect())
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.tensor(name, |b| b.as_chunks::<8>().0.iter().map(|v| i64::from_le_bytes(*v) as u32).collect())
    }

    pub fn prompts(&self) -> usize {
        let all = SafeTensors::deserialize(&self.tensors).expect("safetensors");
        (0..).take_while(|p| all.tensor(&format!("p{p}.input_ids")).is_ok()).count()
    }

    /// Runs tokens from `position` on; `end` is the state after the last.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &mut self,
        kind: Kind,
        tokens: &[u32],
        position: u32,
        state: Arc<State>,
        logits: Vec<u32>,
        mtp_logits: Vec<u32>,
    ) -> (Arc<State>, Vec<Vec<f32>>, Vec<Vec<f32>>) {
        let end = self.executor.take_state().expect("state");
        let segment = Segment {
            states: vec![(tokens.len() as u32 - 1, Arc::clone(&end))],
            logits,
            mtp: true,
            mtp_logits,
            ..Segment::new(kind, tokens.to_vec(), position, self.kv, state)
        };
        let out = self.executor.run(&Pass { segments: vec![segment] }).expect("pass runs");
        (end, out.logits, out.mtp_logits)
    }

    pub fn zero(&self) -> Arc<State> {
        self.executor.states().zero()
    }

    pub fn logits_at_positions(&mut self, p: usize) -> Vec<f32> {
        let (ids, at) = (self.ids(&format!("p{p}.input_ids")), self.ids(&format!("p{p}.positions")));
        self.run(Kind::Prefill, &ids, 0, self.zero(), at, vec![]).1.concat()
    }

    pub fn greedy(&mut self, p: usize, count: usize) -> Vec<u32> {
        let ids = self.ids(&format!("p{p}.input_ids"));
        let last = ids.len() as u32 - 1;
        let (mut state, mut logits, _) = self.run(Kind::Prefill, &ids, 0, self.zero(), vec![last], vec![]);
        let mut answer = Vec::new();
        loop {
            let row = &logits[0];
            let top = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("vocabulary") as u32;
            answer.push(top);
            if answer.len() == count {
                return answer;
            }
            let position = (ids.len() + answer.len() - 1) as u32;
            (state, logits, _) = self.run(Kind::Decode, &[top], position, state, vec![0], vec![]);
        }
    }

    /// Convolution state as `[channels][taps - 1]` and recurrent state of the recorded layer.
    pub fn states(&mut self, p: usize) -> (Vec<f32>, Vec<f32>) {
        let ids = self.ids(&format!("p{p}.input_ids"));
        let (end, _, _) = self.run(Kind::Prefill, &ids, 0, self.zero(), vec![], vec![]);
        let layer = self.facts["prompts"][p]["gdn_layer"].as_u64().expect("gdn_layer") as usize;
        // Layers before it, less the attention layers (every fourth).
        let index = layer - (layer + 1) / 4;
        let conv = self.executor.layout().conv(end.buffer(), index);
        let state = self.executor.layout().state(end.buffer(), index);
        let rows = self.executor.read(&conv).expect("conv state");
        let (taps, channels) = (conv.rows as usize, conv.width as usize);
        let mut turned = vec![0.0; rows.len()];
        for t in 0..taps {
            for c in 0..channels {
                turned[c * taps + t] = rows[t * channels + c];
            }
        }
        (turned, self.executor.read(&state).expect("recurrent state"))
    }

    /// MTP logits at the recorded entries; the greedy token follows the prompt.
    pub fn mtp_logits(&mut self, p: usize) -> Vec<f32> {
        let ids = self.ids(&format!("p{p}.input_ids"));
        let next = self.ids(&format!("p{p}.greedy"))[0];
        let entries = self.ids(&format!("p{p}.mtp_positions"));
        let n = ids.len() as u32;
        let inside: Vec<u32> = entries.iter().filter(|e| **e + 1 < n).map(|e| e + 1).collect();
        let (state, _, mut rows) = self.run(Kind::Prefill, &ids, 0, self.zero(), vec![], inside.clone());
        if inside.len() < entries.len() {
            rows.extend(self.run(Kind::Decode, &[next], n, state, vec![], vec![0]).2);
        }
        rows.concat()
    }
}
