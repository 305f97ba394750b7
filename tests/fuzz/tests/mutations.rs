//! Every target on its seeds, and on mutations of them: the same ones in every run.

// A failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

use std::path::Path;

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// Values that lengths and counts are most often wrong by.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];

fn mutate(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(input.len() + 1);
        match random.below(7) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = random.below(256) as u8,
            2 => input.insert(at, random.below(256) as u8),
            3 if at < input.len() => drop(input.drain(at..(at + 1 + random.below(8)).min(input.len()))),
            4 => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let width = [1, 2, 4, 8][random.below(4)];
                let end = (at + width).min(input.len());
                let fits = end - at;
                input[at..end].copy_from_slice(&edge[..fits]);
            }
            5 => {
                let other = &others[random.below(others.len())];
                let from = random.below(other.len() + 1);
                let to = (from + random.below(64)).min(other.len());
                let piece = other[from..to].to_vec();
                input.splice(at..at, piece);
            }
            _ => input.truncate(at),
        }
    }
}

/// The inputs that are kept in a target's folder.
fn kept(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no seeds in {}", folder.display());
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn try_all(target: &str, seeds: &[Vec<u8>], run: fn(&[u8]), count: usize) {
    for (n, seed) in seeds.iter().enumerate() {
        println!("{target}, seed {n}");
        run(seed);
    }
    let long = std::env::var_os("TANDEM_LONG").is_some();
    let count = if long { count * 50 } else { count };
    let mut random = Random(0x7a4d_e017);
    for n in 0..count {
        let mut input = seeds[random.below(seeds.len())].clone();
        mutate(&mut input, seeds, &mut random);
        let tried = std::panic::catch_unwind(|| run(&input));
        if let Err(finding) = tried {
            println!("mutation {n} of {target} is a finding; put it among the seeds: {input:02x?}");
            std::panic::resume_unwind(finding);
        }
    }
}

#[test]
fn model_files() {
    try_all("gguf", &kept("gguf"), tandem_fuzz::gguf::run, 20_000);
}

#[test]
fn frames() {
    try_all("frame", &tandem_fuzz::frame::seeds(), tandem_fuzz::frame::run, 200_000);
}

#[test]
fn ring_indices_and_lengths() {
    try_all("ring", &kept("ring"), tandem_fuzz::ring::run, 200_000);
}

#[test]
fn schemas() {
    tandem_fuzz::schema::hush();
    try_all("schema", &kept("schema"), tandem_fuzz::schema::run, 1_500);
}
