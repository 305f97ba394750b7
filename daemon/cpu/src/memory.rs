//! Device memory, and the step from validated tensors to raw pointers.
//!
//! [`Program::validate`](tandem_program::Program::validate) proves, before an op runs, that
//! every view lies inside its buffer, is aligned for its type, and that no output overlaps an
//! input (save the very same view, where the op works in place) or another output. A
//! [`View`] is what is left after that proof.

use crate::cache::Cache;
use crate::kernels::{Cell, Matrix};
use crate::pool::Pool;
use crate::repack::{Groups, Repacked};
use memmap2::MmapMut;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::ptr::NonNull;
use tandem_program::{BufferId, BufferInfo, DType, DeviceError, Region, Tensor};

/// Buffers start on a cache line.
const ALIGN: usize = 64;

/// Below this, large pages save nothing.
const LARGE: usize = 4 << 20;

/// Zeroed memory that costs nothing until it is touched.
pub(crate) struct Own {
    base: Base,
    len: usize,
}

enum Base {
    Heap(NonNull<u8>, Layout),
    /// Anonymous pages.
    Map(MmapMut),
}

impl Own {
    pub(crate) fn new(len: usize) -> Option<Own> {
        // Not `ALIGN` in the layout: the system allocator zeroes over-aligned memory by
        // hand, which would touch every page.
        let layout = Layout::from_size_align(len.checked_add(ALIGN)?, 16).ok()?;
        // SAFETY: the size is at least `ALIGN`.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Own { base: Base::Heap(base, layout), len })
    }

    /// As [`Own::new`], on large pages where the system has them: for memory that is read from
    /// end to end again and again.
    pub(crate) fn streamed(len: usize) -> Option<Own> {
        if len < LARGE {
            return Own::new(len);
        }
        let map = MmapMut::map_anon(len).ok()?;
        // Android's kernels mostly have none, and the library no word for them there.
        #[cfg(target_os = "linux")]
        {
            // A refusal leaves small pages.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Some(Own { base: Base::Map(map), len })
    }

    /// Bytes asked for.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn start(&self) -> *mut u8 {
        match &self.base {
            Base::Heap(base, _) => {
                let base = base.as_ptr();
                base.wrapping_add(base.align_offset(ALIGN))
            }
            Base::Map(map) => map.as_ptr().cast_mut(),
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Base::Heap(base, layout) = self.base {
            // SAFETY: allocated in `new` with this layout, freed nowhere else.
            unsafe { dealloc(base.as_ptr(), layout) }
        }
    }
}

enum Memory {
    Own(Own),
    Imported {
        /// Keeps the bytes alive.
        region: Region,
        start: *const u8,
        len: usize,
        /// By the first byte of the tensor; none where it was not to be had.
        repacked: BTreeMap<u64, (Tensor, Option<Repacked>)>,
    },
}

impl Memory {
    fn len(&self) -> usize {
        match self {
            Memory::Own(own) => own.len,
            Memory::Imported { len, .. } => *len,
        }
    }

    fn start(&self) -> *mut u8 {
        match self {
            Memory::Own(own) => own.start(),
            Memory::Imported { start, .. } => start.cast_mut(),
        }
    }
}

/// All buffers of a device.
pub(crate) struct Store {
    buffers: HashMap<BufferId, Memory>,
    next: u32,
    used: u64,
    limit: u64,
    cache: Option<Cache>,
}

// SAFETY: the pointers are to memory the store owns or keeps alive through a `Send + Sync`
// region; nothing is tied to a thread.
unsafe impl Send for Store {}
// SAFETY: shared access only looks up addresses.
unsafe impl Sync for Store {}

impl Store {
    pub(crate) fn new(limit: u64, cache: Option<Cache>) -> Self {
        Store { buffers: HashMap::new(), next: 1, used: 0, limit, cache }
    }

    fn insert(&mut self, memory: Memory) -> BufferId {
        let id = BufferId(self.next);
        self.next += 1;
        self.buffers.insert(id, memory);
        id
    }

    pub(crate) fn create(&mut self, bytes: u64) -> Result<BufferId, DeviceError> {
        let refused =
            DeviceError::OutOfMemory { device: "cpu".into(), bytes, used: self.used, limit: self.limit };
        let Some(used) = self.used.checked_add(bytes).filter(|u| *u <= self.limit) else {
            return Err(refused);
        };
        let Some(own) = usize::try_from(bytes).ok().and_then(Own::new) else {
            return Err(refused);
        };
        self.used = used;
        Ok(self.insert(Memory::Own(own)))
    }

    /// Keeps the region in place where it is aligned for the widest float type (mapped files
    /// are), else copies it.
    pub(crate) fn import(&mut self, region: Region) -> Result<BufferId, DeviceError> {
        let bytes = (*region).as_ref();
        let (start, len) = (bytes.as_ptr(), bytes.len());
        if start.align_offset(align_of::<f32>()) == 0 {
            let repacked = BTreeMap::new();
            return Ok(self.insert(Memory::Imported { region, start, len, repacked }));
        }
        let id = self.create(len as u64)?;
        self.write(id, 0, bytes)?;
        Ok(id)
    }

    pub(crate) fn destroy(&mut self, id: BufferId) -> Result<(), DeviceError> {
        match self.buffers.remove(&id) {
            None => Err(DeviceError::NoBuffer(id.0)),
            Some(Memory::Own(own)) => {
                self.used -= own.len as u64;
                Ok(())
            }
            Some(Memory::Imported { repacked, .. }) => {
                let copies = repacked.values().filter_map(|(_, copy)| copy.as_ref());
                self.used -= copies.map(|copy| copy.len() as u64).sum::<u64>();
                Ok(())
            }
        }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Gives back every repacked weight.
    pub(crate) fn forget_repacked(&mut self) {
        for memory in self.buffers.values_mut() {
            if let Memory::Imported { repacked, .. } = memory {
                let copies = std::mem::take(repacked).into_values().filter_map(|(_, copy)| copy);
                self.used -= copies.map(|copy| copy.len() as u64).sum::<u64>();
            }
        }
    }

    pub(crate) fn info(&self, id: BufferId) -> Option<BufferInfo> {
        let memory = self.buffers.get(&id)?;
        Some(BufferInfo { bytes: memory.len() as u64, read_only: matches!(memory, Memory::Imported { .. }) })
    }

    fn range(
        &self,
        id: BufferId,
        access: &'static str,
        offset: u64,
        len: usize,
    ) -> Result<*mut u8, DeviceError> {
        let memory = self.buffers.get(&id).ok_or(DeviceError::NoBuffer(id.0))?;
        let read_only = matches!(memory, Memory::Imported { .. });
        let size = memory.len() as u64;
        match offset.checked_add(len as u64) {
            Some(end) if end <= size && !(read_only && access == "write") => {
                Ok(memory.start().wrapping_add(offset as usize))
            }
            _ => Err(DeviceError::Access { buffer: id.0, access, offset, len: len as u64, size, read_only }),
        }
    }

    pub(crate) fn write(&mut self, id: BufferId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let to = self.range(id, "write", offset, bytes.len())?;
        // SAFETY: `range` showed that the bytes lie in a buffer of our own; `bytes` is
        // borrowed from elsewhere, no slice of a buffer is ever handed out.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    pub(crate) fn read(&self, id: BufferId, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let from = self.range(id, "read", offset, bytes.len())?;
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Repacks a validated weight, unless that was tried, memory is short, or something may
    /// write it. The region it lies in need not keep its bytes in memory after that.
    pub(crate) fn repack(&mut self, weight: &Tensor, pool: &Pool) -> Result<(), DeviceError> {
        let view = self.view(weight)?;
        let Some(Memory::Imported { region, repacked, .. }) = self.buffers.get_mut(&weight.buffer) else {
            return Ok(());
        };
        let dense = weight.stride == weight.width;
        let Some(bytes) = Repacked::bytes(&view).filter(|_| dense) else {
            return Ok(());
        };
        let end = weight.offset + bytes as u64;
        // The last that begins before this one ends: the only one it can meet.
        let before = repacked.range(..end).next_back();
        if before.is_some_and(|(_, (other, _))| {
            let len = other.dtype.bytes_of(u64::from(other.rows) * u64::from(other.width)).unwrap_or(0);
            other.offset + len > weight.offset
        }) {
            return Ok(());
        }
        let room = self.used.checked_add(bytes as u64).is_some_and(|used| used <= self.limit);
        let start = weight.offset as usize;
        let mut copy = || {
            let release = |part: Range<usize>| region.release(start + part.start..start + part.end);
            let mut cached = self.cache.as_mut().zip(region.identity()).and_then(|(cache, identity)| {
                cache.entry(identity, weight.offset, &view, bytes).map(|entry| (cache, entry))
            });
            if let Some(kept) = cached.as_mut().and_then(|(cache, entry)| cache.find(entry, bytes)) {
                release(0..bytes);
                return Some(Repacked::kept(&view, kept));
            }
            // SAFETY: `view` is of a validated tensor in an imported buffer, which no op writes,
            // and its rows are dense.
            let made = unsafe { Repacked::new(&view, pool, release) }?;
            let kept = cached.and_then(|(cache, entry)| cache.keep(&entry, made.as_slice()));
            Some(kept.map_or(made, |kept| Repacked::kept(&view, kept)))
        };
        let copy = if room { copy() } else { None };
        if copy.is_some() {
            self.used += bytes as u64;
        }
        repacked.insert(weight.offset, (*weight, copy));
        Ok(())
    }

    /// The groups of a weight that was repacked, this or one that begins with it.
    pub(crate) fn groups(&self, weight: &Tensor) -> Option<Groups> {
        let Some(Memory::Imported { repacked, .. }) = self.buffers.get(&weight.buffer) else {
            return None;
        };
        let (whole, copy) = repacked.get(&weight.offset)?;
        let same = (whole.dtype, whole.width, whole.stride) == (weight.dtype, weight.width, weight.stride);
        copy.as_ref().filter(|_| same).map(|copy| copy.groups(weight.rows as usize))
    }

    /// The view of a tensor that [`Program::validate`](tandem_program::Program::validate)
    /// accepted.
    pub(crate) fn view(&self, t: &Tensor) -> Result<View, DeviceError> {
        let memory = self.buffers.get(&t.buffer).ok_or(DeviceError::NoBuffer(t.buffer.0))?;
        let step = t.dtype.bytes_of(u64::from(t.stride)).unwrap_or(0);
        Ok(View {
            start: memory.start().wrapping_add(t.offset as usize),
            step: step as usize,
            rows: t.rows as usize,
            width: t.width as usize,
            dtype: t.dtype,
        })
    }
}

/// A tensor in memory. Making one or asking for a row's address is safe; using the address
/// is not, and rests on validation.
#[derive(Clone, Copy)]
pub(crate) struct View {
    start: *mut u8,
    /// Bytes from row to row.
    step: usize,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) dtype: DType,
}

// SAFETY: an address and its shape; the op that dereferences it splits rows between threads.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Address of row `r`.
    pub(crate) fn row_bytes(&self, r: usize) -> *mut u8 {
        debug_assert!(r < self.rows);
        self.start.wrapping_add(r * self.step)
    }

    /// Address of f32 row `r`.
    pub(crate) fn row(&self, r: usize) -> *mut f32 {
        debug_assert_eq!(self.dtype, DType::F32);
        self.row_bytes(r).cast()
    }

    /// Values from row to row of an f32 view.
    pub(crate) fn stride(&self) -> usize {
        self.step / size_of::<f32>()
    }

    /// The rows `first .. first + rows` of a float view, and of those the values
    /// `skip .. skip + width`.
    pub(crate) fn matrix(&self, first: usize, rows: usize, skip: usize, width: usize) -> Matrix {
        debug_assert!(first + rows <= self.rows && skip + width <= self.width);
        Matrix {
            start: self.start.wrapping_add(first * self.step + skip * self.dtype.block_bytes()),
            step: self.step,
            cell: match self.dtype {
                DType::F16 => Cell::F16,
                DType::BF16 => Cell::BF16,
                _ => Cell::F32,
            },
            rows,
            width,
        }
    }
}

/// Copies `n` values of `size` bytes.
///
/// # Safety
///
/// Both addresses are valid for that many bytes and do not overlap.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, n: usize, size: usize) {
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(from, to, n * size) }
}
