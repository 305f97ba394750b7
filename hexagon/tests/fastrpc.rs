//! The phone's transport on a stand-in for a phone: a `libcdsprpc.so` whose DSP is a process that
//! runs the phone's port and library entry (`dsp/test/phone/`). Part of the conformance suite,
//! and everything that can be wrong with a phone. Runs what `cargo xtask hexagon` has built;
//! without it the tests are listed as ignored: not run.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

mod built;
mod session;

use built::built;
use libtest_mimic::{Arguments, Trial};
use rustix::process::{Pid, Signal, kill_process};
use session::{belongings, children, work};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tandem_hexagon::fastrpc::set_library_path;
use tandem_hexagon::{FastrpcConfig, Hexagon, HexagonConfig, HexagonError};
use tandem_program::conformance::CHECKS;
use tandem_program::{DType, Device, DeviceError, Exactness, Op, Program, Tensor, Votes};

const MEMORY: HexagonConfig = HexagonConfig { memory: 256 << 20, window: 32 << 20 };

/// Checks of every run: products, attention, states, several buffers; the rest in a long run.
const SHORT: [&str; 7] =
    ["embed", "matmul_q4_0", "matmul_f16", "swiglu", "attention", "conv", "delta_chunked"];

/// A phone of its own: copies of the library differ by the settings beside them.
struct Phone {
    folder: PathBuf,
    config: FastrpcConfig,
}

impl Phone {
    /// `settings`: lines of `phone.conf` besides the program.
    fn new(name: &str, settings: &[&str]) -> Phone {
        let folder = scratch().join(name.replace(':', "-"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let driver = folder.join("libcdsprpc.so");
        std::fs::copy(built().join("libcdsprpc.so"), &driver).unwrap();
        let program = if settings.iter().any(|line| line.starts_with("program ")) {
            String::new()
        } else {
            format!("program {}", built().join("tandem-phone-host").display())
        };
        std::fs::write(folder.join("phone.conf"), format!("{program}\n{}\n", settings.join("\n"))).unwrap();
        let config = FastrpcConfig {
            driver,
            folder: libraries(),
            workers: 2,
            vtcm_bytes: 0,
            budget: Duration::from_secs(600),
        };
        Phone { folder, config }
    }

    fn device(&self) -> Result<Hexagon, HexagonError> {
        Hexagon::fastrpc(&MEMORY, &self.config)
    }

    /// Takes a function away: the linker looks names up in the file's table.
    fn without(self, symbol: &str) -> Phone {
        let mut bytes = std::fs::read(&self.config.driver).unwrap();
        let name: Vec<u8> = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let found: Vec<usize> =
            (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(&name)).collect();
        assert!(!found.is_empty(), "{symbol} is not in the library");
        for at in found {
            bytes[at + 1] = b'_';
        }
        std::fs::write(&self.config.driver, bytes).unwrap();
        self
    }

    /// The text of the error that opening gives.
    fn refusal(&self) -> String {
        self.device().err().expect("a device").to_string()
    }
}

impl Drop for Phone {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("phones-{}", std::process::id()))
}

/// Where the tests have FastRPC look: what was embedded is written there.
fn libraries() -> PathBuf {
    scratch().join("libraries")
}

/// Opening says all of this.
fn refused(name: &str, settings: &[&str], says: &[&str]) {
    let phone = Phone::new(name, settings);
    let text = phone.refusal();
    for part in says {
        assert!(text.contains(part), "{name}: no \"{part}\" in: {text}");
    }
    assert_eq!(children(), "", "{name}: a process is left");
}

/// What is wrong, what the stand-in is told, what the error has to say.
const REFUSALS: [(&str, &[&str], &[&str]); 15] = [
    ("no_unsigned_libraries", &["refuse unsigned"], &["no unsigned libraries", "sign", "--device cpu"]),
    ("unsigned_libraries_refused", &["fail unsigned=0x14"], &["no unsigned libraries", "not supported"]),
    ("a_busy_session", &["fail remote_handle64_open=0x8a"], &["no session is free", "another process"]),
    ("a_session_that_is_open", &["fail remote_handle64_open=0x80000420"], &["busy", "end that one"]),
    ("an_older_dsp", &["arch 0x69"], &["0x69", "v73", "--device cpu"]),
    (
        "a_library_for_another_dsp",
        &["fail remote_handle64_open=0x80000452"],
        &["libtandem-dsp-v73.so", "not a library for this DSP", "came with this daemon"],
    ),
    ("a_dsp_that_nobody_names", &["fail remote_handle_control=0x3b"], &["device file", "--device cpu"]),
    ("another_abi", &["refuse version"], &["packet ABI", "install the library"]),
    ("no_queue", &["fail dspqueue_create=0x14"], &["dspqueue_create", "not supported", "update"]),
    ("no_memory", &["fail rpcmem_alloc=1"], &["rpcmem_alloc", "no memory"]),
    ("memory_that_is_not_mapped", &["fail fastrpc_mmap=0x66"], &["fastrpc_mmap", "cannot be mapped"]),
    ("calls_that_fail", &["fail method2=0x68"], &["start", "connection is gone", "restart"]),
    ("no_on_chip_memory", &["faults vtcm"], &["no on-chip memory"]),
    ("on_chip_memory_in_use", &["faults vtcm-busy"], &["8192 KiB", "another process holds them"]),
    ("votes_that_are_refused", &["faults votes"], &["votes"]),
];

fn a_missing_driver_names_the_remedy() {
    let config = FastrpcConfig {
        driver: "libcdsprpc-that-is-not-there.so".into(),
        ..Phone::new("absent", &[]).config.clone()
    };
    let text = Hexagon::fastrpc(&MEMORY, &config).err().unwrap().to_string();
    assert!(text.contains("libcdsprpc-that-is-not-there.so") && text.contains("TANDEM_CDSPRPC"), "{text}");
}

fn missing_functions_are_named_or_made_up_for() {
    let phone = Phone::new("no_queue_functions", &[]).without("dspqueue_create");
    let text = phone.refusal();
    assert!(text.contains("has no dspqueue_create") && text.contains("update its system"), "{text}");
    // The older allocation serves.
    let phone = Phone::new("no_alloc2", &[]).without("rpcmem_alloc2");
    work(&mut phone.device().unwrap(), 3).unwrap();
}

fn a_library_that_fastrpc_does_not_look_for_is_told() {
    let mut phone = Phone::new("elsewhere", &[]);
    phone.config.folder = phone.folder.join("libraries");
    std::fs::create_dir_all(&phone.config.folder).unwrap();
    std::fs::copy(libraries().join("libtandem-dsp-v73.so"), phone.config.folder.join("libtandem-dsp-v73.so"))
        .unwrap();
    let text = phone.refusal();
    assert!(text.contains("DSP_LIBRARY_PATH"), "{text}");
}

/// Older phones: no URIs made, no notices, callbacks wanted of the queue, a newer DSP.
fn older_and_newer_phones_work() {
    for (name, settings) in [
        ("no_uris", &["refuse uri"][..]),
        ("callbacks", &["faults callbacks"]),
        ("lent", &["faults lend"]),
        ("v85", &["arch 0x85"]),
    ] {
        let phone = Phone::new(name, settings);
        let mut device = phone.device().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(device.info().name, "hexagon");
        assert_eq!(device.info().exactness, Exactness::Bits, "soft float below the stand-in");
        work(&mut device, 20).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// More than the DSP can see at once: maps give way to each other.
fn maps_are_windowed() {
    let phone = Phone::new("window", &[]);
    let mut device = phone.device().unwrap();
    let buffers: Vec<_> = (0..6).map(|_| device.create(8 << 20).unwrap()).collect();
    let tensor =
        |buffer| Tensor { buffer, offset: 0, dtype: DType::F32, rows: 2048, width: 1024, stride: 1024 };
    for (i, buffer) in buffers.iter().enumerate() {
        device.write(*buffer, 0, &(i as f32 + 1.0).to_le_bytes()).unwrap();
    }
    let round = [&buffers[..], &buffers[..1]].concat();
    for pair in round.windows(2) {
        let program =
            Program { ops: vec![Op::Add { a: tensor(pair[0]), b: tensor(pair[1]), out: tensor(pair[1]) }] };
        device.submit(&program).unwrap();
    }
    let mut sum = [0; 4];
    device.read(buffers[0], 0, &mut sum).unwrap();
    assert_eq!(f32::from_le_bytes(sum), 22.0);
    assert!(device.counters().maps > 7, "{:?}", device.counters());
}

fn votes_are_let_go_of_and_taken_back() {
    let phone = Phone::new("votes", &["faults lend"]);
    let mut device = phone.device().unwrap();
    let power = device.power().unwrap();
    for _ in 0..20 {
        work(&mut device, 1).unwrap();
        power.apply(&Votes::RELEASED).unwrap();
        assert!(matches!(work(&mut device, 1), Err(DeviceError::Votes(_))));
        power.apply(&Votes::HELD).unwrap();
    }
    work(&mut device, 1).unwrap();
    drop(device);
    assert!(matches!(power.apply(&Votes::HELD), Err(DeviceError::Lost(_))), "the session ended");
}

/// What a session that is lost says, and that the next one works.
fn lost(name: &str, settings: &[&str], budget: Duration, says: &str) {
    let mut phone = Phone::new(name, settings);
    phone.config.budget = budget;
    let mut device = phone.device().unwrap_or_else(|e| panic!("{name}: {e}"));
    let error = work(&mut device, u32::MAX).unwrap_err();
    assert!(matches!(&error, DeviceError::Lost(text) if text.contains(says)), "{name}: {error}");
    assert!(matches!(work(&mut device, 1), Err(DeviceError::Lost(_))), "{name}: it stays lost");
    let power = device.power().unwrap();
    assert!(matches!(power.apply(&Votes::RELEASED), Err(DeviceError::Lost(_))), "{name}");
    drop(device);
    let healthy = std::fs::read_to_string(phone.folder.join("phone.conf")).unwrap();
    let healthy: String = healthy.lines().filter(|line| line.starts_with("program")).collect();
    std::fs::write(phone.folder.join("phone.conf"), healthy).unwrap();
}

fn sessions_that_die_are_lost() {
    let long = Duration::from_secs(600);
    lost("dies", &["faults die=40"], long, "crashed");
    // Nobody tells: it is given up on when its budget is over.
    lost("dies_in_silence", &["faults die=40", "refuse notice"], Duration::from_millis(700), "no progress");
}

/// The reading that fails on some phones with large models.
fn a_queue_that_fails_is_lost() {
    let phone = Phone::new("interrupted", &["fail dspqueue_read=0x2e"]);
    let text = phone.refusal();
    assert!(text.contains("dspqueue_read") && text.contains("interrupted"), "{text}");
    let phone = Phone::new("unwritable", &["fail dspqueue_write=0x48"]);
    let text = phone.refusal();
    assert!(text.contains("dspqueue_write") && text.contains("no such map"), "{text}");
    let phone = Phone::new("power_call", &["fail method4=0x68"]);
    let text = phone.refusal();
    assert!(text.contains("power votes") && text.contains("connection is gone"), "{text}");
}

/// A DSP that hangs over a call for votes: the call comes back, within the budget and a little.
fn a_call_for_votes_that_hangs_is_given_up() {
    let mut phone = Phone::new("hung_votes", &[]);
    phone.config.budget = Duration::from_millis(1500);
    let mut device = phone.device().unwrap();
    work(&mut device, 2).unwrap();
    let power = device.power().unwrap();
    let process = Pid::from_raw(children().trim().parse().unwrap()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    assert!(matches!(power.apply(&Votes::RELEASED), Err(DeviceError::Lost(_))));
    assert!(matches!(work(&mut device, 1), Err(DeviceError::Lost(_))));
    drop(device);
    work(&mut phone.device().unwrap(), 2).unwrap();
}

/// A DSP that hangs over a batch.
fn a_dsp_that_hangs_is_given_up() {
    let mut phone = Phone::new("hangs", &[]);
    phone.config.budget = Duration::from_millis(1500);
    let mut device = phone.device().unwrap();
    work(&mut device, 2).unwrap();
    let process = Pid::from_raw(children().trim().parse().unwrap()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let error = work(&mut device, 1).unwrap_err();
    assert!(matches!(&error, DeviceError::Lost(text) if text.contains("no progress")), "{error}");
    drop(device);
    work(&mut phone.device().unwrap(), 2).unwrap();
}

/// Sessions leave no descriptors, maps, processes.
fn nothing_is_left() {
    let phone = Phone::new("left", &[]);
    // The driver stays loaded.
    drop(phone.device().unwrap());
    let before = belongings("tandem-phone");
    for round in 0..10 {
        let mut device = phone.device().unwrap();
        work(&mut device, 2).unwrap();
        if round % 2 == 0 {
            let process = Pid::from_raw(children().trim().parse().unwrap()).unwrap();
            kill_process(process, Signal::KILL).unwrap();
            work(&mut device, 1).unwrap_err();
        }
    }
    assert_eq!(before, belongings("tandem-phone"), "descriptors, maps, processes");
}

fn main() {
    std::fs::create_dir_all(libraries()).unwrap();
    let parts = ["libcdsprpc.so", "tandem-phone-host", "phone/libtandem-dsp-v73.so"];
    let here = parts.iter().all(|part| built().join(part).exists());
    if here {
        // Where none was embedded, those of the folder are taken.
        for file in std::fs::read_dir(built().join("phone")).unwrap().flatten() {
            std::fs::copy(file.path(), libraries().join(file.file_name())).unwrap();
        }
    } else {
        eprintln!("note: {} lacks what `cargo xtask hexagon` builds; NOT RUN", built().display());
    }
    let config = FastrpcConfig { folder: libraries(), ..FastrpcConfig::find() };
    // SAFETY: the first thing this process does: it has one thread.
    unsafe { set_library_path(&config) };

    let long = std::env::var_os("TANDEM_LONG").is_some();
    for name in SHORT {
        assert!(CHECKS.iter().any(|check| check.name == name), "the suite has no check {name}");
    }
    let mut trials = Vec::new();
    let mut add = |name: String, ready: bool, run: Box<dyn FnOnce() + Send>| {
        let trial = Trial::test(name, move || {
            run();
            Ok(())
        });
        trials.push(trial.with_ignored_flag(!ready));
    };
    let qemu = built().join("qemu/usr/bin/qemu-hexagon");
    let v73 = built().join("tandem-phone-v73");
    for check in CHECKS {
        let (run, name) = (check.run, check.name);
        let phone = move |target: &str, settings: &[&str]| {
            let phone = Phone::new(&format!("{target}-{name}"), settings);
            run(&|| Box::new(phone.device().unwrap_or_else(|e| panic!("{e}"))));
        };
        let chosen = long || SHORT.contains(&name);
        add(format!("host::{name}"), here && chosen, Box::new(move || phone("host", &[])));
        if name == "matmul_q4_0" {
            // On-chip memory is another process's between batches.
            add(format!("lent::{name}"), here, Box::new(move || phone("lent", &["faults lend"])));
            let settings = [format!("program {}", v73.display()), format!("qemu {}", qemu.display())];
            let ready = here && v73.exists() && qemu.exists();
            let run = move || phone("v73", &settings.each_ref().map(String::as_str));
            add(format!("v73::{name}"), ready, Box::new(run));
        }
    }
    for (name, settings, says) in REFUSALS {
        add(format!("{name}_names_the_remedy"), here, Box::new(move || refused(name, settings, says)));
    }
    let tests: [(&str, fn()); 11] = [
        ("a_missing_driver_names_the_remedy", a_missing_driver_names_the_remedy),
        ("missing_functions_are_named_or_made_up_for", missing_functions_are_named_or_made_up_for),
        (
            "a_library_that_fastrpc_does_not_look_for_is_told",
            a_library_that_fastrpc_does_not_look_for_is_told,
        ),
        ("older_and_newer_phones_work", older_and_newer_phones_work),
        ("maps_are_windowed", maps_are_windowed),
        ("votes_are_let_go_of_and_taken_back", votes_are_let_go_of_and_taken_back),
        ("sessions_that_die_are_lost", sessions_that_die_are_lost),
        ("a_queue_that_fails_is_lost", a_queue_that_fails_is_lost),
        ("a_dsp_that_hangs_is_given_up", a_dsp_that_hangs_is_given_up),
        ("a_call_for_votes_that_hangs_is_given_up", a_call_for_votes_that_hangs_is_given_up),
        ("nothing_is_left", nothing_is_left),
    ];
    for (name, run) in tests {
        add(name.into(), here, Box::new(run));
    }
    // One at a time: they count this process's descriptors and children.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let conclusion = libtest_mimic::run(&arguments, trials);
    let _ = std::fs::remove_dir_all(scratch());
    conclusion.exit();
}
