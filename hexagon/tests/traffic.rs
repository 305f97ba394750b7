//! What the DSP's program costs, counted: bytes that DMA carries and, under qemu-hexagon,
//! instructions. Runs what `cargo xtask hexagon` has built; without it the tests are listed as
//! ignored: not run.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

mod built;

use built::built;
use libtest_mimic::{Arguments, Trial};
use std::sync::Arc;
use tandem_hexagon::{Counters, EmulatorConfig, Hexagon, HexagonConfig, packed};
use tandem_program::{Act, BufferId, DType, Device, Op, Product, Program, StateOut, Tensor};

const MEMORY: HexagonConfig = HexagonConfig { memory: 64 << 20, window: 32 << 20 };

/// A device with one worker, whose counters see all the work.
fn device(config: &EmulatorConfig, vtcm_bytes: u32) -> Hexagon {
    let config = EmulatorConfig { workers: 1, vtcm_bytes, ..config.clone() };
    Hexagon::emulated(&MEMORY, &config).unwrap()
}

fn f32s(device: &mut Hexagon, rows: u32, width: u32) -> Tensor {
    let bytes = u64::from(rows * width) * 4;
    let buffer = device.create(bytes).unwrap();
    let values = (0..rows * width).flat_map(|i| ((i * 97 % 64) as f32 / 9.0 - 3.3).to_le_bytes());
    device.write(buffer, 0, &values.collect::<Vec<u8>>()).unwrap();
    Tensor { buffer, offset: 0, dtype: DType::F32, rows, width, stride: width }
}

fn weight(device: &mut Hexagon, dtype: DType, rows: u32, width: u32) -> Tensor {
    let bytes = dtype.bytes_of(u64::from(width)).unwrap() * u64::from(rows);
    // Any bytes are a weight, but for scales that are no numbers: halves below 0x7c00.
    let bytes: Vec<u8> = (0..bytes).map(|i| (i * 37 % 113) as u8).collect();
    let buffer = device.import(Arc::new(bytes)).unwrap();
    Tensor { buffer, offset: 0, dtype, rows, width, stride: width }
}

fn read(device: &mut Hexagon, buffer: BufferId, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    device.read(buffer, 0, &mut out).unwrap();
    out
}

/// What these ops add to the counters, weights packed and mapped before.
fn cost(device: &mut Hexagon, ops: Vec<Op>) -> Counters {
    let program = Program { ops };
    let mut run = || {
        let ticket = device.submit(&program).unwrap();
        device.wait(ticket).unwrap();
        device.counters()
    };
    let (before, after) = (run(), run());
    Counters {
        instructions: after.instructions - before.instructions,
        vector_instructions: after.vector_instructions - before.vector_instructions,
        dma_bytes: after.dma_bytes - before.dma_bytes,
        separate_swiglu: after.separate_swiglu - before.separate_swiglu,
        ..after
    }
}

fn product(x: Tensor, weight: Tensor, out: Tensor) -> Op {
    Op::MatMul { x, products: vec![Product::new(weight, out)] }
}

/// Vector instructions that fetch and unpack a block of 32 rows, read off `dsp/kernels/product.c`:
/// loads, masks and shifts of quants and integer scales; and those that make floats of a vector of
/// halves (`dsp/kernels/soft.h`), 32 at least. The block's inputs.
fn unpacking(dtype: DType) -> (u64, u32) {
    const HALVES: u64 = 32;
    match dtype {
        DType::Q8_0 => (9 + HALVES, 32),
        DType::Q4_0 => (17 + HALVES, 32),
        DType::Q4_K => (161 + HALVES, 256),
        _ => (384 + HALVES, 256),
    }
}

/// Weights are fetched and unpacked once for all columns: with every column more only its own
/// multiply-accumulates come on top.
fn shared_columns_fetch_and_unpack_weights_once(config: &EmulatorConfig) {
    let (outputs, width) = (256, 512);
    let mut device = device(config, 1 << 20);
    for dtype in [DType::Q4_0, DType::Q8_0, DType::Q4_K, DType::Q6_K] {
        let w = weight(&mut device, dtype, outputs, width);
        let mut of = |columns: u32| {
            let (x, out) = (f32s(&mut device, columns, width), f32s(&mut device, columns, outputs));
            let cost = cost(&mut device, vec![product(x, w, out)]);
            let results = u64::from(columns * outputs) * 4;
            let weights = packed::bytes(dtype, outputs, width);
            assert_eq!(cost.dma_bytes, weights + results, "{dtype:?}, {columns} columns");
            cost.vector_instructions
        };
        let (one, four) = (of(1), of(4));
        let (unpack, block) = unpacking(dtype);
        let blocks = u64::from(width / block * outputs / 32);
        let column = one - unpack * blocks;
        eprintln!(
            "{dtype:?}, vector instructions a block: {} for one column, {} for four, {:.2} times; {unpack} unpack",
            one / blocks,
            four / blocks,
            four as f64 / one as f64
        );
        assert!(
            four <= one + 3 * column,
            "{dtype:?}: {four} for four columns, {one} for one, {column} a column"
        );
    }
}

/// SwiGLU as one op and as three: the same bits, and between the products nothing moves.
fn fused_swiglu_moves_fewer_bytes(config: &EmulatorConfig) {
    let (rows, width, outputs) = (6, 512, 96);
    let result = u64::from(rows * outputs) * 4;
    let mut device = device(config, 1 << 20);
    let (gate, up) =
        (weight(&mut device, DType::Q4_K, outputs, width), weight(&mut device, DType::Q8_0, outputs, width));
    let x = f32s(&mut device, rows, width);
    let [a, b, out, fused] = [0; 4].map(|_| f32s(&mut device, rows, outputs));
    let three =
        cost(&mut device, vec![product(x, gate, a), product(x, up, b), Op::SiluMul { gate: a, up: b, out }]);
    let one =
        cost(&mut device, vec![Op::SwiGlu { x, gate, up, acts: Act::for_weights([gate, up]), out: fused }]);
    let weights = packed::bytes(DType::Q4_K, outputs, width) + packed::bytes(DType::Q8_0, outputs, width);
    assert_eq!((one.dma_bytes, one.separate_swiglu), (weights + result, 0));
    assert_eq!(three.dma_bytes, weights + 5 * result);
    let expected = read(&mut device, out.buffer, result as usize);
    assert!(read(&mut device, fused.buffer, result as usize) == expected);
}

/// With on-chip memory for one product's columns at a time, SwiGLU is run as three ops.
fn swiglu_without_room_is_three_ops(config: &EmulatorConfig) {
    let (rows, width, outputs) = (9, 4096, 64);
    let run = |vtcm: u32| {
        let mut device = device(config, vtcm);
        let gate = weight(&mut device, DType::Q6_K, outputs, width);
        let up = weight(&mut device, DType::Q8_0, outputs, width);
        let (x, out) = (f32s(&mut device, rows, width), f32s(&mut device, rows, outputs));
        let cost =
            cost(&mut device, vec![Op::SwiGlu { x, gate, up, acts: Act::for_weights([gate, up]), out }]);
        (cost.separate_swiglu, read(&mut device, out.buffer, (rows * outputs * 4) as usize))
    };
    let (roomy, tight) = (run(8 << 20), run(64 << 10));
    assert_eq!((roomy.0, tight.0), (0, 1));
    assert!(roomy.1 == tight.1, "on-chip memory changes results");
}

/// A product in tiles: weights go by once a group of columns that on-chip memory holds, by DMA;
/// where it holds only a part of the sums they are read where they lie. The same bits.
fn tiles_fetch_weights_once_a_group_of_columns(config: &EmulatorConfig) {
    let (rows, outputs, width) = (70, 64, 512);
    let run = |vtcm: u32| {
        let mut device = device(config, vtcm);
        let gate = weight(&mut device, DType::Q4_0, outputs, width);
        let up = weight(&mut device, DType::Q6_K, outputs, width);
        let x = f32s(&mut device, rows, width);
        let [one, fused] = [0; 2].map(|_| f32s(&mut device, rows, outputs));
        let product = Product { act: Act::F16Tile, ..Product::new(gate, one) };
        let plain = cost(&mut device, vec![Op::MatMul { x, products: vec![product] }]);
        let swiglu = Op::SwiGlu { x, gate, up, acts: [Act::F16Tile; 2], out: fused };
        let both = cost(&mut device, vec![swiglu]);
        let bytes = (rows * outputs * 4) as usize;
        let results = [one, fused].map(|t| read(&mut device, t.buffer, bytes));
        ([plain.dma_bytes, both.dma_bytes], both.separate_swiglu, results)
    };
    let bytes = |dtype| packed::bytes(dtype, outputs, width);
    let (once, both) = (bytes(DType::Q4_0), bytes(DType::Q4_0) + bytes(DType::Q6_K));
    let roomy = run(1 << 20);
    assert_eq!((roomy.0, roomy.1), ([once, both], 0));
    // Three blocks of columns: two at a time beside one weight, one beside two.
    let tight = run(132 << 10);
    assert_eq!((tight.0, tight.1), ([2 * once, 3 * both], 0));
    // Three ops, whose values alone go by DMA.
    let least = run(64 << 10);
    assert_eq!((least.0, least.1), ([0, u64::from(3 * rows * outputs * 4)], 1));
    assert!(roomy.2 == tight.2 && roomy.2 == least.2, "on-chip memory changes results");
}

/// The convolution reads columns as they lie and applies SiLU on the way: its inputs and outputs
/// move once. As separate ops there are two transposes, which move what a copy does, and SiLU.
fn channel_major_convolution_moves_fewer_bytes(config: &EmulatorConfig) {
    let (rows, channels, taps) = (40, 80, 4);
    let all = u64::from(rows * channels) * 4;
    let kept = u64::from((taps - 1) * channels) * 4;
    let mut device = device(config, 64 << 10);
    let [x, in_order, y, active, back, out] = [0; 6].map(|_| f32s(&mut device, rows, channels));
    let (state, to) = (f32s(&mut device, taps - 1, channels), f32s(&mut device, taps - 1, channels));
    let kernel = f32s(&mut device, channels, taps);
    let ones = f32s(&mut device, rows, channels);
    device.write(ones.buffer, 0, &1f32.to_le_bytes().repeat((rows * channels) as usize)).unwrap();
    let conv = |x, silu, out| {
        let states = vec![StateOut { after: rows - 1, to }];
        Op::Conv { x, state, kernel, bias: None, silu, out, states }
    };
    let one = cost(&mut device, vec![conv(x, true, out)]);
    let separate = cost(
        &mut device,
        vec![
            Op::Copy { x, out: in_order },
            conv(in_order, false, y),
            Op::SiluMul { gate: y, up: ones, out: active },
            Op::Copy { x: active, out: back },
        ],
    );
    // The saved state goes from memory to memory.
    assert_eq!(one.dma_bytes, 2 * all + 3 * kept);
    // SiLU alone reads one input: the ones are what this program has to multiply by.
    assert_eq!(separate.dma_bytes, one.dma_bytes + 2 * 2 * all + 3 * all);
    let expected = read(&mut device, back.buffer, all as usize);
    assert!(read(&mut device, out.buffer, all as usize) == expected);
}

/// Weights larger than a map, in slices that take turns in the window: the same bits, and no
/// more mapped at once than the window has.
fn weights_larger_than_a_map_are_mapped_in_slices(config: &EmulatorConfig) {
    let (rows, width, outputs) = (3, 256, 2000);
    let run = |window: u64| {
        let memory = HexagonConfig { window, ..MEMORY };
        let mut device =
            Hexagon::emulated(&memory, &EmulatorConfig { workers: 2, ..config.clone() }).unwrap();
        let q8 = weight(&mut device, DType::Q8_0, outputs, width);
        let q6 = weight(&mut device, DType::Q6_K, outputs, width);
        let x = f32s(&mut device, rows, width);
        let [a, b, c] = [0; 3].map(|_| f32s(&mut device, rows, outputs));
        let (chosen, embedded) = (f32s(&mut device, rows, 7), f32s(&mut device, 5, width));
        let rows = Some([1999, 0, 1024, 1025, 31, 32, 700].into());
        let products =
            vec![Product::new(q8, a), Product::new(q6, b), Product { rows, ..Product::new(q6, chosen) }];
        let ops = vec![
            Op::MatMul { x, products },
            Op::SwiGlu { x, gate: q8, up: q6, acts: Act::for_weights([q8, q6]), out: c },
            Op::Embed { table: q8, ids: [0, 1, 1999, 1000, 2].into(), scale: 2.0, out: embedded },
        ];
        // Twice: the second time slices that gave way come back.
        let maps = cost(&mut device, ops).maps;
        let results =
            [a, b, c, chosen, embedded].map(|t| read(&mut device, t.buffer, (t.rows * t.width * 4) as usize));
        (maps, results)
    };
    // The command map alone is a megabyte.
    let (whole, sliced) = (run(32 << 20), run(2 << 20));
    assert!(packed::bytes(DType::Q8_0, outputs, width) > (2 << 20) / 4);
    assert!(sliced.0 > whole.0 + 4, "{} maps, with a large window {}", sliced.0, whole.0);
    assert!(sliced.1 == whole.1, "slices change results");
}

type Check = fn(&EmulatorConfig);

/// Which builds of the program run a check.
#[derive(Clone, Copy, PartialEq)]
enum On {
    Both,
    /// The emulated one: only qemu-hexagon counts instructions.
    Counted,
    /// The host's: soft floats take minutes, and bytes are the same.
    Host,
}

fn main() {
    let folder = built();
    let qemu = folder.join("qemu/usr/bin/qemu-hexagon");
    let checks: [(&str, Check, On); 6] = [
        (
            "shared_columns_fetch_and_unpack_weights_once",
            shared_columns_fetch_and_unpack_weights_once,
            On::Counted,
        ),
        ("fused_swiglu_moves_fewer_bytes", fused_swiglu_moves_fewer_bytes, On::Both),
        (
            "tiles_fetch_weights_once_a_group_of_columns",
            tiles_fetch_weights_once_a_group_of_columns,
            On::Host,
        ),
        ("swiglu_without_room_is_three_ops", swiglu_without_room_is_three_ops, On::Both),
        (
            "weights_larger_than_a_map_are_mapped_in_slices",
            weights_larger_than_a_map_are_mapped_in_slices,
            On::Both,
        ),
        (
            "channel_major_convolution_moves_fewer_bytes",
            channel_major_convolution_moves_fewer_bytes,
            On::Both,
        ),
    ];
    let programs = [("v73", "tandem-dsp-v73", Some(qemu)), ("host", "tandem-dsp-host", None)];
    let mut trials = Vec::new();
    for (name, program, qemu) in programs {
        let program = folder.join(program);
        let here = program.exists() && qemu.as_ref().is_none_or(|qemu| qemu.exists());
        if !here {
            eprintln!("note: no {} (`cargo xtask hexagon` builds it); NOT RUN", program.display());
        }
        let counts = qemu.is_some();
        let config = EmulatorConfig::new(program, qemu);
        for (what, check, _) in
            checks.iter().filter(|(_, _, on)| *on != if counts { On::Host } else { On::Counted })
        {
            let (config, check) = (config.clone(), *check);
            let trial = Trial::test(format!("{name}::{what}"), move || {
                check(&config);
                Ok(())
            });
            trials.push(trial.with_ignored_flag(!here));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
