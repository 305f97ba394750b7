//! Qwen3.5: three Gated DeltaNet layers to one of gated full attention, and a
//! multi-token-prediction block.

mod config;
mod lower;
mod weights;

pub use config::Config;

use super::{Dims, Family, KvLayer, ModelError, RecurrentLayer, StateLayout};
use crate::gguf::Gguf;
use crate::pass::{Arena, DraftColumn, Lowered, LoweredDraft, Pass};
use crate::switches::Switches;
use tandem_program::{BufferId, Program};
use weights::Weights;

/// A loaded Qwen3.5 text model.
pub struct Qwen35 {
    dims: Dims,
    config: Config,
    weights: Weights,
    layout: StateLayout,
}

impl Qwen35 {
    /// Reads keys and tensors; `buffer` is the device's view of the file's mapping.
    pub fn load(gguf: &Gguf, buffer: BufferId) -> Result<Self, ModelError> {
        let config = Config::read(gguf)?;
        let weights = Weights::read(gguf, buffer, &config)?;
        let kv = KvLayer { width: config.kv_heads * config.head_dim };
        let recurrent = RecurrentLayer {
            conv_rows: config.conv_taps - 1,
            conv_width: config.conv_channels(),
            state_rows: config.value_heads * config.key_dim,
            state_width: config.value_dim,
        };
        let attention = config.recurrent.iter().filter(|r| !**r).count() + usize::from(config.mtp);
        let layout = StateLayout {
            kv: vec![kv; attention],
            recurrent: vec![recurrent; config.recurrent.iter().filter(|r| **r).count()],
            hidden: if config.mtp { config.hidden } else { 0 },
        };
        let dims = Dims {
            architecture: "qwen35",
            hidden: config.hidden,
            vocabulary: weights.output.rows,
            context: config.context,
            layers: config.recurrent.len() as u32,
            mtp: config.mtp,
        };
        Ok(Qwen35 { dims, config, weights, layout })
    }
}

impl Family for Qwen35 {
    fn dims(&self) -> &Dims {
        &self.dims
    }

    fn layout(&self) -> &StateLayout {
        &self.layout
    }

    fn lower(&self, pass: &Pass, switches: &Switches, arena: &mut Arena, program: &mut Program) -> Lowered {
        lower::Lowering::new(self, switches, arena, program).run(pass)
    }

    fn lower_draft(
        &self,
        columns: &[DraftColumn],
        switches: &Switches,
        arena: &mut Arena,
        program: &mut Program,
    ) -> Option<LoweredDraft> {
        lower::Lowering::new(self, switches, arena, program).draft(columns)
    }

    fn draft_ids(&self) -> Option<&[u32]> {
        self.weights.mtp.as_ref()?.draft.as_ref().map(|d| d.ids.as_slice())
    }
}
