//! The file's keys.

use crate::gguf::Gguf;
use crate::model::ModelError;

/// Shapes of a Qwen3.5 text model.
#[derive(Clone, Debug)]
pub struct Config {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of the feed-forward layers.
    pub ffn: u32,
    /// Tokens of context.
    pub context: u32,
    /// A flag a layer, the MTP block left out: recurrent, or full attention.
    pub recurrent: Vec<bool>,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Attention head dimension.
    pub head_dim: u32,
    /// Values of a head that rotate.
    pub rotary: u32,
    /// Frequencies by axis (time, height, width), interleaved.
    pub sections: [u32; 3],
    /// Rope base.
    pub rope_base: f32,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Taps of the convolution.
    pub conv_taps: u32,
    /// Key heads of the delta rule.
    pub key_heads: u32,
    /// Value heads of the delta rule.
    pub value_heads: u32,
    /// Key head dimension.
    pub key_dim: u32,
    /// Value head dimension.
    pub value_dim: u32,
    /// Whether block `recurrent.len()` is an MTP block.
    pub mtp: bool,
}

/// Largest value accepted for any dimension: products of two stay in 64 bits, tensors' sizes
/// are checked against the file anyway.
const MAX_DIMENSION: u32 = 1 << 20;

struct Keys<'a>(&'a Gguf);

impl Keys<'_> {
    fn refuse(key: &str, value: impl ToString, need: impl Into<String>) -> ModelError {
        ModelError::Config { key: key.into(), value: value.to_string(), need: need.into() }
    }

    fn size(&self, key: &str) -> Result<u32, ModelError> {
        let value = self.0.meta().u32(key)?;
        if value == 0 || value > MAX_DIMENSION {
            return Err(Self::refuse(key, value, format!("it must lie from 1 to {MAX_DIMENSION}")));
        }
        Ok(value)
    }

    fn size_or(&self, key: &str, default: u32) -> Result<u32, ModelError> {
        if self.0.meta().contains(key) { self.size(key) } else { Ok(default) }
    }

    fn float(&self, key: &str, least: f32) -> Result<f32, ModelError> {
        let value = self.0.meta().f32(key)?;
        if !value.is_finite() || value <= least {
            return Err(Self::refuse(key, value, format!("it must be finite and above {least}")));
        }
        Ok(value)
    }
}

fn divide(key: &str, whole: u32, parts: u32, what: &str) -> Result<u32, ModelError> {
    if !whole.is_multiple_of(parts) {
        return Err(Keys::refuse(key, whole, format!("it must be a multiple of {what}, {parts}")));
    }
    Ok(whole / parts)
}

impl Config {
    /// Reads and checks the keys.
    pub fn read(gguf: &Gguf) -> Result<Self, ModelError> {
        let keys = Keys(gguf);
        let hidden = keys.size("qwen35.embedding_length")?;
        let heads = keys.size("qwen35.attention.head_count")?;
        let kv_heads = keys.size("qwen35.attention.head_count_kv")?;
        divide("qwen35.attention.head_count", heads, kv_heads, "the KV head count")?;
        let head_dim = keys.size_or("qwen35.attention.key_length", (hidden / heads).max(1))?;
        let value_length = keys.size_or("qwen35.attention.value_length", head_dim)?;
        if value_length != head_dim {
            return Err(Keys::refuse(
                "qwen35.attention.value_length",
                value_length,
                format!("it must equal the key length, {head_dim}"),
            ));
        }
        let rotary = keys.size_or("qwen35.rope.dimension_count", head_dim)?;
        if rotary > head_dim || !rotary.is_multiple_of(2) {
            return Err(Keys::refuse(
                "qwen35.rope.dimension_count",
                rotary,
                format!("it must be even and at most the head dimension, {head_dim}"),
            ));
        }
        let value_heads = keys.size("qwen35.ssm.time_step_rank")?;
        let key_heads = keys.size("qwen35.ssm.group_count")?;
        divide("qwen35.ssm.time_step_rank", value_heads, key_heads, "the key head count")?;
        let inner = keys.size("qwen35.ssm.inner_size")?;
        let conv_taps = keys.size("qwen35.ssm.conv_kernel")?;
        if !(2..=16).contains(&conv_taps) {
            return Err(Keys::refuse("qwen35.ssm.conv_kernel", conv_taps, "it must lie from 2 to 16"));
        }
        let (recurrent, mtp) = layers(&keys)?;
        Ok(Config {
            hidden,
            ffn: keys.size("qwen35.feed_forward_length")?,
            context: keys.size_or("qwen35.context_length", MAX_DIMENSION)?,
            recurrent,
            heads,
            kv_heads,
            head_dim,
            rotary,
            sections: sections(&keys)?,
            rope_base: keys.float("qwen35.rope.freq_base", 0.0)?,
            eps: keys.float("qwen35.attention.layer_norm_rms_epsilon", 0.0)?,
            conv_taps,
            key_heads,
            value_heads,
            key_dim: keys.size("qwen35.ssm.state_size")?,
            value_dim: divide("qwen35.ssm.inner_size", inner, value_heads, "the value head count")?,
            mtp,
        })
    }

    /// Width of the convolution: queries, keys and values side by side.
    pub fn conv_channels(&self) -> u32 {
        2 * self.key_width() + self.value_width()
    }

    /// Width of the delta rule's queries, and of its keys.
    pub fn key_width(&self) -> u32 {
        self.key_heads * self.key_dim
    }

    /// Width of the delta rule's values.
    pub fn value_width(&self) -> u32 {
        self.value_heads * self.value_dim
    }
}

fn sections(keys: &Keys<'_>) -> Result<[u32; 3], ModelError> {
    let key = "qwen35.rope.dimension_sections";
    let all = keys.0.meta().u32s(key)?;
    match all.as_slice() {
        [t, h, w, ..] if [*t, *h, *w].iter().all(|s| *s <= MAX_DIMENSION) => Ok([*t, *h, *w]),
        _ => Err(Keys::refuse(key, format!("{all:?}"), "it must hold three or four section sizes")),
    }
}

/// A flag a layer, and whether the last block is an MTP block.
fn layers(keys: &Keys<'_>) -> Result<(Vec<bool>, bool), ModelError> {
    let meta = keys.0.meta();
    let blocks = keys.size("qwen35.block_count")?;
    if blocks > 1024 {
        return Err(Keys::refuse("qwen35.block_count", blocks, "it must be at most 1024"));
    }
    let mtp_key = "qwen35.nextn_predict_layers";
    let mtp = if meta.contains(mtp_key) { meta.u32(mtp_key)? } else { 0 };
    if mtp > 1 || mtp >= blocks {
        return Err(Keys::refuse(
            mtp_key,
            mtp,
            format!("it must be 0 or 1 and below the block count, {blocks}"),
        ));
    }
    let count = (blocks - mtp) as usize;
    let list_key = "qwen35.attention.recurrent_layers";
    if meta.contains(list_key) {
        let mut list = meta.bools(list_key)?;
        if list.len() != blocks as usize && list.len() != count {
            return Err(Keys::refuse(
                list_key,
                format!("{} flags", list.len()),
                format!("it must hold one a block, {blocks}"),
            ));
        }
        list.truncate(count);
        return Ok((list, mtp == 1));
    }
    let interval = keys.size_or("qwen35.full_attention_interval", 4)? as usize;
    Ok(((0..count).map(|i| !(i + 1).is_multiple_of(interval)).collect(), mtp == 1))
}
