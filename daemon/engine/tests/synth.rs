//! Written models load and answer.

use tandem_cpu::{Cpu, CpuConfig};
use tandem_engine::engine::{Engine, EngineOptions};
use tandem_engine::synth::{Quant, Size, Synth};

#[test]
fn tiny_models_of_every_quantization_load_and_give_finite_logits() {
    let folder = std::env::temp_dir().join(format!("tandem-synth-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for quant in [Quant::F16, Quant::Q8_0, Quant::Q4_0, Quant::Q4K] {
        let path = folder.join(format!("{quant:?}.gguf"));
        let synth = Synth { size: Size::Tiny, quant, tokenizer: None, seed: 1 };
        let bytes = synth.write(&path).expect("written");
        assert_eq!(bytes, std::fs::metadata(&path).expect("the file").len());
        let device = Box::new(Cpu::new(CpuConfig::default()).expect("the CPU device"));
        let mut engine = Engine::open(&path, device, EngineOptions::default()).expect("it loads");
        let prompt: Vec<u32> = (0..100).collect();
        let mut rows = 0;
        engine
            .probe(&prompt, true, &mut |_, row| {
                rows += 1;
                assert!(row.iter().all(|v| v.is_finite()) && row.iter().any(|v| *v != row[0]), "{quant:?}");
            })
            .expect("logits");
        assert_eq!(rows, 100);
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn equal_seeds_write_equal_files() {
    let folder = std::env::temp_dir().join(format!("tandem-synth-seed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let write = |name: &str, seed| {
        let path = folder.join(name);
        Synth { size: Size::Tiny, quant: Quant::Q4_0, tokenizer: None, seed }.write(&path).expect("written");
        std::fs::read(path).expect("read")
    };
    assert!(write("a", 1) == write("b", 1));
    assert!(write("c", 1) != write("d", 2));
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn weights_are_repacked_when_the_model_is_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, cache) = (folder.path().join("tiny.gguf"), folder.path().join("weights"));
    Synth { size: Size::Tiny, quant: Quant::Q4_0, tokenizer: None, seed: 2 }.write(&path).expect("written");
    std::fs::create_dir(&cache).expect("a folder");
    let device =
        Cpu::new(CpuConfig { cache: Some(cache.clone()), ..CpuConfig::default() }).expect("the CPU device");
    let mut engine = Engine::open(&path, Box::new(device), EngineOptions::default()).expect("it loads");
    let files = || std::fs::read_dir(&cache).expect("the cache").count();
    let opened = files();
    assert!(opened > 10, "{opened} weights in another order");
    engine.probe(&[1, 2, 3], false, &mut |_, _| {}).expect("logits");
    assert_eq!(files(), opened, "a weight was repacked by the first pass");
}
