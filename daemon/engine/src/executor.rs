//! Runs passes: the one owner of the device, the loaded model and the scratch memory.

use crate::gguf::Gguf;
use crate::model::{self, Dims, Family, ModelError, StateLayout};
use crate::pass::{Arena, DraftColumn, DraftHead, Kind, Pass, Segment};
use crate::residency::Memory;
use crate::session::Session;
use crate::state::{KvCache, State, StatePool};
use crate::switches::{KvType, Switches};
use std::sync::Arc;
use tandem_program::{BufferId, DType, Device, DeviceError, DeviceInfo, Op, Program, Tensor};

/// What a pass left behind for the host.
#[derive(Clone, Debug, Default)]
pub struct PassOutput {
    /// One row of logits a wanted column, segment by segment.
    pub logits: Vec<Vec<f32>>,
    /// The restricted rows, segment by segment.
    pub restricted: Vec<Vec<f32>>,
    /// As `logits`, for the MTP block.
    pub mtp_logits: Vec<Vec<f32>>,
}

/// What a draft step left behind for a column.
#[derive(Clone, Debug, Default)]
pub struct DraftOutput {
    /// What the column's next step takes for the hidden row.
    pub hidden: Vec<f32>,
    /// Logits of the rows asked for, in their order.
    pub logits: Option<Vec<f32>>,
}

/// Scratch memory at the start; passes make it grow.
const SCRATCH_BYTES: u64 = 1 << 20;

/// See the module.
pub struct Executor {
    device: Session,
    family: Box<dyn Family>,
    switches: Switches,
    states: StatePool,
    scratch: BufferId,
    scratch_bytes: u64,
    /// Rows that were read and given back. A row of logits is a megabyte: an allocator that gets
    /// it from the system each time pays for every page of it, a millisecond a column.
    spare: Vec<Vec<f32>>,
    batches: u64,
}

/// Rows kept to be read into again: those of a pass of the most columns.
const SPARE_ROWS: usize = 8;
/// Shorter rows are the allocator's to keep.
const SPARE_VALUES: usize = 16 * 1024;

impl Executor {
    /// Imports the file's mapping into the device (no copy where the device can read host
    /// memory) and reads the model.
    pub fn new(gguf: &Gguf, device: Box<dyn Device>, switches: Switches) -> Result<Self, ModelError> {
        let mut device = Session::new(device);
        let weights = device.import(gguf.map())?;
        let family = model::load(gguf, weights)?;
        let states = StatePool::new(family.layout(), &mut device)?;
        let scratch_bytes = SCRATCH_BYTES;
        let scratch = device.create(scratch_bytes)?;
        let spare = Vec::new();
        let mut executor =
            Executor { device, family, switches, states, scratch, scratch_bytes, spare, batches: 0 };
        executor.prepare()?;
        Ok(executor)
    }

    /// Has the device make what the weights need on it now, not under the first request: with the
    /// programs of a pass of one column and of a step of the MTP block, neither of which is run.
    fn prepare(&mut self) -> Result<(), DeviceError> {
        let (kv, state) = (self.new_kv(2)?, self.states.zero());
        let segment =
            Segment { logits: vec![0], ..Segment::new(Kind::Decode, vec![0], 0, kv, Arc::clone(&state)) };
        let pass = Pass { segments: vec![segment] };
        let (program, _) =
            self.lower(|family, switches, arena, program| family.lower(&pass, switches, arena, program))?;
        self.device.prepare(&program)?;
        if self.switches.drafts_with_mtp() {
            // The block's entry of the first position waits for the second token.
            let head = DraftHead::Whole;
            let columns = [DraftColumn { token: 0, position: 1, kv, state, hidden: None, head }];
            let (program, _) = self.lower(|family, switches, arena, program| {
                family.lower_draft(&columns, switches, arena, program)
            })?;
            self.device.prepare(&program)?;
        }
        self.destroy_kv(kv)
    }

    /// The model's sizes.
    pub fn dims(&self) -> &Dims {
        self.family.dims()
    }

    /// What its sequences keep.
    pub fn layout(&self) -> &StateLayout {
        self.family.layout()
    }

    /// The device, for reports.
    pub fn device(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// Why the session with the device is lost; `None` while it lives.
    pub fn lost(&self) -> Option<&str> {
        self.device.lost()
    }

    /// Drops the device: nothing can be run any more.
    pub fn end_session(&mut self) {
        self.device.end();
    }

    /// Programs of passes and drafts that the device has run to their end.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// The switches in force.
    pub fn switches(&self) -> &Switches {
        &self.switches
    }

    /// Bytes of scratch memory.
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }

    /// Bytes the device holds in buffers.
    pub fn device_bytes(&self) -> u64 {
        self.device.used()
    }

    /// The pool of recurrent states.
    pub fn states(&self) -> &StatePool {
        &self.states
    }

    /// A state for the next pass to write.
    pub fn take_state(&mut self) -> Result<Arc<State>, DeviceError> {
        self.states.take(&mut self.device)
    }

    /// Gives the memory of unused states back to the device.
    pub fn shrink_states(&mut self) -> Result<(), DeviceError> {
        self.states.shrink(&mut self.device)
    }

    /// A KV cache of `cells` positions.
    pub fn new_kv(&mut self, cells: u32) -> Result<KvCache, DeviceError> {
        let dtype = match self.switches.kv_type {
            KvType::F16 => DType::F16,
            KvType::F32 => DType::F32,
        };
        KvCache::new(self.family.layout(), cells, dtype, &mut self.device)
    }

    /// A cache of the first `cells` cells of `from`, or copies them into `to`.
    pub fn copy_kv(
        &mut self,
        from: &KvCache,
        to: Option<KvCache>,
        cells: u32,
    ) -> Result<KvCache, DeviceError> {
        let target = match to {
            Some(to) => to,
            None => self.new_kv(cells)?,
        };
        let mut program = Program::new();
        let layout = self.family.layout();
        for layer in 0..layout.kv.len() {
            let (from_k, from_v) = from.layer(layout, layer);
            let (to_k, to_v) = target.layer(layout, layer);
            for (x, out) in [(from_k, to_k), (from_v, to_v)] {
                program.push(Op::Copy { x: x.slice_rows(0, cells), out: out.slice_rows(0, cells) });
            }
        }
        let copied = self.device.submit(&program).and_then(|ticket| self.device.wait(ticket));
        if copied.is_err() && to.is_none() {
            self.destroy_kv(target)?;
        }
        copied.map(|()| target)
    }

    /// Frees scratch memory beyond the smallest.
    pub fn shrink_scratch(&mut self) -> Result<(), DeviceError> {
        if self.scratch_bytes > SCRATCH_BYTES {
            let smaller = self.device.create(SCRATCH_BYTES)?;
            self.device.destroy(std::mem::replace(&mut self.scratch, smaller))?;
            self.scratch_bytes = SCRATCH_BYTES;
        }
        Ok(())
    }

    /// Takes rows of a [`PassOutput`] back, to be read into again.
    pub fn recycle(&mut self, rows: impl IntoIterator<Item = Vec<f32>>) {
        let room = SPARE_ROWS.saturating_sub(self.spare.len());
        self.spare.extend(rows.into_iter().filter(|row| row.capacity() >= SPARE_VALUES).take(room));
    }

    /// Has the device give back what it can make again.
    pub fn rest(&mut self) {
        self.spare = Vec::new();
        self.device.rest();
    }

    /// Bytes of the KV cells of `positions` positions.
    pub fn kv_bytes(&self, positions: u32) -> u64 {
        let dtype = match self.switches.kv_type {
            KvType::F16 => DType::F16,
            KvType::F32 => DType::F32,
        };
        self.family.layout().kv_bytes(dtype) * u64::from(positions)
    }

    /// Frees a KV cache.
    pub fn destroy_kv(&mut self, kv: KvCache) -> Result<(), DeviceError> {
        kv.destroy(&mut self.device)
    }

    /// Token ids of the draft matrix's rows, where the file has one and it is switched on.
    pub fn draft_ids(&self) -> Option<&[u32]> {
        self.family.draft_ids().filter(|_| self.switches.trimmed_head)
    }

    /// Runs a pass to its end.
    pub fn run(&mut self, pass: &Pass) -> Result<PassOutput, DeviceError> {
        if pass.columns() == 0 {
            return Ok(PassOutput::default());
        }
        let (program, lowered) =
            self.lower(|family, switches, arena, program| family.lower(pass, switches, arena, program))?;
        self.execute(&program, &lowered.uploads)?;
        let restricted = lowered.restricted.iter().map(|t| self.read(t)).collect::<Result<_, _>>()?;
        Ok(PassOutput {
            logits: self.rows(lowered.logits)?,
            restricted,
            mtp_logits: self.rows(lowered.mtp_logits)?,
        })
    }

    /// Runs one step of the MTP block; an output a column, none where the model has no block.
    pub fn draft(&mut self, columns: &[DraftColumn]) -> Result<Vec<DraftOutput>, DeviceError> {
        if columns.is_empty() {
            return Ok(Vec::new());
        }
        let (program, lowered) = self.lower(|family, switches, arena, program| {
            family.lower_draft(columns, switches, arena, program)
        })?;
        let Some(lowered) = lowered else { return Ok(Vec::new()) };
        self.execute(&program, &lowered.uploads)?;
        let hidden = self.rows(lowered.hidden)?;
        let mut outputs = Vec::with_capacity(columns.len());
        for (hidden, logits) in hidden.into_iter().zip(&lowered.logits) {
            let logits = logits.as_ref().map(|t| self.read(t)).transpose()?;
            outputs.push(DraftOutput { hidden, logits });
        }
        Ok(outputs)
    }

    /// Lowers something, again where the scratch memory was too small for it.
    fn lower<T>(
        &mut self,
        lower: impl Fn(&dyn Family, &Switches, &mut Arena, &mut Program) -> T,
    ) -> Result<(Program, T), DeviceError> {
        let mut program = Program::new();
        let mut arena = Arena::new(self.scratch);
        let lowered = lower(self.family.as_ref(), &self.switches, &mut arena, &mut program);
        if arena.peak() <= self.scratch_bytes {
            return Ok((program, lowered));
        }
        let bytes = arena.peak().next_power_of_two();
        let larger = self.device.create(bytes)?;
        self.device.destroy(std::mem::replace(&mut self.scratch, larger))?;
        self.scratch_bytes = bytes;
        let mut program = Program::new();
        let mut arena = Arena::new(self.scratch);
        let lowered = lower(self.family.as_ref(), &self.switches, &mut arena, &mut program);
        Ok((program, lowered))
    }

    fn execute(&mut self, program: &Program, uploads: &[(Tensor, Vec<f32>)]) -> Result<(), DeviceError> {
        for (tensor, values) in uploads {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            self.device.write(tensor.buffer, tensor.offset, &bytes)?;
        }
        let ticket = self.device.submit(program)?;
        self.device.wait(ticket)?;
        self.batches += 1;
        Ok(())
    }

    fn rows(&mut self, tensor: Option<Tensor>) -> Result<Vec<Vec<f32>>, DeviceError> {
        let Some(tensor) = tensor else {
            return Ok(Vec::new());
        };
        (0..tensor.rows).map(|r| self.read(&tensor.slice_rows(r, 1))).collect()
    }

    /// What a sequence is after `cells` tokens, byte for byte: the cells of its cache and a
    /// state. The MTP block has an entry less: its last waits for the next token.
    pub fn contents(&mut self, kv: &KvCache, state: &State, cells: u32) -> Result<Vec<u8>, DeviceError> {
        let layout = self.family.layout();
        let mut parts = Vec::new();
        for layer in 0..layout.kv.len() {
            let (keys, values) = kv.layer(layout, layer);
            let draft_block = layout.hidden > 0 && layer + 1 == layout.kv.len();
            let count = cells.saturating_sub(u32::from(draft_block));
            parts.extend([keys.slice_rows(0, count), values.slice_rows(0, count)]);
        }
        for layer in 0..layout.recurrent.len() {
            parts.extend([layout.conv(state.buffer(), layer), layout.state(state.buffer(), layer)]);
        }
        if layout.hidden > 0 {
            parts.push(layout.hidden(state.buffer()));
        }
        let mut bytes = Vec::new();
        for part in parts {
            let size = part.len() * part.dtype.block_bytes();
            let start = bytes.len();
            bytes.resize(start + size, 0);
            self.device.read(part.buffer, part.offset, &mut bytes[start..])?;
        }
        Ok(bytes)
    }

    /// The values of a dense f32 tensor: a result, or part of a state for checks.
    pub fn read(&mut self, tensor: &Tensor) -> Result<Vec<f32>, DeviceError> {
        // A megabyte of logits a column: through a piece of the stack, not through memory twice.
        let mut piece = [0u8; 16 * 1024];
        let spare = self.spare.iter().position(|row| row.capacity() == tensor.len());
        let mut values = spare.map_or_else(Vec::new, |at| self.spare.swap_remove(at));
        values.clear();
        values.reserve_exact(tensor.len());
        let mut offset = tensor.offset;
        while values.len() < tensor.len() {
            let bytes = piece.len().min((tensor.len() - values.len()) * 4);
            self.device.read(tensor.buffer, offset, &mut piece[..bytes])?;
            values.extend(piece[..bytes].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)));
            offset += bytes as u64;
        }
        Ok(values)
    }
}

impl Memory for Executor {
    type State = Arc<State>;
    type Kv = KvCache;
    type Error = DeviceError;

    fn state_bytes(&self) -> u64 {
        self.states.state_bytes()
    }

    fn states_in_use(&self) -> u64 {
        self.states.in_use()
    }

    fn take_state(&mut self) -> Result<Arc<State>, DeviceError> {
        Executor::take_state(self)
    }

    fn kv_bytes(&self, cells: u32) -> u64 {
        Executor::kv_bytes(self, cells)
    }

    fn new_kv(&mut self, cells: u32) -> Result<KvCache, DeviceError> {
        Executor::new_kv(self, cells)
    }

    fn copy_kv(&mut self, from: &KvCache, to: Option<KvCache>, cells: u32) -> Result<KvCache, DeviceError> {
        Executor::copy_kv(self, from, to, cells)
    }

    fn destroy_kv(&mut self, kv: KvCache) -> Result<(), DeviceError> {
        Executor::destroy_kv(self, kv)
    }
}
