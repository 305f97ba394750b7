//! The Wasm policy host: what it loads, what it refuses, and what a plugin cannot do to it.

mod hostile;
mod recorded;

use hostile::{Plugin as Module, QUIET, of_world};
use recorded::{shared, shared_vocabulary};
use std::path::{Path, PathBuf};
use tandem_engine::gguf::Gguf;
use tandem_lab::simulate::{Settings, simulate};
use tandem_lab::trace::Reader;
use tandem_policy::{Cost, Kept, Observation, PlaceRequest, Placement, Positions};
use tandemd::policy::{MAX_COMPONENT_BYTES, Plugin, PolicyError, PolicyHost, PolicyStatus, Runtime, check};

/// A folder of this test, removed when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tandem-policy-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("written");
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn request(prompt: u32, shared: u32) -> PlaceRequest<'static> {
    PlaceRequest {
        prompt,
        shared,
        restored: 0,
        kept: &[],
        cap: 8,
        bytes_left: u64::MAX,
        checkpoint_bytes: 1,
        cost: Cost::PHONE,
        pass_limit: 512,
        max_saves: 6,
        boundaries: &[],
    }
}

fn placed(policy: &mut dyn Placement, prompt: u32, shared: u32) -> Vec<u32> {
    let mut positions = Positions::new();
    policy.place(&request(prompt, shared), &mut positions);
    let saved = positions.as_slice().to_vec();
    policy.observe(&Observation { prompt, shared, restored: 0, answer: 9, saved: &saved });
    saved
}

/// What the built-in policy answers to a first request.
fn built_in_answer(prompt: u32) -> Vec<u32> {
    let mut positions = Positions::new();
    let request = request(prompt, 0);
    (tandem_policies::PLACEMENTS[0].native)().place(&request, &mut positions);
    positions.clamp(&request);
    positions.as_slice().to_vec()
}

/// Runs one first request on a component in `name.wasm`.
fn first_answer(name: &str, component: &[u8]) -> (Vec<u32>, PolicyStatus) {
    let folder = Folder::new(name);
    let path = folder.write("plugin.wasm", component);
    let host = PolicyHost::new().expect("a host");
    let mut policy = host.placement(&path).expect("it loads");
    let answer = placed(&mut *policy, 700, 0);
    (answer, host.status().remove(0))
}

#[test]
fn every_built_in_component_passes_its_own_check() {
    let runtime = Runtime::new().expect("a runtime");
    for built_in in tandem_policies::PLACEMENTS {
        let plugin = Plugin::from_bytes(&runtime, built_in.name, built_in.component).expect("it loads");
        let report = check(&plugin);
        println!(
            "{}: {:.1?} us a place call, most fuel {} of {}",
            built_in.name, report.place_us, report.most_fuel, report.fuel_limit
        );
        assert!(report.passed(), "{}: {report:#?}", built_in.name);
    }
}

#[test]
fn an_endless_loop_costs_its_decision_and_the_built_in_policy_answers() {
    let module = Module { place: "(loop (br 0)) unreachable", ..QUIET };
    let (answer, status) = first_answer("loop", &module.component());
    assert_eq!(answer, built_in_answer(700));
    assert_eq!((status.timeouts, status.traps), (1, 0));
    assert!(!answer.is_empty());
}

#[test]
fn a_trap_costs_its_decision() {
    let (answer, status) = first_answer("trap", &Module { place: "unreachable", ..QUIET }.component());
    assert_eq!(answer, built_in_answer(700));
    assert_eq!((status.timeouts, status.traps), (0, 1));
}

#[test]
fn a_memory_hog_is_stopped_at_its_limit() {
    let place = "(loop (drop (memory.grow (i32.const 1))) (br 0)) unreachable";
    let (answer, status) = first_answer("hog", &Module { place, ..QUIET }.component());
    assert_eq!(answer, built_in_answer(700));
    assert_eq!((status.timeouts, status.traps), (0, 1));
}

#[test]
fn more_memory_than_allowed_from_the_start_is_refused_when_loading() {
    let folder = Folder::new("memory");
    let path = folder.write("plugin.wasm", &Module { pages: 65, ..QUIET }.component());
    let error = PolicyHost::new().expect("a host").placement(&path).err().expect("refused");
    assert!(matches!(error, PolicyError::Start { .. }), "{error}");
    assert!(error.to_string().contains("memory"), "{error}");
}

#[test]
fn a_million_positions_are_nonsense() {
    let place = "(i32.store (i32.const 16) (i32.const 0)) (i32.store (i32.const 20) (i32.const 1000000)) i32.const 16";
    let (answer, status) = first_answer("million", &Module { pages: 64, place, ..QUIET }.component());
    assert_eq!(answer, built_in_answer(700));
    assert_eq!((status.nonsense, status.traps), (1, 0));
}

#[test]
fn positions_the_request_does_not_allow_are_dropped_and_the_rest_is_taken() {
    // 701 of 700, the greatest number, 0, and 300 twice.
    let place = "(i32.store (i32.const 64) (i32.const 701)) (i32.store (i32.const 68) (i32.const -1))
                 (i32.store (i32.const 72) (i32.const 0)) (i32.store (i32.const 76) (i32.const 300))
                 (i32.store (i32.const 80) (i32.const 300))
                 (i32.store (i32.const 16) (i32.const 64)) (i32.store (i32.const 20) (i32.const 5)) i32.const 16";
    let (answer, status) = first_answer("past", &Module { place, ..QUIET }.component());
    assert_eq!(answer, [300]);
    assert_eq!((status.clamped, status.nonsense), (4, 0));
}

#[test]
fn evicting_what_is_not_there_is_nonsense() {
    let folder = Folder::new("evict");
    let path = folder.write("plugin.wasm", &Module { evict: "i32.const 9", ..QUIET }.component());
    let host = PolicyHost::new().expect("a host");
    let mut policy = host.placement(&path).expect("it loads");
    let kept = [Kept { position: 10, ..Kept::default() }, Kept { position: 20, ..Kept::default() }];
    assert!(policy.evict(&kept, 30) <= kept.len());
    assert_eq!(host.status()[0].nonsense, 1);
}

#[test]
fn a_plugin_that_keeps_failing_is_quarantined_until_the_next_reload() {
    let folder = Folder::new("quarantine");
    let path = folder.write("plugin.wasm", &Module { place: "unreachable", ..QUIET }.component());
    let host = PolicyHost::new().expect("a host");
    let mut policy = host.placement(&path).expect("it loads");
    for _ in 0..20 {
        assert_eq!(placed(&mut *policy, 700, 0).len(), built_in_answer(700).len());
    }
    let status = &host.status()[0];
    assert!(status.quarantined);
    // An `observe` between the failures takes a strike back, so a few more than four are needed.
    assert!(status.traps <= 6, "{status:?}");
    folder.write("plugin.wasm", &QUIET.component());
    assert!(host.reload().is_empty());
    assert!(!host.status()[0].quarantined);
    assert_eq!(placed(&mut *policy, 700, 0), Vec::<u32>::new());
}

#[test]
fn a_fresh_instance_is_told_the_last_requests_again() {
    // Saves at the number of `observe` calls so far plus 100, and traps on prompts of 13 tokens.
    let counting = Module {
        fields: "(global $seen (mut i32) (i32.const 100))",
        place: "(if (i32.eq (local.get $prompt) (i32.const 13)) (then unreachable))
                (i32.store (i32.const 64) (global.get $seen))
                (i32.store (i32.const 16) (i32.const 64)) (i32.store (i32.const 20) (i32.const 1)) i32.const 16",
        observe: "(global.set $seen (i32.add (global.get $seen) (i32.const 1)))",
        ..QUIET
    };
    let folder = Folder::new("replay");
    let path = folder.write("plugin.wasm", &counting.component());
    let host = PolicyHost::new().expect("a host");
    let mut policy = host.placement(&path).expect("it loads");
    for i in 0..5 {
        assert_eq!(placed(&mut *policy, 700, 0), [100 + i]);
    }
    let mut positions = Positions::new();
    policy.place(&request(13, 0), &mut positions);
    assert_eq!(host.status()[0].traps, 1);
    // Without the replay it would begin at 100 again.
    assert_eq!(placed(&mut *policy, 700, 0), [105]);
    // The file's code is taken up by running slots, which keep what was seen.
    folder.write("plugin.wasm", &Module { place: counting.place, ..counting }.component());
    assert!(host.reload().is_empty());
    assert!(placed(&mut *policy, 700, 0)[0] >= 105);
}

#[test]
fn a_file_that_changes_under_the_daemon_changes_nothing_until_a_reload_and_a_broken_one_nothing_at_all() {
    let one = "(i32.store (i32.const 64) (i32.const 111)) (i32.store (i32.const 16) (i32.const 64)) (i32.store (i32.const 20) (i32.const 1)) i32.const 16";
    let two = one.replace("111", "222");
    let folder = Folder::new("reload");
    let path = folder.write("plugin.wasm", &Module { place: one, ..QUIET }.component());
    let host = PolicyHost::new().expect("a host");
    let mut policy = host.placement(&path).expect("it loads");
    assert_eq!(placed(&mut *policy, 700, 0), [111]);
    folder.write("plugin.wasm", &Module { place: &two, ..QUIET }.component());
    assert_eq!(placed(&mut *policy, 700, 0), [111]);
    assert!(host.reload().is_empty());
    assert_eq!(placed(&mut *policy, 700, 0), [222]);
    folder.write("plugin.wasm", b"\0asm\x0d\0\x01\0 half a file");
    assert_eq!(host.reload().len(), 1);
    assert_eq!(placed(&mut *policy, 700, 0), [222]);
    std::fs::remove_file(&path).expect("removed");
    assert_eq!(host.reload().len(), 1);
    assert_eq!(placed(&mut *policy, 700, 0), [222]);
}

fn refusal(name: &str, bytes: &[u8]) -> PolicyError {
    let folder = Folder::new(name);
    let path = folder.write("plugin.wasm", bytes);
    PolicyHost::new().expect("a host").placement(&path).err().expect("refused")
}

#[test]
fn what_is_not_a_component_is_refused_with_what_it_is() {
    assert!(matches!(refusal("text", b"#!/bin/sh\n"), PolicyError::NotWasm { .. }));
    assert!(matches!(refusal("empty", b""), PolicyError::NotWasm { .. }));
    assert!(matches!(refusal("core", &QUIET.module()), PolicyError::CoreModule { .. }));
    let whole = QUIET.component();
    assert!(matches!(refusal("half", &whole[..whole.len() / 2]), PolicyError::Invalid { .. }));
    let huge = [whole, vec![0; MAX_COMPONENT_BYTES as usize]].concat();
    let error = refusal("huge", &huge);
    assert!(matches!(error, PolicyError::TooLarge { .. }), "{error}");
    assert!(error.to_string().contains(&MAX_COMPONENT_BYTES.to_string()), "{error}");
}

#[test]
fn a_missing_file_and_an_unknown_name_are_told_apart() {
    let host = PolicyHost::new().expect("a host");
    let missing = host.placement("/nonexistent/plugin.wasm").err().expect("refused");
    assert!(matches!(missing, PolicyError::Read { .. }));
    let unknown = host.placement("anchr").err().expect("refused").to_string();
    assert!(unknown.contains("anchr") && unknown.contains("divergence"), "{unknown}");
    let folder = Folder::new("folder");
    assert!(matches!(
        host.placement(&folder.0.display().to_string()).err().expect("refused"),
        PolicyError::Read { .. }
    ));
}

#[test]
fn a_load_error_names_the_import_or_export_that_differs() {
    let nothing = of_world("package a:b; world other { }", "(module)");
    let error = refusal("no-exports", &nothing).to_string();
    assert!(error.contains("place: func(request: place-request) -> list<u32>"), "{error}");

    let wrong = of_world(
        "package a:b; world other { export place: func(x: u32) -> u32; export evict: func(); export observe: func(); }",
        "(module (func (export \"place\") (param i32) (result i32) local.get 0)
                 (func (export \"evict\")) (func (export \"observe\")))",
    );
    let error = refusal("wrong-type", &wrong);
    assert!(matches!(error, PolicyError::Type { .. }), "{error}");
    assert!(error.to_string().contains("place"), "{error}");

    let clock = of_world(
        "package a:b; world other { import now: func() -> u64; }",
        "(module (import \"$root\" \"now\" (func (result i64))))",
    );
    let error = refusal("import", &clock).to_string();
    assert!(error.contains("\"now\"") && error.contains("WASI"), "{error}");
}

#[test]
fn a_component_that_fails_when_it_starts_is_refused() {
    let module = Module { fields: "(func $start unreachable) (start $start)", ..QUIET };
    assert!(matches!(refusal("start", &module.component()), PolicyError::Start { .. }));
    let endless = Module { fields: "(func $start (loop (br 0))) (start $start)", ..QUIET };
    assert!(matches!(refusal("endless", &endless.component()), PolicyError::Start { .. }));
}

#[test]
fn every_slot_has_an_instance_of_its_own() {
    let counting = Module {
        fields: "(global $seen (mut i32) (i32.const 1))",
        place: "(i32.store (i32.const 64) (global.get $seen))
                (global.set $seen (i32.add (global.get $seen) (i32.const 1)))
                (i32.store (i32.const 16) (i32.const 64)) (i32.store (i32.const 20) (i32.const 1)) i32.const 16",
        ..QUIET
    };
    let folder = Folder::new("slots");
    let path = folder.write("plugin.wasm", &counting.component());
    let host = PolicyHost::new().expect("a host");
    let mut one = host.placement(&path).expect("it loads");
    let mut other = host.placement(&path).expect("it loads");
    assert_eq!(placed(&mut *one, 700, 0), [1]);
    assert_eq!(placed(&mut *one, 700, 0), [2]);
    assert_eq!(placed(&mut *other, 700, 0), [1]);
    // Two pages each, and no more when one is gone.
    assert_eq!(host.status()[0].memory, 4 << 16);
    drop(one);
    assert_eq!(host.status()[0].memory, 2 << 16);
}

#[test]
fn compiled_code_is_kept_only_where_nobody_else_can_write() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("cache");
    let cache = folder.0.join("cache");
    let files = || std::fs::read_dir(&cache).expect("the cache").count();
    let use_it = || {
        let host = PolicyHost::with_cache(&cache).expect("a host");
        let mut policy = host.placement("divergence").expect("it loads");
        placed(&mut *policy, 700, 300)
    };
    assert_eq!(use_it(), [300]);
    assert_eq!(files(), 2);
    assert_eq!(use_it(), [300]);
    assert_eq!(files(), 2);
    // Half a file is not run.
    let code = std::fs::read_dir(&cache)
        .expect("the cache")
        .map(|e| e.expect("an entry").path())
        .find(|p| p.extension().is_some_and(|e| e == "code"))
        .expect("the compiled code");
    std::fs::write(&code, b"half").expect("written");
    assert_eq!(use_it(), [300]);
    for entry in std::fs::read_dir(&cache).expect("the cache") {
        std::fs::remove_file(entry.expect("an entry").path()).expect("removed");
    }
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o777)).expect("opened to all");
    assert_eq!(use_it(), [300]);
    assert_eq!(files(), 0);
}

/// A log in memory.
#[derive(Clone, Default)]
struct Written(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nothing panics here").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_plugin_may_log_a_few_short_lines_a_call() {
    // A hundred lines of 1,000 letters and a newline, which must not begin a line of the log.
    let chatty = Module {
        imports: "(import \"$root\" \"log\" (func $log (param i32 i32 i32)))",
        fields: "(data (i32.const 512) \"\\nAAAA\")",
        place: "(local $i i32)
                (memory.fill (i32.const 513) (i32.const 65) (i32.const 400))
                (loop (call $log (i32.const 1) (i32.const 512) (i32.const 400))
                      (local.set $i (i32.add (local.get $i) (i32.const 1)))
                      (br_if 0 (i32.lt_u (local.get $i) (i32.const 100))))
                i32.const 16",
        ..QUIET
    };
    let written = Written::default();
    let log = written.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || log.clone()).with_ansi(false).finish();
    let status = tracing::subscriber::with_default(subscriber, || first_answer("log", &chatty.component()).1);
    assert_eq!((status.traps, status.stood_in), (0, 0));
    let text = String::from_utf8(written.0.lock().expect("nothing panics here").clone()).expect("text");
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.lines().all(|line| line.contains("WARN") && line.len() < 400), "{text}");
}

/// Requests that a policy is asked in turn, with what came of each.
fn same_decisions(reader: &Reader, traces: &[PathBuf]) {
    let host = PolicyHost::new().expect("a host");
    let settings = Settings::default();
    for trace in traces {
        let requests = reader.read(trace).expect("a trace");
        for built_in in tandem_policies::PLACEMENTS {
            let native = simulate(built_in.name, &requests, &settings, &built_in.native);
            let make = || host.placement(built_in.name).expect("it loads");
            let wasm = simulate(built_in.name, &requests, &settings, &make);
            assert_eq!(native.steps, wasm.steps, "{} on {}", built_in.name, trace.display());
        }
    }
    assert_eq!(host.status().len(), tandem_policies::PLACEMENTS.len(), "one did not load as Wasm");
    for status in host.status() {
        let failed = status.traps + status.timeouts + status.nonsense + status.failed_starts;
        assert_eq!((failed, status.stood_in), (0, 0), "{status:?}");
        assert!(status.calls > 0, "{status:?}");
        // The slots are gone, and their instances with them.
        assert_eq!(status.memory, 0, "{status:?}");
    }
}

#[test]
fn native_and_wasm_decide_the_same_on_the_demo_trace() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests");
    let reader = Reader::open(&tests.join("model/demo.gguf")).expect("a vocabulary");
    same_decisions(&reader, &["demo", "heldout"].map(|name| tests.join(format!("traces/{name}.jsonl"))));
}

#[test]
fn native_and_wasm_decide_the_same_on_every_shared_trace() {
    let Some(vocabulary) = shared_vocabulary() else { return };
    let gguf = Gguf::from_bytes(&vocabulary).expect("a GGUF file");
    let reader = Reader::new(&gguf).expect("a vocabulary");
    let trace = |name| shared(&format!("traces/{name}.jsonl")).expect("beside the vocabulary");
    same_decisions(&reader, &recorded::TRACES.map(trace));
}
