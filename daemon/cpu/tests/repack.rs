//! Repacked weights: what they take, what they let go of, and when there are none.

// A failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::sync::{Arc, Mutex};
use tandem_cpu::{Cpu, CpuConfig};
use tandem_program::{Bytes, DType, Device, Op, Product, Program, Tensor};

const ROWS: u32 = 19;
const WIDTH: u32 = 64;
/// Two groups of eight rows; three rows are left over.
const REPACKED: u64 = 16 * 2 * 18;

/// A region that notes what it may let go of.
struct Watched {
    bytes: Vec<u8>,
    released: Arc<Mutex<Vec<Range<usize>>>>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Bytes for Watched {
    fn release(&self, range: Range<usize>) {
        self.released.lock().unwrap().push(range);
    }
}

/// The product of a weight, 4 bytes into its region, with one column; bytes the device used
/// with the weight and without; what was released.
fn run(config: CpuConfig) -> (Vec<u8>, u64, u64, Vec<Range<usize>>) {
    let mut cpu = Cpu::new(config).unwrap();
    let size = 4 + ROWS as usize * 2 * 18;
    // Scales that are no NaN: bytes below 0x40.
    let bytes = (0..size).map(|i| (i * 37 % 61) as u8).collect();
    let released = Arc::new(Mutex::new(Vec::new()));
    let region = cpu.import(Arc::new(Watched { bytes, released: Arc::clone(&released) })).unwrap();
    let (x, out) = (cpu.create(u64::from(WIDTH) * 4).unwrap(), cpu.create(u64::from(ROWS) * 4).unwrap());
    let values: Vec<u8> = (0..WIDTH).flat_map(|i| (i as f32 * 0.37 - 9.0).to_le_bytes()).collect();
    cpu.write(x, 0, &values).unwrap();
    let before = cpu.used();
    let weight = Tensor::dense(region, 4, DType::Q4_0, ROWS, WIDTH);
    let mut program = Program::new();
    program.push(Op::MatMul {
        x: Tensor::dense(x, 0, DType::F32, 1, WIDTH),
        products: vec![Product::new(weight, Tensor::dense(out, 0, DType::F32, 1, ROWS))],
    });
    // A second pass finds what the first one made.
    for _ in 0..2 {
        let ticket = cpu.submit(&program).unwrap();
        cpu.wait(ticket).unwrap();
    }
    let with = cpu.used() - before;
    let mut result = vec![0; ROWS as usize * 4];
    cpu.read(out, 0, &mut result).unwrap();
    cpu.destroy(region).unwrap();
    let released = released.lock().unwrap().clone();
    (result, with, cpu.used() - before, released)
}

#[test]
fn a_copy_is_accounted_and_the_region_lets_go_of_the_original() {
    let (_, with, without, released) = run(CpuConfig { threads: 1, ..CpuConfig::default() });
    assert_eq!((with, without), (REPACKED, 0));
    assert_eq!(released.len(), 1);
    assert_eq!(released[0], 4..4 + REPACKED as usize);
}

#[test]
fn a_weight_beyond_the_limit_is_used_as_it_is_with_the_same_result() {
    let (repacked, ..) = run(CpuConfig { threads: 1, ..CpuConfig::default() });
    for config in [
        CpuConfig { threads: 1, memory_limit: 400, ..CpuConfig::default() },
        CpuConfig { threads: 1, repack: false, ..CpuConfig::default() },
    ] {
        let (result, with, _, released) = run(config);
        assert_eq!((with, released.len()), (0, 0));
        assert_eq!(result, repacked);
    }
}

#[test]
fn what_is_prepared_is_there_before_a_program_runs() {
    let mut cpu = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    let region = cpu.import(Arc::new(vec![1u8; ROWS as usize * 2 * 18])).unwrap();
    let (x, out) = (cpu.create(u64::from(WIDTH) * 4).unwrap(), cpu.create(u64::from(ROWS) * 4).unwrap());
    let before = cpu.used();
    let product = |rows| {
        let mut program = Program::new();
        let weight = Tensor::dense(region, 0, DType::Q4_0, rows, WIDTH);
        let out = Tensor::dense(out, 0, DType::F32, 1, rows);
        program.push(Op::MatMul {
            x: Tensor::dense(x, 0, DType::F32, 1, WIDTH),
            products: vec![Product::new(weight, out)],
        });
        program
    };
    assert!(cpu.prepare(&product(ROWS + 1)).is_err(), "a weight larger than its region");
    cpu.prepare(&product(ROWS)).unwrap();
    assert_eq!(cpu.used() - before, REPACKED);
    cpu.submit(&product(ROWS)).unwrap();
    assert_eq!(cpu.used() - before, REPACKED);
}
