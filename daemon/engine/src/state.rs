//! Recurrent states and KV caches in device memory.
//!
//! A [`State`] is written once, by the pass that computes it, and never changed. A slot's
//! live state, its checkpoints, the planes speculation may roll back to and the prompt
//! cache's entries are all `Arc<State>`: restoring or rolling back is a change of reference.
//! Dropping the last reference gives the memory back to the [`StatePool`].

use crate::model::StateLayout;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tandem_program::{BufferId, DType, Device, DeviceError, Tensor};

/// A recurrent state of one sequence after some number of tokens.
#[derive(Debug)]
pub struct State {
    buffer: BufferId,
    home: Arc<Mutex<Vec<BufferId>>>,
}

impl State {
    /// The device buffer, laid out by [`StateLayout`].
    pub fn buffer(&self) -> BufferId {
        self.buffer
    }
}

impl Drop for State {
    fn drop(&mut self) {
        free_list(&self.home).push(self.buffer);
    }
}

// A push or pop cannot leave the list half changed, so a poisoned lock is still good.
fn free_list(list: &Mutex<Vec<BufferId>>) -> MutexGuard<'_, Vec<BufferId>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes states of one layout and takes their memory back.
#[derive(Debug)]
pub struct StatePool {
    bytes: u64,
    made: u64,
    free: Arc<Mutex<Vec<BufferId>>>,
    zero: Arc<State>,
}

impl StatePool {
    /// A pool for `layout`; makes the zero state every sequence starts from.
    pub fn new(layout: &StateLayout, device: &mut dyn Device) -> Result<Self, DeviceError> {
        // A device buffer of no bytes is of no use; a model without recurrence keeps one word.
        let bytes = layout.state_bytes().max(64);
        let free = Arc::new(Mutex::new(Vec::new()));
        let zero = Arc::new(State { buffer: device.create(bytes)?, home: Arc::new(Mutex::new(Vec::new())) });
        Ok(StatePool { bytes, made: 1, free, zero })
    }

    /// The state before the first token.
    pub fn zero(&self) -> Arc<State> {
        Arc::clone(&self.zero)
    }

    /// A state to be written by the next pass. Its contents are unspecified.
    pub fn take(&mut self, device: &mut dyn Device) -> Result<Arc<State>, DeviceError> {
        let reused = free_list(&self.free).pop();
        let buffer = match reused {
            Some(buffer) => buffer,
            None => {
                self.made += 1;
                device.create(self.bytes)?
            }
        };
        Ok(Arc::new(State { buffer, home: Arc::clone(&self.free) }))
    }

    /// Bytes of one state.
    pub fn state_bytes(&self) -> u64 {
        self.bytes
    }

    /// States in use, the zero state included.
    pub fn in_use(&self) -> u64 {
        self.made - free_list(&self.free).len() as u64
    }

    /// Bytes of all states made and not destroyed, in use or free.
    pub fn total_bytes(&self) -> u64 {
        self.made * self.bytes
    }

    /// Gives free states' memory back to the device.
    pub fn shrink(&mut self, device: &mut dyn Device) -> Result<(), DeviceError> {
        let buffers: Vec<BufferId> = free_list(&self.free).drain(..).collect();
        self.made -= buffers.len() as u64;
        for buffer in buffers {
            device.destroy(buffer)?;
        }
        Ok(())
    }
}

/// The KV cache of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct KvCache {
    buffer: BufferId,
    cells: u32,
    dtype: DType,
}

impl KvCache {
    /// A cache of `cells` positions. Memory is committed as cells are written, where the
    /// device can.
    pub fn new(
        layout: &StateLayout,
        cells: u32,
        dtype: DType,
        device: &mut dyn Device,
    ) -> Result<Self, DeviceError> {
        let bytes = layout.kv_bytes(dtype) * u64::from(cells);
        Ok(KvCache { buffer: device.create(bytes.max(64))?, cells, dtype })
    }

    /// Positions it can hold.
    pub fn cells(&self) -> u32 {
        self.cells
    }

    /// Bytes of `positions` positions.
    pub fn bytes(&self, layout: &StateLayout, positions: u32) -> u64 {
        layout.kv_bytes(self.dtype) * u64::from(positions)
    }

    /// Keys and values of attention layer `layer`.
    pub fn layer(&self, layout: &StateLayout, layer: usize) -> (Tensor, Tensor) {
        layout.kv(self.buffer, layer, self.cells, self.dtype)
    }

    /// Gives the memory back.
    pub fn destroy(self, device: &mut dyn Device) -> Result<(), DeviceError> {
        device.destroy(self.buffer)
    }
}
