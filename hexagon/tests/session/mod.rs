//! What tests have a session do until it fails, and what of it may be left.

use tandem_hexagon::Hexagon;
use tandem_program::{DType, Device, DeviceError, Op, Program, Tensor};

/// Runs an addition until the session fails or `rounds` are over; checks every result.
pub(crate) fn work(device: &mut Hexagon, rounds: u32) -> Result<(), DeviceError> {
    let (rows, width) = (64, 256);
    let bytes = u64::from(rows * width) * 4;
    let (x, out) = (device.create(bytes)?, device.create(bytes)?);
    let values: Vec<u8> = (0..rows * width).flat_map(|i| (i as f32).to_le_bytes()).collect();
    device.write(x, 0, &values)?;
    let tensor = |buffer| Tensor { buffer, offset: 0, dtype: DType::F32, rows, width, stride: width };
    let program = Program { ops: vec![Op::Add { a: tensor(x), b: tensor(x), out: tensor(out) }; 20] };
    for _ in 0..rounds {
        let ticket = device.submit(&program)?;
        device.wait(ticket)?;
        let mut last = [0; 4];
        device.read(out, bytes - 4, &mut last)?;
        assert_eq!(f32::from_le_bytes(last), 2.0 * (rows * width - 1) as f32);
    }
    device.destroy(x)?;
    device.destroy(out)
}

/// Processes of this thread.
pub(crate) fn children() -> String {
    std::fs::read_to_string("/proc/thread-self/children").unwrap()
}

/// Descriptors, maps of files of this name, processes.
pub(crate) fn belongings(map: &str) -> (usize, usize, String) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap().matches(map).count();
    (descriptors, maps, children())
}
