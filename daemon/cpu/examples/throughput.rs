//! Speed of the products and of whole passes of a 0.8B-shaped hybrid model.
//!
//! ```text
//! cargo run --release -p tandem-cpu --example throughput -- [threads] [portable|avx2|avx512vnni|neondotprod|best] [stored]
//! ```
//!
//! With `stored`, weights are read as the model file has them, without repacking.
//!
//! Weights are random bytes with sane scales; only time is measured. With one thread that is
//! its CPU time where the system tells (Linux), so that a busy machine does not matter much.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tandem_cpu::{Cpu, CpuConfig, IsaLevel};
use tandem_program::{
    Act, BufferId, DType, DeltaForm, Device, DeviceError, Op, Product, Program, StateOut, Tensor,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let threads = args.next().map_or(Ok(0), |a| a.parse())?;
    let level = match args.next() {
        None => None,
        Some(name) if name == "best" => None,
        Some(name) => Some(
            IsaLevel::ALL
                .into_iter()
                .find(|l| format!("{l:?}").eq_ignore_ascii_case(&name))
                .ok_or(format!("no instruction set is called {name}"))?,
        ),
    };
    let repack = args.next().is_none_or(|word| word != "stored");
    let mut cpu = Cpu::new(CpuConfig { threads, level, repack, ..CpuConfig::default() })?;
    println!(
        "{}: {}, weights {}",
        cpu.info().name,
        cpu.info().detail,
        if repack { "repacked" } else { "as stored" }
    );
    println!("one thread reads {:.1} GB/s from memory", memory_speed() / 1e9);
    products(&mut cpu)?;
    passes(&mut cpu)?;
    Ok(())
}

/// Fills with pseudo-random bytes; scales of every block become 0.01.
fn weight(cpu: &mut Cpu, dtype: DType, rows: u32, width: u32) -> Result<Tensor, DeviceError> {
    let bytes = dtype.bytes_of(u64::from(rows) * u64::from(width)).unwrap_or(0);
    let mut data = vec![0u8; bytes as usize];
    let mut seed = 1u64;
    for word in data.chunks_mut(8) {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.copy_from_slice(&(seed ^ (seed >> 29)).to_le_bytes()[..word.len()]);
    }
    let scales: &[usize] = match dtype {
        DType::Q4_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q6_K => &[208],
        _ => &[0],
    };
    for block in data.chunks_mut(dtype.block_bytes()) {
        for at in scales {
            match dtype {
                DType::F32 => block.copy_from_slice(&0.01f32.to_le_bytes()),
                DType::BF16 => block.copy_from_slice(&[0x24, 0x3c]),
                _ => block[*at..at + 2].copy_from_slice(&[0x1f, 0x21]),
            }
        }
    }
    let id = cpu.import(Arc::new(data))?;
    Ok(Tensor::dense(id, 0, dtype, rows, width))
}

fn floats(cpu: &mut Cpu, rows: u32, width: u32) -> Result<Tensor, DeviceError> {
    let id = cpu.create(u64::from(rows) * u64::from(width) * 4)?;
    let values: Vec<u8> = (0..rows * width)
        .flat_map(|i| (((i.wrapping_mul(2_654_435_761)) >> 8) as f32 / 8_388_608.0 - 1.0).to_le_bytes())
        .collect();
    cpu.write(id, 0, &values)?;
    Ok(Tensor::dense(id, 0, DType::F32, rows, width))
}

/// CPU time of this thread so far.
fn cpu_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}

/// Time of a run: with one thread its CPU time, averaged, for the clock is coarse; else the
/// shortest of the runs that fit in about half a second, at least three.
fn time(cpu: &mut Cpu, program: &Program) -> Result<Duration, DeviceError> {
    let (start, before) = (Instant::now(), cpu_time());
    let (mut best, mut runs) = (Duration::MAX, 0);
    while runs < 3 || start.elapsed() < Duration::from_millis(500) {
        let once = Instant::now();
        let ticket = cpu.submit(program)?;
        cpu.wait(ticket)?;
        best = best.min(once.elapsed());
        runs += 1;
    }
    Ok(match (before, cpu_time()) {
        (Some(before), Some(after)) if cpu.info().threads == 1 => (after - before) / runs,
        _ => best,
    })
}

/// Bytes a second that one thread reads from memory too large to be cached.
fn memory_speed() -> f64 {
    let data = vec![1u64; 32 << 20];
    let start = Instant::now();
    let mut sums = [0u64; 16];
    for line in data.as_chunks::<16>().0 {
        for (sum, v) in sums.iter_mut().zip(line) {
            *sum = sum.wrapping_add(*v);
        }
    }
    std::hint::black_box(sums);
    (data.len() * 8) as f64 / start.elapsed().as_secs_f64()
}

fn products(cpu: &mut Cpu) -> Result<(), DeviceError> {
    println!("\nproduct (outputs x inputs)      columns: GB/s of weights, G multiply-adds/s");
    let shapes = [(DType::Q4_0, 7168, 1024), (DType::Q4_0, 1024, 3584), (DType::Q8_0, 7168, 1024)];
    let more = [
        (DType::Q4_K, 7168, 1024),
        (DType::Q6_K, 16384, 1024),
        (DType::F16, 4096, 1024),
        (DType::F32, 2048, 1024),
    ];
    for (dtype, outputs, inputs) in shapes.into_iter().chain(more) {
        let weight = weight(cpu, dtype, outputs, inputs)?;
        print!("{dtype:>5} {outputs:>6} x {inputs:<5}");
        let own = Act::for_weight(dtype);
        let counts = [1u32, 2, 4, 8, 64, 512].map(|columns| (columns, own));
        for (columns, act) in counts.into_iter().chain([64, 512].map(|columns| (columns, Act::F16Tile))) {
            let x = floats(cpu, columns, inputs)?;
            let out = floats(cpu, columns, outputs)?;
            let mut program = Program::new();
            program.push(Op::MatMul { x, products: vec![Product { act, ..Product::new(weight, out) }] });
            let seconds = time(cpu, &program)?.as_secs_f64();
            let values = f64::from(outputs) * f64::from(inputs);
            let bytes = dtype.bytes_of(values as u64).unwrap_or(0) as f64;
            let macs = values * f64::from(columns);
            let tiles = if act == Act::F16Tile { " in tiles" } else { "" };
            print!("  {columns}{tiles}: {:.1}, {:.0}", bytes / seconds / 1e9, macs / seconds / 1e9);
            cpu.destroy(x.buffer)?;
            cpu.destroy(out.buffer)?;
        }
        println!();
        cpu.destroy(weight.buffer)?;
    }
    Ok(())
}

const HIDDEN: u32 = 1024;
const FFN: u32 = 3584;
const HEADS: u32 = 16;
const DIM: u32 = 128;
const MIXED: u32 = 3 * HEADS * DIM;
const VOCABULARY: u32 = 248_320;
const CELLS: u32 = 1024;

struct Layer {
    mix: Tensor,
    gate: Tensor,
    out: Tensor,
    ffn: [Tensor; 3],
}

/// The ops of one pass as the engine lowers them, near enough for timing.
fn pass(
    cpu: &mut Cpu,
    layers: &[Layer],
    head: Tensor,
    columns: u32,
    prefill: bool,
) -> Result<(Program, Vec<BufferId>), DeviceError> {
    let mut made = Vec::new();
    let mut f = |rows, width| {
        let t = floats(cpu, rows, width)?;
        made.push(t.buffer);
        Ok::<_, DeviceError>(t)
    };
    let n = columns;
    let (x, y, norm) = (f(n, HIDDEN)?, f(n, HIDDEN)?, f(1, HIDDEN)?);
    let (mixed, conved, z) = (f(n, MIXED)?, f(n, MIXED)?, f(n, HEADS * DIM)?);
    let (kernel, conv_state, conv_to) = (f(MIXED, 4)?, f(3, MIXED)?, f(3, MIXED)?);
    let (gates, gates_b, core, a) = (f(n, HEADS)?, f(n, HEADS)?, f(n, HEADS * DIM)?, f(1, HEADS)?);
    let (state, to, head_norm) = (f(HEADS * DIM, DIM)?, f(HEADS * DIM, DIM)?, f(1, DIM)?);
    let (wide, logits, last) = (f(n, FFN)?, f(1, VOCABULARY)?, f(1, HIDDEN)?);
    let (q, angles) = (f(n * 8, 256)?, f(n, 64)?);
    let cells = f(CELLS, 256)?;
    let k = Tensor { dtype: DType::F16, width: 512, stride: 512, ..cells };
    let mut p = Program::new();
    for (i, layer) in layers.iter().enumerate() {
        p.push(Op::RmsNorm { x, weight: norm, eps: 1e-6, out: y });
        p.push(Op::MatMul {
            x: y,
            products: vec![Product::new(layer.mix, mixed), Product::new(layer.gate, z)],
        });
        if i % 4 == 3 {
            let past = CELLS - n - 1;
            let cell = k.slice_rows(past, n).slice_width(0, 512);
            p.push(Op::Rope { x: q, heads: 8, table: angles, out: q });
            p.push(Op::Copy { x: mixed.slice_width(0, 512), out: cell });
            p.push(Op::Attention {
                q,
                k,
                v: k,
                heads: 8,
                kv_heads: 2,
                past,
                scale: 0.06,
                out: core.split_rows(8),
            });
            p.push(Op::SigmoidMul { x: core, gate: z, out: core });
        } else {
            let states = vec![StateOut { after: n - 1, to: conv_to }];
            p.push(Op::Conv {
                x: mixed,
                state: conv_state,
                kernel,
                bias: None,
                silu: true,
                out: conved,
                states,
            });
            let part = |j| conved.slice_width(j * HEADS * DIM, HEADS * DIM);
            for j in 0..2 {
                p.push(Op::L2Norm { x: part(j), groups: HEADS, eps: 1e-6, scale: 0.09, out: part(j) });
            }
            p.push(Op::DeltaGates { alpha: gates, beta: gates_b, a, dt: a, decay: gates, beta_out: gates_b });
            p.push(Op::GatedDelta {
                form: if prefill { DeltaForm::Chunked { position: 0 } } else { DeltaForm::PerToken },
                q: part(0),
                k: part(1),
                v: part(2),
                decay: gates,
                beta: gates_b,
                heads: HEADS,
                key_heads: HEADS,
                state,
                out: core,
                states: vec![StateOut { after: n - 1, to }],
            });
            let by_head = |t: Tensor| t.split_rows(HEADS);
            p.push(Op::GatedNorm {
                x: by_head(core),
                z: by_head(z),
                weight: head_norm,
                eps: 1e-6,
                out: by_head(core),
            });
        }
        p.push(Op::MatMul { x: core, products: vec![Product::new(layer.out, y)] });
        p.push(Op::Add { a: x, b: y, out: x });
        p.push(Op::RmsNorm { x, weight: norm, eps: 1e-6, out: y });
        let [gate, up, _] = layer.ffn;
        p.push(Op::SwiGlu { x: y, gate, up, acts: Act::for_weights([gate, up]), out: wide });
        p.push(Op::MatMul { x: wide, products: vec![Product::new(layer.ffn[2], y)] });
        p.push(Op::Add { a: x, b: y, out: x });
        // Keeps values ordinary over 24 layers of random weights.
        p.push(Op::RmsNorm { x, weight: norm, eps: 1e-6, out: x });
    }
    p.push(Op::Gather { x, rows: Arc::new([n - 1]), out: last });
    p.push(Op::MatMul { x: last, products: vec![Product::new(head, logits)] });
    Ok((p, made))
}

fn passes(cpu: &mut Cpu) -> Result<(), DeviceError> {
    println!("\npasses of a 0.8B shape, Q4_0 with a Q6_K head");
    let mut layers = Vec::new();
    for _ in 0..24 {
        layers.push(Layer {
            mix: weight(cpu, DType::Q4_0, MIXED, HIDDEN)?,
            gate: weight(cpu, DType::Q4_0, HEADS * DIM, HIDDEN)?,
            out: weight(cpu, DType::Q4_0, HIDDEN, HEADS * DIM)?,
            ffn: [
                weight(cpu, DType::Q4_0, FFN, HIDDEN)?,
                weight(cpu, DType::Q4_0, FFN, HIDDEN)?,
                weight(cpu, DType::Q4_0, HIDDEN, FFN)?,
            ],
        });
    }
    let head = weight(cpu, DType::Q6_K, VOCABULARY, HIDDEN)?;
    for (name, columns, prefill) in
        [("decode", 1, false), ("verify", 4, false), ("verify", 8, false), ("prefill", 512, true)]
    {
        let (program, made) = pass(cpu, &layers, head, columns, prefill)?;
        cpu.reset_profile();
        let best = time(cpu, &program)?;
        println!(
            "{name} of {columns}: {:.2} ms, {:.1} columns/s",
            best.as_secs_f64() * 1e3,
            f64::from(columns) / best.as_secs_f64()
        );
        let times = cpu.profile();
        let all: u64 = times.iter().map(|t| t.ns).sum();
        let shares: Vec<String> = times
            .iter()
            .take(8)
            .map(|t| format!("{} {:.1}%", t.name, t.ns as f64 * 100.0 / all as f64))
            .collect();
        println!("    {}", shares.join(", "));
        for id in made {
            cpu.destroy(id)?;
        }
    }
    Ok(())
}
