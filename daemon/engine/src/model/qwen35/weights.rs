//! The file's tensors.

use super::Config;
use crate::gguf::{Gguf, GgufError};
use crate::model::{DraftMatrix, ModelError};
use tandem_program::{BufferId, DType, Tensor};

pub(super) struct Attention {
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    pub(super) q_norm: Tensor,
    pub(super) k_norm: Tensor,
    pub(super) output: Tensor,
}

pub(super) struct Delta {
    pub(super) qkv: Tensor,
    pub(super) gate: Tensor,
    pub(super) alpha: Tensor,
    pub(super) beta: Tensor,
    pub(super) kernel: Tensor,
    pub(super) dt: Tensor,
    pub(super) a: Tensor,
    pub(super) norm: Tensor,
    pub(super) output: Tensor,
}

pub(super) enum Mixer {
    Attention(Attention),
    Delta(Delta),
}

pub(super) struct Layer {
    pub(super) norm: Tensor,
    pub(super) mixer: Mixer,
    pub(super) ffn_norm: Tensor,
    pub(super) ffn_gate: Tensor,
    pub(super) ffn_up: Tensor,
    pub(super) ffn_down: Tensor,
}

pub(super) struct Mtp {
    pub(super) layer: Layer,
    pub(super) embed: Tensor,
    pub(super) embed_norm: Tensor,
    pub(super) hidden_norm: Tensor,
    pub(super) project: Tensor,
    pub(super) head_norm: Tensor,
    pub(super) head: Tensor,
    /// The draft matrix, where the file has one.
    pub(super) draft: Option<Draft>,
}

/// Some rows of the head, and the tokens they stand for.
pub(super) struct Draft {
    pub(super) matrix: Tensor,
    pub(super) ids: Vec<u32>,
}

pub(super) struct Weights {
    pub(super) embed: Tensor,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Tensor,
    pub(super) output: Tensor,
    pub(super) mtp: Option<Mtp>,
}

struct Reader<'a> {
    gguf: &'a Gguf,
    buffer: BufferId,
}

impl Reader<'_> {
    /// A product's weight: any type. `inputs` and `outputs` as ggml's `{inputs, outputs}`.
    fn matrix(&self, name: &str, inputs: u32, outputs: u32) -> Result<Tensor, ModelError> {
        let info = self.gguf.require(name, &[inputs as usize, outputs as usize])?;
        Ok(Tensor::dense(self.buffer, info.offset as u64, info.dtype, outputs, inputs))
    }

    /// A vector or small table that ops read as f32.
    fn plain(&self, name: &str, rows: u32, width: u32) -> Result<Tensor, ModelError> {
        let shape: &[usize] = if rows == 1 { &[width as usize] } else { &[width as usize, rows as usize] };
        let info = self.gguf.require(name, shape)?;
        if info.dtype != DType::F32 {
            return Err(ModelError::Config {
                key: name.into(),
                value: info.dtype.to_string(),
                need: "this tensor must be F32".into(),
            });
        }
        Ok(Tensor::dense(self.buffer, info.offset as u64, DType::F32, rows, width))
    }

    /// A matrix whose number of rows is the vocabulary, read from the file.
    fn vocabulary(&self, name: &str, hidden: u32) -> Result<Tensor, ModelError> {
        let info = self.gguf.tensor(name).ok_or_else(|| GgufError::MissingTensor { tensor: name.into() })?;
        let rows = info.shape.get(1).copied().unwrap_or(1).min(u32::MAX as usize) as u32;
        self.matrix(name, hidden, rows)
    }

    fn attention(&self, block: usize, c: &Config) -> Result<Attention, ModelError> {
        let name = |part: &str| format!("blk.{block}.{part}");
        let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        Ok(Attention {
            q: self.matrix(&name("attn_q.weight"), c.hidden, 2 * q)?,
            k: self.matrix(&name("attn_k.weight"), c.hidden, kv)?,
            v: self.matrix(&name("attn_v.weight"), c.hidden, kv)?,
            q_norm: self.plain(&name("attn_q_norm.weight"), 1, c.head_dim)?,
            k_norm: self.plain(&name("attn_k_norm.weight"), 1, c.head_dim)?,
            output: self.matrix(&name("attn_output.weight"), q, c.hidden)?,
        })
    }

    fn delta(&self, block: usize, c: &Config) -> Result<Delta, ModelError> {
        let name = |part: &str| format!("blk.{block}.{part}");
        Ok(Delta {
            qkv: self.matrix(&name("attn_qkv.weight"), c.hidden, c.conv_channels())?,
            gate: self.matrix(&name("attn_gate.weight"), c.hidden, c.value_width())?,
            alpha: self.matrix(&name("ssm_alpha.weight"), c.hidden, c.value_heads)?,
            beta: self.matrix(&name("ssm_beta.weight"), c.hidden, c.value_heads)?,
            kernel: self.plain(&name("ssm_conv1d.weight"), c.conv_channels(), c.conv_taps)?,
            dt: self.plain(&name("ssm_dt.bias"), 1, c.value_heads)?,
            a: self.plain(&name("ssm_a"), 1, c.value_heads)?,
            norm: self.plain(&name("ssm_norm.weight"), 1, c.value_dim)?,
            output: self.matrix(&name("ssm_out.weight"), c.value_width(), c.hidden)?,
        })
    }

    fn layer(&self, block: usize, recurrent: bool, c: &Config) -> Result<Layer, ModelError> {
        let name = |part: &str| format!("blk.{block}.{part}");
        Ok(Layer {
            norm: self.plain(&name("attn_norm.weight"), 1, c.hidden)?,
            mixer: if recurrent {
                Mixer::Delta(self.delta(block, c)?)
            } else {
                Mixer::Attention(self.attention(block, c)?)
            },
            ffn_norm: self.plain(&name("post_attention_norm.weight"), 1, c.hidden)?,
            ffn_gate: self.matrix(&name("ffn_gate.weight"), c.hidden, c.ffn)?,
            ffn_up: self.matrix(&name("ffn_up.weight"), c.hidden, c.ffn)?,
            ffn_down: self.matrix(&name("ffn_down.weight"), c.ffn, c.hidden)?,
        })
    }

    fn mtp(
        &self,
        block: usize,
        c: &Config,
        embed: Tensor,
        norm: Tensor,
        output: Tensor,
    ) -> Result<Mtp, ModelError> {
        let name = |part: &str| format!("blk.{block}.nextn.{part}");
        let has = |part: &str| self.gguf.tensor(&name(part)).is_some();
        Ok(Mtp {
            layer: self.layer(block, false, c)?,
            embed: if has("embed_tokens.weight") {
                self.vocabulary(&name("embed_tokens.weight"), c.hidden)?
            } else {
                embed
            },
            embed_norm: self.plain(&name("enorm.weight"), 1, c.hidden)?,
            hidden_norm: self.plain(&name("hnorm.weight"), 1, c.hidden)?,
            project: self.matrix(&name("eh_proj.weight"), 2 * c.hidden, c.hidden)?,
            head_norm: if has("shared_head_norm.weight") {
                self.plain(&name("shared_head_norm.weight"), 1, c.hidden)?
            } else {
                norm
            },
            head: if has("shared_head_head.weight") {
                self.vocabulary(&name("shared_head_head.weight"), c.hidden)?
            } else {
                output
            },
            draft: DraftMatrix::read(self.gguf, c.hidden, output.rows)?.map(|d| Draft {
                matrix: Tensor::dense(self.buffer, d.offset, d.dtype, d.ids.len() as u32, c.hidden),
                ids: d.ids,
            }),
        })
    }
}

impl Weights {
    pub(super) fn read(gguf: &Gguf, buffer: BufferId, c: &Config) -> Result<Self, ModelError> {
        let r = Reader { gguf, buffer };
        let embed = r.vocabulary("token_embd.weight", c.hidden)?;
        let output = if gguf.tensor("output.weight").is_some() {
            r.matrix("output.weight", c.hidden, embed.rows)?
        } else {
            embed
        };
        let norm = r.plain("output_norm.weight", 1, c.hidden)?;
        let layers = c
            .recurrent
            .iter()
            .enumerate()
            .map(|(i, recurrent)| r.layer(i, *recurrent, c))
            .collect::<Result<_, _>>()?;
        let mtp = if c.mtp { Some(r.mtp(c.recurrent.len(), c, embed, norm, output)?) } else { None };
        Ok(Weights { embed, layers, norm, output, mtp })
    }
}
