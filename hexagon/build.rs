//! Embeds the phone's libraries where `cargo xtask hexagon` has built them. Without them (a
//! fresh clone) the crate builds all the same, and looks for them in a folder when it runs.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// As in `hexagon/dsp/Makefile`.
const ARCHS: [u32; 4] = [73, 75, 79, 81];

fn main() {
    let own = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let root = own.parent().unwrap_or(&own);
    println!("cargo::rerun-if-env-changed=CARGO_TARGET_DIR");
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = root.join(target).join("hexagon/phone");
    // Watched, so that libraries built later are embedded then. A folder that is not there would
    // have this program run, and the crate built, every time.
    if let Err(error) = std::fs::create_dir_all(&folder) {
        println!("cargo::warning=cannot make {}: {error}", folder.display());
    }
    println!("cargo::rerun-if-changed={}", folder.display());
    println!("cargo::rerun-if-changed=build.rs");
    let mut text = String::from("/// Libraries by the DSP's version.\n");
    text += "pub(super) const EMBEDDED: &[(u32, &[u8])] = &[\n";
    for arch in ARCHS {
        let library = folder.join(format!("libtandem-dsp-v{arch}.so"));
        if library.exists() {
            let _ = writeln!(text, "    ({arch}, include_bytes!({:?})),", library.display().to_string());
        }
    }
    text += "];\n";
    let out = Path::new(&variable("OUT_DIR")).join("libraries.rs");
    if let Err(error) = std::fs::write(&out, text) {
        panic!("cannot write {}: {error}", out.display());
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|error| panic!("{name}: {error}; cargo sets it"))
}
