//! What a sequence keeps between passes, by layer.
//!
//! ```text
//! KV cache (one buffer a sequence; grows with the position, cut by moving the position)
//! │ layer 0: K [cells x width] │ V [cells x width] │ layer 1: K │ V │ … │ MTP block: K │ V │
//!
//! recurrent state (one buffer a state; fixed size, replaced as a whole, never cut)
//! │ layer 0: conv [taps-1 x channels] │ S [heads*key_dim x value_dim] │ layer 1: … │ hidden [1 x H] │
//! ```
//!
//! `hidden` is the output of the final norm at the state's last position: the MTP block's
//! next entry needs it, so it travels with the state.

use tandem_program::{BufferId, DType, Tensor};

/// Keys and values of one attention layer.
#[derive(Clone, Copy, Debug)]
pub struct KvLayer {
    /// KV heads times head dimension.
    pub width: u32,
}

/// Recurrent state of one layer. Either part may be empty (0 rows).
#[derive(Clone, Copy, Debug)]
pub struct RecurrentLayer {
    /// Rows of the convolution's state: taps - 1.
    pub conv_rows: u32,
    /// Channels.
    pub conv_width: u32,
    /// Rows of the recurrence's state: heads times key dimension.
    pub state_rows: u32,
    /// Value dimension.
    pub state_width: u32,
}

/// The layout of one family's sequences.
#[derive(Clone, Debug)]
pub struct StateLayout {
    /// Attention layers in order; the MTP block's last.
    pub kv: Vec<KvLayer>,
    /// Recurrent layers in order.
    pub recurrent: Vec<RecurrentLayer>,
    /// Width of the kept hidden row; 0 where the model has no MTP block.
    pub hidden: u32,
}

/// Tensors of recurrent states start on multiples of this many bytes.
const ALIGN: u64 = 64;

fn padded(rows: u32, width: u32) -> u64 {
    (u64::from(rows) * u64::from(width) * 4).next_multiple_of(ALIGN)
}

impl StateLayout {
    /// Bytes of one recurrent state.
    pub fn state_bytes(&self) -> u64 {
        self.recurrent.iter().map(RecurrentLayer::bytes).sum::<u64>() + padded(1, self.hidden)
    }

    /// Bytes of the KV cells of one position.
    pub fn kv_bytes(&self, dtype: DType) -> u64 {
        let width: u64 = self.kv.iter().map(|l| u64::from(l.width)).sum();
        2 * width * dtype.block_bytes() as u64
    }

    fn recurrent_offset(&self, layer: usize) -> u64 {
        self.recurrent[..layer].iter().map(RecurrentLayer::bytes).sum()
    }

    /// Convolution state of recurrent layer `layer` in the state at `buffer`.
    pub fn conv(&self, buffer: BufferId, layer: usize) -> Tensor {
        let l = &self.recurrent[layer];
        Tensor::dense(buffer, self.recurrent_offset(layer), DType::F32, l.conv_rows, l.conv_width)
    }

    /// Recurrence state of recurrent layer `layer` in the state at `buffer`.
    pub fn state(&self, buffer: BufferId, layer: usize) -> Tensor {
        let l = &self.recurrent[layer];
        let offset = self.recurrent_offset(layer) + padded(l.conv_rows, l.conv_width);
        Tensor::dense(buffer, offset, DType::F32, l.state_rows, l.state_width)
    }

    /// The kept hidden row in the state at `buffer`.
    pub fn hidden(&self, buffer: BufferId) -> Tensor {
        Tensor::dense(buffer, self.recurrent_offset(self.recurrent.len()), DType::F32, 1, self.hidden)
    }

    /// Keys and values of attention layer `layer` in a cache of `cells` cells.
    pub fn kv(&self, buffer: BufferId, layer: usize, cells: u32, dtype: DType) -> (Tensor, Tensor) {
        let size = |width: u32| u64::from(width) * u64::from(cells) * dtype.block_bytes() as u64;
        let before: u64 = self.kv[..layer].iter().map(|l| 2 * size(l.width)).sum();
        let width = self.kv[layer].width;
        let k = Tensor::dense(buffer, before, dtype, cells, width);
        (k, Tensor { offset: before + size(width), ..k })
    }
}

impl RecurrentLayer {
    fn bytes(&self) -> u64 {
        padded(self.conv_rows, self.conv_width) + padded(self.state_rows, self.state_width)
    }
}
