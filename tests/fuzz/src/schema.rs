//! A schema from a client: refused with a reason, or a constraint that allows something.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use tandem_engine::gguf::Gguf;
use tandem_engine::grammar::{COMPILER_THREAD, GrammarCompiler};
use tandem_engine::tokenizer::Tokenizer;

static COMPILER: OnceLock<GrammarCompiler> = OnceLock::new();

fn compiler() -> GrammarCompiler {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/qwen35-a.gguf");
    let gguf = Gguf::open(&model).expect("the golden model");
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("its tokenizer");
    GrammarCompiler::new(Arc::new(tokenizer)).expect("a compiler")
}

/// One input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(schema) = COMPILER.get_or_init(compiler).compile(text) {
        let mut constraint = schema.start();
        let _ = (constraint.mask(), constraint.can_end());
    }
}

/// Keeps quiet about the compiler's own panics: they are caught where it runs and become
/// errors. Elsewhere a panic is a finding.
pub fn hush() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name() != Some(COMPILER_THREAD) {
            report(info);
        }
    }));
}
