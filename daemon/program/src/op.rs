//! The ops. Shapes are written `[rows x width]`; `n` is the number of token columns.

use crate::tensor::Tensor;
use std::sync::Arc;

/// How a product rounds its activations before multiplying, and adds up. The weight's type
/// ([`Act::for_weight`]) and the kind of pass pick it, on every device alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum Act {
    /// Not at all.
    F32,
    /// To IEEE half, nearest even.
    F16,
    /// Blocks of 32 to signed bytes, scale kept as f16 ([`crate::scalar::quant::q8_32`]).
    Q8_32,
    /// Blocks of 256 to signed bytes, scale f32 ([`crate::scalar::quant::q8k_256`]).
    Q8K_256,
    /// What a matrix unit of half-precision tiles does ([`crate::scalar::weight::dot_tile`]):
    /// activations and dequantized weights are rounded to IEEE half, nearest even; their products,
    /// exact in single precision, are added in single precision in order of the index along the
    /// width, from +0; the sum is rounded to half once, nearest even, and stored as f32. What
    /// rounds to 65,520 or more, of inputs and sums alike, is infinite. For weights of every
    /// type, all rows of them, and for prefill columns only: a model chooses it, never a device.
    F16Tile,
}

impl Act {
    /// The rounding that goes with a weight type where the kind of pass asks for no other.
    pub fn for_weight(dtype: crate::DType) -> Act {
        use crate::DType::*;
        match dtype {
            F32 | BF16 => Act::F32,
            F16 => Act::F16,
            Q8_0 | Q4_0 | Q4_1 | Q5_0 => Act::Q8_32,
            Q4_K | Q5_K | Q6_K => Act::Q8K_256,
        }
    }

    /// The roundings of two weights where the kind of pass asks for no others.
    pub fn for_weights(weights: [Tensor; 2]) -> [Act; 2] {
        weights.map(|weight| Act::for_weight(weight.dtype))
    }

    /// Its name, as in errors.
    pub fn name(self) -> &'static str {
        match self {
            Act::F32 => "f32",
            Act::F16 => "f16",
            Act::Q8_32 => "q8_32",
            Act::Q8K_256 => "q8k_256",
            Act::F16Tile => "f16_tile",
        }
    }
}

/// One product of a [`Op::MatMul`]: `out = x * weight^T`.
#[derive(Clone, Debug)]
pub struct Product {
    /// `[outputs x inputs]`.
    pub weight: Tensor,
    /// [`Act::for_weight`] of the weight's type, or [`Act::F16Tile`].
    pub act: Act,
    /// Only these rows of the weight, in this order (the restricted output head); all where
    /// `None`. Not with [`Act::F16Tile`].
    pub rows: Option<Arc<[u32]>>,
    /// `[n x outputs]`, or `[n x rows.len()]`.
    pub out: Tensor,
}

impl Product {
    /// With all rows of a weight, rounded as its type asks.
    pub fn new(weight: Tensor, out: Tensor) -> Product {
        Product { weight, act: Act::for_weight(weight.dtype), rows: None, out }
    }
}

/// A recurrent state to write: the state after column `after` of the op's columns.
///
/// One mechanism serves the pass's end state, checkpoints saved inside a pass, and the
/// planes that speculation may roll back to.
#[derive(Clone, Copy, Debug)]
pub struct StateOut {
    /// Index of the column within the op.
    pub after: u32,
    /// Where to; the shape of the op's `state`.
    pub to: Tensor,
}

/// Which form of the recurrence runs. Chosen by the *kind* of columns, never by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaForm {
    /// Prefill columns. Chunks of at most 64 that end on absolute multiples of 64;
    /// `position` is the absolute position of the first column.
    Chunked {
        /// Absolute position of column 0.
        position: u32,
    },
    /// Decode and verify columns: one after the other.
    PerToken,
}

/// Columns in a full chunk of the chunked recurrence.
pub const CHUNK: u32 = 64;

/// One operation. `out` may be the same view as an input where marked *in place*; apart
/// from that no output overlaps an input or another output.
#[derive(Clone, Debug)]
pub enum Op {
    /// `out[i] = scale * table[ids[i]]`, dequantized. `out [n x width]`.
    Embed {
        /// `[vocabulary x width]`, any type.
        table: Tensor,
        /// One row index a column.
        ids: Arc<[u32]>,
        /// Multiplies the row (1.0 for most families).
        scale: f32,
        /// `[n x width]`.
        out: Tensor,
    },
    /// `out = x / sqrt(mean(x^2) + eps) * weight`, row by row. In place.
    RmsNorm {
        /// `[rows x width]`.
        x: Tensor,
        /// `[1 x width]`, f32.
        weight: Tensor,
        /// Added to the mean square.
        eps: f32,
        /// `[rows x width]`.
        out: Tensor,
    },
    /// `out = scale * x / sqrt(sum(x^2) + eps)` for each of `groups` equal parts of every
    /// row (heads of a wider row). In place.
    L2Norm {
        /// `[rows x width]`.
        x: Tensor,
        /// Parts a row.
        groups: u32,
        /// Added to the sum of squares.
        eps: f32,
        /// Multiplies the result.
        scale: f32,
        /// `[rows x width]`.
        out: Tensor,
    },
    /// Several products of the same activations; each rounds them as its `act` says.
    MatMul {
        /// `[n x inputs]`.
        x: Tensor,
        /// At least one.
        products: Vec<Product>,
    },
    /// `out = silu(x gate^T) * (x up^T)`: two products of equal shape and the activation in
    /// one op, equal to the bit to [`Op::MatMul`] followed by [`Op::SiluMul`].
    SwiGlu {
        /// `[n x inputs]`.
        x: Tensor,
        /// `[ffn x inputs]`.
        gate: Tensor,
        /// `[ffn x inputs]`.
        up: Tensor,
        /// Of `gate` and `up`, as [`Product::act`].
        acts: [Act; 2],
        /// `[n x ffn]`.
        out: Tensor,
    },
    /// `out = silu(gate) * up`. In place.
    SiluMul {
        /// `[n x ffn]`.
        gate: Tensor,
        /// `[n x ffn]`.
        up: Tensor,
        /// `[n x ffn]`.
        out: Tensor,
    },
    /// `out = x * sigmoid(gate)`. In place.
    SigmoidMul {
        /// `[rows x width]`.
        x: Tensor,
        /// `[rows x width]`.
        gate: Tensor,
        /// `[rows x width]`.
        out: Tensor,
    },
    /// `out = a + b`. In place.
    Add {
        /// `[rows x width]`.
        a: Tensor,
        /// `[rows x width]`.
        b: Tensor,
        /// `[rows x width]`.
        out: Tensor,
    },
    /// Rotary embedding, NEOX pairing: for `i < half`, `(x[i], x[i + half])` turns by the
    /// table's angle `i`; values from `2 * half` on are copied. In place.
    Rope {
        /// `[n * heads x head_dim]`.
        x: Tensor,
        /// Heads a column: row `r` of `x` uses row `r / heads` of the table.
        heads: u32,
        /// `[n x 2 * half]`: cosines, then sines.
        table: Tensor,
        /// `[n * heads x head_dim]`.
        out: Tensor,
    },
    /// `out = x`, converted between f32 and f16 (nearest even). Writes KV cells and keeps
    /// hidden states.
    Copy {
        /// `[rows x width]`.
        x: Tensor,
        /// `[rows x width]`.
        out: Tensor,
    },
    /// `out[i] = x[rows[i]]`.
    Gather {
        /// `[m x width]`.
        x: Tensor,
        /// Row indices.
        rows: Arc<[u32]>,
        /// `[rows.len() x width]`.
        out: Tensor,
    },
    /// Causal attention of `n` columns over the cells of one sequence. Column `i` sees the
    /// cells `0 ..= past + i`.
    Attention {
        /// `[n * heads x head_dim]`.
        q: Tensor,
        /// `[cells x kv_heads * head_dim]`, f32 or f16; the columns' own cells are in.
        k: Tensor,
        /// As `k`.
        v: Tensor,
        /// Query heads; head `h` reads KV head `h / (heads / kv_heads)`.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Cells before column 0's own.
        past: u32,
        /// Multiplies the scores.
        scale: f32,
        /// `[n * heads x head_dim]`.
        out: Tensor,
    },
    /// Causal depthwise convolution over the columns, `taps - 1` earlier inputs kept as
    /// state: `out[t][c] = act(bias[c] + sum_j kernel[c][j] * in[t - taps + 1 + j][c])`.
    Conv {
        /// `[n x channels]`.
        x: Tensor,
        /// `[taps - 1 x channels]`, oldest first: the inputs before column 0.
        state: Tensor,
        /// `[channels x taps]`, f32.
        kernel: Tensor,
        /// `[1 x channels]`, f32.
        bias: Option<Tensor>,
        /// SiLU on the result.
        silu: bool,
        /// `[n x channels]`.
        out: Tensor,
        /// States to write.
        states: Vec<StateOut>,
    },
    /// Gates of the delta rule: `decay = a * softplus(alpha + dt)` (a log), `beta = sigmoid(beta)`.
    DeltaGates {
        /// `[n x heads]`; in place with `decay`.
        alpha: Tensor,
        /// `[n x heads]`; in place with `beta_out`.
        beta: Tensor,
        /// `[1 x heads]`, f32, already `-exp(A_log)`.
        a: Tensor,
        /// `[1 x heads]`, f32.
        dt: Tensor,
        /// `[n x heads]`.
        decay: Tensor,
        /// `[n x heads]`.
        beta_out: Tensor,
    },
    /// The gated delta rule. For each value head `h` (key head `h % key_heads`), with state
    /// `S [key_dim x value_dim]`: `S = exp(decay) S; d = beta (v - S^T k); S += k d^T; out = S^T q`.
    GatedDelta {
        /// Chunked or per token.
        form: DeltaForm,
        /// `[n x key_heads * key_dim]`, normalised and scaled.
        q: Tensor,
        /// `[n x key_heads * key_dim]`, normalised.
        k: Tensor,
        /// `[n x heads * value_dim]`.
        v: Tensor,
        /// `[n x heads]`, logarithms, not above 0.
        decay: Tensor,
        /// `[n x heads]`.
        beta: Tensor,
        /// Value heads.
        heads: u32,
        /// Key heads.
        key_heads: u32,
        /// `[heads * key_dim x value_dim]`: the state before column 0.
        state: Tensor,
        /// `[n x heads * value_dim]`.
        out: Tensor,
        /// States to write.
        states: Vec<StateOut>,
    },
    /// `out = rms_norm(x, weight) * silu(z)`, row by row. In place.
    GatedNorm {
        /// `[rows x width]`.
        x: Tensor,
        /// `[rows x width]`.
        z: Tensor,
        /// `[1 x width]`, f32.
        weight: Tensor,
        /// Added to the mean square.
        eps: f32,
        /// `[rows x width]`.
        out: Tensor,
    },
}

impl Op {
    /// The op's name, for errors and profiles.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::RmsNorm { .. } => "rms_norm",
            Op::L2Norm { .. } => "l2_norm",
            Op::MatMul { .. } => "matmul",
            Op::SwiGlu { .. } => "swiglu",
            Op::SiluMul { .. } => "silu_mul",
            Op::SigmoidMul { .. } => "sigmoid_mul",
            Op::Add { .. } => "add",
            Op::Rope { .. } => "rope",
            Op::Copy { .. } => "copy",
            Op::Gather { .. } => "gather",
            Op::Attention { .. } => "attention",
            Op::Conv { .. } => "conv",
            Op::DeltaGates { .. } => "delta_gates",
            Op::GatedDelta { .. } => "gated_delta",
            Op::GatedNorm { .. } => "gated_norm",
        }
    }
}
