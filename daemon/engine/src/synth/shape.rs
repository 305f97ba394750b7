//! Shapes of the Qwen3.5 family, and their tensors.

use crate::gguf::GgufWriter;
use tandem_program::DType;

/// Sizes of the family; `Tiny` is for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 4 layers of hidden size 256.
    Tiny,
    /// 24 layers, hidden 1024.
    B0_8,
    /// 24 layers, hidden 2048.
    B2,
    /// 32 layers, hidden 2560.
    B4,
}

/// Types of the matrices, as llama.cpp's quantizer mixes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quant {
    /// All F16.
    F16,
    /// All Q8_0.
    Q8_0,
    /// Q4_0; the tied token matrix Q6_K.
    Q4_0,
    /// Q4_K; the token matrix and half of attn_v, attn_qkv and ffn_down Q6_K.
    Q4K,
}

pub(super) struct Shape {
    layers: usize,
    hidden: usize,
    ffn: usize,
    heads: usize,
    kv_heads: usize,
    key_heads: usize,
    value_heads: usize,
    rows: usize,
    name: &'static str,
}

const HEAD: usize = 256;
const ROTARY: usize = 64;
const DELTA_HEAD: usize = 128;
const TAPS: usize = 4;
const INTERVAL: usize = 4;

impl Shape {
    pub(super) fn of(size: Size, rows: usize) -> Self {
        let shape = |name, layers, hidden, ffn, heads: (usize, usize), delta: (usize, usize)| Shape {
            layers,
            hidden,
            ffn,
            heads: heads.0,
            kv_heads: heads.1,
            key_heads: delta.0,
            value_heads: delta.1,
            rows,
            name,
        };
        match size {
            Size::Tiny => shape("random tiny", 4, 256, 512, (2, 1), (2, 2)),
            Size::B0_8 => shape("random 0.8B", 24, 1024, 3584, (8, 2), (16, 16)),
            Size::B2 => shape("random 2B", 24, 2048, 6144, (8, 2), (16, 16)),
            Size::B4 => shape("random 4B", 32, 2560, 9216, (16, 4), (16, 32)),
        }
    }
}

/// How a tensor's values are drawn.
#[derive(Clone, Copy, Debug)]
pub(super) enum Values {
    /// All the same (norm weights).
    Constant(f32),
    /// F32, uniform.
    Uniform(f32, f32),
    /// About this standard deviation.
    Normal(f32),
}

pub(super) struct NamedTensor {
    pub(super) name: String,
    pub(super) dtype: DType,
    /// ggml order.
    pub(super) shape: Vec<usize>,
    pub(super) values: Values,
}

struct Tensors {
    list: Vec<NamedTensor>,
    quant: Quant,
}

impl Tensors {
    fn plain(&mut self, name: String, shape: &[usize], values: Values) {
        self.list.push(NamedTensor { name, dtype: DType::F32, shape: shape.to_vec(), values });
    }

    fn norm(&mut self, name: String, width: usize) {
        self.plain(name, &[width], Values::Constant(1.0));
    }

    /// A matrix; `better` takes the six-bit type where the mix has one.
    fn matrix(&mut self, name: String, inputs: usize, outputs: usize, better: bool) {
        let dtype = match self.quant {
            Quant::F16 => DType::F16,
            Quant::Q8_0 => DType::Q8_0,
            Quant::Q4_0 | Quant::Q4K if better => DType::Q6_K,
            Quant::Q4_0 => DType::Q4_0,
            Quant::Q4K => DType::Q4_K,
        };
        let values = Values::Normal(1.0 / (inputs as f32).sqrt());
        self.list.push(NamedTensor { name, dtype, shape: vec![inputs, outputs], values });
    }
}

/// Writes the keys; gives the tensors in the file's order.
pub(super) fn qwen35(s: &Shape, quant: Quant, writer: &mut GgufWriter) -> Vec<NamedTensor> {
    keys(s, quant, writer);
    let mut t = Tensors { list: Vec::new(), quant };
    t.matrix("token_embd.weight".into(), s.hidden, s.rows, true);
    t.norm("output_norm.weight".into(), s.hidden);
    for i in 0..s.layers {
        // llama.cpp's mix: the better type in every other layer.
        let better = quant == Quant::Q4K && i.is_multiple_of(2);
        if (i + 1).is_multiple_of(INTERVAL) {
            attention(&mut t, s, i, better)
        } else {
            delta(&mut t, s, i, better)
        }
        feed_forward(&mut t, s, i, better);
    }
    let mtp = s.layers;
    attention(&mut t, s, mtp, false);
    feed_forward(&mut t, s, mtp, false);
    t.matrix(format!("blk.{mtp}.nextn.eh_proj.weight"), 2 * s.hidden, s.hidden, false);
    for norm in ["enorm", "hnorm", "shared_head_norm"] {
        t.norm(format!("blk.{mtp}.nextn.{norm}.weight"), s.hidden);
    }
    t.list
}

fn keys(s: &Shape, quant: Quant, writer: &mut GgufWriter) {
    // ggml's numbers for the files' main type.
    let file_type = match quant {
        Quant::F16 => 1,
        Quant::Q4_0 => 2,
        Quant::Q8_0 => 7,
        Quant::Q4K => 15,
    };
    let key = |name: &str| format!("qwen35.{name}");
    writer
        .str("general.architecture", "qwen35")
        .str("general.name", s.name)
        .u32("general.file_type", file_type)
        .u32("general.quantization_version", 2)
        .u32(&key("context_length"), 32_768)
        .u32(&key("embedding_length"), s.hidden as u32)
        .u32(&key("block_count"), s.layers as u32 + 1)
        .u32(&key("nextn_predict_layers"), 1)
        .u32(&key("feed_forward_length"), s.ffn as u32)
        .u32(&key("attention.head_count"), s.heads as u32)
        .u32(&key("attention.head_count_kv"), s.kv_heads as u32)
        .u32(&key("attention.key_length"), HEAD as u32)
        .u32(&key("attention.value_length"), HEAD as u32)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-6)
        .f32(&key("rope.freq_base"), 10_000_000.0)
        .u32(&key("rope.dimension_count"), ROTARY as u32)
        .i32s(&key("rope.dimension_sections"), &[11, 11, 10, 0])
        .u32(&key("full_attention_interval"), INTERVAL as u32)
        .u32(&key("ssm.conv_kernel"), TAPS as u32)
        .u32(&key("ssm.state_size"), DELTA_HEAD as u32)
        .u32(&key("ssm.group_count"), s.key_heads as u32)
        .u32(&key("ssm.time_step_rank"), s.value_heads as u32)
        .u32(&key("ssm.inner_size"), (s.value_heads * DELTA_HEAD) as u32);
}

fn attention(t: &mut Tensors, s: &Shape, i: usize, better: bool) {
    let name = |part: &str| format!("blk.{i}.{part}");
    t.norm(name("attn_norm.weight"), s.hidden);
    t.matrix(name("attn_q.weight"), s.hidden, 2 * s.heads * HEAD, false);
    t.matrix(name("attn_k.weight"), s.hidden, s.kv_heads * HEAD, false);
    t.matrix(name("attn_v.weight"), s.hidden, s.kv_heads * HEAD, better);
    t.norm(name("attn_q_norm.weight"), HEAD);
    t.norm(name("attn_k_norm.weight"), HEAD);
    t.matrix(name("attn_output.weight"), s.heads * HEAD, s.hidden, false);
}

fn delta(t: &mut Tensors, s: &Shape, i: usize, better: bool) {
    let name = |part: &str| format!("blk.{i}.{part}");
    let (keys, values) = (s.key_heads * DELTA_HEAD, s.value_heads * DELTA_HEAD);
    t.norm(name("attn_norm.weight"), s.hidden);
    t.matrix(name("attn_qkv.weight"), s.hidden, 2 * keys + values, better);
    t.matrix(name("attn_gate.weight"), s.hidden, values, false);
    t.matrix(name("ssm_beta.weight"), s.hidden, s.value_heads, false);
    t.matrix(name("ssm_alpha.weight"), s.hidden, s.value_heads, false);
    t.plain(name("ssm_conv1d.weight"), &[TAPS, 2 * keys + values], Values::Uniform(-0.5, 0.5));
    t.plain(name("ssm_dt.bias"), &[s.value_heads], Values::Uniform(-4.0, 1.0));
    t.plain(name("ssm_a"), &[s.value_heads], Values::Uniform(-2.0, -0.02));
    t.norm(name("ssm_norm.weight"), DELTA_HEAD);
    t.matrix(name("ssm_out.weight"), values, s.hidden, false);
}

fn feed_forward(t: &mut Tensors, s: &Shape, i: usize, better: bool) {
    let name = |part: &str| format!("blk.{i}.{part}");
    t.norm(name("post_attention_norm.weight"), s.hidden);
    t.matrix(name("ffn_gate.weight"), s.hidden, s.ffn, false);
    t.matrix(name("ffn_up.weight"), s.hidden, s.ffn, false);
    t.matrix(name("ffn_down.weight"), s.ffn, s.hidden, better);
}
