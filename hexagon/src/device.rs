//! The device: buffers, maps, batches.

use crate::abi::{self, Reply, Request};
use crate::emulator::{Emulator, EmulatorConfig, EmulatorError};
use crate::lower::{self, Operand};
use crate::memory::{Extent, Shared, SharedError};
use crate::planner::Planner;
use crate::{Link, packed, window};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tandem_program::{
    BufferId, BufferInfo, DType, Device, DeviceError, DeviceInfo, Op, Power, Product, Program, Region,
    Tensor, Ticket, Votes,
};

/// How to make a [`Hexagon`].
#[derive(Clone, Debug)]
pub struct HexagonConfig {
    /// Bytes of shared memory for buffers, packed weights and commands. Default 16 GiB of
    /// address space; memory is taken as it is written.
    pub memory: u64,
    /// Bytes the DSP has mapped at once (its addresses have 32 bits). Maps that a program does
    /// not need give way to those it does; a weight larger than a quarter of it is cut by rows.
    /// Default 2 GiB.
    pub window: u64,
}

impl Default for HexagonConfig {
    fn default() -> Self {
        HexagonConfig { memory: 16 << 30, window: 2 << 30 }
    }
}

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum HexagonError {
    /// No shared memory.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// The emulator did not start.
    #[error(transparent)]
    Emulator(#[from] EmulatorError),
    /// The phone's DSP cannot be reached.
    #[error(transparent)]
    Fastrpc(#[from] crate::fastrpc::FastrpcError),
    /// The DSP's program or its emulator is not there.
    #[error(
        "the emulator device needs {}, which is not there: run `cargo xtask hexagon`, or let TANDEM_HEXAGON name the folder it has filled",
        file.display()
    )]
    Absent {
        /// What was looked for.
        file: std::path::PathBuf,
    },
    /// The DSP did not answer, or refused.
    #[error("the DSP does not serve: {0}")]
    Refused(String),
}

/// Work done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Batches run, counted on both sides alike.
    pub batches: u64,
    /// Packets of those.
    pub packets: u64,
    /// Maps made, the command map included.
    pub maps: u64,
    /// Instructions of the DSP's first thread while it ran batches; 0 where nobody counts.
    pub instructions: u64,
    /// Of those, vector instructions.
    pub vector_instructions: u64,
    /// Bytes that the DSP's DMA carried from or to memory.
    pub dma_bytes: u64,
    /// SwiGLU ops that on-chip memory had no room for as one: run as three.
    pub separate_swiglu: u64,
}

/// A piece of shared memory that the DSP can be shown.
struct Place {
    extent: Extent,
    read_only: bool,
    map: Option<u32>,
    used: u64,
}

type PlaceId = u32;

enum Memory {
    Own { place: PlaceId, bytes: u64 },
    Imported(Region),
}

/// What of an imported buffer lies in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Copied {
    /// These bytes as they are.
    Bytes { start: u64, end: u64 },
    /// This weight, packed.
    Packed { offset: u64, dtype: DType, rows: u32, width: u32 },
}

#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    packets: u32,
    uses: HashSet<PlaceId>,
}

/// A batch under way.
struct InFlight {
    sequence: u64,
    packets: u64,
}

/// The Hexagon device over any [`Link`].
///
/// Power votes are held when it is made, and until whoever takes [`Device::power`] lets go of them.
///
/// A submitted program goes to the DSP in batches of up to a megabyte of packets; the last one
/// is not waited for. Buffers it creates are at most 1 GiB each.
pub struct Hexagon {
    info: DeviceInfo,
    window: u64,
    planner: Planner,
    /// Where a SwiGLU that is run as three ops keeps one of its products.
    separate: Option<(BufferId, u64)>,
    // Ends before the memory it works on.
    link: Box<dyn Link>,
    shared: Shared,
    buffers: HashMap<BufferId, Memory>,
    places: HashMap<PlaceId, Place>,
    copies: HashMap<(BufferId, Copied), PlaceId>,
    /// Weights packed for one batch only: their buffers may change.
    passing: Vec<PlaceId>,
    free_maps: Vec<u32>,
    mapped: u64,
    commands: PlaceId,
    batch: Batch,
    in_flight: Option<InFlight>,
    next_buffer: u32,
    next_place: PlaceId,
    sequence: u64,
    clock: u64,
    used: u64,
    ticket: u64,
    counters: Counters,
    lost: Option<String>,
}

impl Hexagon {
    /// A device with no buffers.
    pub fn new(config: &HexagonConfig, shared: Shared, link: Box<dyn Link>) -> Result<Hexagon, HexagonError> {
        let info = DeviceInfo {
            name: link.name().into(),
            detail: String::new(),
            threads: 1,
            memory: shared.bytes(),
            exactness: link.exactness(),
        };
        let mut device = Hexagon {
            info,
            window: config.window,
            planner: Planner { vtcm: 0, workers: 1 },
            separate: None,
            link,
            shared,
            buffers: HashMap::new(),
            places: HashMap::new(),
            copies: HashMap::new(),
            passing: Vec::new(),
            free_maps: (0..abi::MAPS).rev().collect(),
            mapped: 0,
            commands: 0,
            batch: Batch::default(),
            in_flight: None,
            next_buffer: 1,
            next_place: 0,
            sequence: 0,
            clock: 0,
            used: 0,
            ticket: 0,
            counters: Counters::default(),
            lost: None,
        };
        let refused = |e: DeviceError| HexagonError::Refused(e.to_string());
        let hello = device.call(device.request(abi::HELLO)).map_err(refused)?;
        device.info.threads = hello.value as usize;
        device.planner = Planner { vtcm: hello.limit, workers: hello.value.max(1) };
        device.info.detail = format!("{} workers, {} KiB of VTCM", hello.value, hello.limit >> 10);
        device.commands = device.place(u64::from(abi::BATCH_BYTES), false).map_err(refused)?;
        device.show(device.commands).map_err(refused)?;
        if let Some(power) = device.link.power() {
            power.apply(&Votes::HELD).map_err(refused)?;
        }
        Ok(device)
    }

    /// A device over the emulator.
    pub fn emulated(config: &HexagonConfig, emulator: &EmulatorConfig) -> Result<Hexagon, HexagonError> {
        let shared = Shared::new(config.memory)?;
        let link = Emulator::start(emulator, &shared)?;
        Hexagon::new(config, shared, Box::new(link))
    }

    /// Work done since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn request(&self, kind: u32) -> Request {
        Request::new(kind, self.sequence)
    }

    fn lose(&mut self, why: String) -> DeviceError {
        self.lost = Some(why.clone());
        DeviceError::Lost(why)
    }

    fn out_of_memory(&self, bytes: u64, used: u64, limit: u64) -> DeviceError {
        DeviceError::OutOfMemory { device: self.info.name.clone(), bytes, used, limit }
    }

    fn send(&mut self, mut request: Request) -> Result<(), DeviceError> {
        if let Some(lost) = &self.lost {
            return Err(DeviceError::Lost(lost.clone()));
        }
        self.sequence += 1;
        request.sequence = self.sequence;
        self.link.send(&request).map_err(|why| self.lose(why))
    }

    /// The reply to the request of this sequence number.
    fn receive(&mut self, sequence: u64) -> Result<Reply, DeviceError> {
        let reply = self.link.receive().map_err(|why| self.lose(why))?;
        if reply.magic != abi::MAGIC || reply.sequence != sequence {
            let Reply { magic, sequence: got, .. } = reply;
            return Err(self.lose(format!(
                "a reply to request {sequence} was due, but {got} (mark {magic:#x}) came: the DSP's program is not ours"
            )));
        }
        if reply.status == abi::OK {
            return Ok(reply);
        }
        let text = abi::explain(&reply);
        match reply.status {
            abi::E_NO_VOTES | abi::E_UNIT => Err(DeviceError::Votes(text)),
            abi::E_SCRATCH => Err(self.out_of_memory(reply.value, 0, reply.limit)),
            abi::E_MAP_REFUSED => Err(self.out_of_memory(reply.value, self.mapped, self.window)),
            _ => Err(self.lose(text)),
        }
    }

    /// Sends a request after all work in flight and waits for its reply.
    fn call(&mut self, request: Request) -> Result<Reply, DeviceError> {
        self.drain()?;
        self.send(request)?;
        self.receive(self.sequence)
    }

    /// Waits for the batch in flight.
    fn drain(&mut self) -> Result<(), DeviceError> {
        if let Some(lost) = &self.lost {
            return Err(DeviceError::Lost(lost.clone()));
        }
        let Some(InFlight { sequence, packets }) = self.in_flight.take() else { return Ok(()) };
        let reply = self.receive(sequence);
        for place in std::mem::take(&mut self.passing) {
            self.forget(place)?;
        }
        let reply = reply?;
        self.counters.batches += 1;
        self.counters.packets += packets;
        if reply.value != self.counters.batches {
            return Err(self.lose(format!(
                "the DSP has run {} batches, the driver knows of {}: one was lost or ran twice",
                reply.value, self.counters.batches
            )));
        }
        // The other side's numbers, whatever they are.
        let counters = &mut self.counters;
        counters.instructions = counters.instructions.wrapping_add(reply.instructions);
        counters.vector_instructions = counters.vector_instructions.wrapping_add(reply.vector_instructions);
        counters.dma_bytes = counters.dma_bytes.wrapping_add(reply.limit);
        Ok(())
    }

    /// Sends the packets gathered so far.
    fn flush(&mut self) -> Result<(), DeviceError> {
        let batch = std::mem::take(&mut self.batch);
        if batch.packets == 0 {
            return Ok(());
        }
        self.drain()?;
        let (extent, map) = match self.places.get(&self.commands) {
            Some(Place { extent, map: Some(map), .. }) => (*extent, *map),
            _ => return Err(self.lose("there is no map for commands".into())),
        };
        self.shared.write(extent, 0, &batch.bytes);
        let bytes = batch.bytes.len() as u64;
        self.send(Request { map, bytes, count: batch.packets, ..self.request(abi::RUN) })?;
        self.in_flight = Some(InFlight { sequence: self.sequence, packets: batch.packets.into() });
        Ok(())
    }

    /// Takes shared memory, zeroed.
    fn place(&mut self, bytes: u64, read_only: bool) -> Result<PlaceId, DeviceError> {
        if bytes > u64::from(abi::MAP_BYTES) {
            return Err(self.out_of_memory(bytes, 0, u64::from(abi::MAP_BYTES)));
        }
        let in_use = self.places.values().map(|p| p.extent.bytes).sum();
        let Some(extent) = self.shared.allocate(bytes) else {
            // A session that is gone gives no memory either: that is another error.
            self.call(self.request(abi::HELLO))?;
            return Err(self.out_of_memory(bytes, in_use, self.shared.bytes()));
        };
        let id = self.next_place;
        self.next_place += 1;
        self.places.insert(id, Place { extent, read_only, map: None, used: 0 });
        Ok(id)
    }

    /// Makes the DSP know a place.
    fn show(&mut self, id: PlaceId) -> Result<(), DeviceError> {
        let (Some(place), Some(map)) = (self.places.get(&id), self.free_maps.pop()) else {
            return Err(self.lose(format!("no map is left for memory {id}")));
        };
        let Extent { file, offset, bytes } = place.extent;
        let flags = if place.read_only { abi::READ_ONLY } else { 0 };
        let made =
            self.call(Request { map, file, file_offset: offset, bytes, flags, ..self.request(abi::MAP) });
        if let Err(e) = made {
            self.free_maps.push(map);
            return Err(e);
        }
        self.mapped += bytes;
        self.counters.maps += 1;
        if let Some(place) = self.places.get_mut(&id) {
            place.map = Some(map);
        }
        Ok(())
    }

    /// Makes the DSP forget a place, after all work.
    fn hide(&mut self, id: PlaceId) -> Result<(), DeviceError> {
        let Some(place) = self.places.get_mut(&id) else { return Ok(()) };
        let (Some(map), bytes) = (place.map.take(), place.extent.bytes) else { return Ok(()) };
        self.call(Request { map, ..self.request(abi::UNMAP) })?;
        self.free_maps.push(map);
        self.mapped -= bytes;
        Ok(())
    }

    /// Gives a place's memory back, after all work.
    fn forget(&mut self, id: PlaceId) -> Result<(), DeviceError> {
        let hidden = self.hide(id);
        if let Some(place) = self.places.remove(&id) {
            self.shared.release(place.extent);
        }
        hidden
    }

    /// Maps what the next packet needs; others give way, longest unused first.
    fn show_all(&mut self, needs: &[PlaceId]) -> Result<(), DeviceError> {
        self.clock += 1;
        for id in needs {
            if let Some(place) = self.places.get_mut(id) {
                place.used = self.clock;
            }
        }
        for id in needs {
            let Some(place) = self.places.get(id) else { continue };
            if place.map.is_some() {
                continue;
            }
            let bytes = place.extent.bytes;
            while self.mapped + bytes > self.window || self.free_maps.is_empty() {
                let idle = |(other, p): &(&PlaceId, &Place)| {
                    p.map.is_some() && **other != self.commands && !needs.contains(other)
                };
                let Some((&oldest, _)) = self.places.iter().filter(idle).min_by_key(|(_, p)| p.used) else {
                    return Err(self.out_of_memory(bytes, self.mapped, self.window));
                };
                if self.batch.uses.contains(&oldest) {
                    self.flush()?;
                }
                self.hide(oldest)?;
            }
            self.show(*id)?;
        }
        Ok(())
    }

    /// Where an operand lies: a place, and the byte in it.
    fn resolve(&mut self, operand: &Operand) -> Result<(PlaceId, u32), DeviceError> {
        let t = operand.tensor;
        let buffer = t.buffer;
        let region = match self.buffers.get(&buffer) {
            None => return Err(DeviceError::NoBuffer(buffer.0)),
            Some(Memory::Own { place, .. }) if !operand.packed => return Ok((*place, t.offset as u32)),
            Some(Memory::Own { .. }) => return Ok((self.pack_passing(&t)?, 0)),
            Some(Memory::Imported(region)) => region.clone(),
        };
        let range = t.byte_range().unwrap_or_default();
        let copied = if operand.packed {
            Copied::Packed { offset: t.offset, dtype: t.dtype, rows: t.rows, width: t.width }
        } else {
            Copied::Bytes { start: range.start, end: range.end }
        };
        if let Some(place) = self.copies.get(&(buffer, copied)) {
            return Ok((*place, 0));
        }
        let bytes = &(*region).as_ref()[range.start as usize..range.end as usize];
        let place = if operand.packed {
            self.pack(&t, bytes)?
        } else {
            let place = self.place(bytes.len() as u64, true)?;
            self.shared.write(self.places[&place].extent, 0, bytes);
            place
        };
        self.copies.insert((buffer, copied), place);
        Ok((place, 0))
    }

    fn pack(&mut self, t: &Tensor, bytes: &[u8]) -> Result<PlaceId, DeviceError> {
        let place = self.place(packed::bytes(t.dtype, t.rows, t.width), true)?;
        let (extent, mut to) = (self.places[&place].extent, 0);
        let row = t.dtype.bytes_of(u64::from(t.width)).unwrap_or(0) as usize;
        let mut tile = vec![0; packed::tile_bytes(t.dtype, t.width) as usize];
        for rows in bytes.chunks(row * packed::LANES) {
            packed::pack_tile(t.dtype, rows, t.width, &mut tile);
            self.shared.write(extent, to, &tile);
            to += tile.len() as u64;
        }
        Ok(place)
    }

    /// Packs a weight that lies in a buffer of this device, as it is after all work so far.
    fn pack_passing(&mut self, t: &Tensor) -> Result<PlaceId, DeviceError> {
        self.flush()?;
        self.drain()?;
        let range = t.byte_range().unwrap_or_default();
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.copy_out(t.buffer, range.start, &mut bytes);
        let place = self.pack(t, &bytes)?;
        self.passing.push(place);
        Ok(place)
    }

    fn copy_out(&self, buffer: BufferId, offset: u64, bytes: &mut [u8]) {
        if let Some(Memory::Own { place, .. }) = self.buffers.get(&buffer) {
            self.shared.read(self.places[place].extent, offset, bytes);
        }
    }

    /// Adds the packets of an op whose weights fit maps.
    fn push_windowed(&mut self, op: &Op) -> Result<(), DeviceError> {
        let Op::SwiGlu { x, gate, up, acts, out } = op else {
            return lower::parts(op).iter().try_for_each(|part| self.push(part));
        };
        let fuses = match acts.map(lower::in_tiles) {
            [false, false] => self.planner.fuses(gate.dtype, up.dtype, gate.rows, x.width, x.rows),
            [true, true] => self.planner.fuses_tiles(&[*gate, *up], x.rows),
            // Two units' work.
            _ => false,
        };
        if fuses {
            return lower::parts(op).iter().try_for_each(|part| self.push(part));
        }
        let bytes = u64::from(out.rows) * u64::from(out.width) * 4;
        let buffer = self.separate_buffer(bytes)?;
        let other = Tensor { buffer, offset: 0, stride: out.width, ..*out };
        let product = |weight: &Tensor, act, out: Tensor| Op::MatMul {
            x: *x,
            products: vec![Product { act, ..Product::new(*weight, out) }],
        };
        let ops = [
            product(gate, acts[0], *out),
            product(up, acts[1], other),
            Op::SiluMul { gate: *out, up: other, out: *out },
        ];
        self.counters.separate_swiglu += 1;
        ops.iter().flat_map(lower::parts).try_for_each(|part| self.push(&part))
    }

    /// A buffer of this device's own, at least so large.
    fn separate_buffer(&mut self, bytes: u64) -> Result<BufferId, DeviceError> {
        if let Some((buffer, size)) = self.separate {
            if size >= bytes {
                return Ok(buffer);
            }
            self.flush()?;
            self.separate = None;
            self.used += size;
            self.destroy(buffer)?;
        }
        let place = self.place(bytes, false)?;
        let buffer = self.insert(Memory::Own { place, bytes });
        self.separate = Some((buffer, bytes));
        Ok(buffer)
    }

    /// Adds the packet of one part of an op.
    fn push(&mut self, op: &Op) -> Result<(), DeviceError> {
        if self.batch.bytes.len() + lower::encoded_bytes(op) > abi::BATCH_BYTES as usize {
            self.flush()?;
        }
        let operands = lower::operands(op);
        let at: Vec<(PlaceId, u32)> = operands.iter().map(|o| self.resolve(o)).collect::<Result<_, _>>()?;
        let needs: Vec<PlaceId> = at.iter().map(|(place, _)| *place).collect();
        self.show_all(&needs)?;
        let tensors: Vec<abi::Tensor> = operands
            .iter()
            .zip(&at)
            .map(|(operand, (place, offset))| {
                let map = self.places[place].map.unwrap_or(abi::MAPS);
                lower::tensor(operand, map, *offset)
            })
            .collect();
        let plan = lower::plan(op, &self.planner);
        lower::encode(op, plan, &tensors, &mut self.batch.bytes);
        self.batch.packets += 1;
        self.batch.uses.extend(needs);
        Ok(())
    }

    fn buffer_info(&self, id: BufferId) -> Option<BufferInfo> {
        Some(match self.buffers.get(&id)? {
            Memory::Own { bytes, .. } => BufferInfo { bytes: *bytes, read_only: false },
            Memory::Imported(region) => {
                BufferInfo { bytes: (**region).as_ref().len() as u64, read_only: true }
            }
        })
    }

    fn check_access(
        &self,
        buffer: BufferId,
        access: &'static str,
        offset: u64,
        len: usize,
    ) -> Result<(), DeviceError> {
        let BufferInfo { bytes: size, read_only } =
            self.buffer_info(buffer).ok_or(DeviceError::NoBuffer(buffer.0))?;
        let len = len as u64;
        match offset.checked_add(len) {
            Some(end) if end <= size && !(access == "write" && read_only) => Ok(()),
            _ => Err(DeviceError::Access { buffer: buffer.0, access, offset, len, size, read_only }),
        }
    }

    fn insert(&mut self, memory: Memory) -> BufferId {
        let id = BufferId(self.next_buffer);
        self.next_buffer += 1;
        self.buffers.insert(id, memory);
        id
    }
}

impl Device for Hexagon {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn create(&mut self, bytes: u64) -> Result<BufferId, DeviceError> {
        let place = self.place(bytes, false)?;
        self.used += bytes;
        Ok(self.insert(Memory::Own { place, bytes }))
    }

    fn import(&mut self, region: Region) -> Result<BufferId, DeviceError> {
        Ok(self.insert(Memory::Imported(region)))
    }

    fn destroy(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        if !self.buffers.contains_key(&buffer) {
            return Err(DeviceError::NoBuffer(buffer.0));
        }
        // Also of a lost session: its memory is given back.
        let drained = self.drain();
        let mut places: Vec<PlaceId> =
            self.copies.iter().filter(|((of, _), _)| *of == buffer).map(|(_, place)| *place).collect();
        self.copies.retain(|(of, _), _| *of != buffer);
        if let Some(Memory::Own { place, bytes }) = self.buffers.remove(&buffer) {
            self.used -= bytes;
            places.push(place);
        }
        let forgotten: Result<Vec<()>, DeviceError> =
            places.into_iter().map(|place| self.forget(place)).collect();
        drained.and(forgotten.map(|_| ()))
    }

    fn write(&mut self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check_access(buffer, "write", offset, bytes.len())?;
        self.drain()?;
        if let Some(Memory::Own { place, .. }) = self.buffers.get(&buffer) {
            self.shared.write(self.places[place].extent, offset, bytes);
        }
        Ok(())
    }

    fn read(&mut self, buffer: BufferId, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.check_access(buffer, "read", offset, bytes.len())?;
        if let Some(Memory::Imported(region)) = self.buffers.get(&buffer) {
            bytes.copy_from_slice(&(**region).as_ref()[offset as usize..offset as usize + bytes.len()]);
            return Ok(());
        }
        self.drain()?;
        self.copy_out(buffer, offset, bytes);
        Ok(())
    }

    fn submit(&mut self, program: &Program) -> Result<Ticket, DeviceError> {
        program.validate(&|id| self.buffer_info(id))?;
        let slice = window::slice_bytes(self.window);
        let ops = program.ops.iter().flat_map(|op| window::windowed(op, slice));
        let pushed = ops.into_iter().try_for_each(|op| self.push_windowed(&op));
        if pushed.is_err() {
            self.batch = Batch::default();
        }
        pushed.and_then(|()| self.flush())?;
        self.ticket += 1;
        Ok(Ticket(self.ticket))
    }

    fn wait(&mut self, _ticket: Ticket) -> Result<(), DeviceError> {
        self.drain()
    }

    fn used(&self) -> u64 {
        self.used
    }

    fn power(&self) -> Option<Arc<dyn Power>> {
        self.link.power()
    }
}
