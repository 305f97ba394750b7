//! Repacked weights on disk: found again, never trusted when damaged, never in the way.

// A failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tandem_cpu::{Cpu, CpuConfig};
use tandem_program::{Bytes, DType, Device, Op, Product, Program, Tensor};

const ROWS: u32 = 136;
const WIDTH: u32 = 1024;

/// Contents that may say what they are.
struct Named(Vec<u8>, Option<u64>);

impl AsRef<[u8]> for Named {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Bytes for Named {
    fn identity(&self) -> Option<u64> {
        self.1
    }
}

/// A product with a weight of these contents on a device with this cache.
fn product(folder: Option<&Path>, identity: Option<u64>, seed: usize) -> Vec<u8> {
    let config = CpuConfig { threads: 2, cache: folder.map(PathBuf::from), ..CpuConfig::default() };
    let mut cpu = Cpu::new(config).unwrap();
    let size = ROWS as usize * WIDTH as usize / 32 * 18;
    // Scales that are no NaN: bytes below 0x40.
    let bytes: Vec<u8> = (0..size).map(|i| ((i * 37 + seed) % 61) as u8).collect();
    let region = cpu.import(Arc::new(Named(bytes, identity))).unwrap();
    let (x, out) = (cpu.create(u64::from(WIDTH) * 4).unwrap(), cpu.create(u64::from(ROWS) * 4).unwrap());
    let values: Vec<u8> = (0..WIDTH).flat_map(|i| (i as f32 * 0.37 - 9.0).to_le_bytes()).collect();
    cpu.write(x, 0, &values).unwrap();
    let before = cpu.used();
    let weight = Tensor::dense(region, 0, DType::Q4_0, ROWS, WIDTH);
    let mut program = Program::new();
    program.push(Op::MatMul {
        x: Tensor::dense(x, 0, DType::F32, 1, WIDTH),
        products: vec![Product::new(weight, Tensor::dense(out, 0, DType::F32, 1, ROWS))],
    });
    let ticket = cpu.submit(&program).unwrap();
    cpu.wait(ticket).unwrap();
    // Accounted wherever it lies.
    assert_eq!(cpu.used() - before, size as u64);
    cpu.rest();
    assert_eq!(cpu.used(), before);
    let ticket = cpu.submit(&program).unwrap();
    cpu.wait(ticket).unwrap();
    let mut result = vec![0; ROWS as usize * 4];
    cpu.read(out, 0, &mut result).unwrap();
    result
}

/// Names, sizes and times of the files in a folder.
fn files(folder: &Path) -> Vec<(PathBuf, u64, SystemTime)> {
    let mut all: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| {
            let file = file.unwrap();
            let data = file.metadata().unwrap();
            (file.path(), data.len(), data.modified().unwrap())
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_weight_is_kept_once_and_found_by_the_next_device() {
    let folder = tempfile::tempdir().unwrap();
    let want = product(None, Some(7), 0);
    assert_eq!(product(Some(folder.path()), Some(7), 0), want);
    let kept = files(folder.path());
    assert_eq!(kept.len(), 1);
    assert_eq!(product(Some(folder.path()), Some(7), 0), want);
    assert_eq!(files(folder.path()), kept, "written a second time");
    // The file is what is multiplied with: other weights that claim to be these get its results.
    assert_eq!(product(Some(folder.path()), Some(7), 5), want);
}

#[test]
fn a_damaged_file_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let want = product(Some(folder.path()), Some(7), 0);
    let file = files(folder.path()).remove(0).0;
    let good = std::fs::read(&file).unwrap();
    let mut flipped = good.clone();
    flipped[40_000] ^= 1;
    let mut swapped = good.clone();
    swapped.copy_within(0..32, 32);
    for bad in [flipped, swapped, good[..good.len() - 1].to_vec(), good[..100].to_vec(), Vec::new()] {
        std::fs::write(&file, bad).unwrap();
        assert_eq!(product(Some(folder.path()), Some(7), 0), want);
        assert_eq!(std::fs::read(&file).unwrap(), good);
    }
}

#[test]
fn another_models_files_make_room_and_other_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    product(Some(folder.path()), Some(7), 0);
    let old = files(folder.path());
    assert_eq!(product(Some(folder.path()), Some(8), 1), product(None, None, 1));
    let new = files(folder.path());
    assert_eq!(new.len(), 2);
    let gone = old.iter().find(|file| file.0.extension().unwrap() == "repacked").unwrap();
    assert!(!new.contains(gone));
    assert!(folder.path().join("notes.txt").exists());
}

#[test]
fn contents_that_do_not_say_what_they_are_and_folders_that_are_not_there_cost_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let want = product(None, None, 3);
    assert_eq!(product(Some(folder.path()), None, 3), want);
    assert!(files(folder.path()).is_empty());
    assert_eq!(product(Some(&folder.path().join("absent")), Some(9), 3), want);
}
