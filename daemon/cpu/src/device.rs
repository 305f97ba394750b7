//! The device: configuration, submission, profile.

use crate::cache::Cache;
use crate::level::IsaLevel;
use crate::memory::Store;
use crate::ops::Context;
use crate::pool::Pool;
use std::path::PathBuf;
use std::time::Instant;
use tandem_program::{BufferId, Device, DeviceError, DeviceInfo, Exactness, Program, Region, Ticket};

/// Most threads a device takes.
pub const MAX_THREADS: usize = 256;

/// How to make a [`Cpu`].
#[derive(Clone, Debug)]
pub struct CpuConfig {
    /// Threads that compute, the submitting one included. 0 (the default): one for each CPU
    /// this process may use. Results do not depend on it.
    pub threads: usize,
    /// Instruction set; the best the host has where `None` (the default). Results do not
    /// depend on it.
    pub level: Option<IsaLevel>,
    /// Bytes that buffers made by [`Device::create`] and repacked weights may take; weights that
    /// no longer fit are used as they are. No limit by default.
    pub memory_limit: u64,
    /// Whether quantized weights of imported regions are copied, when prepared or first used, into the
    /// order that the kernels read best (on by default). A copy is as large as the weight; its
    /// region is told to release the original. Results do not depend on it.
    pub repack: bool,
    /// Folder in which repacked weights are kept from start to start, of regions that say what
    /// they are ([`Bytes::identity`](tandem_program::Bytes::identity)). It has to be there and only
    /// this user may be able to write to it: what lies there is multiplied with as it is. None (the
    /// default) keeps them in memory. Results do not depend on it.
    pub cache: Option<PathBuf>,
}

impl Default for CpuConfig {
    fn default() -> Self {
        CpuConfig { threads: 0, level: None, memory_limit: u64::MAX, repack: true, cache: None }
    }
}

/// Why a [`Cpu`] could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The host lacks the instruction set asked for.
    #[error(
        "this CPU cannot run {asked} kernels; the best it has is {best} (leave the level out to use that)"
    )]
    Level {
        /// What was asked for.
        asked: IsaLevel,
        /// What the host has.
        best: IsaLevel,
    },
    /// More threads than [`MAX_THREADS`].
    #[error("{0} threads asked for, at most {MAX_THREADS} are possible")]
    Threads(usize),
    /// The system refused a thread.
    #[error("could not start {threads} worker threads: {source}")]
    Spawn {
        /// How many were asked for.
        threads: usize,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Time spent in one kind of op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpTime {
    /// The op's name.
    pub name: &'static str,
    /// How many ran.
    pub calls: u64,
    /// Nanoseconds in all.
    pub ns: u64,
}

/// The CPU device. Programs run to their end inside [`Device::submit`].
pub struct Cpu {
    info: DeviceInfo,
    level: IsaLevel,
    context: Context,
    repack: bool,
    ticket: u64,
    times: Vec<OpTime>,
}

impl Cpu {
    /// A device with no buffers.
    pub fn new(config: CpuConfig) -> Result<Cpu, CpuError> {
        let best = IsaLevel::best();
        let level = config.level.unwrap_or(best);
        let kernels = level.kernels().ok_or(CpuError::Level { asked: level, best })?;
        let threads = match config.threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS)),
            n if n <= MAX_THREADS => n,
            n => return Err(CpuError::Threads(n)),
        };
        let pool = Pool::new(threads).map_err(|source| CpuError::Spawn { threads, source })?;
        let plural = if threads == 1 { "" } else { "s" };
        Ok(Cpu {
            info: DeviceInfo {
                name: "cpu".into(),
                detail: format!("{level}, {threads} thread{plural}"),
                threads,
                memory: config.memory_limit,
                exactness: Exactness::Bits,
            },
            level,
            context: Context::new(
                kernels,
                pool,
                Store::new(config.memory_limit, config.cache.as_deref().map(Cache::new)),
            ),
            repack: config.repack,
            ticket: 0,
            times: Vec::new(),
        })
    }

    /// The instruction set in use.
    pub fn level(&self) -> IsaLevel {
        self.level
    }

    /// Time by kind of op since the start or the last [`Cpu::reset_profile`], longest first.
    pub fn profile(&self) -> Vec<OpTime> {
        let mut times = self.times.clone();
        times.sort_by_key(|t| std::cmp::Reverse(t.ns));
        times
    }

    /// Forgets what [`Cpu::profile`] would report.
    pub fn reset_profile(&mut self) {
        self.times.clear();
    }

    fn count(&mut self, name: &'static str, ns: u64) {
        match self.times.iter_mut().find(|t| t.name == name) {
            Some(t) => {
                t.calls += 1;
                t.ns += ns;
            }
            None => self.times.push(OpTime { name, calls: 1, ns }),
        }
    }
}

impl Device for Cpu {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn create(&mut self, bytes: u64) -> Result<BufferId, DeviceError> {
        self.context.store.create(bytes)
    }

    fn import(&mut self, region: Region) -> Result<BufferId, DeviceError> {
        self.context.store.import(region)
    }

    fn destroy(&mut self, buffer: BufferId) -> Result<(), DeviceError> {
        self.context.store.destroy(buffer)
    }

    fn write(&mut self, buffer: BufferId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.context.store.write(buffer, offset, bytes)
    }

    fn read(&mut self, buffer: BufferId, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.context.store.read(buffer, offset, bytes)
    }

    fn prepare(&mut self, program: &Program) -> Result<(), DeviceError> {
        program.validate(&|id| self.context.store.info(id))?;
        if self.repack {
            for op in &program.ops {
                self.context.repack(op)?;
            }
        }
        Ok(())
    }

    fn submit(&mut self, program: &Program) -> Result<Ticket, DeviceError> {
        self.prepare(program)?;
        for op in &program.ops {
            let start = Instant::now();
            self.context.run(op)?;
            self.count(op.name(), start.elapsed().as_nanos() as u64);
        }
        self.ticket += 1;
        Ok(Ticket(self.ticket))
    }

    fn wait(&mut self, _ticket: Ticket) -> Result<(), DeviceError> {
        Ok(())
    }

    fn used(&self) -> u64 {
        self.context.store.used()
    }

    fn rest(&mut self) {
        self.context.store.forget_repacked();
    }
}
